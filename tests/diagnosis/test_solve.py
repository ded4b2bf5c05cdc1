"""What explains a step is what the step was made with; gains and phases add up."""

from dataclasses import replace

import pytest

from autoconfig.diagnosis import solve
from autoconfig.diagnosis.budget import SeenPart, subtract
from autoconfig.diagnosis.expectation import expected_seconds
from autoconfig.diagnosis.gain import step_after
from validation.diagnosis import made_runs
from validation.diagnosis.made_runs import DENSE, EXPERTS


@pytest.fixture(scope="module")
def dense():
    return made_runs.expected(*DENSE)


@pytest.fixture(scope="module")
def experts():
    return made_runs.expected(*EXPERTS)


@pytest.mark.parametrize("rate", [0.3e9, 1.1e9, 2.5e9])
def test_the_network_that_a_step_was_made_with_is_found(dense, rate):
    slow = expected_seconds(solve.with_network(dense.scenario, rate), dense.plan)
    found = solve.slow_network(dense.scenario, dense.plan, slow)
    assert found is not None and found.value == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("rate", [11e9, 24e9])
def test_the_links_that_a_step_was_made_with_are_found(dense, rate):
    slow = expected_seconds(solve.with_link(dense.scenario, rate), dense.plan)
    found = solve.slow_link(dense.scenario, dense.plan, slow)
    assert found is not None and found.value == pytest.approx(rate, rel=0.05)


def test_the_load_of_the_experts_that_a_step_was_made_with_is_found(experts):
    slow = expected_seconds(solve.with_imbalance(experts.scenario, 1.7), experts.plan)
    found = solve.imbalance(experts.scenario, experts.plan, slow)
    assert found is not None and found.value == pytest.approx(1.7, rel=0.02)


def test_the_clock_that_a_step_was_made_with_is_found(dense):
    slow = expected_seconds(solve.with_clock(dense.scenario, 0.6), dense.plan)
    found = solve.slow_clock(dense.scenario, dense.plan, slow)
    assert found is not None and found.value == pytest.approx(0.6, rel=0.02)


def test_a_step_that_is_not_slow_is_explained_by_nothing(dense):
    step = 0.9 * dense.step_seconds
    assert solve.slow_network(dense.scenario, dense.plan, step) is solve.slow_clock(dense.scenario, dense.plan, step) is None


@pytest.mark.parametrize(
    ("rate", "words"),
    [(1.1e9, "10 Gb/s Ethernet"), (11e9, "PCIe 3 x16"), (24e9, "PCIe 4 x16"), (0.12e9, "gigabit"), (300e9, "")],
)
def test_rates_belong_to_kinds_of_links(rate, words):
    assert solve.link_class(rate).startswith(words) and bool(solve.link_class(rate)) is bool(words)


def test_kinds_of_links_do_not_overlap():
    ends = [end for one in solve.LINK_CLASSES for end in (one.low, one.high)]
    assert ends == sorted(ends)


def test_phases_are_subtracted_and_the_rest_is_not_spread():
    """By hand: 10 s, of which compute is measured as 7 and the rest expected as 1."""
    budget = subtract(10.0, {"compute": 6.0, "host": 1.0}, [SeenPart(names=("compute",), seconds=7.0, source="trace")])
    assert [(one.name, one.gap_seconds) for one in budget.phases] == [("compute", 1.0), ("host", None)]
    assert budget.unexplained_seconds == 2.0


def test_one_timer_of_several_phases_stands_beside_their_sum():
    part = SeenPart(names=("compute", "host"), seconds=9.0, source="timer", words="forward and backward")
    budget = subtract(10.0, {"compute": 6.0, "host": 1.0, "optimizer": 0.5}, [part])
    assert (budget.phases[0].name, budget.phases[0].expected_seconds, budget.phases[0].gap_seconds) == (
        "forward and backward", 7.0, 2.0,
    )  # fmt: skip
    assert budget.unexplained_seconds == 0.5


def test_the_first_of_two_sources_of_a_phase_counts():
    traced = SeenPart(names=("compute",), seconds=7.0, source="trace")
    parts = [traced, SeenPart(names=("compute", "host"), seconds=9.0, source="timer")]
    assert [one.source for one in subtract(10.0, {"compute": 6.0, "host": 1.0}, parts).phases] == ["trace", ""]


def test_a_cure_scales_what_was_measured_and_leaves_the_host():
    """By hand: the exchange took 12 s where 8 were priced and the cure prices 4: 6 s are saved; the host that the planner
    doubles was measured at 1 s and stays so."""
    before = {"compute": 10.0, "expert exchange": 8.0, "host": 2.0}
    after = {"compute": 10.0, "expert exchange": 4.0, "host": 4.0}
    assert step_after(25.0, before, after, {"expert exchange": 12.0, "host": 1.0}) == pytest.approx(19.0)
    assert step_after(25.0, before, after, {}) == pytest.approx(25.0 * 18.0 / 20.0)


def test_no_rate_is_looked_for_where_one_node_holds_all(dense):
    one = replace(dense.scenario, cluster=replace(dense.scenario.cluster, num_gpus=8))
    assert solve.slow_network(one, dense.plan, 1e9) is None
