"""PlanSampler: Optuna's sampler interface over `proposal.propose`.

A trial's parameters are the keys of a plan, so that optuna-dashboard shows them; together they always name one candidate. The
proposal of a trial is a function of the study's name, the seed, the trial's number and the finished trials; plans of trials
that are running at the same time count as measured at their mean.
"""

from __future__ import annotations

from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autoconfig.specs.errors import AutoconfigError
from autoconfig.study.candidates import Candidates, Choices
from autoconfig.study.training.proposal import Proposal, propose
from autoconfig.study.training.surrogate import Scatter, prior_covariance, shipped_scatter
from autoconfig.study.trials import failed_rows, results_of, row_of, tried_in_vain


class ProposingSampler(BaseSampler):
    """Proposes candidates: `proposal` says which, and is a pure function of what the study holds."""

    candidates: Choices
    last: dict[int, Proposal]
    """Proposals made by this process, by trial number."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Every parameter with all values that occur."""
        return distributions(self.candidates)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Parameters of the next candidate. Raises NothingLeft where every candidate was tried."""
        proposal = self.proposal(study, trial.number)
        self.last[trial.number] = proposal
        if proposal.row is None:
            raise NothingLeft("every candidate was tried")
        return dict(self.candidates.params[proposal.row])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never called: all parameters are sampled together."""
        raise AssertionError(f"{param_name} is not a key of the study's plans")

    def proposal(self, study: Study, number: int) -> Proposal:
        """The proposal for a trial number from what is finished now."""
        raise NotImplementedError  # each kind of study has its own; this class is never a sampler


class PlanSampler(ProposingSampler):
    """Proposes the candidate that is most likely the best."""

    candidates: Candidates

    def __init__(
        self,
        candidates: Candidates,
        seed: int,
        scatter: Scatter | None = None,
        *,
        headroom: bool = False,
        emulated: bool = False,
    ) -> None:
        """`candidates` of the study's question; `headroom`: step time against free memory; `emulated`: full jobs cannot run
        here, so that composed steps are the answer."""
        self.headroom, self.emulated = headroom, emulated
        self.candidates = candidates
        self._seed = seed
        self.scatter = scatter or shipped_scatter()
        self.covariance = prior_covariance(candidates, self.scatter)
        self.last = {}

    def proposal(self, study: Study, number: int) -> Proposal:
        """The proposal for a trial number from what is finished now."""
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != number]
        running = [t for t in trials if t.state == TrialState.RUNNING]
        pending = [row for t in running if (row := row_of(t, self.candidates)) is not None]
        return propose(
            self.candidates,
            results_of(trials, self.candidates, emulated=self.emulated),
            name=study.study_name,
            seed=self._seed,
            number=number,
            pending=sorted(set(pending)),
            given_up=tried_in_vain(trials, self.candidates),
            failed=failed_rows(trials, self.candidates),
            scatter=self.scatter,
            covariance=self.covariance,
            headroom=self.headroom,
            repeats=not self.emulated,  # what a composed step misses, another run misses too
        )


class NothingLeft(AutoconfigError):
    """Every candidate was tried."""


def distributions(candidates: Choices) -> dict[str, BaseDistribution]:
    """Parameter -> categorical distribution over its values."""
    return {name: CategoricalDistribution(choices=values) for name, values in candidates.choices.items()}
