"""The short form of a deployment, engines, number formats."""

import pytest
from autoconfig.specs.errors import InputError, PlanError, UnknownNameError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.serve_plan import MAX_VALUE, EnginePlan, ServePlan, parse_serve_plan
from autoconfig.specs.software.engine import engine_names, load_engine
from autoconfig.specs.software.serving_formats import KV_BYTES, WEIGHT_BYTES, module_formats, supports, weight_format
from hypothesis import given
from hypothesis import strategies as st

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
def test_reading_back_what_was_printed_gives_the_same_plan(plan):
    assert parse_serve_plan(str(plan)) == plan


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tp=0",
        "tp=2,tp=2",
        "tp",
        "tp=",
        "tpp=2",
        "tp=2,ep=3",
        "weights=fp9",
        "prefill(tp=1)",
        "tp=1e3",
        "batch=-1",
        "tp=1)(",
    ],
)
def test_what_cannot_be_read_says_so(text):
    with pytest.raises((PlanError, InputError)):
        parse_serve_plan(text)


def test_every_engine_loads_and_names_a_known_parent():
    names = engine_names()
    assert len(names) == len(set(names))
    for name in names:
        engine = load_engine(name)
        assert engine.parent is None or engine.parent in names
        assert engine.eager_iterations in ("none", "mixed", "all")
        assert engine.sources
    with pytest.raises(UnknownNameError):
        load_engine("nvllm")


def test_formats_by_checkpoint_and_gpu():
    hopper, blackwell = load_gpu("h200"), load_gpu("b200")
    assert module_formats(load_model("llama3-70b"), "fp8", hopper).attention == "fp8"
    deepseek = module_formats(load_model("deepseek-v3"), "nvfp4", blackwell)
    assert (deepseek.attention, deepseek.experts) == ("bf16", "nvfp4")
    assert module_formats(load_model("gpt-oss-20b"), "fp8", hopper).experts == "mxfp4_weight_only"
    assert module_formats(load_model("gpt-oss-20b"), "nvfp4", blackwell).experts == "mxfp4"
    assert weight_format("FP4") == "nvfp4" and not supports(hopper, "nvfp4") and supports(blackwell, "nvfp4")
    assert weight_format("W4A16_AWQ") == weight_format("awq") == "int4" and weight_format("Float16") == "bf16"
    assert WEIGHT_BYTES["nvfp4"] == 0.5625 and WEIGHT_BYTES["int4"] == 0.515625
