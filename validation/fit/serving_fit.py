"""Fits the constants of engine generations on published runs: a few numbers per generation, one factor per GPU and generation.

Times are linear in the constants (time_model.serving_costs.iteration_features) but for the floor, so that a run is one
equation, features x constants = measured time, less what its iterations on the floor take. Generations are fitted after their
parents (specs/catalogue/engines), each with a pull towards its parent's constants; a run weighs as much as another in relative
error. Nothing is fitted per row or per source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.software.engine import engine_names, kernel_age, load_engine
from autoconfig.time_model.serving.iteration import constant_vector, floor_parts, iteration_features
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.tables import ARITHMETIC, EngineConstants, ServingCalibration, gpu_parents
from scipy.optimize import nnls

from autoconfig.runs.predict_serving import best_setup, offline_generations
from autoconfig.runs.serving_row import ServingCase, read_case
from autoconfig.runs.table import Row, cell, number

Vector = npt.NDArray[np.float64]
ENGINE_NUMBERS = ("communication_factor", "sampler_bytes", "layer_s", "host_s", "sequence_s")
START = (1.0, 16.0, 5e-6, 0.0, 1e-6)
"""Of a generation without parent: fp32 logits read and written twice, launches of a CUDA graph, a microsecond a sequence."""
SPREAD = (0.15, 50.0, 20e-6, 0.5e-3, 5e-6)
"""How far a generation may be from its parent: standard deviation of each number's pull."""
EAGER_NUMBERS = ("eager_layer_s", "eager_sequence_s")
EAGER_START, EAGER_SPREAD = (400e-6, 10e-6), (100e-6, 10e-6)
EAGER_GRIDS = (tuple(x * 1e-6 for x in range(0, 801, 50)), tuple(x * 1e-6 for x in range(0, 61, 5)))
"""Host floor of a layer launched operator by operator: some 40 operators of 10 us in PyTorch (assumed, knowing the v0.20
rows) and of a sequence in Python (assumed), and what is tried."""
PASSES = 6
"""Which iterations stand on the floor, and which runs are outliers, is found anew that often."""
FACTOR_SPREAD = {"all": 0.1, "experts": 0.3, ARITHMETIC: 1.0}
"""How far the factors of a GPU may be from the parent's; arithmetic: for a year of the release's age."""
PULL = 0.3
OUTLIER = 0.1
"""Relative error from which a run counts by its size and no longer by its square (Huber 1964): a few runs whose kernels or
limits are not what their release's others had do not set the constants of all."""
LIGHT_LOAD = 8.0
"""Open-loop rows up to this many requests a second show iterations that seldom carry prompts."""
KINDS = {"all": 0, "experts": 1, ARITHMETIC: 7}
"""Factors of a GPU: columns of iteration_features."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One equation: the sum over kinds of iterations of count x max(features x constants, floor) = seconds."""

    source: str
    engine: str
    gpu: str
    moe: bool
    counts: Vector
    """[kinds]"""
    features: Vector
    """[kinds, 8]"""
    floors: Vector
    """[kinds, 2]: layers that the host launches one by one and sequences it walks through (serving_costs.floor_parts)."""
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
        if case.load == "single":
            continue
        setup = best_setup(case, empty)
        common: dict[str, Any] = {"source": cell(row, "source"), "engine": case.engine.name, "gpu": case.gpu.id}
        offline = case.load == "offline" or (np.isinf(case.rate) and case.lengths.output_cv == 0.0)
        if offline and setup.fits:
            speed = number(row, "out_tok_s_gpu") or (number(row, "out_tok_s") or 0.0) / case.num_gpus
            generations, tokens = offline_generations(case, setup)
            counts: list[float] = []
            features: list[Vector] = []
            floors: list[tuple[float, float]] = []
            for many, one in generations:
                counts += [many * float(one.mixed), many * float(one.alone)]
                features += [one.mixed_features, one.alone_features]
                floors += [_floor(setup.job, one.mixed_sequences), _floor(setup.job, one.alone_sequences, 0.0)]
            seconds = tokens / speed
        elif case.rate <= LIGHT_LOAD and cell(row, "kind") == "online_qps":
            between, token = number(row, "tpot_mean_ms") or 0.0, number(row, "ttft_mean_ms") or 0.0
            counts, features, floors = _light(case, setup.job, between / 1e3)
            seconds = between / 1e3
            first.append(
                FirstToken(
                    features=iteration_features(setup.job, 0.0, 1.0, 1.0, case.lengths.isl),
                    seconds=token / 1e3 - 0.5 * min(1.0, case.rate * between * case.lengths.osl / 1e3) * between / 1e3,
                    **common,
                )
            )
        else:
            continue
        arrays: dict[str, Any] = {"counts": np.array(counts), "features": np.stack(features), "floors": np.array(floors)}
        samples.append(Sample(moe=case.model.is_moe, seconds=seconds, **arrays, **common))
    return samples, first


def _floor(job: ServingJob, sequences: Number, prompts: float = 1.0) -> tuple[float, float]:
    layers, own = floor_parts(job, prompts, sequences)
    return float(layers), float(own)


def _light(case: ServingCase, job: ServingJob, between: float) -> tuple[list[float], list[Vector], list[tuple[float, float]]]:
    """A token's time under light load: a share rate x t of the iterations carries a prompt."""
    running = max(case.rate * case.lengths.osl * between, 1.0)
    length = case.lengths.isl + case.lengths.osl / 2.0
    share = min(case.rate * between, 1.0)
    alone = iteration_features(job, running, length, 0.0, 1.0)
    mixed = iteration_features(job, running, length, 1.0, case.lengths.isl)
    return [1.0 - share, share], [alone, mixed], [_floor(job, running, 0.0), _floor(job, running + 1.0)]


def fit(samples: Sequence[Sample], first: Sequence[FirstToken]) -> ServingCalibration:
    """All generations that have samples, parents first."""
    calibration = ServingCalibration(engines={}, gpus={}, parents=gpu_parents())
    for name in _parents_first():
        mine = [s for s in samples if s.engine == name]
        if mine:
            calibration = _fit_generation(name, mine, [f for f in first if f.engine == name], calibration)
    return calibration


def _parents_first() -> list[str]:
    """Generations such that each comes after its parent; of two that name each other the newer one is first."""
    names: list[str] = []

    def add(name: str, below: tuple[str, ...]) -> None:
        parent = load_engine(name).parent
        if parent is not None and parent not in (*names, *below):
            add(parent, (*below, name))
        if name not in names:
            names.append(name)

    for name in engine_names():
        add(name, ())
    return names


def _eager_floor(problem: _Problem, usual: Vector) -> Vector:
    """The floor of the least error, pulled towards the usual one: number by number along its grid."""
    floor, pulls = usual, PULL / np.array(EAGER_SPREAD)
    for _ in range(PASSES):
        for axis, grid in enumerate(EAGER_GRIDS):
            tried = [np.where(np.arange(len(EAGER_GRIDS)) == axis, x, floor) for x in grid]
            floor = min(tried, key=lambda x: problem.solve(x)[1] + float(((pulls * (x - usual)) ** 2).sum()))
    return floor


def _fit_generation(
    name: str, samples: Sequence[Sample], first: Sequence[FirstToken], before: ServingCalibration
) -> ServingCalibration:
    """Non-negative least squares of the relative errors (Huber's beyond OUTLIER) and of the pull towards the parent; the floor
    by trial."""
    engine = load_engine(name)
    age = kernel_age(engine)
    kinds = [kind for kind in KINDS if kind != ARITHMETIC or age]
    pairs = sorted({(s.gpu, kind) for s in samples for kind in (kinds if s.moe else ("all",))})
    parent = before.engine_numbers(engine)
    start = [before.factor(engine, gpu, kind) for gpu, kind in pairs]
    start += [parent.get(key, usual) for key, usual in zip(ENGINE_NUMBERS, START, strict=True)]
    spread = [FACTOR_SPREAD[kind] for _, kind in pairs] + list(SPREAD)
    problem = _Problem(samples, age, pairs, np.array(start), PULL / np.array(spread))
    usual = np.array([parent.get(key, first) for key, first in zip(EAGER_NUMBERS, EAGER_START, strict=True)])
    floor = _eager_floor(problem, usual) if any(s.floors.any() for s in samples) else usual
    solution, _ = problem.solve(floor)
    numbers = dict(zip(ENGINE_NUMBERS, map(float, solution[len(pairs) :]), strict=True))
    numbers |= dict(zip(EAGER_NUMBERS, map(float, floor), strict=True))
    factors: dict[str, dict[str, float]] = {}
    for (gpu, kind), value in zip(pairs, solution, strict=False):
        factors.setdefault(gpu, {})[kind] = float(value)
    after = ServingCalibration(
        engines={**before.engines, name: numbers}, gpus={**before.gpus, name: factors}, parents=before.parents
    )
    numbers["request_s"] = _request_seconds(after, first) if first else parent.get("request_s", 0.0)
    return after


class _Problem:
    """The equations of one generation, their iterations one below the other."""

    def __init__(
        self, samples: Sequence[Sample], age: float, pairs: Sequence[tuple[str, str]], start: Vector, pull: Vector
    ) -> None:
        """`age`: years of the generation; `start`: the parent's constants; `pull`: weight of a distance from each of them."""
        self.start, self.pull = start, pull
        features = np.concatenate([s.features for s in samples])
        kinds = [len(s.counts) for s in samples]
        gpus = np.repeat([s.gpu for s in samples], kinds)
        self._first = np.concatenate([[0], np.cumsum(kinds)[:-1]])
        self._shares = np.concatenate([s.counts / s.seconds for s in samples])
        self._floors = np.concatenate([s.floors for s in samples])
        own = [(age if kind == ARITHMETIC else 1.0) * features[:, KINDS[kind]] * (gpus == gpu) for gpu, kind in pairs]
        self._wide = np.column_stack([*own, features[:, 2:7]])

    def solve(self, eager: Vector) -> tuple[Vector, float]:
        """(constants, sum of squares) for a floor; iterations that stand on it count with it and leave the equation."""
        solution, weights = self.start, np.ones(len(self._first) + len(self.start))
        for _ in range(PASSES):
            system, target = self._equations(solution, eager)
            scale = 1.0 / np.maximum(np.abs(system).max(axis=0), 1e-30)
            solution = nnls(system * scale * weights[:, None], target * weights)[0] * scale
            system, target = self._equations(solution, eager)
            size = np.abs(system @ solution - target)
            weights[: len(self._first)] = np.sqrt(OUTLIER / np.maximum(size[: len(self._first)], OUTLIER))
        runs, pulls = size[: len(self._first)], size[len(self._first) :]
        loss = np.where(runs > OUTLIER, OUTLIER * (2.0 * runs - OUTLIER), runs**2)
        return solution, float(loss.sum() + (pulls**2).sum())

    def _equations(self, solution: Vector, eager: Vector) -> tuple[Vector, Vector]:
        floor = self._floors @ eager
        low = self._wide @ solution < floor
        rows = np.add.reduceat((self._shares * ~low)[:, None] * self._wide, self._first)
        targets = 1.0 - np.add.reduceat(self._shares * low * floor, self._first)
        return np.vstack([rows, np.diag(self.pull)]), np.concatenate([targets, self.pull * self.start])


def _request_seconds(calibration: ServingCalibration, first: Sequence[FirstToken]) -> float:
    """Median of what is left of the time to first token."""
    left = []
    for f in first:
        engine = load_engine(f.engine)
        constants = EngineConstants(
            **{k: v for k, v in calibration.engine_numbers(engine).items() if k != "request_s"},
            factor=calibration.factor(engine, f.gpu),
            experts_factor=calibration.factor(engine, f.gpu, "experts"),
            experts_arithmetic=calibration.factor(engine, f.gpu, ARITHMETIC) * kernel_age(engine),
        )
        left.append(f.seconds - float(f.features @ constant_vector(constants)))
    return max(float(np.median(left)), 0.0)
