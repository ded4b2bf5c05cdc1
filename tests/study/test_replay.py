"""Recorded sweeps as an oracle: the bars of docs/profiling.md, held."""

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from autoconfig.accuracy.replay.docs import LEAST_ROWS, LEAST_TIMED, fit_scatter
from autoconfig.accuracy.replay.replay import Sweep, by_prior, by_sampler, paper, quiet_optuna, replay, replay_study, sweeps
from autoconfig.study.training.proposal import TOLERANCE
from autoconfig.study.training.settings import StudySettings
from autoconfig.study.training.surrogate import shipped_scatter
from autoconfig.study.training.work import TrainingWork
from autoconfig.study.trials import OUT_OF_MEMORY, OUTCOME, STEP_SECONDS, begin
from autoconfig.training.question import Request


@pytest.fixture(scope="module")
def recorded() -> list[Sweep]:
    return sweeps(LEAST_ROWS)


def barred(recorded: list[Sweep]) -> list[Sweep]:
    return [s for s in recorded if s.timed >= LEAST_TIMED and s.source.startswith(("AlephAlpha", "vTrain"))]


def test_the_sweeps_are_those_of_the_docs(recorded):
    counts: dict[str, int] = {}
    for sweep in barred(recorded):
        counts[sweep.source] = counts.get(sweep.source, 0) + 1
    assert counts == {"AlephAlpha-layouts-2311.05610": 3, "vTrain-groundtruth-multi": 1, "vTrain-groundtruth-single": 24}
    for sweep in barred(recorded):
        assert sweep.best in sweep.step_seconds, f"the memory model leaves out the best plan of {sweep.name}"
    pruned, timed = (sum(getattr(sweep, name) for sweep in recorded) for name in ("pruned_that_ran", "timed"))
    assert pruned <= 0.01 * timed


def test_the_best_plan_is_found_in_few_trials(recorded):
    """At most 5 trials in the median and 12 in the 90th percentile, of each source too; the study stops by
    itself, at the best in 9 of 10."""
    large = barred(recorded)
    unseen = {name: fit_scatter([s for s in recorded if paper(s) != name]) for name in {paper(s) for s in large}}
    runs = [replay_study(sweep, unseen[paper(sweep)]) for sweep in large]
    sources = [None, *sorted({sweep.source for sweep in large})]
    assert len(sources) == 4
    for source in sources:
        ours = [run for run, sweep in zip(runs, large, strict=True) if source in (None, sweep.source)]
        found = [run.found_after for run in ours]
        assert np.median(found) <= 5, source
        assert np.quantile(found, 0.9) <= 12, source
        assert sum(run.regret_at_stop <= TOLERANCE for run in ours) >= 0.9 * len(ours), source


def test_a_stored_study_proposes_what_the_replay_proposed(recorded):
    """What Optuna gives back of the trials is the same study: out-of-memory trials too."""
    quiet_optuna()
    sweep = next(s for s in barred(recorded) if None in s.step_seconds)
    settings = StudySettings(request=Request(model="unused", gpus=1))
    work = TrainingWork(settings=settings, question=None, candidates=sweep.candidates, assumed=())
    study = optuna.create_study(study_name=sweep.name)
    rows = []
    for number in range(12):
        row = work.propose(sweep.name, study.get_trials(), number).row
        step = sweep.step_seconds[row]
        said = {OUTCOME: OUT_OF_MEMORY} if step is None else {OUTCOME: "measured", STEP_SECONDS: step}
        trial = begin(study, sweep.candidates, row, said)
        study.tell(trial, step, state=TrialState.PRUNED if step is None else None)
        rows.append(row)
    assert any(trial.user_attrs[OUTCOME] == OUT_OF_MEMORY for trial in study.trials)
    assert [sweep.candidates.row_of(trial.params) for trial in study.trials] == rows == replay_rows(sweep, 12)


def replay_rows(sweep: Sweep, count: int) -> list[int]:
    from autoconfig.study.training.proposal import Result, propose

    results: list[Result] = []
    for number in range(count):
        row = propose(sweep.candidates, results, name=sweep.name, seed=0, number=number, scatter=shipped_scatter()).row
        step = sweep.step_seconds[row]
        results.append(Result(row=row, step_seconds=step, out_of_memory=step is None))
    return [result.row for result in results]


def test_other_strategies_run_on_the_same_candidates(recorded):
    quiet_optuna()
    sweep = barred(recorded)[-1]
    tpe = by_sampler(lambda seed: optuna.samplers.TPESampler(seed=seed), warm_start=3)
    assert list(tpe(sweep, 0))[:3] == list(by_prior(sweep, 0))[:3]
    assert replay(sweep, by_prior, 0).found_after <= len(sweep.candidates)
