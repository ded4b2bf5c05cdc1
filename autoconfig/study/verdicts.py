"""What is told to Optuna about an outcome: state, values, attributes."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.study import Study
from optuna.trial import TrialState

from autoconfig.profiler.outcome import Kind, Outcome
from autoconfig.specs.units import GIB
from autoconfig.study import trials as names
from autoconfig.study.jobs import Stage
from autoconfig.study.sampler import PlanSampler
from autoconfig.study.settings import StudySettings
from autoconfig.study.training.proposal import CONFIDENCE, TOLERANCE, Result, believe
from autoconfig.study.training.surrogate import REPEAT_LOG_SD, SHORT_LOG_SD

DRAWS = 4_000


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a trial ends in the storage."""

    state: TrialState
    values: list[float] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


def verdict_of(outcome: Outcome, stage: Stage, settings: StudySettings, limit_bytes: float) -> Verdict:
    """Measured: complete, with its value. Out of memory: pruned, a constraint learned. Everything else: failed, with the
    reason.
    """
    attributes: dict[str, Any] = {names.OUTCOME: str(outcome.kind)}
    if outcome.message:
        attributes[names.MESSAGE] = outcome.message[:1000]
    if outcome.kind is Kind.OUT_OF_MEMORY:
        return Verdict(state=TrialState.PRUNED, attributes=attributes)
    if outcome.kind is not Kind.MEASURED:
        return Verdict(state=TrialState.FAIL, attributes=attributes)
    measurement = outcome.measurement
    assert measurement is not None and measurement.step_seconds is not None
    seconds = measurement.step_seconds
    attributes |= {
        names.OUTCOME: names.MEASURED,
        names.STEP_SECONDS: seconds,
        names.LOG_RATIO: math.log(seconds / stage.predicted_s),
        names.LOG_SD: noise_of(measurement.step_seconds_samples),
        names.SAMPLES: list(measurement.step_seconds_samples),
    }
    if measurement.step_seconds_spread is not None:
        attributes[names.SPREAD] = measurement.step_seconds_spread
    peak = measurement.peak_allocated_bytes
    values = [seconds]
    if peak is not None:
        attributes |= {names.PEAK_BYTES: peak, names.PEAK_GIB: peak / GIB}
    if settings.objective == "headroom":
        values.append((limit_bytes - (peak or 0)) / GIB)
        attributes[names.HEADROOM_GIB] = values[1]
    return Verdict(state=TrialState.COMPLETE, values=values, attributes=attributes)


def noise_of(samples: tuple[float, ...]) -> float:
    """Standard deviation of the logarithm of the samples' median: 1.25 sd / sqrt(n) for normal errors; REPEAT_LOG_SD at least,
    because steps of one job are more alike than jobs."""
    if len(samples) < 2 or min(samples) <= 0:
        return REPEAT_LOG_SD
    return max(REPEAT_LOG_SD, 1.25 * statistics.stdev(math.log(value) for value in samples) / math.sqrt(len(samples)))


def hopeless(row: int, log_ratio: float, what: str, study: Study, sampler: PlanSampler, number: int) -> Verdict | None:
    """From a short job, or the first steps of the full one: a verdict where the plan can hardly win any more, else None."""
    trials = [t for t in study.get_trials(deepcopy=False) if t.number != number]
    seen = [
        *names.results_of(trials, sampler.candidates, emulated=sampler.emulated),
        Result(row=row, log_ratio=log_ratio, log_sd=SHORT_LOG_SD),
    ]  # fmt: skip
    belief = believe(sampler.candidates, seen, scatter=sampler.scatter, covariance=sampler.covariance)
    if belief.best is None:
        return None
    draws = belief.posterior.draws(np.array([row]), DRAWS, np.random.default_rng(number))[0]
    chance = float((draws < belief.posterior.mean[belief.best] + math.log(1 - TOLERANCE)).mean())
    if chance > 1 - CONFIDENCE:
        return None
    text = f"{what} ran {math.exp(log_ratio):.2f} times the prediction: it beats the best in {chance:.1%} of what is possible"
    attributes = {
        names.OUTCOME: names.PRUNED, names.LOG_RATIO: log_ratio, names.LOG_SD: SHORT_LOG_SD, names.MESSAGE: text,
    }  # fmt: skip
    return Verdict(state=TrialState.PRUNED, attributes=attributes)
