"""Measured runs beside their predictions: what calibration fits and validation reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoconfig.runs.table import NO, Row, cell
from autoconfig.runs.training_row import Case, measured_step_seconds, read_case
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import MOST, NAMES, Calibration, Entry, Factors, OwnRuns, Scenario
from autoconfig.time_model.hardware.efficiency import entry_of
from autoconfig.time_model.predict import estimate_step_time

PRIOR_LOG_SD = {"step": 0.05, "memory": 0.25, "communication": 0.25, "attention": 0.25, "moe": 0.3, "host": 0.2}
"""Width of each factor's prior. Host: the standard error of the median that the host's constants are (median slope of 33 and 61
launch-bound runs whose quartiles are 0.5 and 2.0, 0.6 and 2.5 ms; `python -m validation.fit.host_floor`)."""
MOE_LOG_SD = {"step": 0.07, "memory": 0.08, "communication": 0.1, "attention": 0.1, "moe": 0.08, "host": 0.08}
"""Width of each factor's prior of mixtures of experts, whose own terms hold on every GPU and release alike
(docs/time_model.md, Experts)."""
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
    "host": ("host_floor_seconds", "step_launch_seconds"),
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
    """By what share of a factor's change the predicted step changes, of each of NAMES: the share of the step that it scales; of
    `host` the derivative, for the step grows with the root of the squares of GPU and host."""


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
        entry = fit_one(mine, start, key, width)
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


def fit_one(
    rows: Sequence[Observation], prior: npt.NDArray[np.float64], key: Key, width: Mapping[str, float] | None = None
) -> Entry:
    """Posterior mode by reweighted least squares; its spread says which factors the rows determine."""
    width = width or (MOE_LOG_SD if key[2] == "moe" else PRIOR_LOG_SD)
    design = np.array([row.shares for row in rows])
    target = np.array([row.log_ratio for row in rows])
    counts = Counter(row.source for row in rows)
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


def gpu_name(row: Row) -> str:
    """The GPU as the row names it."""
    return cell(row, "gpu").removeprefix("DGX-") or "not said"


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


HOST_STEP = 0.1
"""Change of ln host of which the step's change is taken."""


def host_share(scenario: Scenario, plan: TrainPlan, step_seconds: float) -> float:
    """d ln step / d ln host, by a difference, without any other factor."""
    entry = Entry(
        architecture=scenario.cluster.gpu.architecture,
        generation=scenario.software.generation,
        kind="moe" if scenario.model.is_moe else "dense",
        factors=Factors(host=math.exp(HOST_STEP)),
    )
    slower = predicted_seconds(replace(scenario, calibration=Calibration(version="", entries=(entry,))), plan)
    return math.log(slower / step_seconds) / HOST_STEP


def observe(run: Run) -> Observation:
    """A run beside its uncalibrated prediction."""
    scenario = run.case.scenario
    plan = run.case.plan
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute], detail=True)
    parts = {name: float(value[0, 0]) for name, value in estimate.parts.items()}
    step = float(estimate.step_seconds[0, 0])
    host = host_share(scenario, plan, step)
    return Observation(
        id=run.case.id,
        source=run.case.source,
        model=scenario.model.name,
        architecture=scenario.cluster.gpu.architecture,
        gpu=scenario.cluster.gpu.id,
        generation=scenario.software.generation,
        moe=scenario.model.is_moe,
        release=scenario.software.release,
        log_ratio=math.log(run.measured_s / step),
        shares=tuple(host if name == "host" else part for name, part in zip(NAMES, shares_of(parts), strict=True)),
    )
