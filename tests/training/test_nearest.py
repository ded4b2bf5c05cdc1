"""The nearest legal plan: counts, batches, stages and recomputation near those that were asked for, and why there is none."""

import dataclasses
from types import SimpleNamespace

import pytest
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from tables import tabled

from autoconfig.training.nearest import NothingLegal, _from_space, _one_change, _recomputes, distance, nearest_legal, odd_factor
from autoconfig.training.question import Request, understand
from autoconfig.training.remedies import useful_batches
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Constraints, enumerate_space


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


@pytest.mark.parametrize(("fixed", "rule"), [({"pp": {2}}, "AC021"), ({"cp": {2}}, "AC022"), ({"pp": {2}, "cp": {1}}, "AC021")])
def test_the_rule_that_stops_what_was_fixed_is_named(fixed, rule):
    question = understand(Request(model="t5-11b", gpus=64, gpu="h100"))
    wish = Constraints(fixed={key: frozenset(values) for key, values in fixed.items()})
    space = enumerate_space(question.scenario, wish)
    assert f"most are stopped by {rule}, " in str(NothingLegal.of(dataclasses.replace(question, constraints=wish), space))


def test_recomputations_to_try_and_how_far_they_are():
    scenario = understand(Request(model="llama3-8b", gpus=8)).scenario
    plan = parse_plan("tp=2,pp=4,mbs=1,recompute=full:block:3", 8)
    tried = [str(one) for one in _recomputes(scenario, plan)]
    assert tried == ["full:block:3", "full:block:2", "full:block:1", "none"]
    most = [str(one) for one in _recomputes(scenario, plan.replace(recompute=Recompute.parse("full:uniform:99")))]
    assert most == ["full:uniform:99", *(f"full:uniform:{n}" for n in range(8, 0, -1)), "none"]
    for text, far in (("full:block:1", 0.02), ("full:uniform:3", 1.0), ("selective:mlp", 3.0)):
        assert distance(plan.replace(recompute=Recompute.parse(text)), plan) == (1, pytest.approx(far))
    assert distance(plan.replace(tp=8, recompute=NONE), plan) == (2, pytest.approx(2 + 3))
    ends = plan.replace(first=7, last=9)
    assert distance(ends, plan) == (1, pytest.approx(1.0)) and distance(ends.replace(first=9), ends) == (1, pytest.approx(0.5))


@pytest.mark.parametrize(("software", "asked", "instead"), [
    ("torchtitan", "selective:core_attn", "selective:op"), ("transformer-engine", "selective:op", "selective:core_attn"),
])  # fmt: skip
def test_selective_recomputation_is_tried_as_the_software_has_it(software, asked, instead):
    scenario = understand(Request(model="llama3-8b", gpus=8, software=software)).scenario
    plan = parse_plan(f"tp=1,mbs=1,recompute={asked}", 8)
    assert [str(one) for one in _recomputes(scenario, plan)] == [asked, instead, "none"]


def test_an_empty_space_names_its_first_two_reasons():
    question = understand(Request(model="llama3-8b", gpus=8))
    first, second, third = list(RULE_TEXT)[1:4]
    said = str(NothingLegal.of(question, SimpleNamespace(rejected_by_rule=dict.fromkeys((first, second, third), 1))))
    assert RULE_TEXT[first] in said and RULE_TEXT[second] in said and RULE_TEXT[third] not in said
