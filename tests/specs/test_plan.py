"""The short form of a plan: what is printed reads back the same, and every refusal says what was given and what is allowed."""

import pytest
from autoconfig.specs.errors import InputError, PlanError
from autoconfig.specs.plan import (
    MAX_DEGREE,
    MODULES,
    NONE,
    SHORT_TO_LONG,
    Recompute,
    TrainPlan,
    format_plan,
    parse_keys,
    parse_plan,
)
from hypothesis import given
from hypothesis import strategies as st

recomputes = st.one_of(
    st.just(NONE),
    st.lists(st.sampled_from(MODULES), min_size=1, unique=True).map(lambda m: Recompute("selective", tuple(m))),
    st.builds(
        lambda method, n: Recompute("full", (), method, n), st.sampled_from(["uniform", "block"]), st.integers(1, 999_999)
    ),
)
degrees = st.one_of(st.integers(1, 64), st.integers(1, MAX_DEGREE))
plans = st.builds(
    TrainPlan,
    **{key: degrees for key in ("tp", "pp", "dp", "mbs", "vpp", "cp", "ep", "etp")},
    sp=st.booleans(),
    recompute=recomputes,
    first=st.none() | degrees,
    last=st.none() | degrees,
    dist_opt=st.booleans(),
    fsdp=st.sampled_from([0, 2, 3]),
    offload=st.floats(0, 1),
)


@given(plans)
def test_reading_back_what_was_printed_gives_the_same_plan(plan):
    assert parse_plan(format_plan(plan), num_gpus=1) == plan
    assert str(plan) == format_plan(plan)


@given(plans, st.randoms(use_true_random=False))
def test_order_spaces_and_case_do_not_matter(plan, random):
    parts = format_plan(plan).split(",")
    random.shuffle(parts)
    text = " , ".join(f"{key.upper()} = {value}" for key, value in (part.split("=", 1) for part in parts)) + ","
    assert parse_plan(text, num_gpus=1) == plan


@given(recomputes)
def test_recompute_reads_back_what_it_prints(recompute):
    assert Recompute.parse(str(recompute)) == recompute


@given(st.text(max_size=40))
def test_any_text_is_a_plan_or_a_plan_error(text):
    try:
        plan = parse_plan(text, num_gpus=64)
    except PlanError as error:
        assert str(error)
    else:
        assert parse_plan(str(plan), num_gpus=64) == plan


@given(st.text(max_size=40))
def test_any_text_is_a_recompute_or_a_plan_error(text):
    try:
        recompute = Recompute.parse(text)
    except PlanError as error:
        assert str(error)
    else:
        assert Recompute.parse(str(recompute)) == recompute


FULL = "tp=2,pp=4,vpp=3,cp=5,ep=6,etp=7,dp=8,mbs=9,sp=1,recompute=full:block:10,first=11,last=12,dist_opt=1,fsdp=3,offload=0.5"
FULL_VALUES = {
    "tp": 2, "pp": 4, "vpp": 3, "cp": 5, "ep": 6, "etp": 7, "dp": 8, "mbs": 9, "sp": True,
    "recompute": Recompute("full", (), "block", 10), "first": 11, "last": 12, "dist_opt": True, "fsdp": 3, "offload": 0.5,
}  # fmt: skip


def test_every_key_is_read_and_printed():
    assert parse_keys(FULL) == FULL_VALUES
    assert set(FULL_VALUES) == set(SHORT_TO_LONG), "a new key needs its place in this test"
    assert format_plan(TrainPlan(**FULL_VALUES)) == FULL


@pytest.mark.parametrize(
    "text",
    [
        "tp=8,pp=16,dp=8,mbs=1,sp=1,recompute=full:uniform:1",
        "tp=2,pp=4,cp=2,ep=8,dp=8,mbs=1,sp=1,recompute=selective:core_attn+moe_act,first=7,last=7",
    ],
)
def test_examples_of_the_design_page_are_printed_as_they_are_written(text):
    assert format_plan(parse_plan(text, num_gpus=1)) == text


def test_keys_left_out_take_the_documented_defaults():
    plan = parse_plan("tp=4,pp=8", num_gpus=1024)
    assert plan == TrainPlan(
        tp=4, pp=8, dp=32, mbs=1, vpp=1, cp=1, ep=1, etp=1, sp=False, recompute=NONE, first=None, last=None,
        dist_opt=True, fsdp=0, offload=0.0,
    )  # fmt: skip
    assert parse_plan("tp=4,pp=8,cp=2", num_gpus=1024).dp == 16
    assert parse_plan("sp=0", num_gpus=6) == TrainPlan(tp=1, pp=1, dp=6, mbs=1)
    assert parse_plan("tp=4,dp=3", num_gpus=1024).world_size == 12


def test_only_given_keys_are_returned_by_parse_keys():
    assert parse_keys("tp=8,sp=0") == {"tp": 8, "sp": False}


def test_recompute_shorthands():
    assert Recompute.parse("selective") == Recompute("selective", ("core_attn",))
    assert Recompute.parse("full") == Recompute.parse("full:uniform") == Recompute("full", (), "uniform", 1)
    assert Recompute("selective", ("moe_act", "core_attn")) == Recompute("selective", ("core_attn", "moe_act"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["empty plan", "tp=8,pp=8"]),
        (" , ,", ["empty plan"]),
        ("tp", ["tp has no value", "tp=..."]),
        ("tp=", ["tp has no value"]),
        ("zp=2", ["'zp'", "did you mean tp", *SHORT_TO_LONG]),
        ("tensor=2", ["'tensor'", *SHORT_TO_LONG]),
        ("tp=2,tp=4", ["tp is given twice"]),
        ("tp=2.5", ["tp='2.5'", "whole number"]),
        ("tp=-1", ["tp='-1'", "whole number"]),
        ("tp=٣", ["whole number"]),
        ("tp=9999999999", ["'9999999999'", "whole number"]),
        ("tp=0", ["tp=0", "1 to 1,000,000"]),
        ("mbs=1000001", ["mbs=1000001", "1 to 1,000,000"]),
        ("first=0", ["first=0", "1 to 1,000,000"]),
        ("sp=2", ["sp=2", "0 or 1"]),
        ("dist_opt=7", ["dist_opt=7", "0 or 1"]),
        ("fsdp=1", ["fsdp=1", "0 (off), 2", "3"]),
        ("offload=2", ["offload=2", "0 to 1"]),
        ("offload=nan", ["offload=nan", "0 to 1"]),
        ("offload=much", ["'much'", "0 to 1"]),
        ("recompute=some", ["'some'", "none", "selective:MODULE", "full:uniform:N", "full:block:N"]),
        ("recompute=none:1", ["'none:1'", "selective:MODULE"]),
        ("recompute=selective:attention", ["attention", *MODULES]),
        ("recompute=selective:core_attn+", [*MODULES]),
        ("recompute=full:ring:1", ["full:ring:1", "full:uniform:N", "full:block:N"]),
        ("recompute=full:block:0", ["full:block:0", "at least 1"]),
        ("recompute=full:block:x", ["'x'", "number of layers"]),
    ],
)
def test_messages_name_what_was_given_and_what_is_allowed(text, says):
    with pytest.raises(PlanError) as caught:
        parse_plan(text, num_gpus=8)
    assert isinstance(caught.value, InputError)
    for words in says:
        assert words in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("tp", 0), ("pp", True), ("dp", 2.0), ("mbs", "1"), ("fsdp", 1), ("offload", -0.1)])
def test_plans_built_in_python_are_checked_too(key, value):
    values = {"tp": 1, "pp": 1, "dp": 1, "mbs": 1, key: value}
    with pytest.raises(PlanError, match=key):
        TrainPlan(**values)


def test_a_copy_is_checked_again():
    plan = TrainPlan(tp=2, pp=2, dp=2, mbs=1)
    assert plan.replace(tp=4).world_size == 16
    with pytest.raises(PlanError, match="tp=0"):
        plan.replace(tp=0)
