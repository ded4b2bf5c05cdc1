"""Whether a release of an engine has code for a model: its registry, as specs/catalogue/engine_architectures.toml has it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.engines.releases import first_release, newest_release, version_of

_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(
        (resources.files("autoconfig.specs") / "catalogue" / "engine_architectures.toml").read_text(encoding="utf-8")
    )


def catalogue_architectures(name: str) -> tuple[str, ...]:
    """`architectures` in the config.json of a catalogue model, of a changed one (`llama3-8b*`) too; empty where it has none."""
    return next(((found,) for pattern, found in _table()["models"] if fnmatchcase(name.rstrip("*"), pattern)), ())


def _patch(release: str) -> tuple[int, ...]:
    """`0.26` as (0, 26, 0)."""
    return (*version_of(release), 0)[:3]


def registered(engine: str, release: str, architectures: Sequence[str]) -> tuple[str, str]:
    """(yes, no or uncertain, why): whether the release (empty: the newest that is known) registers one of them; yes for those
    of which nothing is known, and for releases that are not modelled. The engine's words are those of _raise_for_unsupported
    in models/registry.py of either engine."""
    rows = [_table()["registered"].get(name, {}).get(engine) for name in architectures]
    known = [row for row in rows if row]
    at = _patch(release or newest_release(engine))
    if not known or len(known) < len(rows) or at < _patch(first_release(engine)):
        return "yes", ""
    without, first = min(known, key=lambda row: _patch(row[1]))
    if at >= _patch(first):
        return "yes", ""
    own = ", ".join(f"'{name}'" for name in architectures)
    if without and at <= _patch(without):
        since = f"{_NAMES[engine]} {release} has no code for it; {first} has"
        return "no", f"Model architectures [{own}] are not supported for now. ({since})"
    older = f"{without} has not, " if without else ""
    return "uncertain", f"whether {_NAMES[engine]} {release} has code for [{own}] is not known: {older}{first} has"
