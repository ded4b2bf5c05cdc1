"""The published runs and their predictions, with constants that have or have not seen them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from autoconfig.calibration.observe import Observation, Run, fit, observe, published_runs, useful_for_calibration
from autoconfig.planning.resolve import shipped
from autoconfig.runs.sources import source_of
from autoconfig.runs.training_row import Case
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Calibration, Scenario
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.price import confidence_class

LeaveOut = Literal["source", "model", "publisher"] | None
"""What the constants may not have seen: nothing, the run's source, the run's model in that source, or the run's source with
NVIDIA's tables of all GPUs as one."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One run beside its prediction."""

    run: Run
    step_seconds: float
    level: str
    """Confidence class under the calibration that was used."""

    @property
    def ratio(self) -> float:
        """Predicted over measured, less 1."""
        return self.step_seconds / self.run.measured_s - 1.0

    @property
    def log_ratio(self) -> float:
        """Logarithm of measured over predicted."""
        return math.log(self.run.measured_s / self.step_seconds)

    @property
    def source(self) -> str:
        return self.run.case.source


def predict_steps(cases: Sequence[tuple[Scenario, TrainPlan]]) -> list[float]:
    """Step seconds of plans, priced together where only the plan differs."""
    groups: dict[tuple[Scenario, str], list[int]] = {}
    for number, (scenario, plan) in enumerate(cases):
        groups.setdefault((scenario, str(plan.recompute)), []).append(number)
    steps = [0.0] * len(cases)
    for (scenario, _), members in groups.items():
        plans = [cases[number][1] for number in members]
        estimate = estimate_step_time(scenario, scenario.layouts(plans), [plans[0].recompute])
        for index, number in enumerate(members):
            steps[number] = float(estimate.step_seconds[index, 0])
    return steps


Key = tuple[str, ...]


@dataclass
class Constants:
    """The calibration for each run: the shipped one, or one fitted without the run's source or model, each fitted once."""

    leave_out: LeaveOut
    observed: tuple[Observation, ...] | None = None
    """What they are fitted on; None: the published runs."""
    _fitted: dict[Key, Calibration] = field(default_factory=dict)

    def of(self, source: str, model: str) -> Calibration:
        """The calibration for a run of this source and model."""
        if self.leave_out is None:
            return shipped()
        key = self._key(source, model)
        known = _observations() if self.observed is None else self.observed
        kept = [observation for observation in known if not self._same(observation, key)]
        if len(kept) == len(known):
            key = ()
        if key not in self._fitted:
            self._fitted[key] = fit(kept, "without " + ", ".join(key) if key else "all published runs")
        return self._fitted[key]

    def applied(self, case: Case) -> Scenario:
        """The scenario of a case under its calibration."""
        return replace(case.scenario, calibration=self.of(case.source, case.scenario.model.name))

    def _same(self, observation: Observation, key: Key) -> bool:
        return self._key(observation.source, observation.model) == key

    def _key(self, source: str, model: str) -> Key:
        """What is left out together. A catalogue model with changed numbers (deepseek-v3*) is the same model."""
        if self.leave_out == "source":
            return (paper_of(source),)
        return (publisher_of(source),) if self.leave_out == "publisher" else (_table_of(source), model.rstrip("*"))


def paper_of(source: str) -> str:
    """The paper or repository of a source: tables of one (InternEvo-flops, InternEvo-throughput) leave together. NVIDIA's
    tables are apart here, by GPU and precision, and leave together under leave-one-model-out."""
    return source if " " in source else source.split("-")[0]


def publisher_of(source: str) -> str:
    """`paper_of`, with NVIDIA's tables of all GPUs as one."""
    return paper_of(_table_of(source))


def _table_of(source: str) -> str:
    return source_of(source).publisher or source


@cache
def _observations() -> tuple[Observation, ...]:
    return tuple(observe(run) for run in published_runs().runs if useful_for_calibration(run))


def predict_runs(runs: Sequence[Run], constants: Constants) -> list[Predicted]:
    """Every run with the constants that it may use."""
    settings = [constants.applied(run.case) for run in runs]
    steps = predict_steps([(scenario, run.case.plan) for scenario, run in zip(settings, runs, strict=True)])
    return [
        Predicted(run=run, step_seconds=step, level=confidence_class(scenario, run.case.plan.cp))
        for run, step, scenario in zip(runs, steps, settings, strict=True)
    ]


@cache
def predictions(leave_out: LeaveOut) -> tuple[Predicted, ...]:
    """Every published run that can be predicted."""
    return tuple(predict_runs(published_runs().runs, Constants(leave_out)))
