"""Which entry of a calibration a scenario takes, the calibration that ships, and its file format.

Where a generation has no entry, its parent's stands in (`data/generations.json`), then the architecture's pool, then the
documented defaults (all factors 1). The files are written by `autoconfig calibrate`; the one that ships was fitted on the
published runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.calibration import MOST, NAMES, POOL, Calibration, Entry, Factors, OwnRuns
from autoconfig.specs.errors import InputError
from autoconfig.specs.scenario import Scenario

SCHEMA_VERSION = 1


def entry_of(calibration: Calibration, architecture: str, generation: str, *, moe: bool = False) -> Entry | None:
    """The entry of the generation on this architecture (for a mixture of experts its own, else the dense one), else of its
    nearest ancestor, else the architecture's pool; None for the documented defaults."""
    here = {(entry.generation, entry.kind): entry for entry in calibration.entries if entry.architecture == architecture}
    wanted: str | None = generation
    while wanted is not None:
        for kind in ("moe", "dense") if moe else ("dense",):
            if (wanted, kind) in here:
                return here[wanted, kind]
        wanted = parents().get(wanted)
    return here.get((POOL, "dense"))


def entry_for(scenario: Scenario, *, moe: bool) -> Entry | None:
    """`entry_of` for a scenario's GPU and software."""
    return entry_of(scenario.calibration, scenario.cluster.gpu.architecture, scenario.software.generation, moe=moe)


def factors_for(scenario: Scenario) -> Factors:
    """What the scenario's calibration says of its GPU, software and kind of model; 1 where nothing was fitted."""
    entry = entry_for(scenario, moe=scenario.model.is_moe)
    return Factors() if entry is None else entry.factors


@cache
def parents() -> Mapping[str, str | None]:
    """Generation -> the generation that stands in for it."""
    text = (resources.files("autoconfig.time_model") / "data" / "generations.json").read_text(encoding="utf-8")
    table: dict[str, str | None] = json.loads(text)["parents"]
    return table


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
