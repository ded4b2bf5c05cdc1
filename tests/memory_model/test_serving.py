"""Memory of a serving engine: counted by hand for models whose sizes are published."""

import numpy as np
import pytest
from autoconfig.memory_model.serving import kv_sequence_bytes, kv_token_bytes, serving_memory, slot_bytes, weights_bytes
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import load_engine
from autoconfig.specs.software.serving_formats import module_formats

ENGINE = load_engine("trtllm-1.2")
H100, H200 = load_gpu("h100"), load_gpu("h200")


def weights(model, gpu, **plan):
    one = EnginePlan(**plan)
    return weights_bytes(model, one, module_formats(model, one.weights, gpu))


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "falcon-180b"])
def test_16_bit_weights_are_two_bytes_a_parameter(name):
    model = load_model(name)
    assert weights(model, H200, weights="bf16") == pytest.approx(2.0 * total_parameters(model), rel=2e-3)


def test_tensor_parallel_ranks_hold_the_model_once():
    model = load_model("llama3-70b")
    assert 8 * weights(model, H200, tp=8, weights="fp8") == pytest.approx(weights(model, H200, weights="fp8"), rel=1e-3)


def test_experts_are_divided_over_all_ranks_and_attention_over_tp_only():
    model = load_model("mixtral-8x7b")
    alone, shared = weights(model, H200, weights="bf16"), weights(model, H200, adp=8, ep=8, weights="bf16")
    experts = 2.0 * 32 * 8 * 3 * 4096 * 14336
    assert alone - shared == pytest.approx(experts * 7 / 8, rel=1e-6)


def test_cache_of_a_token_of_llama_70b_and_of_deepseek():
    assert kv_token_bytes(load_model("llama3-70b"), EnginePlan(kv="fp8")) == 80 * 2 * 8 * 128
    assert kv_token_bytes(load_model("llama3-70b"), EnginePlan(tp=16, kv="bf16")) == 80 * 2 * 1 * 128 * 2
    assert kv_token_bytes(load_model("deepseek-v3"), EnginePlan(adp=8, kv="bf16")) == 61 * (512 + 64) * 2


def test_sliding_layers_keep_the_window_unless_the_engine_cannot():
    model, plan = load_model("gpt-oss-20b"), EnginePlan(kv="bf16")
    token = 2 * 8 * 64 * 2
    assert kv_sequence_bytes(model, plan, ENGINE, 4096) == token * (12 * 4096 + 12 * 128)
    assert kv_sequence_bytes(model, plan, load_engine("trtllm-0.17"), 4096) == token * 24 * 4096


def test_70b_in_fp8_on_one_h100():
    """80 GiB-class GPU, 70.6 B parameters in one byte: room for some thirty sequences of 2k tokens."""
    model, plan = load_model("llama3-70b"), EnginePlan(weights="fp8", kv="fp8", batch=64, tokens=2048)
    found = serving_memory(model, plan, module_formats(model, "fp8", H100), H100, ENGINE, length=2048)
    used = found.weights_bytes + found.activation_bytes + found.runtime_bytes
    assert found.kv_pool_bytes == pytest.approx(0.95 * (H100.memory_bytes - used))
    assert 25 <= found.max_concurrency <= 35


def test_slots_of_the_cpp_runtime_by_hand():
    """Five 32-bit rows of the vocabulary, top-K's candidates, seven numbers a token; over tp the 16-bit logits as well."""
    model, engine, rows = load_model("llama3-70b"), load_engine("trtllm-0.14"), 128256
    assert slot_bytes(model, EnginePlan(), ENGINE, 2048) == 4 * rows
    alone = 5 * 4 * rows + 65536 + 28 * 2048
    assert slot_bytes(model, EnginePlan(), engine, 2048) == alone
    assert slot_bytes(model, EnginePlan(tp=2), engine, 2048) == alone + 2 * rows * 3.5


def test_a_large_max_batch_size_takes_the_cache_of_the_cpp_runtime():
    model, plan, engine = load_model("llama3-70b"), EnginePlan(weights="fp8", kv="fp8"), load_engine("trtllm-0.14")
    formats = module_formats(model, "fp8", H100)
    small, large = (
        serving_memory(model, plan, formats, H100, engine, length=2000, batch=slots, tokens=2048) for slots in (64, 2048)
    )
    taken = 1984 * slot_bytes(model, plan, engine, 2000)
    assert small.kv_pool_bytes - large.kv_pool_bytes == pytest.approx(engine.kv_memory_ratio * taken)
    assert 0.3 < large.max_concurrency / small.max_concurrency < 0.7


def test_falcon_180b_in_int4_on_one_h200():
    model = load_model("falcon-180b")
    plan = EnginePlan(weights="int4", kv="fp8", batch=64, tokens=2048)
    found = serving_memory(model, plan, module_formats(model, "int4", H200), H200, ENGINE, length=2048)
    assert found.weights_bytes == pytest.approx(180e9 * 0.53, rel=0.03)
    assert found.max_concurrency > 200
    sixteen = plan.replace(weights="bf16")
    assert serving_memory(model, sixteen, module_formats(model, "bf16", H200), H200, ENGINE, length=2048).max_concurrency == 0


def test_columns_of_batches_are_priced_like_single_ones():
    model, plan = load_model("llama3-8b"), EnginePlan(weights="fp8", kv="fp8")
    formats = module_formats(model, "fp8", H100)
    batches = np.array([1.0, 64.0, 512.0])
    many = serving_memory(model, plan, formats, H100, ENGINE, length=2000, batch=batches, tokens=4096.0)
    for i, batch in enumerate(batches):
        one = serving_memory(model, plan, formats, H100, ENGINE, length=2000, batch=batch, tokens=4096.0)
        assert one.kv_pool_bytes == many.kv_pool_bytes[i] and one.max_concurrency == many.max_concurrency[i]
