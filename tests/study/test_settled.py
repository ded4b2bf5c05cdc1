"""When a study of training plans is settled: its tolerance and its least number of measured plans, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from autoconfig.study.training import proposal


@pytest.mark.parametrize(("faster", "share"), [(0.98, 1.0), (0.985, 1.0), (0.995, 0.0), (1.2, 0.0)])
def test_a_plan_that_is_a_hundredth_faster_would_change_the_answer(faster, share):
    """One measured plan of 10 s; another that is surely `faster` times as long."""
    log = np.log(np.array([10.0, 10.0 * faster]))
    posterior = SimpleNamespace(draws=lambda rows, count, generator: np.repeat(log[rows][:, None], count, axis=1))
    belief = SimpleNamespace(posterior=posterior, memory=SimpleNamespace(chance=np.ones(2)), measured={0: 10.0})
    _, change = proposal.chances_to_win(belief, np.array([1]), np.random.default_rng(1))
    assert change == share


@pytest.mark.parametrize(("measured", "there", "settled"), [(1, 9, False), (2, 9, False), (3, 9, True), (2, 2, True)])
def test_a_study_measures_three_plans_before_it_is_settled(monkeypatch, measured, there, settled):
    """Nothing left can win, however few were measured."""

    class Plans(SimpleNamespace):
        def __len__(self):
            return there

    log = np.log(np.arange(1.0, there + 1.0))

    def draws(rows, count, generator):
        return np.repeat(log[rows][:, None], count, axis=1)

    posterior = SimpleNamespace(mean=log, log_sd=np.full(there, 1e-3), draws=draws)
    memory = SimpleNamespace(chance=np.ones(there), correction=1.0)
    belief = SimpleNamespace(posterior=posterior, memory=memory, measured=dict.fromkeys(range(measured), 1.0), best=0)
    monkeypatch.setattr(proposal, "believe", lambda *given: belief)
    results = [SimpleNamespace(row=row, out_of_memory=False, step_seconds=1.0) for row in range(measured)]
    assert proposal.propose(Plans(), results, name="a", seed=0, number=measured).settled == settled
