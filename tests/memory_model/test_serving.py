"""Memory of an engine: weights, cache, buffers, and what is left for sequences."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model.serving import (
    activation_bytes,
    checkpoint_bytes,
    kv_layer_bytes,
    kv_sequence_bytes,
    kv_token_bytes,
    serving_memory,
    slot_bytes,
    stage_layers,
    state_sequence_bytes,
    weight_parts_bytes,
    weights_bytes,
)
from autoconfig.specs.errors import GIB
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import EngineSpec, ModuleFormats, load_engine, module_formats
from small_models import H100, H200, MODELS

TRTLLM = load_engine("trtllm-1.2")


def weights(model, gpu, **plan):
    one = EnginePlan(**plan)
    return weights_bytes(model, one, module_formats(model, one.weights, gpu))


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "falcon-180b"])
def test_16_bit_weights_are_two_bytes_a_parameter(name):
    model = load_model(name)
    assert weights(model, H200, weights="bf16") == pytest.approx(2.0 * total_parameters(model), rel=2e-3)


def test_experts_are_divided_over_all_ranks_and_attention_over_tp_only():
    model = load_model("mixtral-8x7b")
    alone, shared = weights(model, H200, weights="bf16"), weights(model, H200, adp=8, ep=8, weights="bf16")
    experts = 2.0 * 32 * 8 * 3 * 4096 * 14336
    assert alone - shared == pytest.approx(experts * 7 / 8, rel=1e-6)


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
    found = serving_memory(model, plan, module_formats(model, "int4", H200), H200, TRTLLM, length=2048)
    assert found.weights_bytes == pytest.approx(180e9 * 0.53, rel=0.03)
    assert found.max_concurrency > 200
    sixteen = plan.replace(weights="bf16")
    assert serving_memory(model, sixteen, module_formats(model, "bf16", H200), H200, TRTLLM, length=2048).max_concurrency == 0


def test_columns_of_batches_are_priced_like_single_ones():
    model, plan = load_model("llama3-8b"), EnginePlan(weights="fp8", kv="fp8")
    formats = module_formats(model, "fp8", H100)
    batches = np.array([1.0, 64.0, 512.0])
    many = serving_memory(model, plan, formats, H100, TRTLLM, length=2000, batch=batches, tokens=4096.0)
    for i, batch in enumerate(batches):
        one = serving_memory(model, plan, formats, H100, TRTLLM, length=2000, batch=batch, tokens=4096.0)
        assert one.kv_pool_bytes == many.kv_pool_bytes[i] and one.max_concurrency == many.max_concurrency[i]


GPT, GATED, MOE, MLA, HYBRID, LATENT = (
    ModelSpec(**MODELS[name]) for name in ("gpt", "gated", "moe", "mla", "hybrid", "latent moe")
)


ENGINE = EngineSpec(name="x", description="", framework="vllm", year=2025)


FORMATS = ModuleFormats(attention="fp8", mlp="bf16", experts="nvfp4")


@pytest.mark.parametrize(("layers", "pp", "found"), [(4, 1, (0, 1, 2, 3)), (4, 2, (2, 3)), (5, 2, (2, 3, 4)), (5, 4, (3, 4))])
def test_the_busiest_stage_is_the_last_with_the_most_layers(layers, pp, found):
    assert stage_layers(GPT.replace(num_layers=layers), pp) == found


@pytest.mark.parametrize(("model", "kv", "tp", "expected"), [
    (GPT, "bf16", 1, 2 * 2 * 8 * 10), (GPT, "fp8", 4, 2 * 2 * 10), (GPT, "bf16", 16, 2 * 2 * 10),
    (MLA, "bf16", 8, 2 * (36 + 6)), (MLA, "fp8", 1, 36 + 6), (GPT, "nvfp4", 8, 2 * 10 * 0.5625),
])  # fmt: skip
def test_cached_bytes_of_a_token_and_layer(model, kv, tp, expected):
    assert kv_layer_bytes(model, tp, kv) == expected
    assert kv_token_bytes(model, EnginePlan(tp=tp, kv=kv, pp=2)) == 2 * expected


@pytest.mark.parametrize(("window", "keeps", "blocks"), [(None, True, 4 * 4), (40, True, 2 * 4 + 2 * 2), (40, False, 4 * 4)])
def test_blocks_of_a_sequence(window, keeps, blocks):
    """100 tokens are 4 blocks of 32, a window of 40 is two; every second layer slides."""
    model = GPT.replace(window_size=window, window_attn_skip_freq=2)
    assert kv_sequence_bytes(model, EnginePlan(), replace(ENGINE, keeps_window_only=keeps), 100) == blocks * 32 * 2 * 2 * 8 * 10


def test_states_of_a_hybrid_are_beside_its_one_layer_of_attention():
    mamba = 4 * 12 * 20 * 26 + 2 * 3 * (240 + 208)
    delta = 4 * 8 * 22 * 30 + 2 * 3 * (176 + 240)
    assert state_sequence_bytes(HYBRID, EnginePlan(tp=2)) == (mamba + delta) / 2
    assert kv_sequence_bytes(HYBRID, EnginePlan(), ENGINE, 64) == 64 * 2 * 2 * 8 * 10 + mamba + delta


@pytest.mark.parametrize(("model", "text", "width"), [
    (GPT, {"tp": 4}, 100), (GATED, {}, 3 * 200), (MOE, {"tp": 2}, 3 * (96 + 96)), (LATENT, {"adp": 2}, 6 * (40 + 40) + 4 * 96),
    (MOE, {"tp": 2, "ep": 2}, 3 * (2 * 56 + 96)), (MOE, {"adp": 4, "ep": 2}, 4 * 3 * (96 + 96) + 2 * 4 * 96),
    (MOE.replace(moe_ffn_hidden_size=112), {"adp": 4, "ep": 4}, 4 * 3 * (224 + 112) + 2 * 4 * 96),
    (HYBRID, {}, max(2 * 240 + 2 * 104 + 12 + 240, 2 * 88 + 2 * 240 + 16 + 240, 3 * (96 + 96))),
    (HYBRID.replace(hybrid_layer_pattern="G*G*", num_moe_experts=None), {"tp": 2}, (2 * 88 + 2 * 240 + 16 + 240) / 2),
])  # fmt: skip
def test_what_an_iteration_holds(model, text, width):
    """Four buffers of 96 channels and the widest layer, 2 bytes each. Experts: two buffers of 3 rows for all ranks' tokens."""
    assert activation_bytes(model, EnginePlan(**text), ENGINE, 1000) == pytest.approx(2 * 1000 * (4 * 96 + width))


@pytest.mark.parametrize(("tp", "gathered"), [(1, 0), (4, 2 * 1024 * (3 + 1 / 4))])
def test_slots_of_sequences(tp, gathered):
    """Padded to 1,024 words; TensorRT-LLM's runtime: 5 rows of logits, 64 KiB of top-K, 28 bytes a token."""
    assert slot_bytes(GPT, EnginePlan(tp=tp), ENGINE, 100) == 4 * 1024
    reserved = slot_bytes(GPT, EnginePlan(tp=tp), replace(ENGINE, reserves_slots=True), 100)
    assert reserved == 5 * 4 * 1024 + 65_536 + 28 * 100 + gathered


def test_parts_of_an_engines_weights():
    """Llama-like layers of 4: attention 96 x (240 + 160) + 240 x 96 in fp8, two norms in 16 bits; experts in NVFP4."""
    parts = weight_parts_bytes(MOE, EnginePlan(tp=2, adp=2, ep=4), FORMATS)
    attention, expert = 96 * (240 + 160) + 240 * 96, 3 * 96 * 56
    assert parts["attention"] == 4 * attention / 2 and parts["experts"] == pytest.approx(4 * 16 * expert / 4 * 0.5625)
    assert parts["mlp"] == 4 * 2 * 3 * 96 * 88 / 2
    assert parts["norms and routers"] == 4 * (2 * 2 * 192 + 2 * 16 * 96) and parts["embedding and output"] == 2 * 1024 * 96 / 2
    untied = MOE.replace(untie_embeddings_and_output_weights=True)
    for pp, copies in ((1, 2), (2, 1)):
        assert weight_parts_bytes(untied, EnginePlan(pp=pp), FORMATS)["embedding and output"] == copies * 2 * 1024 * 96
    hybrid = weight_parts_bytes(HYBRID, EnginePlan(), FORMATS)
    assert hybrid["recurrent"] == 96 * 700 + 240 * 96 + 96 * 672 + 240 * 96  # one byte each, as attention
    assert hybrid["norms and routers"] == 4 * 2 * 192 + 2 * 16 * 96


def test_a_checkpoint_holds_its_prediction_depths():
    plain = MOE.replace(untie_embeddings_and_output_weights=True)
    extra = checkpoint_bytes(plain.replace(mtp_num_layers=1), FORMATS) - checkpoint_bytes(plain, FORMATS)
    layer = weights_bytes(plain, EnginePlan(), FORMATS) - weights_bytes(plain.replace(num_layers=3), EnginePlan(), FORMATS)
    assert extra == pytest.approx(layer + 2 * (2 * 96 * 96 + 2 * 1000 * 96))


def test_the_pool_is_a_share_of_what_is_free():
    engine = replace(ENGINE, runtime_bytes=GIB, kv_memory_ratio=0.8)
    plan = EnginePlan(adp=2, pp=2, ep=2, batch=64, tokens=1000)
    found = serving_memory(MOE, plan, FORMATS, H100, engine, length=100)
    active = activation_bytes(MOE, plan, engine, 1000) + 64 / 4 * 4 * 1024
    used = weights_bytes(MOE, plan, FORMATS) + active + GIB
    pool = 0.8 * (H100.memory_bytes - used)
    assert found.kv_pool_bytes == pytest.approx(pool) and found.activation_bytes == pytest.approx(active)
    assert found.max_concurrency == pool // (2 * 128 * 2 * 2 * 8 * 10)
    assert found.kept_free_bytes == pytest.approx(H100.memory_bytes - used - pool)
    assert replace(found, kv_pool_bytes=-1.0).max_concurrency == 0


@pytest.mark.parametrize(("name", "weights"), [("mixtral-8x7b", 46_702_792_704), ("llama3-8b", 8_030_261_248)])
def test_a_served_model_holds_its_parameters_once(name, weights):
    """Published counts in 16 bits, less the final norm; a quarter on each of four ranks but for norms and routers."""
    model = load_model(name)
    formats = module_formats(model, "bf16", H100)
    parts = weight_parts_bytes(model, EnginePlan(), formats)
    assert sum(parts.values()) == pytest.approx(2 * (weights - 4096), rel=1e-12)
    shared = 2 * (2 * 4096 + (8 * 4096 if model.is_moe else 0)) * 32
    assert parts["norms and routers"] == shared
    quarter = weight_parts_bytes(model, EnginePlan(tp=4), formats)
    assert sum(quarter.values()) == pytest.approx((2 * (weights - 4096) - shared) / 4 + shared, rel=1e-3)


def test_engines_of_the_catalogue_take_what_their_documents_say():
    """vLLM frees keys outside windows; its and SGLang's memory is that of a start, without a constant of the catalogue."""
    engines = {name: load_engine(name) for name in ("trtllm-0.17", "trtllm-1.2", "vllm", "sglang")}
    assert {name for name, engine in engines.items() if not engine.runtime_bytes} == {"vllm", "sglang"}
    assert (
        not any(engines[name].keeps_window_only for name in ("trtllm-0.17", "trtllm-1.2")) and engines["vllm"].keeps_window_only
    )
