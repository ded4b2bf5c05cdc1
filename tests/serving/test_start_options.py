"""Options of an engine's start in `deployments`: they change the memory as the engine's own law has it."""

from dataclasses import replace

import pytest
from autoconfig.memory_model.engines.memory import engine_memory
from autoconfig.memory_model.engines.plan import ServedPlan, StartOptions
from autoconfig.specs.errors import GIB, InputError, UnsupportedError
from autoconfig.specs.serve_plan import EnginePlan

from autoconfig.serving.question import understand
from autoconfig.serving.request import ServeRequest

ASK = ServeRequest(model="llama3-8b", gpus=1, gpu="h100", engine="vllm", isl=1000, osl=500)


def pool_gib(**said) -> float:
    question = understand(replace(ASK, **said))
    plan = EnginePlan(weights="bf16", kv="bf16", batch=64, tokens=8192)
    served = question.served(question.job(plan))
    return float(served.memory(length=1500, batch=64, tokens=8192).kv_pool_bytes) / GIB


def test_options_move_the_pool():
    plain = pool_gib()
    assert pool_gib(max_num_seqs=1024) < plain - 0.1  # the sampler's rows
    assert pool_gib(enforce_eager=True) > plain  # no graphs to charge from 0.20 on
    assert pool_gib(max_loras=4, max_lora_rank=64) < plain - 0.1
    assert pool_gib(release="0.19.1") < pool_gib(release="0.26.0") + 0.5
    assert abs(pool_gib(release="0.19.1") - pool_gib(release="0.20.0")) > 0.5  # 0.90 and 0.92 of the card, less graphs


@pytest.mark.parametrize("eager", [False, True])
def test_a_plan_is_the_start_that_it_becomes(eager):
    question = understand(replace(ASK, release="0.19.1", max_num_seqs=64, enforce_eager=eager))
    plan = EnginePlan(weights="bf16", kv="bf16", batch=64, tokens=8192)
    served = question.served(question.job(plan))
    start = served.start.replace(max_num_batched_tokens=8192)
    assert pool_gib(release="0.19.1", max_num_seqs=64, enforce_eager=eager) == pytest.approx(
        engine_memory(start).kv_pool_gib, rel=1e-3
    )
    assert isinstance(served, ServedPlan) and served.options == StartOptions(release="0.19.1", max_num_seqs=64, eager=eager)


@pytest.mark.parametrize(
    ("said", "refused", "says"),
    [
        ({"release": "0.5.4"}, UnsupportedError, "not modelled"),
        ({"engine": "sglang", "release": "0.3.6"}, UnsupportedError, "not modelled"),
        ({"engine": "trtllm-1.2", "max_num_seqs": 64}, InputError, "--max-num-seqs"),
        ({"max_model_len": 1000}, InputError, "--max-model-len"),
    ],
)
def test_what_is_refused(said, refused, says):
    with pytest.raises(refused, match=says):
        understand(replace(ASK, **said))
