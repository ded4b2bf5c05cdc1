"""Serving of hybrids and of windows: states instead of a cache, few layers with a cache, windows in it."""

import pytest
from autoconfig.memory_model.serving import (
    kv_sequence_bytes,
    kv_token_bytes,
    state_sequence_bytes,
    weight_parts_bytes,
)
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.remarks import sentences
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import load_engine
from autoconfig.time_model.serving.costs import decode_attention_seconds, prefill_attention_seconds
from autoconfig.time_model.serving.iteration import iteration_seconds
from autoconfig.time_model.serving.rows import ServingJob, token_parts

from autoconfig.engines.export import export_texts
from autoconfig.serving.answer import answer
from autoconfig.serving.request import ServeRequest

HYBRIDS = ("nemotron-3-nano", "nemotron-3-super", "qwen3-next-80b-a3b", "qwen3.5-27b", "granite4-h-small")
GPU, VLLM = load_gpu("h200"), load_engine("vllm")


def job(name):
    return ServingJob(model=load_model(name), gpu=GPU, plan=EnginePlan(batch=64), engine=VLLM)


def test_nemotron_nano_keeps_six_layers_of_cache_and_twenty_three_states():
    one = job("nemotron-3-nano")
    assert kv_token_bytes(one.model, one.plan) == 6 * 2 * 2 * 128 * 2
    state = 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2
    assert state_sequence_bytes(one.model, one.plan) == 23 * state
    assert kv_sequence_bytes(one.model, one.plan, VLLM, 1600) == 23 * state + 1600 * 6144
    assert weight_parts_bytes(one.model, one.plan, one.formats)["recurrent"] > 0
    halves = EnginePlan(tp=2, batch=64)
    assert state_sequence_bytes(one.model, halves) == 23 * state / 2


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_cost_by_sequence_and_not_by_length(name):
    one = job(name)
    states = [
        float(decode_attention_seconds(one, count, 1024.0)) - attention_alone(one, count, 1024.0) for count in (64.0, 128.0)
    ]
    longer = float(decode_attention_seconds(one, 64.0, 8192.0)) - attention_alone(one, 64.0, 8192.0)
    assert 0 < states[0] == pytest.approx(longer) and 1.3 * states[0] < states[1] < 2.01 * states[0]
    moved = 2 * state_sequence_bytes(one.model, one.plan) * 64 / GPU.hbm_bytes_per_s
    assert moved < states[0] < 2 * moved
    assert prefill_attention_seconds(one, 1.0, 4096.0) > 0
    assert all(float(value) >= 0 for value in token_parts(one, 128.0).values())
    assert iteration_seconds(one, 64.0, 1024.0, 0.0, 1.0) < iteration_seconds(one, 64.0, 1024.0, 1.0, 2048.0)


def attention_alone(one, count, length):
    """Of the layers that have a cache: a model of these alone."""
    kinds = one.model.attention_layers
    plain = one.model.replace(
        hybrid_layer_pattern="*E" * kinds if one.model.is_moe else "*-" * kinds, num_layers=2 * kinds, mtp_num_layers=0
    )
    alone = ServingJob(model=plain, gpu=one.gpu, plan=one.plan, engine=one.engine)
    return float(decode_attention_seconds(alone, count, length))


@pytest.mark.long
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm-1.2"])
@pytest.mark.parametrize("name", ["nemotron-3-nano", "qwen3-next-80b-a3b", "gemma3-27b"])
def test_a_search_answers_and_is_exported(name, engine):
    found = answer(ServeRequest(model=name, gpus=4, gpu="h200", engine=engine, simulate=0))
    best = found.reports[0]
    assert best.tokens_per_s_per_gpu > 100
    said = [line for line in sentences(found.question.assumed) if "recurrent" in line]
    assert bool(said) == load_model(name).is_hybrid
    assert export_texts(found.question, best)
