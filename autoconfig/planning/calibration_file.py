"""Calibration files: the shipped one, the user's own, and how they are written."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.files import read_text, write_text
from autoconfig.specs.scenario import DOCUMENTED_DEFAULTS, MOST, NAMES, Calibration, Entry, Factors, OwnRuns

MAX_FILE_BYTES = 16 * 2**20
NO_CALIBRATION = "none"
CALIBRATION_VERSION = 1


def named_calibration(name: str | None) -> Calibration:
    """None: the shipped one. `none`: the documented defaults. Else a file. Raises FileError or InputError."""
    if name is None:
        return shipped()
    return DOCUMENTED_DEFAULTS if name == NO_CALIBRATION else read_calibration(Path(name))


def calibration_of(name: str | None, own: Calibration | None, *, local_files: bool) -> Calibration:
    """The calibration of a question: `own` in place of the shipped one. Raises InputError for a file that may not be named."""
    if not local_files and name not in (None, NO_CALIBRATION):
        raise InputError(f"{option('calibration')} {name!r}: leave it out for the service's own, or say {NO_CALIBRATION}")
    return own if name is None and own is not None else named_calibration(name)


def write_calibration(calibration: Calibration, target: Path) -> None:
    """As JSON, written beside and renamed. Raises FileError."""
    write_text(target, json.dumps(to_json(calibration), indent=1) + "\n")


def read_calibration(source: Path) -> Calibration:
    """A file that `write_calibration` wrote. Raises FileError or InputError."""
    try:
        return parse(json.loads(read_text(source, "a calibration of autoconfig calibrate", MAX_FILE_BYTES)), str(source))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not a calibration; write one with autoconfig calibrate") from error


@cache
def shipped() -> Calibration:
    """The calibration that ships with the project."""
    text = (resources.files("autoconfig.time_model") / "data" / "calibration.json").read_text(encoding="utf-8")
    return parse(json.loads(text), "the shipped calibration")


def parse(data: Any, name: str) -> Calibration:
    """A calibration from JSON. Raises InputError naming what is wrong."""
    if (
        not isinstance(data, dict)
        or data.get("schema_version") != CALIBRATION_VERSION
        or not isinstance(data.get("entries"), list)
    ):
        raise InputError(
            f"{name} is not a calibration of schema version {CALIBRATION_VERSION}; write one with autoconfig calibrate"
        )
    try:
        return Calibration(version=str(data["version"]), entries=tuple(_entry(item, name) for item in data["entries"]))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name}: an entry is malformed ({type(error).__name__}: {error})") from error


def _entry(item: dict[str, Any], name: str) -> Entry:
    factors = {key: float(value) for key, value in item["factors"].items()}
    unknown = set(factors) - set(NAMES)
    if unknown:
        raise InputError(f"{name}: unknown factors {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}")
    for key, value in factors.items():
        if not 1 / MOST <= value <= MOST:
            raise InputError(f"{name}: factor {key}={value:g} of {item['generation']} must be from {1 / MOST:g} to {MOST:g}")
    log_sd = {key: float(value) for key, value in item.get("log_sd", {}).items()}
    for key, value in log_sd.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name}: log_sd {key}={value:g} of {item['generation']} must be a finite number from 0")
    return Entry(
        architecture=str(item["architecture"]),
        generation=str(item["generation"]),
        kind=str(item.get("kind", "dense")),
        factors=Factors(**factors),
        log_sd=log_sd,
        determined=tuple(item.get("determined", ())),
        rows=tuple(item.get("rows", ())),
        sources=tuple(item.get("sources", ())),
        own=_own(item["own"], name) if "own" in item else None,
    )


def _own(item: dict[str, Any], name: str) -> OwnRuns:
    found = OwnRuns(runs=int(item["runs"]), log_sd=float(item["log_sd"]), degrees_of_freedom=float(item["degrees_of_freedom"]))
    if not (found.runs >= 1 and 0 <= found.log_sd <= math.log(MOST) and 0 <= found.degrees_of_freedom <= found.runs):
        limits = f"runs of at least 1, log_sd from 0 to {math.log(MOST):.2f}, degrees_of_freedom from 0 to runs"
        raise InputError(f"{name}: own runs {item}: use {limits}")
    return found


def to_json(calibration: Calibration) -> dict[str, Any]:
    """What `parse` reads."""
    return {
        "schema_version": CALIBRATION_VERSION,
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
