"""Constants that a study of serving learned, as a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import InputError
from autoconfig.specs.files import read_text, write_atomically
from autoconfig.time_model.serving.tables import NUMBERS, EngineConstants, ServingCalibration, shipped_calibration

KIND, SCHEMA_VERSION = "serving calibration", 1
MAX_BYTES = 2**20
FACTORS = ("factor", "experts_factor")
LEAST_FACTOR = 1e-6


def write_serving_calibration(engine: str, gpu: str, origin: str, constants: EngineConstants, target: Path) -> str:
    """Write the constants of an engine on a GPU; returns what was learned, in words. Raises FileError."""
    body = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "engine": engine,
        "gpu": gpu,
        "origin": origin,
        "constants": {name: getattr(constants, name) for name in (*FACTORS, *NUMBERS)},
    }

    write_atomically(target, lambda file: file.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8"))
    return f"of {engine} on {gpu}"


def serving_calibration(path: str | None) -> ServingCalibration:
    """The shipped constants; with a file, its own for its engine and GPU. Raises FileError or InputError."""
    shipped = shipped_calibration()
    if path is None:
        return shipped
    body = _read(Path(path))
    engine, constants = body["engine"], body["constants"]
    factors = {"all": constants["factor"], "experts": constants["experts_factor"], "arithmetic": 0.0}
    pooled = shipped.pooled
    if pooled is not None:
        pooled = replace(pooled, engines=tuple(name for name in pooled.engines if name != engine))
    return replace(
        shipped,
        pooled=pooled,
        engines={**shipped.engines, engine: {name: constants[name] for name in NUMBERS}},
        gpus={**shipped.gpus, engine: {**shipped.gpus.get(engine, {}), body["gpu"]: factors}},
    )


def _read(path: Path) -> dict[str, Any]:
    shown = f"calibration {str(path)[:200]!r}"
    try:
        body = json.loads(read_text(path, "a calibration of autoconfig deployments --profile", MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shown} is no JSON; write one with autoconfig deployments --profile") from error
    constants = body.get("constants") if isinstance(body, dict) else None
    if not isinstance(constants, dict) or body.get("kind") != KIND or body.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{shown} is no {KIND}; write one with autoconfig deployments --profile --save-calibration FILE")
    names = (*FACTORS, *NUMBERS)
    wrong = [n for n in names if isinstance(constants.get(n), bool) or not isinstance(constants.get(n), int | float)]
    named = all(isinstance(body.get(n), str) for n in ("engine", "gpu"))
    if wrong or not named or not all((LEAST_FACTOR if n in FACTORS else 0) <= constants[n] < 1e6 for n in names):
        limits = f"numbers from 0 ({', '.join(FACTORS)}: {LEAST_FACTOR:g}) to 1e6"
        raise InputError(f"{shown}: constants {', '.join(names)} must be {limits}, engine and gpu names")
    return body
