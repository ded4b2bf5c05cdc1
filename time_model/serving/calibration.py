"""Constants of an engine generation that operators do not show: what the host and the runtime add to an iteration.

Fitted by `make calibration` on published runs (tools/fit_serving.py) into data/serving_calibration.json, per engine generation,
and one factor per GPU and generation. A generation without constants takes its parent's (specs/catalogue/engines), a GPU
without a factor that of its parent generation, then that of its parent GPU (data/serving/chips.json).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.software.engine import EngineSpec, load_engine

PATH = resources.files("autoconfig.time_model") / "data" / "serving_calibration.json"
NUMBERS = (
    "communication_factor",
    "host_s",
    "sequence_s",
    "layer_s",
    "eager_layer_s",
    "eager_sequence_s",
    "sampler_bytes",
    "request_s",
)


@dataclass(frozen=True, kw_only=True)
class EngineConstants:
    """What one iteration costs beside its operators."""

    factor: float = 1.0
    """Operators in the engine over operators alone (gaps, clocks, mixed kernels)."""
    experts_factor: float = 1.0
    """The same for routed experts."""
    communication_factor: float = 1.0
    """The same for collectives."""
    eager_layer_s: float = 0.0
    """Host seconds to launch one layer operator by operator: a floor of iterations outside of CUDA graphs."""
    eager_sequence_s: float = 0.0
    """Host seconds for a sequence of an iteration in a Python runtime (schedule, sample, hand out); part of it."""
    host_s: float = 0.0
    """Seconds of an iteration in which the GPU waits for the host."""
    sequence_s: float = 0.0
    """The same per sequence of the iteration: scheduling, sampling parameters, detokenising."""
    layer_s: float = 0.0
    """The same per layer: launches that no CUDA graph hides."""
    sampler_bytes: float = 8.0
    """Memory traffic of sampling per logit."""
    request_s: float = 0.0
    """Per request before its first iteration: HTTP, tokenising, queues."""
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class ServingCalibration:
    """`engines`: generation -> numbers of EngineConstants; `gpus`: generation -> GPU id -> {"all": ..., "experts": ...}."""

    engines: Mapping[str, Mapping[str, float]]
    gpus: Mapping[str, Mapping[str, Mapping[str, float]]]
    parents: Mapping[str, str]
    """GPU -> the one whose factor stands in."""

    def constants(self, engine: EngineSpec, gpu: GpuSpec) -> EngineConstants:
        """Constants for this pair, from the nearest generation and GPU that have them."""
        factor, where = self._factor(engine, gpu.id, "all")
        experts, _ = self._factor(engine, gpu.id, "experts")
        own = self._generation(engine)
        origin = f"constants of {own or 'no engine'}, factor of {where}"
        return EngineConstants(factor=factor, experts_factor=experts, origin=origin, **self.engine_numbers(engine))

    def engine_numbers(self, engine: EngineSpec) -> dict[str, Any]:
        """What the generation, or the first of its parents that was fitted, has; empty where none was."""
        own = self._generation(engine)
        return {k: v for k, v in self.engines[own].items() if k in NUMBERS} if own else {}

    def factor(self, engine: EngineSpec, gpu: str, *, experts: bool = False) -> float:
        """Of operators, or of routed experts alone, whose kernels were replaced from generation to generation: theirs is not
        inherited, 1 where the generation has none."""
        return self._factor(engine, gpu, "experts" if experts else "all")[0]

    def _generation(self, engine: EngineSpec) -> str | None:
        return next((name for name in _lineage(engine) if name in self.engines), None)

    def _factor(self, engine: EngineSpec, gpu: str, kind: str) -> tuple[float, str]:
        """(factor, where it is from).

        Measured; else the parent GPU's under this generation times what sets the two GPUs apart in the nearest generation that
        has both; else the GPU's, or its parent's, in the nearest generation.
        """
        lineage = _lineage(engine) if kind == "all" else [engine.name]
        own = self._known(engine.name, gpu, kind)
        if own is not None:
            return own, f"{gpu} under {engine.name}"
        parent = self.parents.get(gpu, "")
        here = self._known(engine.name, parent, kind)
        for name in lineage[1:]:
            mine, theirs = self._known(name, gpu, kind), self._known(name, parent, kind)
            if here is not None and mine is not None and theirs:
                return here * mine / theirs, f"{parent} under {engine.name}, as {gpu} to {parent} under {name}"
        at: str | None = gpu
        while at is not None:
            for name in lineage:
                found = self._known(name, at, kind)
                if found is not None:
                    return found, f"{at} under {name}"
            at = self.parents.get(at)
        return 1.0, "no GPU (operators alone)"

    def _known(self, engine: str, gpu: str, kind: str) -> float | None:
        return self.gpus.get(engine, {}).get(gpu, {}).get(kind)


def _lineage(engine: EngineSpec) -> list[str]:
    names: list[str] = []
    at: str | None = engine.name
    while at is not None and at not in names:
        names.append(at)
        at = load_engine(at).parent
    return names


@cache
def gpu_parents() -> Mapping[str, str]:
    """GPU -> GPU whose factor stands in; written down before fitting."""
    text = (resources.files("autoconfig.time_model") / "data" / "serving" / "chips.json").read_text(encoding="utf-8")
    parents: dict[str, str] = json.loads(text)["parents"]
    return parents


@cache
def shipped_calibration() -> ServingCalibration:
    """The constants that ship with the project."""
    data: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8")) if PATH.is_file() else {"engines": {}, "gpus": {}}
    return ServingCalibration(engines=data["engines"], gpus=data["gpus"], parents=gpu_parents())


NO_CALIBRATION = ServingCalibration(engines={}, gpus={}, parents={})
"""Operators alone."""
