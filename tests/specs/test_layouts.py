"""The short forms of plans, training and serving, and which layers each pipeline stage holds."""

import numpy as np
import pytest
from autoconfig.specs.errors import InputError, PlanError, UnknownKeyError
from autoconfig.specs.layouts import (
    chunk_layers,
    layout_text,
    layouts_of,
    middle_layers,
    needs_layout,
    priced_together,
    stage_layers,
    stage_table,
)
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
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
from autoconfig.specs.serve_plan import MAX_VALUE, EnginePlan, ServePlan, parse_serve_plan
from autoconfig.specs.software.engine import (
    KV_BYTES,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from small_models import GPT
from tables import tabled

recomputes = st.one_of(
    st.just(NONE),
    st.lists(st.sampled_from(MODULES), min_size=1, unique=True).map(lambda m: Recompute("selective", tuple(m))),
    st.builds(
        lambda method, n: Recompute("full", (), method, n), st.sampled_from(["uniform", "block"]), st.integers(1, 999_999)
    ),
)
degrees = st.one_of(st.integers(1, 64), st.integers(1, MAX_DEGREE))
plans = st.builds(
    TrainPlan, **{key: degrees for key in ("tp", "pp", "dp", "mbs", "vpp", "cp", "ep", "etp")}, sp=st.booleans(),
    recompute=recomputes, first=st.none() | degrees, last=st.none() | degrees, dist_opt=st.booleans(),
    fsdp=st.sampled_from([0, 2, 3]), offload=st.floats(0, 1),
)  # fmt: skip


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


@given(st.text(max_size=40))
def test_any_text_is_a_plan_or_a_plan_error(text):
    try:
        plan = parse_plan(text, num_gpus=64)
    except PlanError as error:
        assert str(error)
    else:
        assert parse_plan(str(plan), num_gpus=64) == plan


FULL = "tp=2,pp=4,vpp=3,cp=5,ep=6,etp=7,dp=8,mbs=9,sp=1,recompute=full:block:10,first=11,last=12,dist_opt=1,fsdp=3,offload=0.5"
FULL_VALUES = {
    "tp": 2, "pp": 4, "vpp": 3, "cp": 5, "ep": 6, "etp": 7, "dp": 8, "mbs": 9, "sp": True,
    "recompute": Recompute("full", (), "block", 10), "first": 11, "last": 12, "dist_opt": True, "fsdp": 3, "offload": 0.5,
}  # fmt: skip


def test_every_key_is_read_and_printed():
    assert parse_keys(FULL) == FULL_VALUES
    assert set(FULL_VALUES) == set(SHORT_TO_LONG), "a new key needs its place in this test"
    assert format_plan(TrainPlan(**FULL_VALUES)) == FULL


@tabled
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


def test_recompute_shorthands():
    assert Recompute.parse("selective") == Recompute("selective", ("core_attn",))
    assert Recompute.parse("full") == Recompute.parse("full:uniform") == Recompute("full", (), "uniform", 1)
    assert Recompute("selective", ("moe_act", "core_attn")) == Recompute("selective", ("core_attn", "moe_act"))


@tabled
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


numbers = st.integers(1, MAX_VALUE)
engines = st.builds(
    lambda tp, adp, divide, **rest: EnginePlan(tp=tp, adp=adp, ep=tp * adp if divide else 1, **rest),
    st.integers(1, 64),
    st.integers(1, 64),
    st.booleans(),
    pp=st.integers(1, 64),
    weights=st.sampled_from(sorted({"bf16", "fp8", "nvfp4", "mxfp4", "int8", "int4", "fp8_block"})),
    kv=st.sampled_from(sorted(KV_BYTES)),
    batch=numbers,
    tokens=numbers,
    replicas=numbers,
)


@given(st.builds(ServePlan, decode=engines, prefill=st.none() | engines))
def test_reading_back_a_printed_deployment_gives_the_same(plan):
    assert parse_serve_plan(str(plan)) == plan


@tabled
def test_what_cannot_be_read_says_so(text):
    with pytest.raises((PlanError, InputError)):
        parse_serve_plan(text)


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
        "dense": None, "every": 1, "alternating": 2, "leading": tuple(int(i >= draw(st.integers(0, 4))) for i in range(total)),
        "random": tuple(draw(st.lists(st.integers(0, 1), min_size=total, max_size=total))),
    }[kind]  # fmt: skip
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
    assert table.layers_of("moe")[0].tolist() == [sum(chunks) for chunks in moe]
    for kind, columns in table.by_chunk.items():
        for chunk in range(plan.vpp):
            every, experts = [len(stage[chunk]) for stage in held], [chunks[chunk] for chunks in moe]
            counts = experts if kind == "moe" else np.subtract(every, experts).tolist()
            assert counts == (columns[chunk][0].tolist() if chunk < len(columns) else [0] * plan.pp)


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
            assert table.layers_of("moe")[row, column] == full.layers_of("moe")[0, stage]
            kinds.add((int(full.layers[0, stage]), int(full.layers_of("moe")[0, stage])))
        assert kinds == set(zip(full.layers[0].tolist(), full.layers_of("moe")[0].tolist(), strict=True))
        between = list(zip(full.layers[0].tolist(), full.layers_of("moe")[0].tolist(), strict=True))[:-1]
        for kind in set(between):  # of like stages before the last, the first holds the most micro-batches
            assert between.index(kind) in table.index[row].tolist(), (str(plan), kind)


@pytest.mark.parametrize(("layers", "text", "expected"), [
    (96, "pp=8", (12,) * 8),
    (61, "pp=16,first=4,last=1", (4, *[4] * 14, 1)),
    (61, "pp=8,first=5", (5, *[8] * 7)),
    (61, "pp=8,last=5", (*[8] * 7, 5)),
    (10, "pp=2,first=7", (7, 3)),
    (10, "pp=2,first=4,last=6", (4, 6)),
    (10, "pp=1", (10,)),
    (10, "pp=1,first=10", (10,)),
])  # fmt: skip
def test_stage_layers(layers, text, expected):
    assert stage_layers(model(layers), parse_plan(text, 1)) == expected


@tabled
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


LAID_OUT = [
    ("deepseek-v3", "pp=16,vpp=2,first=3,last=2", "Et|(tt|)*30mL"),
    ("deepseek-v3", "pp=8,vpp=4,first=7,last=6", "Et|(tt|)*30mL"),
    ("deepseek-v3", "pp=4,vpp=4,first=16,last=13", "Etttt|(tttt|)*14tmL"),
    ("llama3.1-405b", "pp=8,vpp=4,first=15,last=15", "Ettt|(tttt|)*30tttL"),
    ("deepseek-v3", "pp=16,first=4,last=1", ""),
    ("llama3-70b", "pp=8,vpp=5", ""),
]


@pytest.mark.parametrize(("name", "text", "layout"), LAID_OUT)
def test_chunks_that_do_not_divide_are_placed_by_a_layout(name, text, layout):
    """The text is the plan's, and every chunk of every stage holds what the text places there."""
    spec, plan = load_model(name), parse_plan(f"tp=1,mbs=1,{text}", 64)
    assert layout_text(spec, plan) == layout
    chunks = chunk_layers(spec, plan)
    assert tuple(map(sum, zip(*chunks, strict=True))) == stage_layers(spec, plan)
    table = stage_table(spec, layouts_of([plan], spec, plan.mbs * plan.dp), every=True)
    position, kinds = 0, [[] for _ in range(plan.pp)]
    for number, count in enumerate(count for chunk in chunks for count in chunk):
        kinds[number % plan.pp] += spec.layer_kinds[position : position + count]
        position += count
    assert position == spec.num_layers
    for kind in spec.kinds:
        assert table.layers_of(kind)[0].tolist() == [held.count(kind) for held in kinds]
    if layout:
        words = layout.replace("(", "").split("|)*")
        assert words[0].split("|")[0].count("t") == chunks[0][0] and words[-1].count("t") == chunks[-1][-1]


def test_rows_priced_together_are_all_rows_once_and_need_as_many_stages():
    plans = [parse_plan(f"pp={pp}", 1) for pp in (1, 4, 2, 4, 1, 2, 12)]
    for freq, groups in ((None, [[0, 4], [2, 5], [1, 3], [6]]), (2, [[0, 4], [2, 5], [1, 3], [6]])):
        spec = model(12, freq)
        assert [rows.tolist() for rows in priced_together(spec, layouts_of(plans, spec, 1), 2)] == groups


def test_distinct_rows_are_found_among_wide_columns_and_fractions():
    rows = layouts_of(
        [parse_plan(f"tp={tp},offload={share}", 64) for tp in (1, 2, 1) for share in (0.25, 0.5, 0.25)], model(12), 64
    )
    wide = [np.arange(9) % 2 * 2**40, np.zeros(9, int) + 2**30, np.arange(9) // 8]
    first, number = rows.unique("tp", "offload", also=wide)
    keys = list(zip(rows.tp, rows.offload, *wide, strict=True))
    assert len(first) == len(set(keys))
    assert [keys[first[at]] for at in number] == keys


@pytest.mark.parametrize(("plan", "needed"), [
    ("tp=1,pp=3,vpp=2,mbs=1,first=7,last=8", True), ("tp=1,pp=2,vpp=2,mbs=1,first=7,last=9", False),
])  # fmt: skip
def test_a_layout_needs_three_stages(plan, needed):
    layers = 23 if needed else 16
    assert needs_layout(load_model("llama3-8b").replace(num_layers=layers), parse_plan(plan, 6)) == needed


@pytest.mark.parametrize(("text", "gpus", "given", "expected"), [
    ("tp=4", 64, {}, {"dp": 16, "sp": False, "dist_opt": True, "mbs": 1}), ("tp=4", 64, {"sp": True}, {"sp": True}),
    ("tp=1", 64, {"sp": True}, {"sp": False}), ("pp=2,cp=4", 64, {"sp": True}, {"dp": 8, "sp": False}),
    ("tp=4,fsdp=3", 64, {}, {"dist_opt": False}), ("tp=4,fsdp=3,dist_opt=1", 64, {}, {"dist_opt": True}),
    ("tp=64", 8, {}, {"dp": 1}), ("tp=4", 64, {"dist_opt": False}, {"dist_opt": False}),
    ("dp=3,TP=2", 64, {}, {"dp": 3, "tp": 2}),
])  # fmt: skip
def test_keys_that_a_short_form_leaves_out(text, gpus, given, expected):
    found = parse_plan(text, gpus, **given)
    assert {name: getattr(found, name) for name in expected} == expected
    assert parse_plan(str(found), gpus) == found


@pytest.mark.parametrize(("text", "mended"), [("tpp=2,pp=2", "tp=2,pp=2"), ("ppp=2,tp=2,ppp=4", "pp=2,tp=2,ppp=4")])
def test_the_first_wrong_key_is_mended(text, mended):
    with pytest.raises(UnknownKeyError) as caught:
        parse_plan(text, 8)
    assert caught.value.mended == mended


@pytest.mark.parametrize(("plan", "middle"), [
    ("pp=3,first=3,last=4", 5), ("pp=4,first=2,last=2", 4), ("pp=2,first=5,last=7", 0), ("pp=1", 0), ("pp=6", 2),
])  # fmt: skip
def test_layers_between_the_ends(plan, middle):
    model = GPT.replace(num_layers=12)
    assert middle_layers(model, layouts_of([parse_plan(plan, 12)], model, 24)).tolist() == [middle]


@pytest.mark.parametrize(("text", "gpus"), [
    ("tp=4,pp=2,adp=2,ep=8,replicas=3", 48), ("tp=1", 1), ("prefill(tp=2,replicas=3)+decode(tp=4)", 10),
])  # fmt: skip
def test_gpus_of_a_deployment(text, gpus):
    found = parse_serve_plan(text)
    assert found.gpus == gpus and parse_serve_plan(str(found)) == found
