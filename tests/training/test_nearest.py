"""The nearest legal plan: counts, batches and stages near those that were asked for."""

import pytest
from autoconfig.specs.plan import parse_plan
from tables import tabled

from autoconfig.training.nearest import _from_space, _one_change, nearest_legal, odd_factor
from autoconfig.training.question import Request, understand
from autoconfig.training.remedies import useful_batches


@tabled
def test_batches_that_an_odd_number_of_gpus_divides(gpus, batch, found):
    scenario = understand(Request(model="llama3-8b", gpus=gpus, global_batch_size=batch)).scenario
    assert useful_batches(scenario) == found


def test_the_odd_factor_is_what_batch_heads_and_sequence_leave_over():
    """72 = 8 x 9; 96 = 32 x 3 sequences take one 3, 32 heads and 8,192 tokens none."""
    scenario = understand(Request(model="llama3-8b", gpus=72, global_batch_size=96, seq_length=8192)).scenario
    assert odd_factor(scenario).startswith("72 GPUs have the factor 9, ") and "leave 3 of it" in odd_factor(scenario)
    assert odd_factor(scenario.with_batch(288)) == "" and "leave 9 of it" in odd_factor(scenario.with_batch(64))


def test_plans_of_one_change_keep_all_gpus_at_work():
    """tp=2, pp=2 on 8 GPUs: each degree changed alone, to what divides 8 with the others; dp follows."""
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    found = list(_one_change(scenario, parse_plan("tp=2,pp=2,mbs=1", 8)))
    degrees = {(one.tp, one.pp, one.cp, one.dp) for one in found}
    assert degrees == {(2, 2, 1, 2), (1, 2, 1, 4), (4, 2, 1, 1), (2, 1, 1, 4), (2, 4, 1, 1), (2, 2, 2, 1)}


@pytest.mark.parametrize(("asked", "ends"), [("pp=16", (3, 2)), ("pp=8", (7, 6)), ("pp=2", (31, 30))])
def test_layers_that_do_not_divide_keep_the_stages_that_were_asked_for(asked, ends):
    scenario = understand(Request(model="deepseek-v3", gpus=1024)).scenario
    plan = parse_plan(f"tp=1,{asked},ep=64,mbs=1", 1024)
    assert nearest_legal(scenario, plan) == plan.replace(first=ends[0], last=ends[1])
    assert nearest_legal(scenario, plan, even_only=True) == plan.replace(pp=1, dp=1024)


@tabled
def test_stages_stay_even_where_the_nearest_plan_of_the_whole_space_has_even_ones(text, even_only, found):
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    assert _from_space(scenario, parse_plan(text, 8), even_only) == parse_plan(found, 8)


def test_uneven_stages_stay_uneven_where_they_may():
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    found = _from_space(scenario, parse_plan("tp=2,pp=4,mbs=1,first=7,last=9", 8), False)
    assert found.pp == 4 and found.first and found.last
