"""Recorded sweeps, many plans of one question that others measured and published, replayed: how many trials until the measured-
best plan is found, by the study and by others.

A sweep is the rows of one source with the same architecture, GPUs, sequence and global batch. The prior of its candidates comes
from constants that have not seen its source (`Constants`). Every strategy proposes plans of the same candidates;
the record answers; an answer is a trial. What is reported per sweep: the trial in which a plan within TOLERANCE of the measured
best was first measured, the regret after every trial, and for the study the trial after which it was settled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import optuna
from autoconfig.specs.errors import AutoconfigError
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from autoconfig.runs.table import cell
from autoconfig.runs.training_row import Case, measured_step_seconds, read_case
from autoconfig.study.training.candidates import Candidates, build
from autoconfig.study.training.proposal import TOLERANCE, Result, propose
from autoconfig.study.training.surrogate import Scatter, memory_belief, prior_covariance
from autoconfig.study.trials import distributions
from validation.published import published_rows
from validation.sheets.training import Constants, paper_of, question_of

MIN_CHANCE_TO_FIT = 0.05
"""Plans below it are pruned by the memory model and never proposed."""
VARIANT_CELLS = ("attention_kernel", "norm_kernel", "transformer_impl", "loss_fusion", "overlap", "cuda_graph")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One recorded sweep."""

    name: str
    source: str
    candidates: Candidates
    step_seconds: tuple[float | None, ...]
    """Measured step of each candidate; None: it ran out of memory."""
    pruned_that_ran: int
    """Measured plans that the memory model left out."""
    best: float

    @property
    def timed(self) -> int:
        return sum(step is not None for step in self.step_seconds)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A recorded run; None seconds: it ran out of memory."""

    case: Case
    variant: str
    seconds: float | None


def sweeps(least_rows: int) -> list[Sweep]:
    """Every sweep of the published tables with at least this many timed rows, in the order of source and shape."""
    groups: dict[tuple[object, ...], list[_Entry]] = {}
    for entry in _entries():
        layers, hidden, heads, *load = question_of(entry.case)
        scenario = entry.case.scenario
        shape = (layers, hidden, heads, scenario.numerics.precision)
        groups.setdefault((entry.case.source, scenario.cluster.gpu.id, *shape, *load), []).append(entry)
    large = [key for key, entries in groups.items() if sum(one.seconds is not None for one in entries) >= least_rows]
    constants = Constants("source")
    return [_sweep(key, groups[key], constants) for key in sorted(large, key=str)]


def _entries() -> Iterator[_Entry]:
    for row in published_rows():
        ran_out = cell(row, "status") == "oom"
        if cell(row, "full_plan") != "0":
            with suppress(AutoconfigError):
                case = read_case(row)
                seconds = None if ran_out else measured_step_seconds(row, case.scenario)
                if seconds or ran_out:
                    variant = "+".join(filter(None, (cell(row, name) for name in VARIANT_CELLS)))
                    yield _Entry(case=case, variant=variant, seconds=seconds)


def _sweep(key: tuple[object, ...], entries: Sequence[_Entry], constants: Constants) -> Sweep:
    """Runs of one plan and variant are one candidate with their median time."""
    same: dict[tuple[str, str], list[_Entry]] = {}
    for entry in entries:
        same.setdefault((str(entry.case.plan), entry.variant), []).append(entry)
    variants = [variant for _, variant in same]
    cases = [(constants.applied(runs[0].case), runs[0].case.plan) for runs in same.values()]
    steps = [_median([run.seconds for run in runs if run.seconds is not None]) for runs in same.values()]
    every = build(cases, variants)
    likely = memory_belief(every, []).chance >= MIN_CHANCE_TO_FIT
    likely_rows = np.flatnonzero(likely)
    source, gpu, layers, hidden, _, _, gpus, seq, batch = key
    return Sweep(
        name=f"{source}: {layers} layers of {hidden}, {gpus} {gpu}, sequence {seq}, batch {batch}",
        source=str(source),
        candidates=every if all(likely) else build([cases[n] for n in likely_rows], [variants[n] for n in likely_rows]),
        step_seconds=tuple(steps[n] for n in likely_rows),
        best=min(filter(None, steps)),
        pruned_that_ran=sum(step is not None and not likely[n] for n, step in enumerate(steps)),
    )


def _median(seconds: Sequence[float]) -> float | None:
    return float(np.median(seconds)) if seconds else None


def paper(sweep: Sweep) -> str:
    """The paper or repository that a sweep leaves with."""
    return paper_of(sweep.source)


NOT_YET = 1.0
"""Regret before the first plan that ran: as if twice the best."""
REPEATS = 20
SAMPLER_REPEATS = 3
MAX_ASKED = 400
"""Proposals that one of Optuna's samplers may make in one sweep. Those that name no candidate or one already measured are
answered at no cost.
"""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One strategy on one sweep."""

    found_after: int
    regret: tuple[float, ...]
    """After each trial: best measured so far over the best, less 1."""
    settled_after: int | None = None
    """Trials until the study stopped by itself."""

    @property
    def regret_at_stop(self) -> float:
        assert self.settled_after is not None
        return self.regret[self.settled_after - 1]


Strategy = Callable[[Sweep, int], Iterator[int]]


def run_order(sweep: Sweep, rows: Sequence[int], settled_after: int | None = None) -> Replay:
    """The outcome of measuring rows in this order; rows not named count as never found."""
    best, least, regret, trials = sweep.best, np.inf, [], len(sweep.candidates) + 1
    for count, row in enumerate(rows, 1):
        step = sweep.step_seconds[row]
        least = min(least, np.inf if step is None else step)
        regret.append(min(NOT_YET, least / best - 1))
        if regret[-1] <= TOLERANCE and trials > count:
            trials = count
    return Replay(found_after=trials, regret=tuple(regret), settled_after=settled_after)


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
    """Candidates in an order by chance, each once."""
    yield from (int(row) for row in np.random.default_rng(seed).permutation(len(sweep.candidates)))


def by_sampler(sampler: Callable[[int], BaseSampler], warm_start: int = 0, most_asked: int = MAX_ASKED) -> Strategy:
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
