"""Measured runs beside their predictions: what calibration fits and validation reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autoconfig.calibration.fit import Observation, shares_of
from autoconfig.runs.cells import Row, cell
from autoconfig.runs.nvidia_row import as_training_row
from autoconfig.runs.sources import source_of
from autoconfig.runs.training_row import Case, measured_step_seconds, published_rows, read_case
from autoconfig.specs.errors import AutoconfigError, InputError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.predict import estimate_step_time

LEAST_PARAMETERS = 1e9


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


def all_published_rows() -> Iterator[Row]:
    """Rows of both published tables, in the columns of the first."""
    yield from published_rows()
    for row in published_rows("nvidia_training_measurements"):
        try:
            yield as_training_row(row)
        except InputError:
            continue


def timed_runs(rows: Iterable[Row]) -> list[Run]:
    """Rows with a whole plan that ran and have a time; others are left out."""
    runs = []
    for row in rows:
        if cell(row, "full_plan") == "0" or cell(row, "status") == "oom":
            continue
        try:
            case = read_case(row)
            measured = measured_step_seconds(row, case.scenario)
        except AutoconfigError:
            continue
        if measured:
            runs.append(Run(row=row, case=case, measured_s=measured))
    return runs


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


def observations(runs: Sequence[Run]) -> list[Observation]:
    """Observations of all runs, in order."""
    return [observe(run) for run in runs]
