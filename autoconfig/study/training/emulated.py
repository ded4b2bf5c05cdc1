"""A plan whose GPUs are not there: ranks of it run one after the other on one device, and the time model makes a step of them.

Measured are the layers' compute and the memory of the ranks; collectives, sends, bubble and data parallelism stay the time
model's, with what the study has learned about it (`autoconfig.core.emulate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from optuna.trial import TrialState

from autoconfig.core.emulate import composed_step, compute_seconds, micro_batch_seconds
from autoconfig.specs.measurement import Measurement
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.units import GIB
from autoconfig.study import trials as names
from autoconfig.study.settings import StudySettings
from autoconfig.study.verdicts import Verdict, noise_of
from autoconfig.training.price import report_plan

EMULATED_LOG_SD = 0.05
"""Scatter of a composed step around the full job: as a short job's (`surrogate.SHORT_LOG_SD`). Not measured by us on GPUs."""


def step_seconds(scenario: Scenario, plan: TrainPlan, measurements: Sequence[Measurement]) -> float:
    """The step composed of emulated ranks: the slowest stage's compute in the place of the predicted one."""
    report = report_plan(scenario, plan)
    m = scenario.workload.global_batch_size // (plan.mbs * plan.dp)
    slowest = max(micro_batch_seconds(scenario, plan, figures.rank, figures) for one in measurements for figures in one.ranks)
    return composed_step(report, m, compute_seconds(report, m), slowest)


def verdict_of_ranks(
    scenario: Scenario,
    plan: TrainPlan,
    measurements: Sequence[Measurement],
    predicted_s: float,
    settings: StudySettings,
    limit_bytes: float,
) -> Verdict:
    """All ranks ran: complete, with the composed step and the largest peak."""
    seconds = step_seconds(scenario, plan, measurements)
    peak = max(figures.peak_allocated_bytes for one in measurements for figures in one.ranks)
    noise = max(noise_of(one.step_seconds_samples) for one in measurements)
    values = [seconds] if settings.objective != "headroom" else [seconds, (limit_bytes - peak) / GIB]
    attributes = {
        names.OUTCOME: names.EMULATED,
        names.STEP_SECONDS: seconds,
        names.LOG_RATIO: math.log(seconds / predicted_s),
        names.LOG_SD: math.hypot(EMULATED_LOG_SD, noise),
        names.PEAK_BYTES: peak,
        names.PEAK_GIB: peak / GIB,
        names.MESSAGE: f"composed of {len(measurements)} emulated ranks",
    }
    return Verdict(state=TrialState.COMPLETE, values=values, attributes=attributes)
