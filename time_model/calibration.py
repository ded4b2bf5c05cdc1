"""Calibration: a few factors per (GPU architecture, software generation), fitted on measured runs, applied to a software stack.

A factor is seconds over the formula's seconds: `step` of the whole step, the others of one kind of operator. Where a generation
has no entry, its parent's stands in (`data/generations.json`), then the architecture's pool, then the documented defaults (all
factors 1). The files are written by `autoconfig calibrate`; the one that ships was fitted on the published runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.gpu import GpuSpec
from autoconfig.specs.software.software import SoftwareStack

SCHEMA_VERSION = 1
POOL = "*"
"""Generation name of the entry that stands in where neither a generation nor an ancestor has one."""
DEFAULTS_VERSION = "documented-defaults"
MOST = 4.0
"""Factors beyond 1/MOST to MOST are not believed: fitting stops there, and a file that holds one is refused."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Seconds over the formula's, by what they scale."""

    step: float = 1.0
    memory: float = 1.0
    """Memory-bound chains."""
    communication: float = 1.0
    attention: float = 1.0
    moe: float = 1.0
    """Grouped GEMMs, routing, permutation."""
    host: float = 1.0
    """The host's floor per layer."""


NAMES = tuple(f.name for f in fields(Factors))


@dataclass(frozen=True, kw_only=True)
class OwnRuns:
    """The runs of one cluster's own that an entry was refined on, and how they scatter around it."""

    runs: int
    log_sd: float
    """Scatter of log(measured / predicted) around the refined entry."""
    degrees_of_freedom: float
    """Runs less the effective number of factors that they determined."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was fitted for one (architecture, generation)."""

    architecture: str
    generation: str
    kind: str = "dense"
    """dense or moe: mixtures of experts have factors of their own."""
    factors: Factors
    log_sd: dict[str, float] = field(default_factory=dict)
    """Posterior standard deviation of each factor's logarithm; the prior's where the runs do not determine it."""
    determined: tuple[str, ...] = ()
    """Factors that the runs narrowed to less than half of their prior's width."""
    rows: tuple[str, ...] = ()
    """Ids of the measured runs behind it."""
    sources: tuple[str, ...] = ()
    own: OwnRuns | None = None
    """None: published runs, of clusters that are not the user's."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All entries and a version that answers name."""

    version: str
    entries: tuple[Entry, ...] = ()

    def entry_for(self, gpu: GpuSpec, generation: str, *, moe: bool = False) -> Entry | None:
        """`entry_of` for a GPU."""
        return self.entry_of(gpu.architecture, generation, moe=moe)

    def entry_of(self, architecture: str, generation: str, *, moe: bool = False) -> Entry | None:
        """The entry of the generation on this architecture (for a mixture of experts its own, else the dense one), else of
        its nearest ancestor, else the architecture's pool; None for the documented defaults."""
        here = {(entry.generation, entry.kind): entry for entry in self.entries if entry.architecture == architecture}
        wanted: str | None = generation
        while wanted is not None:
            for kind in ("moe", "dense") if moe else ("dense",):
                if (wanted, kind) in here:
                    return here[wanted, kind]
            wanted = parents().get(wanted)
        return here.get((POOL, "dense"))

    def apply(self, gpu: GpuSpec, stack: SoftwareStack, *, moe: bool = False) -> SoftwareStack:
        """The stack with this GPU's factors; the stack itself where nothing was fitted."""
        entry = self.entry_for(gpu, stack.generation, moe=moe)
        return stack if entry is None else scaled(stack, entry.factors)


DOCUMENTED_DEFAULTS = Calibration(version=DEFAULTS_VERSION)


@cache
def parents() -> Mapping[str, str | None]:
    """Generation -> the generation that stands in for it."""
    text = (resources.files("autoconfig.time_model") / "data" / "generations.json").read_text(encoding="utf-8")
    table: dict[str, str | None] = json.loads(text)["parents"]
    return table


def scaled(stack: SoftwareStack, factors: Factors) -> SoftwareStack:
    """The stack with its time constants scaled; factors multiply what is there, so that they compose. `step` is about what
    the GPU does: the host's own seconds stay."""
    t, host = stack.time, factors.host / factors.step
    return replace(
        stack,
        time=replace(
            t,
            step_factor=t.step_factor * factors.step,
            pointwise_factor=t.pointwise_factor * factors.memory,
            communication_factor=t.communication_factor * factors.communication,
            attention_factor=t.attention_factor * factors.attention,
            moe_factor=t.moe_factor * factors.moe,
            host_floor_seconds=t.host_floor_seconds * host,
            moe_host_seconds=t.moe_host_seconds * host,
            expert_host_seconds=t.expert_host_seconds * host,
        ),
    )


@cache
def shipped() -> Calibration:
    """The calibration that ships with the project."""
    text = (resources.files("autoconfig.time_model") / "data" / "calibration.json").read_text(encoding="utf-8")
    return parse(json.loads(text), "the shipped calibration")


def parse(data: Any, name: str) -> Calibration:
    """A calibration from JSON. Raises InputError naming what is wrong."""
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION or not isinstance(data.get("entries"), list):
        raise InputError(f"{name} is not a calibration of schema version {SCHEMA_VERSION}; write one with autoconfig calibrate")
    try:
        return Calibration(version=str(data["version"]), entries=tuple(_entry(item, name) for item in data["entries"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name}: an entry is malformed ({type(error).__name__}: {error})") from error


def _entry(item: dict[str, Any], name: str) -> Entry:
    factors = {key: float(value) for key, value in item["factors"].items()}
    unknown = set(factors) - set(NAMES)
    if unknown:
        raise InputError(f"{name}: unknown factors {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}")
    for key, value in factors.items():
        if not 1 / MOST <= value <= MOST:
            raise InputError(f"{name}: factor {key}={value:g} of {item['generation']} must be from {1 / MOST:g} to {MOST:g}")
    return Entry(
        architecture=str(item["architecture"]),
        generation=str(item["generation"]),
        kind=str(item.get("kind", "dense")),
        factors=Factors(**factors),
        log_sd={key: float(value) for key, value in item.get("log_sd", {}).items()},
        determined=tuple(item.get("determined", ())),
        rows=tuple(item.get("rows", ())),
        sources=tuple(item.get("sources", ())),
        own=_own(item["own"], name) if "own" in item else None,
    )


def _own(item: dict[str, Any], name: str) -> OwnRuns:
    found = OwnRuns(runs=int(item["runs"]), log_sd=float(item["log_sd"]), degrees_of_freedom=float(item["degrees_of_freedom"]))
    if not (found.runs >= 1 and 0 <= found.log_sd <= math.log(MOST) and 0 <= found.degrees_of_freedom <= found.runs):
        raise InputError(
            f"{name}: own runs {item}: use runs of at least 1, log_sd from 0 to {math.log(MOST):.2f}, degrees_of_freedom "
            "from 0 to runs"
        )
    return found


def to_json(calibration: Calibration) -> dict[str, Any]:
    """What `parse` reads."""
    return {
        "schema_version": SCHEMA_VERSION,
        "version": calibration.version,
        "entries": [
            {
                "architecture": e.architecture,
                "generation": e.generation,
                "kind": e.kind,
                "factors": {name: round(getattr(e.factors, name), 4) for name in NAMES},
                "log_sd": {name: round(value, 4) for name, value in e.log_sd.items()},
                "determined": list(e.determined),
                "sources": list(e.sources),
                "rows": list(e.rows),
                **({} if e.own is None else {"own": asdict(e.own)}),
            }
            for e in calibration.entries
        ],
    }
