"""A start of an engine: what it refuses, and which plan and how many ranks it stands for."""

import pytest
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model_catalogue import load_model
from small_models import H100


def start(engine: str, model: str = "qwen3-30b-a3b", **said: object) -> EngineStart:
    return EngineStart(engine=engine, model=load_model(model), gpu=H100, **said)


@pytest.mark.parametrize(
    ("engine", "said", "gpus", "plan"),
    [
        ("vllm", {"tp": 2, "dp": 4, "ep": 8}, 8, "tp=2,ep=8,adp=4"),
        ("sglang", {"tp": 8, "dp": 4, "ep": 8, "attention_dp": True}, 8, "tp=2,ep=8,adp=4"),
        ("sglang", {"tp": 2, "dp": 4}, 8, "tp=2,weights=bf16,kv=bf16,batch=256,tokens=8192,replicas=4"),
        ("tensorrt-llm", {"tp": 4, "dp": 4, "attention_dp": True, "pp": 2}, 8, "tp=1,pp=2,adp=4"),
    ],
)
def test_ranks_and_plan(engine, said, gpus, plan):
    found = start(engine, **said)
    assert found.gpus == gpus == found.plan.gpus
    assert str(found.plan).startswith(plan)


def test_the_makers_format_unless_said():
    assert start("vllm", "gpt-oss-20b").formats.experts == "mxfp4_weight_only", "a Hopper multiplies mxfp4 in 16 bits"
    assert start("vllm", weights="fp8").plan.weights == "fp8"


@pytest.mark.parametrize(
    "said",
    [
        {"engine": "tgi"},
        {"tp": 0},
        {"max_model_len": -2},
        {"memory_fraction": 1.2},
        {"memory_fraction": 0.0},
        {"kv": "fp5"},
        {"weights": "q4"},
        {"draft_method": "guess"},
        {"tp": 4, "dp": 3, "attention_dp": True},
        {"block_size": True},
    ],
)
def test_refusals(said):
    with pytest.raises(InputError):
        start(**{"engine": "vllm", **said})
