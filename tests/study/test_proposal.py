"""The study's belief and proposals: exact where a formula is exact, properties elsewhere."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoconfig.study.training.candidates import candidates_of
from autoconfig.study.training.proposal import Result, believe, chances_to_win, propose, scatter_between_jobs
from autoconfig.study.training.surrogate import (
    DEGREES,
    MemoryFact,
    PlanMeasured,
    Scatter,
    chance_to_run,
    features,
    memory_belief,
    posterior,
    prior_covariance,
    shipped_scatter,
)
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import rank_plans

REQUEST = Request(
    model="gpt3-1.7b", gpus=8, gpu="a100-80gb", seq_length=1024, global_batch_size=32, architecture={"num_layers": 6}
)


@pytest.fixture(scope="module")
def candidates():
    return candidates_of(rank_plans(understand(REQUEST).scenario))


def test_parameters_name_one_candidate(candidates):
    assert len(set(map(str, candidates.params))) == len(candidates)
    assert [candidates.row_of(params) for params in candidates.params] == list(range(len(candidates)))
    assert np.all(np.diff(candidates.predicted_s) >= 0)


def test_one_measurement_by_hand(candidates):
    """With the shared error only, every plan moves by the same factor: prior variance over prior plus noise."""
    only_step = Scatter(step=0.3, part=1e-9, shape=1e-9, plan=1e-9, doublings=1.0, differences=1.0)
    after = posterior(candidates, [PlanMeasured(row=3, log_ratio=0.2, log_sd=0.1)], only_step)
    moved = after.mean - np.log(candidates.predicted_s)
    assert moved == pytest.approx(np.full(len(candidates), 0.2 * 0.09 / (0.09 + 0.01)), rel=1e-6)
    assert after.covariance[0, 1] == pytest.approx(0.09 - 0.09**2 / 0.10, rel=1e-6)
    assert after.degrees == DEGREES + 1


def test_a_surprise_widens_every_band(candidates):
    expected = posterior(candidates, [PlanMeasured(row=0, log_ratio=0.0)], shipped_scatter())
    surprised = posterior(candidates, [PlanMeasured(row=0, log_ratio=2.0)], shipped_scatter())
    assert np.all(surprised.log_sd[5:] > 1.5 * expected.log_sd[5:])


def test_like_plans_share_their_error(candidates):
    """What is measured about a layer shape moves plans with that shape more than others."""
    covariance = prior_covariance(candidates, shipped_scatter())
    assert np.allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0
    scatter = replace(shipped_scatter(), part=1e-9)
    covariance = prior_covariance(candidates, scatter)
    first = candidates.plans[0]
    rest = list(enumerate(candidates.plans))[1:]
    alike = [(n, sum(getattr(p, key) == getattr(first, key) for key in ("tp", "mbs", "recompute"))) for n, p in rest]
    same, other = [n for n, count in alike if count == 3], [n for n, count in alike if count == 0]
    assert covariance[0, same].mean() > covariance[0, other].mean()


def test_proposals_are_a_pure_function(candidates):
    results = [Result(row=0, step_seconds=0.5), Result(row=7, step_seconds=0.4), Result(row=9, out_of_memory=True)]
    first = propose(candidates, results, name="a", seed=1, number=3)
    propose(candidates, results[:1], name="b", seed=5, number=1)
    np.random.default_rng().random(10)
    assert propose(candidates, results, name="a", seed=1, number=3) == first


def test_finished_pending_and_given_up_plans_are_not_proposed(candidates):
    rows = set()
    for number in range(12):
        found = propose(candidates, [], name="a", seed=0, number=number, pending=sorted(rows), given_up=[20])
        assert found.row is not None and found.row not in rows and found.row != 20
        rows.add(found.row)
    assert len(rows) == 12


def test_a_study_ends_when_everything_was_measured(candidates):
    results = [Result(row=row, step_seconds=float(s)) for row, s in enumerate(candidates.predicted_s)]
    found = propose(candidates, results, name="a", seed=0, number=len(results))
    assert found.row is None and found.settled
    assert believe(candidates, results).best == 0


def test_not_settled_while_a_plan_may_win(candidates):
    """The incumbent is the slowest plan, measured as predicted: others are likely better."""
    slow = [Result(row=len(candidates) - 1 - n, step_seconds=float(candidates.predicted_s[-1 - n])) for n in range(4)]
    found = propose(candidates, slow, name="a", seed=0, number=4)
    assert not found.settled and found.chance_to_change > 0.5


def test_chances_add_up(candidates):
    left = np.arange(len(candidates))
    chances, change = chances_to_win(believe(candidates, []), left, np.random.default_rng(0))
    assert chances.sum() == pytest.approx(1.0, abs=0.01)
    assert change == pytest.approx(1.0, abs=0.01)


def test_out_of_memory_is_a_constraint_learned(candidates):
    """A plan that was likely to fit and did not makes all plans of like need less likely."""
    tight = replace(candidates, limit_bytes=candidates.peak_bytes * 1.05, device_bytes=float(candidates.peak_bytes.max()))
    before = memory_belief(tight, [])
    row = int(np.argmax(candidates.peak_bytes))
    after = memory_belief(tight, [MemoryFact(row=row, ran=False)])
    assert after.chance[row] == 0.0
    others = np.arange(len(candidates)) != row
    assert np.all(after.chance[others] < before.chance[others])
    assert after.correction > before.correction == pytest.approx(1.0)
    learned = [Result(row=row, out_of_memory=True)]
    assert not any(propose(tight, learned, name="a", seed=seed, number=1).row == row for seed in range(5))


def test_measured_peaks_move_the_correction(candidates):
    facts = [MemoryFact(row=n, ran=True, peak_bytes=1.1 * candidates.peak_bytes[n]) for n in range(10)]
    assert memory_belief(candidates, facts).correction == pytest.approx(1.1, abs=0.02)


def test_a_short_job_counts_less_than_a_full_one(candidates):
    ratio = math.log(1.5)
    short = believe(candidates, [Result(row=4, log_ratio=ratio, log_sd=0.05)])
    full = believe(candidates, [Result(row=4, step_seconds=float(1.5 * candidates.predicted_s[4]))])
    assert short.best is None and full.best == 4
    assert abs(short.posterior.mean[4] - full.posterior.mean[4]) < 0.1
    assert short.posterior.log_sd[4] > full.posterior.log_sd[4]


def test_plans_that_fail_for_the_same_reason_are_put_off(candidates):
    """One failed plan recomputes a module that no plan that ran recomputes: all that do become unlikely, others stay."""
    with_mlp = [n for n, p in enumerate(candidates.plans) if "mlp" in p.recompute.modules]
    plain = [n for n, p in enumerate(candidates.plans) if p.recompute.granularity == "none"]
    ran = [Result(row=plain[0], step_seconds=0.5)]
    same = [
        n
        for n in with_mlp
        if features(candidates.plans[n]) - features(candidates.plans[plain[0]]) <= {"recompute mlp", "recompute selective"}
    ]
    failed = same[0]
    before, after = believe(candidates, ran), believe(candidates, ran, failed=[failed])
    assert np.all(after.memory.chance[with_mlp] <= 0.1 * before.memory.chance[with_mlp] + 1e-12)
    assert np.all(after.memory.chance[plain] == before.memory.chance[plain])
    assert chance_to_run(candidates, [failed], [failed]).min() == 1.0


def test_noise_is_answered_by_measuring_again(candidates):
    """Where the steps scatter by a third, the leaders are measured again, at most five times each; where they do not, never."""
    quiet = [Result(row=row, step_seconds=float(s), log_sd=0.01) for row, s in enumerate(candidates.predicted_s)]
    assert propose(candidates, quiet, name="a", seed=0, number=9, repeats=True).settled
    noisy = [Result(row=row, step_seconds=float(s), log_sd=0.3) for row, s in enumerate(candidates.predicted_s)]
    again = propose(candidates, noisy, name="a", seed=0, number=9, repeats=True)
    assert again.row is not None and not again.settled and "measured again" in again.why
    assert propose(candidates, noisy, name="a", seed=0, number=9).settled
    assert propose(candidates, noisy * 5, name="a", seed=0, number=9, repeats=True).settled


def test_a_lucky_measurement_does_not_win(candidates):
    """The best is the believed one: a noisy outlier at half its prediction loses against a sure plan."""
    sure = [Result(row=row, step_seconds=float(candidates.predicted_s[row]), log_sd=0.01) for row in (0, 1, 2)]
    lucky = Result(row=9, step_seconds=0.8 * float(candidates.predicted_s[0]), log_sd=1.0)
    assert believe(candidates, [*sure, lucky]).best == 0


def test_the_noise_between_jobs_is_learned_from_repeats(candidates):
    """Two jobs of one plan that differ by 30 % say how far one job of another plan can be off, whatever its own steps say."""
    seconds = [float(candidates.predicted_s[row]) for row in (0, 1)]
    once = [Result(row=row, step_seconds=seconds[row], log_sd=0.01) for row in (0, 1)]
    assert scatter_between_jobs(once) == 0.0
    again = [*once, Result(row=0, step_seconds=1.3 * seconds[0], log_sd=0.01)]
    assert scatter_between_jobs(again) == pytest.approx(math.log(1.3) / math.sqrt(2))
    assert believe(candidates, once).posterior.log_sd[1] == pytest.approx(0.01, rel=0.05)
    assert believe(candidates, again).posterior.log_sd[1] > 0.1
