"""The one place of Optuna's private names: a trial is begun whole, taken up again by its id, and read afresh.

`Study.ask` after `Study.enqueue_trial` would write the owner and each parameter by itself, and another worker's `ask` may take
what was enqueued: a search killed in between would leave a trial that nobody takes up, or one without parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autoconfig.study.candidates import Choices


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
