"""Fits the constants of engine generations on published runs: a few numbers per generation, one factor per GPU and generation.

Times are linear in the constants (time_model.serving_costs.iteration_features), so that a run is one equation,
features x constants = measured time. Generations are fitted after their parents (specs/catalogue/engines), each with a pull
towards its parent's constants; a run weighs as much as another in relative error. Nothing is fitted per row or per source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from autoconfig.row_cells import Row, cell, number
from autoconfig.serving.evaluate import offline_features, set_up
from autoconfig.serving.rows import Case, read_case
from specs.engine import engine_names, load_engine
from specs.errors import AutoconfigError
from time_model.serving_calibration import EngineConstants, ServingCalibration, gpu_parents
from time_model.serving_costs import constant_vector, iteration_features

Vector = npt.NDArray[np.float64]
ENGINE_NUMBERS = ("sampler_bytes", "layer_s", "host_s", "sequence_s")
START = (16.0, 5e-6, 0.0, 1e-6)
"""Of a generation without parent: fp32 logits read and written twice, launches of a CUDA graph, a microsecond a sequence."""
SPREAD = (50.0, 20e-6, 2e-3, 5e-6)
"""How far a generation may be from its parent: standard deviation of each number's pull."""
FACTOR_SPREAD, EXPERTS_SPREAD = 0.1, 0.3
PULL = 0.3
LIGHT_LOAD = 8.0
"""Open-loop rows up to this many requests a second show iterations that seldom carry prompts."""
FACTOR, EXPERTS = 0, 1


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One equation: features x constants = seconds."""

    source: str
    engine: str
    gpu: str
    moe: bool
    features: Vector
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FirstToken:
    """A lightly loaded run's time to first token, for the cost of a request before its first iteration."""

    source: str
    engine: str
    gpu: str
    features: Vector
    seconds: float


def samples_of(rows: Iterable[Row]) -> tuple[list[Sample], list[FirstToken]]:
    """Equations of the rows that give one. Sources are read here, and measured columns; predictions never see them."""
    samples: list[Sample] = []
    first: list[FirstToken] = []
    empty = ServingCalibration(engines={}, gpus={}, parents={})
    for row in rows:
        try:
            case = read_case(row)
        except AutoconfigError:
            continue
        if len(case.plans) > 1 or case.load == "single" or (cell(row, "kind") == "mlperf" and case.model.is_moe):
            continue
        setup = set_up(case, case.plans[0], empty)
        common = {"source": cell(row, "source"), "engine": case.engine.name, "gpu": case.gpu.id}
        offline = case.load == "offline" or (np.isinf(case.rate) and case.lengths.output_cv == 0.0)
        if offline and setup.fits:
            features, tokens = offline_features(case, setup)
            speed = number(row, "out_tok_s_gpu") or (number(row, "out_tok_s") or 0.0) / case.num_gpus
            samples.append(Sample(moe=case.model.is_moe, features=features, seconds=tokens / speed, **common))
        elif case.rate <= LIGHT_LOAD and cell(row, "kind") == "online_qps":
            between, token = number(row, "tpot_mean_ms") or 0.0, number(row, "ttft_mean_ms") or 0.0
            samples.append(Sample(moe=case.model.is_moe, features=_light(case, setup.job, between / 1e3), seconds=between / 1e3, **common))
            features = iteration_features(setup.job, 0.0, 1.0, 1.0, case.lengths.isl)
            first.append(FirstToken(features=features, seconds=token / 1e3 - 0.5 * min(1.0, case.rate * between * case.lengths.osl / 1e3) * between / 1e3, **common))
    return samples, first


def _light(case: Case, job: object, between: float) -> Vector:
    """Features of a token's time under light load: a share rate x t of the iterations carries a prompt."""
    running = max(case.rate * case.lengths.osl * between, 1.0)
    length = case.lengths.isl + case.lengths.osl / 2.0
    share = min(case.rate * between, 1.0)
    alone = iteration_features(job, running, length, 0.0, 1.0)  # type: ignore[arg-type]
    mixed = iteration_features(job, running, length, 1.0, case.lengths.isl)  # type: ignore[arg-type]
    return (1.0 - share) * alone + share * mixed


def fit(samples: Sequence[Sample], first: Sequence[FirstToken]) -> ServingCalibration:
    """All generations that have samples, parents first."""
    found = ServingCalibration(engines={}, gpus={}, parents=gpu_parents())
    for name in _parents_first():
        mine = [s for s in samples if s.engine == name]
        if mine:
            found = _fit_generation(name, mine, [f for f in first if f.engine == name], found)
    return found


def _parents_first() -> list[str]:
    names: list[str] = []

    def add(name: str) -> None:
        parent = load_engine(name).parent
        if parent is not None and parent not in names:
            add(parent)
        if name not in names:
            names.append(name)

    for name in engine_names():
        add(name)
    return names


def _fit_generation(
    name: str, samples: Sequence[Sample], first: Sequence[FirstToken], before: ServingCalibration
) -> ServingCalibration:
    """Non-negative least squares of the relative errors and of the pull towards the parent."""
    engine = load_engine(name)
    pairs = sorted({(s.gpu, kind) for s in samples for kind in ((FACTOR, EXPERTS) if s.moe else (FACTOR,))})
    start = [before.factor(engine, gpu, experts=kind == EXPERTS) for gpu, kind in pairs]
    parent = before.engine_numbers(engine)
    start += [parent.get(key, usual) for key, usual in zip(ENGINE_NUMBERS, START, strict=True)]
    spread = [EXPERTS_SPREAD if kind == EXPERTS else FACTOR_SPREAD for _, kind in pairs] + list(SPREAD)
    design = np.zeros((len(samples), len(start)))
    for i, s in enumerate(samples):
        for j, (gpu, kind) in enumerate(pairs):
            design[i, j] = s.features[kind] if gpu == s.gpu else 0.0
        design[i, len(pairs) :] = s.features[2:]
        design[i] /= s.seconds
    pull = PULL / np.array(spread)
    system = np.vstack([design, np.diag(pull)])
    scale = 1.0 / np.maximum(np.abs(system).max(axis=0), 1e-30)
    solution = nnls(system * scale, np.concatenate([np.ones(len(samples)), pull * np.array(start)]))[0] * scale
    numbers = dict(zip(ENGINE_NUMBERS, map(float, solution[len(pairs) :]), strict=True))
    factors: dict[str, dict[str, float]] = {}
    for (gpu, kind), value in zip(pairs, solution, strict=False):
        factors.setdefault(gpu, {})["experts" if kind == EXPERTS else "all"] = float(value)
    after = ServingCalibration(
        engines={**before.engines, name: numbers}, gpus={**before.gpus, name: factors}, parents=before.parents
    )
    numbers["request_s"] = _request_seconds(after, first) if first else parent.get("request_s", 0.0)
    return after


def _request_seconds(calibration: ServingCalibration, first: Sequence[FirstToken]) -> float:
    """Median of what is left of the time to first token."""
    left = []
    for f in first:
        engine = load_engine(f.engine)
        constants = EngineConstants(
            **{k: v for k, v in calibration.engine_numbers(engine).items() if k != "request_s"},
            factor=calibration.factor(engine, f.gpu), experts_factor=calibration.factor(engine, f.gpu, experts=True),
        )  # fmt: skip
        left.append(f.seconds - float(f.features @ constant_vector(constants)))
    return max(float(np.median(left)), 0.0)
