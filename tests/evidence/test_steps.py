"""How long a step takes: warm-up, median, spread, drift, growth, pauses, means, clocks; numbers by hand."""

import random
from datetime import UTC, datetime

import pytest

from autoconfig.evidence.read import read_texts
from autoconfig.evidence.records import Origin, StepLine
from autoconfig.evidence.steps import statistics

START = datetime(2025, 3, 5, 14, 0, 0, tzinfo=UTC).timestamp()


def lines(seconds, first=1, every=1, **more):
    return [
        StepLine(origin=Origin(file="log", line=number), format="x", step=first + number * every, seconds=value, **more)
        for number, value in enumerate(seconds)
    ]


def noise(count, level=2.0, sd=0.01, seed=0):
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, sd)) for _ in range(count)]


def test_warm_up_is_dropped_and_the_median_is_of_the_rest():
    """A first iteration of 7 x the median and a second of 1.5 x, as in Megatron-LM's golden values."""
    found = statistics(lines([14.0, 3.0, *noise(48)]))
    assert (found.warmup_dropped, found.count, found.first, found.last) == (2, 48, 3, 50)
    assert found.median_s == pytest.approx(2.0, rel=0.01) and found.robust_sd == pytest.approx(0.01, rel=0.4)
    assert found.mean_s == pytest.approx((14 + 3 + 48 * 2) / 50, rel=0.01)
    assert not found.growing and found.pauses == () and abs(found.drift) < 0.01 and not found.mean_includes_warmup
    assert found.p10 < found.median_s < found.p90


def test_the_spread_is_the_median_deviation_scaled():
    """Deviations 0, 0.02, 0.02, 0.04, 0.04 of 2: median 0.02, times 1.4826."""
    assert statistics(lines([2.0, 2.02, 1.98, 2.04, 1.96] * 4)).robust_sd == pytest.approx(1.4826 * 0.01)


def test_few_steps():
    assert statistics([]) is None
    assert statistics(lines([])) is None
    one = statistics(lines([2.5]))
    assert (one.count, one.median_s, one.warmup_dropped, one.robust_sd) == (1, 2.5, 0, 0.0)
    two = statistics(lines([9.0, 2.0]))
    assert (two.count, two.median_s, two.warming_up) == (1, 2.0, True)  # the first step of a run is warm-up
    assert statistics(lines([9.0, 2.0], first=31)).count == 2  # too few to tell a warm-up


def test_the_first_steps_alone_are_warm_up():
    """As torchtitan prints them: step 1, then each tenth; and a log that was cut off behind step 2."""
    later = [*lines([31.0]), *lines([4.0, 4.1], first=10, every=10)]
    found = statistics(later)
    assert (found.median_s, found.warmup_dropped, found.warming_up) == (pytest.approx(4.05), 1, False)
    assert statistics(lines([31.0, 9.0])).warming_up and not statistics(lines([31.0], first=5)).warming_up


def test_steps_that_grow():
    """Megatron-LLM#11: 2.0 s growing to 7 s within a run."""
    found = statistics(lines([2.0 + 0.05 * step for step in range(100)]))
    assert found.growing and found.slope == pytest.approx(4.95 / 4.475, rel=1e-6) and found.pauses == ()
    assert found.drift == pytest.approx((2.0 + 0.05 * 74.5) / (2.0 + 0.05 * 24.5) - 1)
    assert statistics(lines([11.1, 14.6])).growing  # two lines, as in #22
    assert not statistics(lines(noise(100, sd=0.05))).growing


def unnumbered(seconds):
    return [StepLine(origin=Origin(file="log", line=n), format="figure", seconds=one) for n, one in enumerate(seconds, 1)]


def test_figures_of_no_step_are_no_series():
    """`4.1 s/it` and `8.2 s/it` in an issue are before and after; many of them in a log are its steps in their order."""
    assert statistics(unnumbered([4.1, 8.2])) is None and statistics(unnumbered([4.1, 8.2, 9.0])) is None
    alike = statistics(unnumbered([4.1, 4.2]))
    assert (alike.median_s, alike.growing, alike.slope) == (pytest.approx(4.15), False, 0.0)
    assert statistics(unnumbered([2.0 + 0.05 * n for n in range(50)])).growing


def test_one_jump_is_drift_and_no_growth_of_each_step():
    assert statistics(lines([2.0] * 50 + [2.3] * 50)).drift == pytest.approx(0.15)


@pytest.mark.parametrize(("period", "found"), [(40, 40), (None, None)])
def test_pauses_and_their_period(period, found):
    seconds = noise(200)
    places = range(30, 200, period) if period else (31, 60, 111, 118, 190)
    for place in places:
        seconds[place] += 8.0
    answer = statistics(lines(seconds))
    assert [pause.step for pause in answer.pauses] == [place + 1 for place in places]
    assert all(pause.excess == pytest.approx(8.0, rel=0.02) for pause in answer.pauses)
    assert answer.pause_period == found and answer.median_s == pytest.approx(2.0, rel=0.01)


def test_a_line_is_the_mean_of_its_interval():
    """Every tenth step is printed: a pause of 8 s in it lifts the mean by 0.8 s, and is 8 s long."""
    seconds = noise(60, sd=0.002)
    seconds[33] += 0.8
    (pause,) = statistics(lines(seconds, first=10, every=10)).pauses
    assert pause.step == 340 and pause.excess == pytest.approx(8.0, rel=0.02)


def test_running_means_are_taken_apart():
    """ms-swift prints the mean since the start: 10 s of warm-up, then 2 s a step."""
    means = [(10.0 + 2.0 * step) / step for step in range(10, 201, 10)]
    rows = lines(means, first=10, every=10, running_mean=True)
    found = statistics(rows)
    assert found.median_s == pytest.approx(2.0) and not found.mean_includes_warmup
    last = statistics(rows[-1:])
    assert last.median_s == pytest.approx(2.05) and last.mean_includes_warmup


def test_steps_by_the_clock_alone():
    rows = [
        StepLine(origin=Origin(file="log"), format="x", step=10 * n, at=START + 20.0 * n, tokens_per_s=1.0) for n in range(10)
    ]
    assert statistics(rows).median_s == pytest.approx(2.0)
    rows = [StepLine(origin=Origin(file="log"), format="x", step=n, elapsed=3.0 * n) for n in range(10)]
    assert statistics(rows).median_s == pytest.approx(3.0)


def test_time_that_no_step_holds():
    """marin#9205: 18.46 s between updates by the clock, 16.7 s by the step's timer."""
    rows = [StepLine(origin=Origin(file="log"), format="x", step=n, seconds=16.7, at=START + 18.46 * n) for n in range(1, 20)]
    assert statistics(rows).outside_s == pytest.approx(1.76)


def test_of_several_ranks_the_slowest_counts_and_of_restarts_the_longest_stretch():
    ranks = [
        StepLine(origin=Origin(file="log"), format="x", step=step, rank=rank, seconds=2.0 + 0.1 * rank)
        for step in range(1, 21)
        for rank in range(8)
    ]
    assert statistics(ranks).median_s == pytest.approx(2.7) and statistics(ranks).count == 20
    again = statistics(lines([5.0] * 5, first=100) + lines([2.0] * 40, first=3))
    assert (again.median_s, again.first, again.last) == (2.0, 3, 42)


def test_only_the_last_batch_counts_where_it_is_ramped_up():
    rows = [*lines([1.0] * 20, batch_size=64), *lines([2.0] * 20, first=21, batch_size=128)]
    assert statistics(rows).median_s == 2.0


def test_rates_alone_say_no_seconds():
    rows = [StepLine(origin=Origin(file="log"), format="x", step=n, tokens_per_s_per_gpu=4096.0) for n in range(1, 9)]
    assert statistics(rows) is None


def megatron(step, ms, at=None):
    clock = f"[{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}] " if at else ""
    return f" {clock}iteration {step:8d}/ 1000 | elapsed time per iteration (ms): {ms:.1f} | global batch size: 512 |\n"


def test_a_whole_log_with_evaluation_and_checkpoints():
    """Evaluation of 30 s behind each hundredth step: the clock says it, the steps do not."""
    at, text = START, ""
    for step in range(1, 401):
        at += 2.0 + (30.0 if step % 100 == 1 and step > 1 else 0.0)
        text += megatron(step, 2000.0 if step > 2 else 9000.0, at)
    found = statistics(read_texts({"log": text}).steps)
    assert (found.warmup_dropped, found.median_s) == (2, 2.0)
    assert found.outside_s == pytest.approx(3 * 30.0 / 399, rel=0.25)  # less the 14 s of warm-up that the clock lacks here
