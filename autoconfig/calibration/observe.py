"""Measured runs beside their predictions: what calibration fits and validation reports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from autoconfig.calibration.fit import Observation, shares_of
from autoconfig.runs.sources import as_training_row, source_of
from autoconfig.runs.table import NO, Row, cell
from autoconfig.runs.training_row import Case, measured_step_seconds, published_rows, read_case
from autoconfig.specs.errors import AutoconfigError, InputError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.predict import estimate_step_time

LEAST_PARAMETERS = 1e9
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
        return total_parameters(self.case.scenario.model) > LEAST_PARAMETERS


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
    """Both published tables, NVIDIA's rows in the columns of the first."""
    runs: list[Run] = []
    dropped: list[Dropped] = []
    for row, reason in _published_rows():
        found = reason or run_of(row)
        if isinstance(found, Run):
            runs.append(found)
        else:
            reason = _without_particulars(found).removeprefix("it ")
            dropped.append(Dropped(id=cell(row, "id"), source=cell(row, "source"), gpu=gpu_name(row), reason=reason))
    return PublishedRuns(runs=tuple(runs), dropped=tuple(dropped))


def _published_rows() -> Iterator[tuple[Row, str]]:
    """(row, reason why it cannot be read or an empty text)."""
    yield from ((row, "") for row in published_rows())
    for row in published_rows("nvidia_training_measurements"):
        if cell(row, "task") == "inference":
            continue
        try:
            yield as_training_row(row), ""
        except InputError as error:
            yield {**row, "id": cell(row, "model"), "source": NO_CATALOGUE_MODEL, "gpu": cell(row, "system")}, str(error)


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
        generation=scenario.software.generation,
        moe=scenario.model.is_moe,
        log_ratio=math.log(run.measured_s / float(estimate.step_seconds[0, 0])),
        shares=shares_of(parts),
    )


def useful_for_calibration(run: Run) -> bool:
    """Above 1B parameters, from a published source for it, with a time that needs no guess of a FLOPs convention."""
    row = run.row
    direct = cell(row, "metric_step_s") or cell(row, "metric_tokens_per_s_per_gpu") or cell(row, "flops_convention")
    return bool(run.large and direct and "calibrate" in source_of(run.case.source).use)
