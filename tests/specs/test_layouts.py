"""Which layers each pipeline stage holds, against an assignment layer by layer; plans to columns and back."""

import numpy as np
import pytest
from autoconfig.specs.errors import PlanError
from autoconfig.specs.layouts import layouts_of, middle_layers, stage_layers, stage_table
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, Recompute, TrainPlan, parse_plan
from hypothesis import assume, given
from hypothesis import strategies as st


def model(layers: int, freq: int | tuple[int, ...] | None = None) -> ModelSpec:
    """Dense, or with `freq` a mixture of experts with Megatron's --moe-layer-freq."""
    moe = (
        {} if freq is None else {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 64, "moe_layer_freq": freq}
    )
    return ModelSpec(name="m", num_layers=layers, hidden_size=64, num_attention_heads=8, vocab_size=1000, ffn_hidden_size=256,
                     num_query_groups=8, kv_channels=8, **moe)  # fmt: skip


def assign(layers: list[int], vpp: int) -> list[list[list[int]]]:
    """Layer numbers of [stage][chunk] as Megatron deals them out: chunk 0 of every stage in turn, then chunk 1, ...

    Every chunk of a stage holds the stage's layers / vpp (megatron/core/transformer/transformer_layer.py,
    get_transformer_layer_offset).
    """
    held: list[list[list[int]]] = [[[] for _ in range(vpp)] for _ in layers]
    number = 0
    for chunk in range(vpp):
        for stage, count in enumerate(layers):
            for _ in range(count // vpp):
                held[stage][chunk].append(number)
                number += 1
    assert number == sum(layers)
    return held


@st.composite
def staged(draw):
    """(model, plan, layers of each stage): dense, leading dense layers or alternating; even or uneven, interleaved or not."""
    pp, vpp = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    vpp = 1 if pp == 1 else vpp
    first, middle, last = (vpp * draw(st.integers(1, 4)) for _ in range(3))
    layers = [first] if pp == 1 else [first, *[middle] * (pp - 2), last]
    total = sum(layers)
    kind = draw(st.sampled_from(["dense", "leading", "every", "alternating", "random"]))
    freq = {
        "dense": None,
        "every": 1,
        "alternating": 2,
        "leading": tuple(int(i >= draw(st.integers(0, 4))) for i in range(total)),
        "random": tuple(draw(st.lists(st.integers(0, 1), min_size=total, max_size=total))),
    }[kind]
    ends = {} if pp == 1 else {"first": first, "last": last}
    return model(total, freq), TrainPlan(tp=1, pp=pp, dp=1, mbs=1, vpp=vpp, **ends), layers


@given(staged())
def test_every_stage_holds_the_layers_that_megatron_deals_out(case):
    spec, plan, layers = case
    assert stage_layers(spec, plan) == tuple(layers)
    held = assign(layers, plan.vpp)
    table = stage_table(spec, layouts_of([plan], spec, 1), every=True)
    assert table.index[0].tolist() == list(range(plan.pp))
    assert table.layers[0].tolist() == layers
    assert table.is_first[0].tolist() == [r == 0 for r in range(plan.pp)]
    assert table.is_last[0].tolist() == [r == plan.pp - 1 for r in range(plan.pp)]
    moe = [[sum(spec.moe_pattern[n] for n in chunk) for chunk in stage] for stage in held]
    assert table.moe_layers[0].tolist() == [sum(chunks) for chunks in moe]
    for chunk, column in enumerate(table.moe_by_chunk):
        assert column[0].tolist() == [chunks[chunk] for chunks in moe]


@pytest.mark.parametrize("leading", [None, 0, 1, 2, 3, 7])
def test_the_stages_that_stand_for_all_hold_what_they_hold_in_full(leading):
    """Rows of different pp side by side give the same numbers as one row alone, and no stage kind is missed."""
    total = 24
    spec = model(total, None if leading is None else tuple(int(i >= leading) for i in range(total)))
    texts = ("pp=1", "pp=4,vpp=3", "pp=8,vpp=3", "pp=2,first=10,last=14", "pp=24", "pp=6,first=2,last=6")
    plans = [parse_plan(text, 1) for text in texts]
    table = stage_table(spec, layouts_of(plans, spec, 1))
    for row, plan in enumerate(plans):
        full = stage_table(spec, layouts_of([plan], spec, 1), every=True)
        kinds = set()
        for column, stage in enumerate(table.index[row]):
            assert table.layers[row, column] == full.layers[0, stage]
            assert table.moe_layers[row, column] == full.moe_layers[0, stage]
            kinds.add((int(full.layers[0, stage]), int(full.moe_layers[0, stage])))
        everything = set(zip(full.layers[0].tolist(), full.moe_layers[0].tolist(), strict=True))
        assert kinds == everything
        between = list(zip(full.layers[0].tolist(), full.moe_layers[0].tolist(), strict=True))[:-1]
        for kind in set(between):  # of like stages before the last, the first holds the most micro-batches
            assert between.index(kind) in table.index[row].tolist(), (str(plan), kind)


def test_alternating_layers_make_every_stage_a_candidate():
    spec = model(12, 2)
    plans = [parse_plan("pp=4,first=2,last=4", 1), parse_plan("pp=3", 1)]
    table = stage_table(spec, layouts_of(plans, spec, 1))
    assert table.index.tolist() == [[0, 1, 2, 3], [0, 1, 2, 2]]
    assert table.moe_layers.tolist() == [[1, 2, 1, 2], [2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("layers", "text", "expected"),
    [
        (96, "pp=8", (12,) * 8),
        (61, "pp=16,first=4,last=1", (4, *[4] * 14, 1)),
        (61, "pp=8,first=5", (5, *[8] * 7)),
        (61, "pp=8,last=5", (*[8] * 7, 5)),
        (10, "pp=2,first=7", (7, 3)),
        (10, "pp=2,first=4,last=6", (4, 6)),
        (10, "pp=1", (10,)),
        (10, "pp=1,first=10", (10,)),
    ],
)
def test_stage_layers(layers, text, expected):
    assert stage_layers(model(layers), parse_plan(text, 1)) == expected


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (10, "pp=3"), (10, "pp=11"), (10, "pp=2,first=4,last=5"), (10, "pp=3,first=5,last=5"), (10, "pp=4,first=4,last=5"),
        (10, "pp=2,first=10"), (10, "pp=2,first=11"), (10, "pp=1,first=9"), (10, "pp=3,first=10,last=10"),
    ],
)  # fmt: skip
def test_layers_that_do_not_divide_are_refused_with_the_numbers(layers, text):
    with pytest.raises(PlanError) as caught:
        stage_layers(model(layers), parse_plan(text, 1))
    assert "10" in str(caught.value) or "first=9" in str(caught.value)


@given(staged(), st.sampled_from([NONE, Recompute("full", (), "block", 1)]), st.booleans(), st.sampled_from([0, 2, 3]))
def test_a_plan_survives_its_columns(case, recompute, flag, fsdp):
    spec, plan, layers = case
    plan = plan.replace(recompute=recompute, sp=flag, dist_opt=not flag, fsdp=fsdp, offload=0.25, dp=3, mbs=2, tp=5, cp=7)
    back = layouts_of([plan], spec, 12).plan(0, recompute, spec)
    assert stage_layers(spec, back) == tuple(layers)
    assert back.replace(first=None, last=None) == plan.replace(first=None, last=None)
    even = len(set(layers)) == 1
    assert (back.first is None and back.last is None) == even
    assert layouts_of([plan], spec, 12).num_microbatches.tolist() == [2]


def test_columns_of_several_plans_and_batches():
    spec = model(12)
    plans = [parse_plan("tp=2,pp=3,mbs=2,dp=2", 1), parse_plan("pp=2,first=5,dp=1,offload=0.5,sp=1", 1)]
    table = layouts_of(plans, spec, [8, 6])
    assert table.num_microbatches.tolist() == [2, 6]
    assert table.first.tolist() == [4, 5] and table.last.tolist() == [4, 7]
    assert table.sp.dtype == np.bool_ and table.offload.tolist() == [0.0, 0.5]
    assert middle_layers(spec, table).tolist() == [4, 0]
    assert table.take([1]).plan(0, NONE, spec) == plans[1].replace(last=7)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_a_batch_that_does_not_divide_is_refused(batch, mbs, dp):
    assume(batch % (mbs * dp))
    with pytest.raises(PlanError, match=rf"global batch {batch} .* {mbs * dp}"):
        layouts_of([TrainPlan(tp=1, pp=1, dp=dp, mbs=mbs)], model(4), batch)
