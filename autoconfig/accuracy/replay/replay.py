"""Replays recorded sweeps: how many trials until the measured-best plan is found, by the study and by others.

Every strategy proposes plans of the same candidates; the record answers; an answer is a trial. What is reported per sweep:
the trial in which a plan within TOLERANCE of the measured best was first measured, the regret after every trial, and for the
study the trial after which it was settled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from autoconfig.accuracy.replay.recorded import Sweep
from autoconfig.study.optuna_trials import distributions
from autoconfig.study.training.proposal import TOLERANCE, Result, propose
from autoconfig.study.training.surrogate import Scatter, prior_covariance

NOT_YET = 1.0
"""Regret before the first plan that ran: as if twice the best."""
REPEATS = 20
"""Runs of strategies that draw at random, with seeds 0, 1, ..."""
SAMPLER_REPEATS = 3
MOST_ASKED = 400
"""Proposals that one of Optuna's samplers may make in one sweep. Those that name no candidate or one already measured are
answered at no cost.
"""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One strategy on one sweep."""

    found_after: int
    """Trials until a plan within TOLERANCE of the best was measured."""
    regret: tuple[float, ...]
    """After each trial: best measured so far over the best, less 1."""
    settled_after: int | None = None
    """Trials until the study stopped by itself."""

    @property
    def regret_at_stop(self) -> float:
        """Regret when the study stopped."""
        assert self.settled_after is not None
        return self.regret[self.settled_after - 1]


Strategy = Callable[[Sweep, int], Iterator[int]]
"""(sweep, seed) -> rows in the order of measuring."""


def run_order(sweep: Sweep, rows: Sequence[int], settled_after: int | None = None) -> Replay:
    """The outcome of measuring rows in this order; rows not named count as never found."""
    best, least, regret, found = sweep.best, np.inf, [], len(sweep.candidates) + 1
    for count, row in enumerate(rows, 1):
        step = sweep.step_seconds[row]
        least = min(least, np.inf if step is None else step)
        regret.append(min(NOT_YET, least / best - 1))
        if regret[-1] <= TOLERANCE and found > count:
            found = count
    return Replay(found_after=found, regret=tuple(regret), settled_after=settled_after)


def replay_study(sweep: Sweep, scatter: Scatter, seed: int = 0) -> Replay:
    """The study's own proposals, to the last candidate; it would have stopped at `settled_after`."""
    covariance = prior_covariance(sweep.candidates, scatter)
    results: list[Result] = []
    settled: int | None = None
    while True:
        proposal = propose(
            sweep.candidates, results, name=sweep.name, seed=seed, number=len(results), scatter=scatter, covariance=covariance
        )
        if proposal.settled and settled is None:
            settled = len(results)
        if proposal.row is None:
            return run_order(sweep, [result.row for result in results], settled)
        step = sweep.step_seconds[proposal.row]
        results.append(Result(row=proposal.row, step_seconds=step, out_of_memory=step is None))


def by_prior(sweep: Sweep, seed: int) -> Iterator[int]:
    """The time model's ranking, never corrected."""
    yield from (int(row) for row in np.argsort(sweep.candidates.predicted_s, kind="stable"))


def at_random(sweep: Sweep, seed: int) -> Iterator[int]:
    """Without replacement."""
    yield from (int(row) for row in np.random.default_rng(seed).permutation(len(sweep.candidates)))


def by_sampler(sampler: Callable[[int], BaseSampler], warm_start: int = 0, most_asked: int = MOST_ASKED) -> Strategy:
    """One of Optuna's samplers over the keys of the plan. `warm_start`: begins with so many of the time model's best plans."""

    def strategy(sweep: Sweep, seed: int) -> Iterator[int]:
        study = optuna.create_study(sampler=sampler(seed))
        spaces, done = distributions(sweep.candidates), set[int]()
        for row in list(by_prior(sweep, seed))[:warm_start]:
            study.enqueue_trial(dict(sweep.candidates.params[row]))
        for _ in range(most_asked):
            trial = study.ask(spaces)
            named = sweep.candidates.row_of(trial.params)
            step = None if named is None else sweep.step_seconds[named]
            if step is None:
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, step)
            if named is not None and named not in done:
                done.add(named)
                yield named

    return strategy


def replay(sweep: Sweep, strategy: Strategy, seed: int) -> Replay:
    """A strategy until it found the best."""
    rows: list[int] = []
    for row in strategy(sweep, seed):
        rows.append(row)
        step = sweep.step_seconds[row]
        if step is not None and step <= sweep.best * (1 + TOLERANCE):
            break
    return run_order(sweep, rows)


def quiet_optuna() -> None:
    """No line per trial."""
    optuna.logging.set_verbosity(logging.ERROR)
