"""What a release of a serving engine takes where its start command says nothing (specs/catalogue/engine_releases.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import GpuSpec

_DATA = json.loads((resources.files("autoconfig.specs") / "catalogue" / "engine_releases.json").read_text(encoding="utf-8"))
MIB = 2**20
DRIVER_SHARE = 1.006
"""nvidia-smi's total over cudaMemGetInfo's where the former is not known of a card."""


@dataclass(frozen=True, kw_only=True)
class ReleaseSetting:
    """A default or constant of a release."""

    value: Any
    source: str
    since: str


def version_of(release: str) -> tuple[int, ...]:
    """`v0.11.0rc2`, `0.5.3.post1` as (0, 11, 0), (0, 5, 3). Raises InputError where there is no number."""
    found = re.search(r"(?<![0-9.])([0-9]{1,3}(?:\.[0-9]{1,4}){1,2})(?![0-9])", release)
    if found is None:
        raise InputError(f"{option('release')} {release[:40]!r}: write it as 0.19.1")
    return tuple(int(part) for part in found[1].split("."))


def newest_release(engine: str) -> str:
    """The newest that is known."""
    return str(_DATA[engine]["newest"])


def first_release(engine: str) -> str:
    """The first whose memory is modelled."""
    return str(_DATA[engine]["first"])


def later_release(engine: str, release: str) -> str:
    """What is said of a release after the newest that is known; empty for others."""
    newest = newest_release(engine)
    if not release or version_of(release) <= (*version_of(newest), 999):
        return ""
    return f"later than the newest that is known, whose settings are taken: known are {first_release(engine)} to {newest}"


def check_release(engine: str, release: str) -> None:
    """Raises UnsupportedError for a release before the first whose memory is modelled."""
    first = first_release(engine)
    if version_of(release) < version_of(first):
        raise UnsupportedError(
            f"{engine} {release}: the memory of releases before {first} is not modelled; it had other buffers and other rules "
            f"for its cache. Say {option('release')} {first} or later"
        )


@cache
def settings(engine: str, release: str) -> Mapping[str, ReleaseSetting]:
    """Of this release by key; empty: of the newest. Raises as `check_release`."""
    release = release or newest_release(engine)
    check_release(engine, release)
    at = version_of(release)
    found = {}
    for key, rows in _DATA[engine]["values"].items():
        row = [one for one in rows if version_of(one["since"]) <= at][-1]
        found[key] = ReleaseSetting(value=row["value"], source=row["source"], since=row["since"])
    return found


def schedules_synchronously(engine: str, release: str) -> bool:
    """Whether vLLM puts an iteration together only when the one before has ended: the GPU waits for the host in between."""
    return engine == "vllm" and not settings(engine, release)["async_scheduling"].value


def driver_mib(gpu: GpuSpec) -> float:
    """The card's memory in MiB as nvidia-smi says it, which SGLang reads; torch sees 0.5 to 0.6 % less."""
    return float(_DATA["nvidia_smi_mib"].get(gpu.id, gpu.memory_bytes / MIB * DRIVER_SHARE))
