"""Candidates and trials: the rows that a study may measure, each named by its parameters, and what a trial carries in Optuna's
storage. Attributes are written for people too: optuna-dashboard shows them beside the parameters.

The one place of Optuna's private names: `Study.ask` after `Study.enqueue_trial` would write the owner and each parameter by
itself, and another worker's `ask` may take what was enqueued: a search killed in between would leave a trial that nobody takes
up, or one without parameters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autoconfig.specs.measurement import is_plausible

Floats = npt.NDArray[np.float64]
Value = str | int | float
Params = Mapping[str, Value]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a study may choose from: n rows, each named by its parameters."""

    params: tuple[Params, ...]
    """What distinguishes the rows; no two are the same."""

    def __len__(self) -> int:
        return len(self.params)

    @cached_property
    def _index(self) -> dict[tuple[tuple[str, Value], ...], int]:
        return {_key(params): row for row, params in enumerate(self.params)}

    @cached_property
    def choices(self) -> dict[str, tuple[Value, ...]]:
        """Parameter -> every value that occurs, sorted: the categorical distributions of the study."""
        found = {name: {params[name] for params in self.params} for name in self.params[0]}
        return {name: tuple(sorted(values, key=lambda v: (isinstance(v, str), v))) for name, values in found.items()}

    def row_of(self, params: Params) -> int | None:
        """The candidate with these parameters; None where there is none."""
        return self._index.get(_key(params))


def _key(params: Params) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(params.items()))


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
IMPLAUSIBLE = "implausible"
OUT_OF_MEMORY = "out_of_memory"
DUPLICATE = "duplicate"
"""Another worker took the same plan at the same time."""
LOST = "lost"
OWNER, JOB, STAGE, CLAIMED, WHY, CHANCE, MESSAGE = "owner", "job", "stage", "claimed", "why", "chance_to_win", "message"
PREDICTED = "predicted_step_seconds"
TTFT, TPOT, TOKENS = "measured_ttft_seconds", "measured_tpot_seconds", "measured_tokens_per_second"
"""Of a deployment; tokens of the instance."""
MEASURED_TOKENS = "measured_tokens_per_s_per_gpu"
PREDICTED_TOKENS, PREDICTED_TPOT = "predicted_tokens_per_s_per_gpu", "predicted_tpot_seconds"
_COMPARED = {STEP_SECONDS: PREDICTED, MEASURED_TOKENS: PREDICTED_TOKENS, TPOT: PREDICTED_TPOT}
"""A measured figure -> its prediction."""
_OF_A_MEASUREMENT = ("measured_", "log_", "step_seconds_", "headroom_")
SPREAD, SAMPLES, HEADROOM_GIB, PEAK_GIB = "step_seconds_spread", "step_seconds_samples", "headroom_gib", "measured_peak_gib"
REPEAT = "repeat"
"""How many jobs of the same plan were measured before this trial's."""
AGAIN = frozenset({DUPLICATE, "cancelled", LOST})
"""Outcomes after which a plan may be proposed again."""


def stored_trials(study: Study) -> list[FrozenTrial]:
    """The trials of a study, as far as they can be believed."""
    return [believed(trial) for trial in study.get_trials(deepcopy=False)]


def believed(trial: FrozenTrial) -> FrozenTrial:
    """The trial; one of an earlier version that took for measured what no job can have measured counts as implausible."""
    told = trial.user_attrs
    wrong = [name for name, value in told.items() if isinstance(value, float) and not math.isfinite(value)]
    for measured, predicted in _COMPARED.items():
        if measured in told and predicted in told and not is_plausible(told[measured], told[predicted]):
            wrong.append(measured)
    if not wrong or not trial.state.is_finished():
        return trial
    found = copy.copy(trial)
    found.state, found.values = TrialState.FAIL, None
    found.user_attrs = {name: value for name, value in told.items() if not name.startswith(_OF_A_MEASUREMENT)}
    found.user_attrs |= {OUTCOME: IMPLAUSIBLE, MESSAGE: f"{wrong[0]} {told[wrong[0]]:g} is none that a job can have measured"}
    return found


def rows_of(trials: Sequence[FrozenTrial], candidates: Choices) -> list[int]:
    """The candidates that trials are about, in their order."""
    return [row for trial in trials if (row := candidates.row_of(trial.params)) is not None]


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


def distributions(candidates: Choices) -> dict[str, BaseDistribution]:
    """Parameter -> categorical distribution over its values."""
    return {name: CategoricalDistribution(choices=values) for name, values in candidates.choices.items()}


def begin(study: Study, candidates: Choices, row: int, attributes: Mapping[str, Any]) -> Trial:
    """A running trial of a candidate, with its parameters and attributes, in one write."""
    template = create_trial(
        state=TrialState.RUNNING,
        params=dict(candidates.params[row]),
        distributions=distributions(candidates),
        user_attrs=dict(attributes),
    )
    return Trial(study, study._storage.create_new_trial(study._study_id, template_trial=template))


def taken_up(study: Study, frozen: FrozenTrial) -> Trial:
    """A trial that another process began."""
    return Trial(study, frozen._trial_id)


def as_stored(trial: Trial) -> FrozenTrial:
    """What the storage holds of it now."""
    return trial.study._storage.get_trial(trial._trial_id)


def is_stored(study: Study) -> bool:
    """Whether the study was not deleted since."""
    try:
        return study._storage.get_study_id_from_name(study.study_name) == study._study_id
    except KeyError:
        return False
