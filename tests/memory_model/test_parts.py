"""Parts of the memory table: micro-batches in flight, published activations, state, serving."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model import state
from autoconfig.memory_model import state as moments
from autoconfig.memory_model.activations import (
    Shape,
    chunk_counts,
    chunks_in_flight,
    kept_under_selective,
    layer_input,
    warmup_chunks,
)
from autoconfig.memory_model.experts import expert_backward, expert_forward
from autoconfig.memory_model.recurrent import gdn_backward, mamba_backward
from autoconfig.memory_model.serving import kv_sequence_bytes, kv_token_bytes, serving_memory, slot_bytes, weights_bytes
from autoconfig.memory_model.tables import layer_activations, stage_terms
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.layouts import chunk_layers, layouts_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import norms_apart, total_parameters
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import load_engine, module_formats
from autoconfig.specs.software.software import load_stack

from autoconfig.training.question import Request, understand


@pytest.mark.parametrize(("pp", "stage", "m", "expected"), [(8, 0, 64, 8), (8, 7, 64, 1), (8, 0, 3, 3), (1, 0, 9, 1)])
def test_one_forward_one_backward(pp: int, stage: int, m: int, expected: int) -> None:
    assert int(chunks_in_flight(pp, 1, np.array(stage), m)) == expected


def test_findings_example() -> None:
    """p 8, v 6, m 64: 55, 53, ... 41 chunks over the stages (findings-memory, section 4)."""
    assert list(chunks_in_flight(8, 6, np.arange(8), 64)) == [55, 53, 51, 49, 47, 45, 43, 41]
    assert list(warmup_chunks(8, 6, np.arange(8), 2)) == [12] * 8, "never more than there are"


FP16 = Numerics(precision="fp16", attention_dropout=0.1, hidden_dropout=0.1)
STACK = load_stack("megatron-lm-2022").memory
A100 = load_gpu("a100-80gb")
MODELS = ("gpt3-22b", "gpt3-175b", "gpt3-530b", "gpt3-1t")


def kept(model: ModelSpec, tp: int, sp: bool, modules: tuple[str, ...], mbs: int = 1) -> float:
    """Bytes per layer without the norm statistics, which the paper ignores (section 4.1)."""
    shape = Shape.of(seq_length=2048, tp=tp, sp=sp, cp=1, ep=1, etp=1, mbs=mbs)
    parts = layer_activations(model, "dense", FP16, STACK, shape, A100)
    left = dict(kept_under_selective(parts, modules, STACK).kept)
    del left["norm_statistics"]
    return float(sum(left.values()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("mbs", [1, 4])
def test_table_2(name: str, tp: int, mbs: int) -> None:
    model = load_model(name)
    s, b, h, a, t = 2048, mbs, model.hidden_size, model.num_attention_heads, tp
    scores = 5 * a * s / h
    assert kept(model, 1, False, (), b) == pytest.approx(s * b * h * (34 + scores), rel=1e-12)
    assert kept(model, t, False, (), b) == pytest.approx(s * b * h * (10 + 24 / t + scores / t), rel=1e-12)
    assert kept(model, t, True, (), b) == pytest.approx(s * b * h / t * (34 + scores), rel=1e-12)
    assert kept(model, t, False, ("core_attn",), b) == pytest.approx(s * b * h * (10 + 24 / t), rel=1e-12)
    assert kept(model, t, True, ("core_attn",), b) == pytest.approx(s * b * h * 34 / t, rel=1e-12)
    shape = Shape.of(seq_length=s, tp=t, sp=False, cp=1, ep=1, etp=1, mbs=b)
    assert float(layer_input(model, FP16, shape)) == s * b * h * 2


FIGURE_7 = {
    # percent of the tensor-parallel baseline: sequence parallelism, selective, both, full (digitised by calculon-ai/calculon
    # calculon/llm/validation.py seqsel_fig7; rows KM-0002 to KM-0020 of the published table)
    "gpt3-22b": (66.84, 49.42, 16.18, 7.64),
    "gpt3-175b": (62.04, 56.53, 18.49, 8.71),
    "gpt3-530b": (58.31, 62.04, 20.27, 9.42),
    "gpt3-1t": (58.31, 62.04, 20.27, 9.42),
}


@pytest.mark.parametrize("name", MODELS)
def test_figure_7_and_the_five_fold_saving(name: str) -> None:
    model = load_model(name)
    base = kept(model, 8, False, ())
    full = 2 * 2048 * model.hidden_size
    ours = (kept(model, 8, True, ()), kept(model, 8, False, ("core_attn",)), kept(model, 8, True, ("core_attn",)), full)
    published = FIGURE_7[name]
    for got, want in zip(ours, published, strict=True):
        assert 100 * got / base == pytest.approx(want, abs=0.15)
    assert 4.5 <= base / ours[2] <= 6.5, "about five times less (abstract and section 6.1)"


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (8, 1), (8, 3), (35, 3), (64, 1)])
def test_first_stage_of_the_pipeline(pp: int, vpp: int) -> None:
    """Section 4.2.3: the first stage holds L layers, interleaved L (1 + (p - 1)/(p v))."""
    layers = pp * vpp * 2
    chunks = float(chunks_in_flight(pp, vpp, np.array(0), 10_000))
    expected = layers if vpp == 1 else layers * (1 + (pp - 1) / (pp * vpp))
    assert chunks * layers / (pp * vpp) == pytest.approx(expected, rel=1e-12)


H100, B200 = load_gpu("h100"), load_gpu("b200")
BF16 = Numerics()


def group(shard: int = 8) -> state.ParameterGroup:
    return state.ParameterGroup(parameters=1000.0, gemm_weights=800.0, trainable=1000.0, shard=shard)


def total(numerics: Numerics, dist_opt: bool, fsdp: int = 0) -> float:
    parts = (state.weight_bytes(group(), numerics, H100, fsdp, False), state.gradient_bytes(group(), numerics, fsdp),
             state.optimizer_bytes(group(), numerics, dist_opt, fsdp, 0.0))  # fmt: skip
    return float(sum(parts))


def test_mixed_precision_takes_18_bytes_and_zero_divides_them() -> None:
    """Narayanan et al. 2021, section 3.5 (18 bytes); Rajbhandari et al. 2020, figure 1 (what each ZeRO stage divides)."""
    assert total(BF16, dist_opt=False) == 18 * 1000
    assert total(BF16, dist_opt=True) == (2 + 4 + 12 / 8) * 1000
    assert total(BF16, dist_opt=False, fsdp=2) == (2 + (4 + 12) / 8) * 1000
    assert total(BF16, dist_opt=False, fsdp=3) == 18 / 8 * 1000
    assert total(Numerics(grad_reduce_dtype="bf16"), dist_opt=True) == (2 + 2 + 12 / 8) * 1000
    assert total(Numerics(precision="fp32"), dist_opt=False) == (4 + 4 + 8) * 1000


def test_precision_aware_optimizer_and_offload() -> None:
    small = Numerics(exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16", store_param_remainders=True)
    assert state.optimizer_bytes_per_parameter(small) == 2 + 2 + 2
    assert state.optimizer_bytes_per_parameter(BF16) == 12
    assert float(state.optimizer_bytes(group(), BF16, True, 0, 0.75)) == 12 / 8 * 1000 / 4


def test_fp8_weights() -> None:
    """Hopper keeps the transpose too, Blackwell does not; fp8_param_gather replaces the 16-bit weight of GEMMs."""
    plain, gathered = Numerics(precision="fp8"), Numerics(precision="fp8", fp8_param_gather=True)
    assert float(state.weight_bytes(group(), plain, H100, 0, False)) == 2 * 1000 + 2 * 800
    assert float(state.weight_bytes(group(), plain, B200, 0, False)) == 2 * 1000 + 800
    assert float(state.weight_bytes(group(), gathered, H100, 0, True)) == 2 * 200 + 2 * 800
    assert float(state.weight_bytes(group(), gathered, B200, 0, True)) == 2 * 200 + 800
    mxfp8 = Numerics(precision="fp8", fp8_recipe="mxfp8").format
    assert mxfp8.weight_copy_bytes(B200.compute_capability) == pytest.approx(2 * 33 / 32)


def test_step_temporary_only_with_16_bit_gradients() -> None:
    assert float(state.optimizer_step_bytes(group(), BF16)) == 0
    assert float(state.optimizer_step_bytes(group(), Numerics(grad_reduce_dtype="bf16"))) == 4 * 1000 / 8


def test_lora_adapters_of_llama() -> None:
    """Rank 8 on qkv, proj, fc1, fc2 of Llama-3-8B: sum of 8 (in + out) per matrix (Hu et al. 2021, section 4.1)."""
    model = load_model("llama3-8b")
    h, kv, f = 4096, 1024, 14336
    expected = 8 * ((h + h + 2 * kv) + (h + h) + (h + 2 * f) + (f + h))
    assert float(state.lora_parameters(model, Numerics(peft="lora", lora_rank=8), "dense", 1)) == expected
    halves = state.lora_parameters(model, Numerics(peft="lora", lora_rank=8), "dense", np.array([1, 2]))
    assert halves[1] < halves[0]


GPT3 = load_model("gpt3-175b")
MIXTRAL = load_model("mixtral-8x7b")
TE = load_stack("transformer-engine").memory
NO_DROPOUT = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
T, H, V = 2048, 12288, 51200


def shape_of(tp: int = 8, sp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1, mbs: int = 1) -> Shape:
    return Shape.of(seq_length=T, tp=tp, sp=sp, cp=cp, ep=ep, etp=etp, mbs=mbs)


@pytest.mark.parametrize(("sp", "pp", "hidden_gradients"), [
    (0, 1, 2 * T * H),
    (1, 1, 2 * T * H + 2 * T * H + 2 * T * H / 8),
    (0, 4, 2 * T * H + 4 * T * H),
    (1, 4, 2 * T * H + 2 * T * H + 2 * T * H / 8 + 4 * T * H),
])  # fmt: skip
def test_output_layer_backward(sp: int, pp: int, hidden_gradients: float) -> None:
    stack = replace(TE, logit_gradient_bytes=2.0)
    got = moments.output_layer_backward(GPT3, NO_DROPOUT, stack, V, shape_of(sp=sp), pp)
    assert got == pytest.approx(2 * T * V / 8 + 2 * V * H / 8 + hidden_gradients)


@pytest.mark.parametrize("text", ["pp=4,vpp=4,first=16,last=13", "pp=16,vpp=2,first=3,last=2", "pp=8,vpp=4,first=7,last=6"])
@pytest.mark.parametrize("batch", [16, 64])
def test_layers_in_flight_are_those_of_the_chunks_that_a_layout_places(text: str, batch: int) -> None:
    """Every chunk in flight holds its own layers of each kind, also the shorter first and last one."""
    model, plan = load_model("deepseek-v3"), parse_plan(f"tp=1,ep=1,mbs=1,dp=1,{text}", 64)
    scenario = understand(Request(model="deepseek-v3", gpus=64, global_batch_size=batch)).scenario
    terms = stage_terms(scenario, layouts_of([plan], model, batch), every=True)
    chunks, position = chunk_layers(model, plan), 0
    wanted = {kind: [0.0] * plan.pp for kind in ("dense", "moe")}
    for number, sizes in enumerate(chunks):
        for stage, size in enumerate(sizes):
            held = chunks_in_flight(plan.pp, plan.vpp, np.array(stage), batch)
            for kind in model.layer_kinds[position : position + size]:
                wanted[kind][stage] += float(chunk_counts(plan.pp, plan.vpp, held, number))
            position += size
    wanted["moe"][-1] += 1.0  # the prediction depth, in the last chunk, of which one micro-batch is in flight
    for kind, layers in wanted.items():
        np.testing.assert_array_equal(terms.layers_in_flight[kind][0], layers)


def test_every_prediction_depth_keeps_an_fp32_softmax() -> None:
    assert moments.mtp_loss(TE, V, shape_of(), 1) == pytest.approx(4 * T * V / 8)
    assert moments.mtp_loss(TE, V, shape_of(), 3) == pytest.approx(3 * 4 * T * V / 8)


@pytest.mark.parametrize(("ep", "copies"), [(1, 2), (4, 2), (8, 1)])
def test_expert_backward_sorts_only_several_local_experts(ep: int, copies: int) -> None:
    rows = 2 * T  # top-2, no tensor parallelism; Mixtral: 14,336 gated channels, hidden 4,096
    got = expert_backward(MIXTRAL, NO_DROPOUT, shape_of(tp=1, sp=0, ep=ep))
    assert got == pytest.approx(2 * rows * (2 * 14336 + copies * 4096))


@pytest.mark.parametrize(("ep", "etp", "copies"), [(1, 1, 3), (4, 1, 4), (8, 1, 3), (4, 2, 3)])
def test_expert_forward_holds_routed_rows_by_name(ep: int, etp: int, copies: float) -> None:
    rows = etp * 2 * T  # sent, out of the experts, sent back, and of several local experts those that arrived
    got = expert_forward(MIXTRAL, NO_DROPOUT, shape_of(tp=1, sp=0, ep=ep, etp=etp))
    assert got == pytest.approx(2 * rows * copies * 4096)


def test_mlp_backward() -> None:
    stack = replace(TE, mlp_backward_buffers=1.0, mlp_backward_buffers_no_sp=1.7)
    both = moments.mlp_backward(GPT3, 4 * H, NO_DROPOUT, stack, shape_of(sp=np.array([0, 1])))
    assert both == pytest.approx([2 * T * (4 * H / 8 + 1.7 * H), 2 * T * (4 * H / 8 + H)])


def test_attention_backward_flash_and_context_parallel() -> None:
    flash = replace(TE, attention_kernel="flash", cp_comm_type="p2p")
    alone = moments.attention_backward(GPT3, NO_DROPOUT, flash, shape_of())
    assert alone == pytest.approx(2 * T * H / 8 * 4 + 4 * T * H / 8)  # q, k, v, output in 16 bit; dq in fp32
    ring = moments.attention_backward(GPT3, NO_DROPOUT, flash, shape_of(cp=2))
    assert ring == pytest.approx(alone / 2 + 2 * 2 * T / 2 * 2 * H / 8)  # two blocks of keys and values in flight


def test_first_and_last_stage() -> None:
    assert moments.final_norm(GPT3, NO_DROPOUT, shape_of()) == pytest.approx(4 * T * H / 8)
    assert moments.embedding_dropout(GPT3, NO_DROPOUT, shape_of()) == 0
    assert moments.embedding_dropout(GPT3, replace(NO_DROPOUT, hidden_dropout=0.1), shape_of()) == pytest.approx(T * H / 8)


ENGINE = load_engine("trtllm-1.2")
H200 = load_gpu("h200")


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
    assert kv_sequence_bytes(model, plan, load_engine("vllm"), 4096) == token * (12 * 4096 + 12 * 128)
    for whole in ("trtllm-0.17", "trtllm-1.2"):
        assert kv_sequence_bytes(model, plan, load_engine(whole), 4096) == token * 24 * 4096


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


def test_a_hybrids_sublayers_save_what_is_read_in_their_code() -> None:
    """By hand, bf16, tp 2 with SP, T = 8192: norm's input, output and fp32 inverse deviation, then the sublayer's own."""
    numerics = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
    shape = Shape.of(seq_length=8192, tp=2, sp=True, cp=1, ep=8, etp=1, mbs=1)
    stack, gpu, t = load_stack("transformer-engine").memory, load_gpu("h100"), 8192.0

    def saved(name: str, kind: str) -> float:
        return float(sum(layer_activations(load_model(name), kind, numerics, stack, shape, gpu).values()))

    nano = 2 * t * (2 * 2688 / 2 + (2 * 4096 + 2 * 1024 + 64) / 2 + 3 * 4096 / 2) + 4 * t / 2
    assert saved("nemotron-3-nano", "mamba") == pytest.approx(nano, rel=1e-12)
    q, v = 16 * 128, 32 * 128
    columns = (2 * q + 2 * v + 2 * 32) + 2 * q + (2 * v + 2 * v + 2 * 32) + 3 * v + 64 * 32  # in_proj, norms, copies, behind, A
    delta = 2 * t * 2 * 2048 / 2 + 2 * t * columns / 2 + 4 * t * (2 * 16 + 32 + 32) / 2 + 4 * t / 2
    assert saved("qwen3-next-80b-a3b", "gdn") == pytest.approx(delta, rel=1e-12)
    parts = layer_activations(load_model("nemotron-3-super"), "moe", numerics, stack, shape, gpu)
    assert float(parts["expert_input"]) == 2 * 22 * t / 2 * 1024 * (numerics.moe_capacity_factor or numerics.moe_imbalance)
    assert float(parts["latent_experts"]) == 2 * t / 2 * 1024
    gated = layer_activations(load_model("qwen3-next-80b-a3b"), "attention", numerics, stack, shape, gpu)
    assert float(gated["attention_gate"]) == 2 * 2 * t * 4096 / 2


def test_scan_backward_holds_what_the_kernel_allocates() -> None:
    """Nemotron-3-Nano, one micro-batch of 8,192 tokens in MiB: gradient of in_proj's output, x, B, C and their gradient, steps
    and decays, products of B and C; 2 MiB of states a chunk and 64 chunks, in fp32 and 16 bits, with gradients."""
    shape = Shape.of(seq_length=8192, tp=1, sp=False, cp=1, ep=1, etp=1, mbs=1)
    expected = 161 + 2 * 96 + 4 + 32 + (128 + 128) + (64 + 64)
    assert mamba_backward(load_model("nemotron-3-nano"), Numerics(), shape) == expected * 2**20


def test_delta_rule_backward_holds_what_the_kernel_allocates() -> None:
    """Qwen3-Next, one micro-batch of 4,096 tokens in MiB: one tensor of the values is 32, as are those of keys of 32 heads, and
    the states of 64 chunks are 64; nine of the first and both of the last, less two that are gone."""
    shape = Shape.of(seq_length=4096, tp=1, sp=False, cp=1, ep=1, etp=1, mbs=1)
    expected = (9 - 2) * 32 + 2 * 64 + 4096 * 32 * (4 + 4 + 2) / 2**20
    assert gdn_backward(load_model("qwen3-next-80b-a3b"), Numerics(), shape) == expected * 2**20


def test_gpt_oss_keeps_its_experts_first_product_before_and_behind_the_clamp() -> None:
    """By hand, 4,096 tokens, top-4: routed rows x 2,880 channels; fc2's input is one, the clamped copy two, of 2 bytes each."""
    shape = Shape.of(seq_length=4096, tp=1, sp=False, cp=1, ep=16, etp=1, mbs=1)
    stack, gpu = load_stack("transformer-engine").memory, load_gpu("h100")
    parts = layer_activations(load_model("gpt-oss-120b"), "moe", Numerics(), stack, shape, gpu)
    assert float(parts["expert_activation"]) == 3 * 2 * 4 * 4096 * 2880 * Numerics().moe_imbalance


@pytest.mark.parametrize(
    ("apart", "attention", "mlp"), [((0.0, 0.0), 0.0, 0.0), ((0.0, 0.5), 0.0, 4.0), ((0.5, 0.5), 4.0, 4.0)]
)
def test_only_norms_that_stand_apart_are_recomputed(apart, attention, mlp):
    layer = kept_under_selective({"norm_outputs": np.array([8.0])}, ("layernorm",), STACK, apart)
    assert layer.kept["norm_outputs"] == 8.0 - attention - mlp
    assert (layer.back_in_attention, layer.back_in_mlp) == (attention, mlp)


def test_of_a_layer_whose_norms_are_not_told_both_are_recomputed():
    assert kept_under_selective({"norm_outputs": np.array([8.0])}, ("layernorm",), STACK).kept["norm_outputs"] == 0.0


def test_norms_of_both_halves_are_freed_together():
    """Latent attention: `layernorm` frees the norm before attention, `mlp` the one that is fused into the MLP."""
    parts = {"norm_outputs": np.array([8.0]), "query_key_value": np.array([9.0]), "mlp_inside": np.array([5.0])}
    stack = load_stack("transformer-engine").memory
    for modules, left in ((("layernorm",), 4.0), (("mlp",), 4.0), (("layernorm", "mlp"), 0.0)):
        assert kept_under_selective(parts, modules, stack, (0.5, 0.0)).kept["norm_outputs"] == left


@pytest.mark.parametrize(
    ("model", "kind", "fused", "apart"),
    [
        ("llama3-8b", "dense", True, (0.0, 0.0)),
        ("llama3-8b", "dense", False, (0.5, 0.5)),
        ("mixtral-8x7b", "moe", True, (0.0, 0.5)),
        ("deepseek-v3", "moe", True, (0.5, 0.5)),
        ("deepseek-v3", "dense", True, (0.5, 0.0)),
        ("nemotron-3-nano", "mamba", True, (0.0, 0.0)),
        ("nemotron-3-nano", "attention", True, (0.0, 0.0)),
        ("nemotron-3-nano", "moe", True, (0.0, 1.0)),
        ("nemotron-3-nano", "mamba", False, (0.0, 0.0)),
        ("nemotron-3-nano", "attention", False, (1.0, 0.0)),
        ("nemotron-3-nano", "moe", False, (0.0, 1.0)),
        ("qwen3-next-80b-a3b", "gdn", True, (0.0, 0.0)),
        ("qwen3-next-80b-a3b", "gdn", False, (1.0, 0.0)),
        ("t5-11b", "decoder", True, (0.0, 0.0)),
        ("t5-11b", "encoder", False, (0.5, 0.5)),
        ("t5-11b", "decoder", False, (1 / 3, 1 / 3)),
    ],
)
def test_norms_that_are_modules_of_their_own(model, kind, fused, apart):
    assert norms_apart(load_model(model), kind, fused) == apart
