"""What a trial carries in Optuna's storage, and what it says: names of attributes in one place.

Attributes are written for people too: optuna-dashboard shows them beside the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from autoconfig.study.candidates import Candidates, Choices
from autoconfig.study.training.proposal import Result

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
OWNER, JOB, STAGE, CLAIMED, WHY, CHANCE, MESSAGE = "owner", "job", "stage", "claimed", "why", "chance_to_win", "message"
PREDICTED, FIT = "predicted_step_seconds", "chance_to_fit"
SPREAD, SAMPLES, HEADROOM_GIB, PEAK_GIB = "step_seconds_spread", "step_seconds_samples", "headroom_gib", "measured_peak_gib"
REPEAT = "repeat"
"""How many jobs of the same plan were measured before this trial's."""
AGAIN = frozenset({DUPLICATE, "cancelled", "lost"})
"""Outcomes after which a plan may be proposed again."""


def row_of(trial: FrozenTrial, candidates: Choices) -> int | None:
    """The candidate that a trial is about; None before its parameters are all written, or where it is none of them."""
    return candidates.row_of(trial.params)


def result_of(trial: FrozenTrial, candidates: Candidates, *, emulated: bool = False) -> Result | None:
    """What a finished trial says; None where it says nothing (running, crashed, duplicate). `emulated`: composed steps count as
    measured ones."""
    row = row_of(trial, candidates)
    if row is None or not trial.state.is_finished():
        return None
    attributes = trial.user_attrs
    outcome = attributes.get(OUTCOME)
    if outcome == OUT_OF_MEMORY:
        return Result(row=row, out_of_memory=True)
    if outcome not in (MEASURED, EMULATED, PRUNED):
        return None
    if outcome == EMULATED and not emulated:
        return Result(row=row, log_ratio=attributes[LOG_RATIO], log_sd=attributes[LOG_SD])
    return Result(
        row=row,
        step_seconds=attributes.get(STEP_SECONDS),
        log_ratio=attributes.get(LOG_RATIO),
        log_sd=attributes.get(LOG_SD),
        peak_bytes=attributes.get(PEAK_BYTES),
    )


def results_of(trials: Sequence[FrozenTrial], candidates: Candidates, *, emulated: bool = False) -> list[Result]:
    """Results in the order of trial numbers."""
    return [found for trial in trials if (found := result_of(trial, candidates, emulated=emulated)) is not None]


def tried_in_vain(trials: Sequence[FrozenTrial], candidates: Choices) -> list[int]:
    """Rows whose trial ended without a full measurement: not to be proposed again."""
    ended = [t for t in trials if t.state in (TrialState.FAIL, TrialState.PRUNED) and t.user_attrs.get(OUTCOME) not in AGAIN]
    rows = [row_of(trial, candidates) for trial in ended]
    return sorted({row for row in rows if row is not None})


def attributes_of_oracle(step_seconds: float | None) -> dict[str, Any]:
    """Attributes of a trial that an oracle answered."""
    if step_seconds is None:
        return {OUTCOME: OUT_OF_MEMORY}
    return {OUTCOME: MEASURED, STEP_SECONDS: step_seconds}


def failed_rows(trials: Sequence[FrozenTrial], candidates: Candidates) -> list[int]:
    """Rows whose job failed, in the order of trials: not out of memory, cancelled or lost."""
    ended = [t for t in trials if t.state == TrialState.FAIL and t.user_attrs.get(OUTCOME) not in AGAIN]
    rows = [row_of(trial, candidates) for trial in ended]
    return [row for row in rows if row is not None]
