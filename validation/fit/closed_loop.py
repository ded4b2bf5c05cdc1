"""Fits the constants that vLLM, SGLang and TensorRT-LLM share on benchmarks of a number of users, or of a rate
(tables.PooledTerms).

Every constant is a common value times factors of the engine, the architecture and the kind (the experts' format, the kind of
attention); logarithms of these factors are pulled to 0 and those of common values to where they began, so that a group of runs
that nobody measured gets what the others share. A run is two equations, its mean TPOT and its mean TTFT: under the schedule of
a simulation both are linear in the constants, so that simulating, solving and simulating again ends after a few rounds. No
factor of a model, a row or a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.errors import AutoconfigError
from autoconfig.time_model.serving.costs import (
    decode_attention_seconds,
    output_seconds,
    prefill_attention_seconds,
    prefill_kind,
)
from autoconfig.time_model.serving.recurrent import PROJECTED
from autoconfig.time_model.serving.rows import ServingJob, token_parts
from autoconfig.time_model.serving.simulation import SimulatedStream
from autoconfig.time_model.serving.tables import (
    ARITHMETIC,
    UNSEEN,
    EngineConstants,
    PooledTerms,
    ServingCalibration,
    StepTerms,
    architecture,
)
from scipy.optimize import least_squares

from autoconfig.runs.predict_serving import Setup, benchmark_of, best_setup, open_loop, server_of
from autoconfig.runs.serving_row import ServingCase, read_case
from autoconfig.runs.table import Row, cell, number
from validation.intake.served import group_of, known_setup

Vector = npt.NDArray[np.float64]
TERMS: dict[str, tuple[float, float, tuple[str, ...]]] = {
    # value to begin with, spread of its logarithm, levels of which it has a factor
    "linear": (0.7, 0.15, ("engine", "architecture")),
    "communication": (1.15, 0.1, ("engine", "architecture")),
    "decode_attention": (0.9, 0.1, ("engine",)),
    "prefill_attention": (1.1, 0.1, ("engine", "kind")),
    "experts": (1.0, 0.15, ("kind", "engine", "architecture")),
    "experts_rows": (2.0, 0.5, ("engine",)),
    "pointwise": (1.2, 0.3, ("engine",)),
    "experts_arithmetic": (2.0, 0.4, ("kind", "engine", "architecture")),
    "moe_layer_s": (40e-6, 0.5, ("kind", "engine", "architecture")),
    "layer_s": (2e-6, 0.5, ("engine",)),
    "delta_layer_s": (10e-6, 0.5, ()),
    "sparse_layer_s": (12e-6, 0.5, ()),
    "gathered_layer_s": (50e-6, 0.5, ()),
    "sequence_s": (4.5e-6, 0.3, ("engine",)),
    "sampler_bytes": (8.0, 0.1, ()),
    "synchronous_step_s": (2e-3, 0.7, ()),
    "eager_step_s": (1.5e-3, 0.5, ("engine",)),
    "eager_layer_s": (0.2e-3, 1.0, ("engine",)),
    "request_s": (8e-3, 0.7, ("engine",)),
    "request_token_s": (1e-6, 0.5, ("engine",)),
}
SPREADS = {"engine": 0.15, "architecture": 0.1, "kind": 0.25}
"""Of the logarithms of factors."""
WIDE = {("moe_layer_s", "kind"): 0.5, ("eager_layer_s", "engine"): 1.0, ("eager_step_s", "engine"): 0.5,
        ("request_s", "engine"): 0.7, ("request_token_s", "engine"): 0.3}  # fmt: skip
"""Where kinds are as different as their kernels, and engines as their hosts' code."""
ERROR = {"tpot": 0.1, "ttft": 0.2}
"""Relative error of a run's figure that weighs as much as a factor one spread away; beyond it a run counts by its size
(Huber)."""
ROUNDS = 3
SHARING = ("vllm", "sglang")
"""Engines that share constants; TensorRT-LLM's generations have their own, of runs of its own benchmark."""
NAMES = tuple(TERMS)


KINDS = ("online_concurrency", "online_qps")
"""Of rows of benchmarks: a number of users; arrivals at a rate."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkRun:
    """A benchmark: what it is of, and what was measured, seconds."""

    row: Row
    case: ServingCase
    group: str
    tpot_s: float
    ttft_s: float

    @property
    def levels(self) -> dict[str, str]:
        """Level -> its name, kinds aside."""
        return {"engine": self.case.engine.name, "architecture": architecture(self.case.gpu)}


@dataclass(frozen=True, kw_only=True)
class Equation:
    """A run's figures under one schedule: `at` the constants of which `tpot`, `ttft` were simulated, and seconds that each unit
    of a constant takes of them."""

    run: BenchmarkRun
    kinds: dict[str, str]
    at: Vector
    figures: tuple[float, float]
    slopes: tuple[Vector, Vector]

    def at_constants(self, pooled: PooledTerms) -> tuple[float, float]:
        """(TPOT, TTFT) under this schedule with these constants."""
        engine, gpu = self.run.case.engine.name, self.run.case.gpu
        there = np.array([pooled.of(name, engine, gpu, self.kinds.get(name, "")) for name in NAMES])
        tpot, ttft = (figure + float(own @ (there - self.at)) for figure, own in zip(self.figures, self.slopes, strict=True))
        return tpot, ttft


def runs_of(rows: Iterable[Row], *, every: bool = False) -> list[BenchmarkRun]:
    """Benchmarks among the rows whose set-up is known, or of all rows: of users, or of requests that come at a rate."""
    runs = []
    for row in rows:
        between, first = number(row, "tpot_mean_ms"), number(row, "ttft_mean_ms")
        if cell(row, "kind") not in KINDS or not between or not first or not (every or known_setup(row)):
            continue
        try:
            case = read_case(row)
        except AutoconfigError:  # a model that the catalogue lacks
            continue
        if case.load in ("closed", "open"):
            runs.append(BenchmarkRun(row=row, case=case, group=group_of(row), tpot_s=between / 1e3, ttft_s=first / 1e3))
    return runs


def starting_terms(engines: Sequence[str]) -> PooledTerms:
    """The constants before any run was seen."""
    return PooledTerms(engines=tuple(engines), values={name: TERMS[name][0] for name in NAMES}, deviations={})


def fit_pooled(
    runs: Sequence[BenchmarkRun], base: ServingCalibration, engines: Sequence[str]
) -> tuple[PooledTerms, list[Equation]]:
    """Constants of all runs, and the equations at the last schedule."""
    pooled = starting_terms(engines)
    equations: list[Equation] = []
    shared = [run for run in runs if run.case.engine.name in engines]
    for _ in range(ROUNDS):
        equations = [one for run in shared if (one := equation(run, replace(base, pooled=pooled))) is not None]
        pooled = solve(equations, engines)
    return pooled, equations


def simulated(case: ServingCase, setup: Setup) -> tuple[float, float, float, SimulatedStream]:
    """(mean TPOT, mean TTFT, load of the cache, stream) of a benchmark."""
    if case.load == "closed":
        loop = server_of(case, setup).loop(benchmark_of(case))
        return loop.tpot_s, loop.ttft_s, loop.load, loop.stream
    stream = open_loop(case, setup)
    return stream.tpot_s, stream.ttft_s, 0.0, stream.served


def equation(run: BenchmarkRun, calibration: ServingCalibration) -> Equation | None:
    """Equation of a run; None where memory does not hold it."""
    setup = best_setup(run.case, calibration)
    if not setup.fits:
        return None
    tpot_s, ttft_s, _, stream = simulated(run.case, setup)
    assert calibration.pooled is not None
    kinds = {"experts": setup.job.formats.experts, "prefill_attention": prefill_kind(setup.job.model)}
    kinds |= {name: kinds["experts"] for name in ("experts_arithmetic", "moe_layer_s")}
    at = np.array([calibration.pooled.of(name, run.case.engine.name, run.case.gpu, kinds.get(name, "")) for name in NAMES])
    tpot, ttft = slopes(setup.job, stream, 1.0 + run.case.drafted)
    for name in ("request_s", "request_token_s"):
        i = NAMES.index(name)
        constants = replace(setup.job.constants, **{name: 1.5 * at[i]})
        later = simulated(run.case, replace(setup, job=replace(setup.job, constants=constants)))[1]
        ttft[i], tpot[i] = max(later - ttft_s, 0.0) / (0.5 * at[i]), 0.0
    return Equation(run=run, kinds=kinds, at=at, figures=(tpot_s, ttft_s), slopes=(tpot, ttft))


def _plain(job: ServingJob, factor: float = 1.0) -> ServingJob:
    """The job with every factor 1, those of what comes beside the roofline `factor`."""
    terms = StepTerms(linear=factor, decode_attention=factor, experts_rows=factor, pointwise=factor)
    return replace(job, constants=EngineConstants(terms=terms))


def slopes(job: ServingJob, stream: SimulatedStream, checked: float) -> tuple[Vector, Vector]:
    """(of mean TPOT, of mean TTFT) by term, under this schedule."""
    work = np.array([step.asked for step in stream.log], dtype=np.float64)
    decode, length, prompts, tokens, attended, _, whole = work.T
    plain, best, model, zero = _plain(job), _plain(job, 0.0), job.model, 0.0 * decode
    rows, ends, cached = decode * checked + tokens, decode * checked + prompts, np.maximum(length, 1.0)
    priced, least, (head, sampled) = token_parts(plain, rows), token_parts(best, rows), output_seconds(plain, ends)
    beyond = priced["linear"] + head - least["linear"] - output_seconds(best, ends)[0]
    read = decode_attention_seconds(plain, decode, cached) - decode_attention_seconds(best, decode, cached)
    carries, eager = tokens > 0, job.eager(prompts, rows)
    prefill = np.where(
        carries, prefill_attention_seconds(plain, np.maximum(whole, 1.0), attended) * np.minimum(whole, 1.0), 0.0
    )
    mixtures = float(sum(model.moe_pattern))
    columns = {
        "linear": beyond,
        "communication": priced["communication"],
        "decode_attention": read,
        "prefill_attention": prefill,
        "experts": least["experts"],
        "experts_rows": priced["experts"] - least["experts"],
        "pointwise": priced["pointwise"] - least["pointwise"],
        "experts_arithmetic": priced[ARITHMETIC],
        "moe_layer_s": zero + mixtures,
        "layer_s": zero + job.layers,
        "delta_layer_s": zero + sum(model.layer_kinds.count(kind) for kind in PROJECTED),
        "sparse_layer_s": zero + (model.num_layers if model.is_sparse else 0.0),
        "gathered_layer_s": zero + mixtures * (job.plan.adp > 1),
        "sequence_s": (decode * checked + prompts) * job.plan.adp,
        "sampler_bytes": sampled,
        "synchronous_step_s": zero + job.synchronous,
        "eager_step_s": 1.0 * eager,
        "eager_layer_s": job.layers * eager,
        "request_s": zero,
        "request_token_s": zero,
    }
    counts = np.array([step.repeats for step in stream.log], dtype=np.float64)
    passed = np.vstack([np.zeros(len(NAMES)), np.cumsum(np.stack([columns[name] for name in NAMES], 1) * counts[:, None], 0)])
    first, done = stream.first_step, stream.done_step
    begun = np.where(
        stream.arrival_step >= 0, stream.arrival_step, np.searchsorted([s.end_s for s in stream.log], stream.arrival_s)
    )
    tokens_out = np.maximum((stream.e2e_s - stream.ttft_s) / np.maximum(stream.tpot_s, 1e-12), 1.0)
    finite = np.isfinite(stream.tpot_s)
    tpot = ((passed[done] - passed[first]) / tokens_out[:, None])[finite].mean(0)
    return tpot, (passed[first] - passed[begun]).mean(0)


def parameters(equations: Sequence[Equation]) -> list[tuple[str, str, str]]:
    """(term, level, name) of every logarithm that is fitted; level and name empty: the common value."""
    names = [(name, "", "") for name in NAMES]
    for term in NAMES:
        for level in TERMS[term][2]:
            seen = {one.kinds[term] if level == "kind" else one.run.levels[level] for one in equations}
            names += [(term, level, name) for name in sorted(seen)]
    return names


def spread_of(term: str, level: str) -> float:
    """Spread of a common value's logarithm, or of that of a factor of some level."""
    return WIDE.get((term, level), SPREADS[level]) if level else TERMS[term][1]


def solve(equations: Sequence[Equation], engines: Sequence[str]) -> PooledTerms:
    """The constants nearest to the equations and to what they began with."""
    names = parameters(equations)
    place = {name: i for i, name in enumerate(names)}
    spread = np.array([spread_of(term, level) for term, level, _ in names])
    start = np.log([TERMS[name][0] for name in NAMES])
    selects = np.zeros((len(equations), len(NAMES), len(names)))
    for i, one in enumerate(equations):
        for j, term in enumerate(NAMES):
            selects[i, j, place[term, "", ""]] = 1.0
            for level, name in {**one.run.levels, "kind": one.kinds.get(term, "")}.items():
                if (which := place.get((term, level, name))) is not None:
                    selects[i, j, which] = 1.0
    slopes_ = np.array([one.slopes for one in equations])  # [runs, 2, terms]
    at = np.array([one.at for one in equations])
    fixed = np.array([one.figures for one in equations]) - np.einsum("ikj,ij->ik", slopes_, at)
    measured = np.array([(one.run.tpot_s, one.run.ttft_s) for one in equations])
    errors = np.array([ERROR["tpot"], ERROR["ttft"]])

    def values(logs: Vector) -> Vector:
        return np.asarray(np.exp(start + selects @ logs))

    def residuals(logs: Vector) -> Vector:
        predicted = np.maximum(fixed + np.einsum("ikj,ij->ik", slopes_, values(logs)), 0.05 * measured)
        size = np.log(predicted / measured) / errors
        huber = np.sign(size) * np.sqrt(np.where(np.abs(size) > 1.0, 2.0 * np.abs(size) - 1.0, size**2))
        return np.concatenate([huber.ravel(), logs / spread])

    def slope(logs: Vector) -> Vector:
        v = values(logs)
        predicted = np.maximum(fixed + np.einsum("ikj,ij->ik", slopes_, v), 0.05 * measured)
        size = np.log(predicted / measured) / errors
        root = np.where(np.abs(size) > 1.0, 1.0 / np.sqrt(np.maximum(2.0 * np.abs(size) - 1.0, 1.0)), 1.0)
        inner = np.einsum("ikj,ij,ijp->ikp", slopes_, v, selects) / (predicted * errors)[..., None] * root[..., None]
        return np.vstack([inner.reshape(-1, len(names)), np.diag(1.0 / spread)])

    logarithms = least_squares(residuals, np.zeros(len(names)), jac=slope, method="trf").x
    common = {term: float(np.exp(start[j] + logarithms[place[term, "", ""]])) for j, term in enumerate(NAMES)}
    deviations: dict[str, dict[str, float]] = {}
    for (term, level, name), x in zip(names, logarithms, strict=True):
        if level:
            deviations.setdefault(term, {})[f"{level}:{name}"] = float(np.exp(x))
    return PooledTerms(engines=tuple(engines), values=common, deviations=deviations)


def left_out(equations: Sequence[Equation], engines: Sequence[str]) -> Iterator[tuple[str, PooledTerms]]:
    """Yield each group with the constants of the others."""
    for group in sorted({one.run.group for one in equations}):
        yield group, solve([one for one in equations if one.run.group != group], engines)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run predicted by the constants of the other groups."""

    run: BenchmarkRun
    tpot_s: float
    ttft_s: float
    load: float


def predicted(run: BenchmarkRun, calibration: ServingCalibration) -> LeftOut | None:
    """A run under these constants; None where memory does not hold it."""
    setup = best_setup(run.case, calibration)
    if not setup.fits:
        return None
    tpot_s, ttft_s, load, _ = simulated(run.case, setup)
    return LeftOut(run=run, tpot_s=tpot_s, ttft_s=ttft_s, load=load)


def predicted_left_out(
    runs: Sequence[BenchmarkRun], equations: Sequence[Equation], base: ServingCalibration, engines: Sequence[str]
) -> list[LeftOut]:
    """Every run by constants that saw nothing of its group (model, GPU, engine); engines with constants of their own by
    these."""
    terms, everything = dict(left_out(equations, engines)), solve(equations, engines)
    every = (predicted(run, replace(base, pooled=terms.get(run.group, everything))) for run in runs)
    return [one for one in every if one is not None]


WIDEST = {"tpot": (0.70, 1.45), "ttft": (0.60, 1.90)}
"""Of a band, whatever the runs say."""


def load_bands(
    runs: Sequence[LeftOut], equations: Sequence[Equation], engines: Sequence[str]
) -> dict[str, dict[str, tuple[float, float]]]:
    """5 % and 95 % of measured over predicted: of each engine, its runs' groups left out; and of generations of GPUs left out
    (by the equations at the last schedule)."""
    ratios: dict[str, list[tuple[float, float]]] = {UNSEEN: []}
    for one in runs:
        ratios.setdefault(one.run.case.engine.name, []).append(_ratios(one.run, one.tpot_s, one.ttft_s))
    for generation in sorted({equation.run.case.gpu.architecture for equation in equations}):
        mine = [equation for equation in equations if equation.run.case.gpu.architecture == generation]
        terms = solve([equation for equation in equations if equation.run.case.gpu.architecture != generation], engines)
        ratios[UNSEEN] += [_ratios(equation.run, *equation.at_constants(terms)) for equation in mine]
    return {which: _band(own) for which, own in ratios.items() if own}


def _ratios(run: BenchmarkRun, tpot_s: float, ttft_s: float) -> tuple[float, float]:
    return run.tpot_s / tpot_s, run.ttft_s / ttft_s


def _band(ratios: Sequence[tuple[float, float]]) -> dict[str, tuple[float, float]]:
    result = {}
    for (name, (least, most)), own in zip(WIDEST.items(), zip(*ratios, strict=True), strict=True):
        low, high = np.quantile(own, (0.05, 0.95))
        result[name] = (max(float(low), least), min(float(high), most))
    return result


def generations(equations: Sequence[Equation], engines: Sequence[str]) -> dict[str, list[str]]:
    """Engine -> generations of GPUs that it was measured on."""
    return {e: sorted({one.run.case.gpu.architecture for one in equations if one.run.case.engine.name == e}) for e in engines}


REQUEST_GRID = tuple((s * 1e-3, t * 1e-6) for s in (0, 5, 10, 15, 20, 25, 30) for t in (0, 1, 2))


def request_seconds(runs: Sequence[BenchmarkRun], base: ServingCalibration) -> tuple[float, float]:
    """(request_s, request_token_s) of an engine with constants of its own: of a grid the pair with the least error of TTFT."""

    setups = [(run, setup) for run in runs if (setup := best_setup(run.case, base)).fits]

    def error(pair: tuple[float, float]) -> float:
        logs = []
        for run, setup in setups:
            constants = replace(setup.job.constants, request_s=pair[0], request_token_s=pair[1])
            server = server_of(run.case, replace(setup, job=replace(setup.job, constants=constants)))
            logs.append(abs(np.log(server.benchmark(benchmark_of(run.case)).ttft_s / run.ttft_s)))
        return float(np.mean(logs))

    return min(REQUEST_GRID, key=error)


def as_json(
    pooled: PooledTerms, bands: Mapping[str, Mapping[str, tuple[float, float]]], seen: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """For time_model/data/serving_calibration.json, four digits."""

    def rounded(numbers: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f"{value:.4g}") for name, value in numbers.items()}

    return {
        "bands": {of: {name: [float(f"{x:.3g}") for x in band] for name, band in own.items()} for of, own in bands.items()},
        "seen": seen,
        "engines": list(pooled.engines),
        "values": rounded(pooled.values),
        "deviations": {term: rounded(own) for term, own in pooled.deviations.items()},
    }
