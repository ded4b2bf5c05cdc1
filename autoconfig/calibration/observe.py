"""Measured runs beside their predictions: what calibration fits and validation reports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from autoconfig.runs.sources import as_training_row, recipe_row_of_2026, source_of
from autoconfig.runs.table import NO, Row, cell
from autoconfig.runs.training_row import Case, measured_step_seconds, published_rows, read_case
from autoconfig.specs.errors import AutoconfigError, InputError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import MOST, NAMES, POOL, Calibration, Entry, Factors, OwnRuns, Scenario
from autoconfig.time_model.hardware.efficiency import entry_of, parents
from autoconfig.time_model.predict import estimate_step_time

PRIOR_LOG_SD = {"step": 0.05, "memory": 0.25, "communication": 0.25, "attention": 0.25, "moe": 0.3, "host": 0.5}
"""Width of each factor's prior."""
MOE_LOG_SD = {"step": 0.07, "memory": 0.08, "communication": 0.1, "attention": 0.1, "moe": 0.08, "host": 0.08}
"""The same of mixtures of experts, whose own terms hold on every GPU and release alike (docs/time_model.md, Experts)."""
OF_THE_MIXTURE = ("memory", "communication", "moe", "host")
"""Factors that a mixture does not take over from dense models: casts and permutation, dispatch, launches are its own."""
UNKNOWN_CLUSTER_LOG_SD = 0.3
"""Width of the step factor's prior for a cluster that nobody calibrated yet."""
NOISE_LOG_SD = {"dense": 0.06, "moe": 0.1}
"""Scatter of one run around its group: 3 to 10 %, mixtures of experts more (findings, sections 6 and 7)."""
HUBER = 1.5
"""Errors beyond this many times the scatter count less."""
ROWS_PER_SOURCE = 8.0
"""What one source weighs at most, in independent runs: rows of one sweep repeat the same few shapes."""
PARTS_OF = {
    "memory": ("pointwise_seconds", "weight_gradient_seconds", "cross_entropy_seconds", "embedding_seconds"),
    "communication": (
        "tp_communication_seconds",
        "cp_communication_seconds",
        "gradient_reduction_seconds",
        "parameter_gather_seconds",
        "p2p_seconds",
        "embedding_gradient_seconds",
        "fsdp_seconds",
        "expert_exchange_seconds",
    ),
    "attention": ("flash_attention_seconds", "unfused_attention_seconds"),
    "moe": ("grouped_gemm_seconds", "permute_seconds"),
    "host": ("host_floor_seconds",),
}
"""Factor -> parts of the step that it scales; `step` scales all."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One measured run beside its uncalibrated prediction."""

    id: str
    source: str
    model: str
    architecture: str
    gpu: str
    generation: str
    moe: bool
    release: str = ""
    """The dated release of the software, where it has one."""
    log_ratio: float
    """log(measured step / predicted step), without calibration."""
    shares: tuple[float, ...]
    """Share of the predicted step that each of NAMES scales."""


def shares_of(parts: Mapping[str, float]) -> tuple[float, ...]:
    """Shares of the step by factor, in the order of NAMES."""
    total = sum(parts.values())
    return tuple(1.0 if name == "step" else sum(parts.get(part, 0.0) for part in PARTS_OF[name]) / total for name in NAMES)


Key = tuple[str, str, str]
"""(architecture, generation, kind)."""


def refine(base: Calibration, observations: Sequence[Observation], version: str) -> Calibration:
    """A calibration for one cluster: its own runs, starting from `base`, with a wide prior on the step factor (an unknown
    cluster is 4 to 40 % off before it is calibrated). Entries of `base` without new runs stay."""
    entries = {(e.architecture, e.generation, e.kind): e for e in base.entries}
    for key in sorted({(o.architecture, o.generation, "moe" if o.moe else "dense") for o in observations}):
        mine = [o for o in observations if (o.architecture, o.generation, "moe" if o.moe else "dense") == key]
        start = _start(base, mine[0])
        width = {**PRIOR_LOG_SD, "step": UNKNOWN_CLUSTER_LOG_SD}
        entry = _fit_one(mine, start, key, width)
        entries[key] = replace(entry, own=_own_runs(mine, entry, width))
    return Calibration(version=version, entries=tuple(entries.values()))


def _own_runs(rows: Sequence[Observation], entry: Entry, width: Mapping[str, float]) -> OwnRuns:
    """How runs scatter around the entry made from them. Degrees of freedom: runs less the trace of the fit's hat matrix (prior
    widths `width`, no capped errors)."""
    design = np.array([row.shares for row in rows])
    errors = np.array([row.log_ratio for row in rows]) - design @ np.log([getattr(entry.factors, name) for name in NAMES])
    normal = design.T @ design / NOISE_LOG_SD[entry.kind] ** 2
    precision = np.diag([1.0 / width[name] ** 2 for name in NAMES])
    free = len(rows) - float(np.trace(np.linalg.solve(normal + precision, normal)))
    log_sd = min(float(np.sqrt((errors**2).sum() / free)), float(np.log(MOST)))
    return OwnRuns(runs=len(rows), log_sd=log_sd, degrees_of_freedom=free)


def _start(base: Calibration, run: Observation) -> npt.NDArray[np.float64]:
    entry = entry_of(base, run.architecture, run.generation, moe=run.moe)
    return np.zeros(len(NAMES)) if entry is None else np.log([getattr(entry.factors, name) for name in NAMES])


def fit(observations: Sequence[Observation], version: str) -> Calibration:
    """Entries for every (architecture, generation, dense or moe) that has runs: parents before children, dense before moe. The
    GPUs of an architecture share them: what tells them apart is their datasheet and the clock that their power allows."""
    entries: dict[Key, Entry] = {}
    for architecture in sorted({o.architecture for o in observations}):
        here = [o for o in observations if o.architecture == architecture]
        dense = [o for o in here if not o.moe]
        entries[architecture, POOL, "dense"] = _pool(dense, architecture)
        for moe, generation in sorted({(o.moe, o.generation) for o in here}, key=lambda key: (key[0], _depth(key[1]), key[1])):
            mine = [o for o in here if (o.moe, o.generation) == (moe, generation)]
            pool = _pool([o for o in dense if o.generation != generation], architecture)
            prior = _prior(architecture, generation, moe, entries, pool)
            kind = "moe" if moe else "dense"
            entries[architecture, generation, kind] = _fit_one(mine, prior, (architecture, generation, kind))
    return Calibration(version=version, entries=tuple(entries.values()))


def _pool(rows: Sequence[Observation], architecture: str) -> Entry:
    """What stands in for a generation without ancestors: the median step factor over the generations, each the median of its
    sources, drawn towards 1 by the prior as by one more generation."""
    medians = []
    for generation in sorted({row.generation for row in rows}):
        mine = [row for row in rows if row.generation == generation]
        by_source = [
            np.median([r.log_ratio for r in mine if r.source == source]) for source in sorted({r.source for r in mine})
        ]
        medians.append(float(np.median(by_source)))
    value = float(np.median([*medians, 0.0]))
    return Entry(
        architecture=architecture,
        generation=POOL,
        factors=Factors(step=float(np.exp(value))),
        log_sd={**PRIOR_LOG_SD, "step": PRIOR_LOG_SD["step"]},
        sources=tuple(sorted({row.source for row in rows})),
    )


def _depth(generation: str) -> int:
    depth, parent = 0, parents().get(generation)
    while parent is not None:
        depth, parent = depth + 1, parents().get(parent)
    return depth


def _prior(architecture: str, generation: str, moe: bool, entries: Mapping[Key, Entry], pool: Entry) -> npt.NDArray[np.float64]:
    """Logarithms of the factors to start from: for moe the same generation's dense entry; the nearest ancestor; the pool."""
    found, wanted = pool, generation if moe else parents().get(generation)
    while wanted is not None:
        candidates = [entries.get((architecture, wanted, kind)) for kind in (("moe", "dense") if moe else ("dense",))]
        known = [entry for entry in candidates if entry is not None]
        if known:
            found = known[0]
            break
        wanted = parents().get(wanted)
    own = OF_THE_MIXTURE if moe and found.kind == "dense" else ()
    return np.log([1.0 if name in own else getattr(found.factors, name) for name in NAMES])


def _fit_one(
    rows: Sequence[Observation], prior: npt.NDArray[np.float64], key: Key, width: Mapping[str, float] | None = None
) -> Entry:
    """Posterior mode by reweighted least squares; its spread says which factors the rows determine."""
    width = width or (MOE_LOG_SD if key[2] == "moe" else PRIOR_LOG_SD)
    design = np.array([row.shares for row in rows])
    target = np.array([row.log_ratio for row in rows])
    counts = {source: sum(row.source == source for row in rows) for source in {row.source for row in rows}}
    weight = np.array([min(1.0, ROWS_PER_SOURCE / counts[row.source]) for row in rows])
    precision = np.diag([1.0 / width[name] ** 2 for name in NAMES])
    noise = NOISE_LOG_SD[key[2]]
    x = prior.copy()
    for _ in range(50):
        error = np.abs(target - design @ x) / noise
        robust = weight * np.minimum(1.0, HUBER / np.maximum(error, 1e-9)) / noise**2
        normal = design.T @ (robust[:, None] * design) + precision
        new = prior + np.linalg.solve(normal, design.T @ (robust * (target - design @ prior)))
        if np.abs(new - x).max() < 1e-9:
            break
        x = new
    log_sd = np.sqrt(np.diag(np.linalg.inv(normal)))
    x = np.clip(x, -np.log(MOST), np.log(MOST))
    spread = {name: float(sd) for name, sd in zip(NAMES, log_sd, strict=True)}
    return Entry(
        architecture=key[0],
        generation=key[1],
        kind=key[2],
        factors=Factors(**{name: float(np.exp(value)) for name, value in zip(NAMES, x, strict=True)}),
        log_sd=spread,
        determined=tuple(name for name in NAMES if spread[name] < width[name] / 2),
        rows=tuple(row.id for row in rows),
        sources=tuple(sorted(counts)),
    )


MIN_PARAMETERS = 1e9
NO_CATALOGUE_MODEL = "NVIDIA, model not in the catalogue"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published run with its measured step time."""

    row: Row
    case: Case
    measured_s: float

    @property
    def large(self) -> bool:
        """Above 1B parameters."""
        return total_parameters(self.case.scenario.model) > MIN_PARAMETERS


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A row that has no prediction to compare, and why."""

    id: str
    source: str
    gpu: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PublishedRuns:
    """Every row of the tables that ship: runs with a whole plan and a time, and the others with the reason."""

    runs: tuple[Run, ...]
    dropped: tuple[Dropped, ...]


@cache
def published_runs() -> PublishedRuns:
    """All published tables, NVIDIA's rows in the columns of the first."""
    runs: list[Run] = []
    dropped: list[Dropped] = []
    for row, reason in every_published_row():
        found = reason or run_of(row)
        if isinstance(found, Run):
            runs.append(found)
        else:
            reason = _without_particulars(found).removeprefix("it ")
            dropped.append(Dropped(id=cell(row, "id"), source=cell(row, "source"), gpu=gpu_name(row), reason=reason))
    return PublishedRuns(runs=tuple(runs), dropped=tuple(dropped))


def every_published_row() -> Iterator[tuple[Row, str]]:
    """(row in the columns of training_measurements.csv, reason why it cannot be read or an empty text)."""
    yield from ((row, "") for name in ("training_measurements", "cloud_measurements") for row in published_rows(name))
    tables = (("nvidia_training_measurements", as_training_row), ("nvidia_training_2026", recipe_row_of_2026))
    for name, read in tables:
        for row in published_rows(name):
            if cell(row, "task") == "inference":
                continue
            gpu = cell(row, "system") or cell(row, "gpu")
            try:
                yield read(row), ""
            except InputError as error:
                yield {**row, "id": cell(row, "model"), "source": NO_CATALOGUE_MODEL, "gpu": gpu}, str(error)


def gpu_name(row: Row) -> str:
    """The GPU as the row names it."""
    return cell(row, "gpu").removeprefix("DGX-") or "not said"


def _without_particulars(reason: str) -> str:
    """So that like reasons are counted together."""
    return re.split(r"[:;(]|, (?:use|known)", re.sub(r"'[^']*'", "...", reason))[0].strip()[:90]


def run_of(row: Row) -> Run | str:
    """The run of a row with a whole plan that ran and has a time, or why there is none."""
    if cell(row, "status") == "oom":
        return "it ran out of memory"
    if cell(row, "full_plan").lower() in NO:
        return "the plan is not whole"
    try:
        case = read_case(row)
        measured = measured_step_seconds(row, case.scenario)
    except AutoconfigError as error:
        return str(error)
    return Run(row=row, case=case, measured_s=measured) if measured else "no measured time"


def predicted_seconds(scenario: Scenario, plan: TrainPlan) -> float:
    """Step time of one plan."""
    return float(estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute]).step_seconds[0, 0])


def observe(run: Run) -> Observation:
    """A run beside its uncalibrated prediction."""
    scenario = run.case.scenario
    plan = run.case.plan
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute], detail=True)
    parts = {name: float(value[0, 0]) for name, value in estimate.parts.items()}
    return Observation(
        id=run.case.id,
        source=run.case.source,
        model=scenario.model.name,
        architecture=scenario.cluster.gpu.architecture,
        gpu=scenario.cluster.gpu.id,
        generation=scenario.software.generation,
        moe=scenario.model.is_moe,
        release=scenario.software.release,
        log_ratio=math.log(run.measured_s / float(estimate.step_seconds[0, 0])),
        shares=shares_of(parts),
    )


def useful_for_calibration(run: Run) -> bool:
    """Above 1B parameters, from a published source for it, with a time that needs no guess of a FLOPs convention."""
    row = run.row
    direct = cell(row, "metric_step_s") or cell(row, "metric_tokens_per_s_per_gpu") or cell(row, "flops_convention")
    return bool(run.large and direct and "calibrate" in source_of(run.case.source).use)
