"""What a trial carries in Optuna's storage: names of attributes in one place.

Attributes are written for people too: optuna-dashboard shows them beside the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from autoconfig.study.candidates import Choices

PLAN = "plan"
OUTCOME = "outcome"
"""How the trial ended: `measured`, `pruned`, or one of the failures of `profiler.outcome`."""
STEP_SECONDS = "measured_step_seconds"
LOG_RATIO = "log_ratio"
LOG_SD = "log_sd"
PEAK_BYTES = "measured_peak_bytes"
MEASURED = "measured"
EMULATED = "emulated"
"""The step is composed of emulated ranks: it counts as measured while the GPUs of full jobs are not there, else as a hint."""
FIDELITY = "fidelity"
"""`emulated`, or nothing: what the trial's last job is."""
PRUNED = "pruned"
OUT_OF_MEMORY = "out_of_memory"
DUPLICATE = "duplicate"
"""Another worker took the same plan at the same time."""
LOST = "lost"
OWNER, JOB, STAGE, CLAIMED, WHY, CHANCE, MESSAGE = "owner", "job", "stage", "claimed", "why", "chance_to_win", "message"
PREDICTED = "predicted_step_seconds"
SPREAD, SAMPLES, HEADROOM_GIB, PEAK_GIB = "step_seconds_spread", "step_seconds_samples", "headroom_gib", "measured_peak_gib"
REPEAT = "repeat"
"""How many jobs of the same plan were measured before this trial's."""
AGAIN = frozenset({DUPLICATE, "cancelled", LOST})
"""Outcomes after which a plan may be proposed again."""


def row_of(trial: FrozenTrial, candidates: Choices) -> int | None:
    """The candidate that a trial is about; None where it is none of them."""
    return candidates.row_of(trial.params)


def rows_of(trials: Sequence[FrozenTrial], candidates: Choices) -> list[int]:
    """The candidates that trials are about, in their order."""
    return [row for trial in trials if (row := row_of(trial, candidates)) is not None]


def running_rows(trials: Sequence[FrozenTrial], candidates: Choices) -> list[int]:
    """Candidates that are measured now, sorted."""
    return sorted(set(rows_of([t for t in trials if t.state == TrialState.RUNNING], candidates)))


def ended_rows(trials: Sequence[FrozenTrial], candidates: Choices, *states: TrialState) -> list[int]:
    """Candidates of trials that ended so and are not to be proposed again, in the order of trials."""
    return rows_of([t for t in trials if t.state in states and t.user_attrs.get(OUTCOME) not in AGAIN], candidates)


def tried_in_vain(trials: Sequence[FrozenTrial], candidates: Choices) -> list[int]:
    """Candidates whose trial ended without a full measurement, sorted."""
    return sorted(set(ended_rows(trials, candidates, TrialState.FAIL, TrialState.PRUNED)))


def outcome_of(trial: FrozenTrial) -> str:
    """How it ended, or `running`."""
    return str(trial.user_attrs.get(OUTCOME) or ("running" if trial.state == TrialState.RUNNING else "unknown"))


def told(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Without those that only say that another worker had the same plan."""
    return [trial for trial in trials if trial.user_attrs.get(OUTCOME) != DUPLICATE]
