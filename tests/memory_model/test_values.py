"""Formulas of memory at their boundaries, worked out by hand: 4,096 tokens of small models whose sizes are all different."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model import transients_unfused as unfused
from autoconfig.memory_model.activations import Shape
from autoconfig.memory_model.after_step import cublas_workspace_bytes, unsplit_bytes
from autoconfig.memory_model.experts import expert_backward, expert_forward, expert_transients, routed_rows
from autoconfig.memory_model.peaks import _numbered
from autoconfig.memory_model.predict import (
    allocator_bytes,
    dispatch_buffer_bytes,
    fit_probability,
    headroom_bytes,
    model_parallel_reserved_bytes,
)
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
from autoconfig.memory_model.sparse import indexer, sparse_attention_backward
from autoconfig.memory_model.state import (
    ParameterGroup,
    embedding_backward,
    end_parameters,
    fsdp_unit_bytes,
    gradient_bytes,
    loss,
    mlp_backward,
    mtp_loss,
    on_gpu,
    optimizer_bytes,
    optimizer_bytes_per_parameter,
    optimizer_step_bytes,
    output_layer_backward,
    tied_weight_gradient,
    weight_bytes,
)
from autoconfig.memory_model.tables import _parameter_groups
from autoconfig.specs.errors import GIB, MIB
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.layouts import stage_table
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import EngineSpec, ModuleFormats, load_engine
from autoconfig.specs.software.software import StackMemory, load_stack
from small_models import MODELS

H100, B200 = load_gpu("h100"), load_gpu("b200")
GPT, GATED, MOE, MLA, HYBRID, LATENT = (
    ModelSpec(**MODELS[name]) for name in ("gpt", "gated", "moe", "mla", "hybrid", "latent moe")
)
STACK, NUMERICS = StackMemory(), Numerics()
T, H, F, A, D, KV, V = 4096, 96, 200, 24, 10, 8, 1024


def shape(tp=1, sp=1, cp=1, ep=1, etp=1):
    """T tokens of a rank, whatever cp."""
    return Shape.of(seq_length=T * cp, tp=tp, sp=sp > 1, cp=cp, ep=ep, etp=etp, mbs=1)


@pytest.mark.parametrize(("ep", "etp", "forward", "backward"), [
    # 3 rows a token; forward 2 R h sent and out, and R h / etp sent back, again where several experts of several ranks are
    # sorted; backward G f_e / etp and h, twice h with several local experts
    (1, 1, 2 + 1, 2), (2, 1, 2 + 2, 2), (8, 1, 2 + 2, 2), (16, 1, 2 + 1, 1), (16, 2, 2 + 0.5, 1), (8, 2, 2 + 1, 2),
])  # fmt: skip
def test_rows_that_a_layer_of_experts_holds(ep, etp, forward, backward):
    at, rows = shape(ep=ep, etp=etp), 3 * T * etp
    assert routed_rows(MOE, NUMERICS, at) == rows
    first, second = 2 * rows * forward * H, 2 * rows * (2 * 56 / etp + backward * H)
    assert expert_forward(MOE, NUMERICS, at) == first and expert_backward(MOE, NUMERICS, at) == second
    assert expert_transients(MOE, NUMERICS, at) == max(first, second)
    wide = MOE.replace(moe_ffn_hidden_size=560)
    assert expert_transients(wide, NUMERICS, at) == max(first, 2 * rows * (2 * 560 / etp + backward * H))


def test_rows_of_a_capacity_and_of_an_imbalance():
    assert routed_rows(MOE, Numerics(moe_capacity_factor=1.25, moe_imbalance=3.0), shape()) == 1.25 * 3 * T
    assert routed_rows(MOE, Numerics(moe_imbalance=1.5), shape(tp=4, sp=4)) == 1.5 * 3 * T / 4


@pytest.mark.parametrize(("sp", "dropout"), [(1, 0.1), (1, 0.0), (4, 0.1), (4, 0.0)])
def test_the_backward_of_an_mlp_with_weight_gradients_of_their_own(sp, dropout):
    """fc2: its weight gradient and input's, the output's gradient (gathered with SP, copied by dropout); fc1: twice as wide
    with a gate, beside its input and the residual stream's gradient, less what the MLP saved."""
    at, numerics = shape(tp=4, sp=sp), Numerics(hidden_dropout=dropout)
    whole, mask = 2 * T * H, T * H / sp * (dropout > 0)
    own = 2 * F * (T + H) / 4
    second = own + whole / sp + (whole if sp > 1 or dropout else 0)
    for inside in (0.0, 3e6):
        first = 2 * own + whole + whole / sp + (whole / sp if sp > 1 else 0) - inside
        found = unfused.mlp_backward(GATED, F, numerics, at, inside)
        assert found == max(first, second) - mask
    assert unfused.one_mask(GATED, numerics, at) == mask


@pytest.mark.parametrize(("kernel", "sp", "expected"), [
    ("flash", 1, 0), ("flash", 4, 2 * T * H), ("unfused", 4, 2 * T * T * A / 4), ("unfused", 1, 2 * T * T * A / 4),
])  # fmt: skip
def test_the_buffer_that_is_never_freed(kernel, sp, expected):
    stack = replace(STACK, attention_kernel=kernel)
    assert unfused.gather_buffer(GPT, NUMERICS, stack, shape(tp=4, sp=sp)) == expected
    few = Shape.of(seq_length=4, tp=4, sp=1, cp=1, ep=1, etp=1, mbs=1)  # 4 tokens: scores 2 x 4 x 4 x 6, gathered 2 x 4 x 96
    assert unfused.gather_buffer(GPT, NUMERICS, replace(STACK, attention_kernel="unfused"), few) == 2 * 4 * 96


@pytest.mark.parametrize(("model", "channels"), [(GPT, (A * D, 2 * KV * D, A * D)), (MLA, (24 * 20, 24 * 38, 24 * 18))])
def test_the_backward_of_attention_with_tensors_of_their_own(model, channels):
    """Flash: gradients of q, k and v, and of the output, and an fp32 accumulator of q's; unfused: 8 bytes a score less what
    is freed. The residual stream's gradient and both masks are gone."""
    q, kv, out = channels
    gone = 2 * T * H + 2 * T * H
    flash = 2 * T * (q + kv + out) + 4 * T * q - gone
    assert unfused.attention_backward(model, NUMERICS, STACK, shape()) == flash
    stack = replace(STACK, attention_kernel="unfused", score_backward_bytes=8.0)
    assert unfused.attention_backward(model, NUMERICS, stack, shape()) == (8 - 2 - 3) * T * T * A - gone
    dry = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
    assert unfused.attention_backward(model, dry, stack, shape()) == (8 - 2) * T * T * A - 2 * T * H


@pytest.mark.parametrize(("sp", "pp", "more"), [(1, 1, 0), (4, 1, 1 / 4), (1, 2, 2), (4, 2, 3 / 4)])
def test_the_backward_of_an_output_layer_with_a_gradient_of_its_own(sp, pp, more):
    at, logits = shape(tp=4, sp=sp), T * V / 4
    found = unfused.output_layer_backward(GPT, NUMERICS, STACK, logits, V, at, pp)
    assert found == 2 * logits + 2 * V * H / 4 + 2 * T * H * (1 + more)
    assert unfused.sent_and_received(GPT, NUMERICS, at, pp) == (pp > 1) * 2 * 2 * T * H / sp


def test_experts_one_after_another():
    """16 experts on 4 ranks: 4 local ones, 3 T / 4 rows each."""
    at, rows, parts = shape(ep=4), 3 * T, {"expert_inside": 4e5, "expert_activation": 8e5}
    own = 2 * 56 * (rows / 4 + H)
    first = 2 * own + 2 * rows / 4 * H - 3e5
    expected = max(own, first) + 2 * rows * H + 2 * T * H - T * H
    assert unfused.expert_backward(MOE, NUMERICS, at, parts) == expected
    many = {"expert_inside": 4e7, "expert_activation": 0.0}
    assert unfused.expert_backward(MOE, NUMERICS, at, many) == own + 2 * rows * H + 2 * T * H - T * H


@pytest.mark.parametrize(("capability", "deterministic", "mib"), [
    (9.0, False, 32), (8.9, False, 8.125), (None, False, 8.125), (8.0, True, 32), (10.0, False, 32),
])  # fmt: skip
def test_workspaces_of_cublas(capability, deterministic, mib):
    assert cublas_workspace_bytes(capability, deterministic) == mib * MIB


@pytest.mark.parametrize(("mebi", "lost"), [
    (1.0, 0), (1.01, 0), (9.99, 0), (10.0, 0), (10.25, 1.75), (10.99, 1.01), (11.0, 1), (11.5, 0.5), (12.0, 0), (18.99, 1.01),
])  # fmt: skip
def test_what_blocks_lose(mebi, lost):
    """One tensor of so many MiB: from 1 MiB on in a segment of 20, from 10 on in one of its own of whole 2 MiB; what is left
    is lost where it is no more than 1 MiB."""
    found = unsplit_bytes(((mebi * MIB / 2,),), 2, (0, 0), 1)
    assert found == pytest.approx((lost if lost <= 1 else 0) * MIB, abs=1)


def test_the_chance_to_fit():
    """A logistic of the distance over 2.5 % of the device; 95 % needs ln 19 of them."""
    assert fit_probability(10.0, 10.0, 80.0) == 0.5 and fit_probability(8.0, 10.0, 80.0) == pytest.approx(1 / (1 + np.exp(-1)))
    assert headroom_bytes(0.95, 80.0) == pytest.approx(2 * np.log(19)) and headroom_bytes(0.5, 80.0) == 0
    assert fit_probability(10.0 - headroom_bytes(0.9, 80.0), 10.0, 80.0) == pytest.approx(0.9)
    assert fit_probability(1e9, 10.0, 80.0) > 0 and allocator_bytes(100.0) == 3.0


@pytest.mark.parametrize(("tp", "pp", "gib"), [(1, 1, 0), (2, 1, 3), (1, 2, 3), (2, 2, 3)])
def test_what_a_stack_loses_where_a_model_is_divided(tp, pp, gib):
    assert model_parallel_reserved_bytes(replace(STACK, model_parallel_reserved_gib=3.0), tp, pp) == gib * GIB


def scenario(model, gpu="h100", gpus=16, given=None, numerics=NUMERICS):
    return Scenario(
        model=model, cluster=cluster_of(load_gpu(gpu), gpus), numerics=numerics, software=load_stack("transformer-engine"),
        workload=Workload(seq_length=T, global_batch_size=32), given=GivenSettings(**given or {}),
    )  # fmt: skip


@pytest.mark.parametrize(("text", "tokens", "domains"), [
    ("ep=8", T, 1), ("ep=16,mbs=2", 2 * T, 2), ("ep=8,etp=2,tp=2,sp=1", T / 2, 2), ("ep=8,tp=2,sp=0", T, 1),
    ("ep=4,cp=4", T / 4, 1), ("tp=2,sp=1", T / 2, 0),
])  # fmt: skip
def test_registered_buffers_of_hybridep(text, tokens, domains):
    """Of every rank of the group its tokens' 16-bit channels and 8 bytes an expert; channels of every further domain of 8."""
    s = scenario(MOE, given={"dispatcher": "hybridep"})
    layouts = s.layouts([parse_plan(text, 16)])
    ep = int(layouts.ep[0])
    expected = ep * tokens * (2 * H + 8 * 16) + (domains - 1) * tokens * 2 * H if domains else 0
    assert dispatch_buffer_bytes(s, layouts)[0] == expected
    for other in (scenario(MOE), scenario(GPT)):
        assert dispatch_buffer_bytes(other, other.layouts([parse_plan(text, 16)]))[0] == 0


GROUP = ParameterGroup(parameters=1000.0, gemm_weights=800.0, trainable=1000.0, shard=8)


@pytest.mark.parametrize(("numerics", "gpu", "fsdp", "gather", "expected"), [
    ({}, H100, 0, False, 2000), ({}, H100, 2, False, 2000), ({}, H100, 3, False, 250),
    ({"precision": "fp32"}, H100, 0, False, 4000),
    ({"precision": "fp8"}, H100, 0, False, 2000 + 1600), ({"precision": "fp8"}, B200, 0, False, 2000 + 800),
    ({"precision": "fp8"}, B200, 0, True, 2000 - 800), ({"precision": "fp8"}, H100, 0, True, 2000),
    ({"precision": "fp8"}, B200, 3, True, 1200 / 8),
])  # fmt: skip
def test_bytes_of_weights(numerics, gpu, fsdp, gather, expected):
    """fp8 copies in one orientation from Blackwell on, in two before; gathered in fp8 they take the 16-bit weight's place."""
    assert weight_bytes(GROUP, Numerics(**numerics), gpu, fsdp, gather) == expected


@pytest.mark.parametrize(("numerics", "each"), [
    ({}, 12), ({"precision": "fp32"}, 8), ({"store_param_remainders": True}, 10), ({"main_params_dtype": "fp16"}, 10),
    ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "fp8"}, 4 + 2 + 1),
])  # fmt: skip
def test_bytes_of_the_optimizers_state(numerics, each):
    found = Numerics(**numerics)
    assert optimizer_bytes_per_parameter(found) == each
    shared = ((True, 0, 0, 8), (False, 0, 0, 1), (False, 2, 0, 8), (True, 0, 0.75, 32), (False, 3, 0, 8))
    for dist_opt, fsdp, offload, share in shared:
        assert optimizer_bytes(GROUP, found, dist_opt, fsdp, offload) == each * 1000 / share


def test_gradients_and_their_copies():
    half = Numerics(grad_reduce_dtype="bf16")
    assert [float(gradient_bytes(GROUP, NUMERICS, fsdp)) for fsdp in (0, 2, 3)] == [4000, 500, 500]
    assert gradient_bytes(GROUP, half, 0) == 2000
    assert optimizer_step_bytes(GROUP, NUMERICS) == 0 and optimizer_step_bytes(GROUP, half) == 4 * 1000 / 8
    assert [float(fsdp_unit_bytes(100.0, 100.0, half, fsdp)) for fsdp in (3, 2)] == [100 * 2 * (2 + 2), 100 * 2 * 2]


@pytest.mark.parametrize(("sp", "c"), [(1, 1.7), (4, 1.0)])
def test_the_backward_of_a_fused_mlp(sp, c):
    assert mlp_backward(GATED, F, NUMERICS, STACK, shape(tp=4, sp=sp)) == pytest.approx(2 * T * (2 * F / 4 + c * H))


@pytest.mark.parametrize(("sharded", "tp", "gathered", "expected"), [
    (True, 4, 0.0, 6 * T * V / 4), (False, 4, 0.0, 6 * T * V), (False, 4, 9.0, 9 * T * V), (False, 1, 9.0, 6 * T * V),
])  # fmt: skip
def test_logits_at_the_loss(sharded, tp, gathered, expected):
    stack = replace(STACK, logits_sharded=sharded, gathered_loss_bytes_per_logit=gathered)
    assert loss(stack, V, shape(tp=tp)) == expected


@pytest.mark.parametrize(("per_logit", "kept"), [(6.0, 4), (5.0, 3), (4.0, 2), (2.0, 2), (10.0, 4)])
def test_a_depths_loss_keeps_its_softmax(per_logit, kept):
    assert mtp_loss(replace(STACK, loss_bytes_per_logit=per_logit), V, shape(tp=2), 3) == kept * 3 * T * V / 2


@pytest.mark.parametrize(("sp", "pp", "more"), [(1, 1, 0), (4, 1, 1 + 1 / 4), (1, 2, 2), (4, 2, 3 + 1 / 4)])
def test_the_backward_of_both_ends(sp, pp, more):
    at, hidden, table = shape(tp=4, sp=sp), 2 * T * H, 2 * V * H / 4
    assert output_layer_backward(GPT, NUMERICS, STACK, V, at, pp) == 2 * T * V / 4 + table + hidden * (1 + more)
    assert embedding_backward(GPT, NUMERICS, V, at, pp) == table + hidden + (pp > 1) * hidden / sp
    assert tied_weight_gradient(GPT, NUMERICS, V, at, pp) == (pp == 1) * table
    assert tied_weight_gradient(GPT.replace(untie_embeddings_and_output_weights=True), NUMERICS, V, at, pp) == 0


@pytest.mark.parametrize(("untied", "depths", "pp", "copies"), [
    (False, 0, 1, 0), (True, 0, 1, 1), (False, 0, 2, 1), (True, 0, 2, 1), (True, 1, 2, 2), (False, 1, 2, 1), (True, 1, 1, 1),
])  # fmt: skip
def test_parameters_of_the_first_and_the_last_stage(untied, depths, pp, copies):
    """1,024 padded words of 96 channels; a norm of 2 x 96."""
    model = GPT.replace(untie_embeddings_and_output_weights=untied, mtp_num_layers=depths)
    layouts = scenario(model).layouts([parse_plan(f"pp={pp}", 16)])
    found = end_parameters(model, layouts, stage_table(model, layouts, every=True))[0]
    assert found[0] - (192 + copies * V * H) * (pp == 1) == V * H and found[-1] - V * H * (pp == 1) == 192 + copies * V * H


@pytest.mark.parametrize(("pp", "share"), [(1, 0.25), (2, 1.0)])
def test_layers_whose_activations_wait_on_the_host(pp, share):
    found = on_gpu(scenario(GPT, given={"offload_layers": 3}), pp, {"dense": 8.0})
    assert found["dense"] == 8 * share


def test_chosen_keys():
    sparse = MLA.replace(dsa_indexer_n_heads=6, dsa_indexer_head_dim=12, dsa_indexer_topk=512)
    own = 6 * 12 + 6 + 2 * 12
    assert indexer(sparse, NUMERICS, shape()) == T * (2 * own + 4 * 512)
    assert indexer(sparse, NUMERICS, shape(tp=2, sp=2)) == T * (2 * (own + 96 + 44) + 4 * 512)
    short = Shape.of(seq_length=64, tp=1, sp=1, cp=1, ep=1, etp=1, mbs=1)
    assert indexer(sparse, NUMERICS, short) == 64 * (2 * own + 4 * 64)
    latent = 36 + 6
    expected = T * (2 * (12 * (latent + 36 + 18) + 6 * 12) + 4 * (latent + 12) + 12 * 512)
    assert sparse_attention_backward(sparse, NUMERICS, shape(tp=2)) == expected


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


def test_a_sparse_cache_has_an_indexers_key():
    """656 bytes of DeepSeek-V3.2's latent in fp8 and 132 of its indexer's key (vLLM)."""
    latent = {"kv_lora_rank": 512, "qk_pos_emb_head_dim": 64, "q_lora_rank": 1536}
    model = MLA.replace(**latent, dsa_indexer_n_heads=64, dsa_indexer_head_dim=128, dsa_indexer_topk=2048)
    assert kv_layer_bytes(model, 8, "fp8") == 656 + 132 and kv_layer_bytes(model, 8, "bf16") == 2 * (512 + 64) + 132


@pytest.mark.parametrize(("window", "keeps", "blocks"), [(None, True, 4 * 4), (40, True, 2 * 4 + 2 * 2), (40, False, 4 * 4)])
def test_blocks_of_a_sequence(window, keeps, blocks):
    """100 tokens are 4 blocks of 32, a window of 40 is two; every second layer slides."""
    model = GPT.replace(window_size=window, window_attn_skip_freq=2)
    found = kv_sequence_bytes(model, EnginePlan(), replace(ENGINE, keeps_window_only=keeps), 100)
    assert found == blocks * 32 * 2 * 2 * 8 * 10


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


@pytest.mark.parametrize("of_total", [False, True])
def test_the_pool_is_a_share_of_what_is_free_or_of_the_device(of_total):
    engine = replace(ENGINE, kv_of_total=of_total, runtime_bytes=GIB, kv_memory_ratio=0.8)
    plan = EnginePlan(adp=2, pp=2, ep=2, batch=64, tokens=1000)
    found = serving_memory(MOE, plan, FORMATS, H100, engine, length=100)
    active = activation_bytes(MOE, plan, engine, 1000) + 64 / 4 * 4 * 1024
    used = weights_bytes(MOE, plan, FORMATS) + active + GIB
    pool = 0.8 * H100.memory_bytes - used if of_total else 0.8 * (H100.memory_bytes - used)
    assert found.kv_pool_bytes == pytest.approx(pool) and found.activation_bytes == pytest.approx(active)
    assert found.max_concurrency == pool // (2 * 128 * 2 * 2 * 8 * 10)
    assert found.kept_free_bytes == pytest.approx(H100.memory_bytes - used - pool)
    none = replace(found, kv_pool_bytes=-1.0)
    assert none.max_concurrency == 0


def test_engines_of_the_catalogue_take_what_their_documents_say():
    """vLLM's and SGLang's share is of the whole device, TensorRT-LLM's of what is free."""
    found = {name: load_engine(name).kv_of_total for name in ("trtllm-1.2", "vllm", "sglang")}
    assert found == {"trtllm-1.2": False, "vllm": True, "sglang": True}


def test_latent_experts_are_as_wide_as_the_latent():
    assert expert_forward(LATENT, NUMERICS, shape(ep=16)) == 2 * 3 * T * 3 * 40


def test_positions_of_numbers_of_layers():
    """Halves are numbered one by one; whole numbers are their own positions."""
    for given in ([1.5, 2.0, 1.5], [3.0, 1.0, 7.0]):
        numbers, position = _numbered(np.array(given))
        assert numbers[position].tolist() == given
    assert _numbered(np.array([3.0, 1.0]))[1].tolist() == [3, 1]


def test_weights_that_fp8_gemms_read_are_those_of_all_kinds_of_layers():
    """Two dense layers and two of experts: attention, both MLPs; 16 experts in a group of their own."""
    model = MOE.replace(moe_layer_freq=2)
    layouts = scenario(model).layouts([parse_plan("tp=2,ep=4", 16)])
    dense, experts = _parameter_groups(model, NUMERICS, layouts, stage_table(model, layouts, every=True))
    attention, mlp, shared = (96 * 400 + 240 * 96) / 2, 3 * 96 * 200 / 2, 3 * 96 * 88 / 2
    assert float(dense.gemm_weights[0, 0]) == pytest.approx(4 * attention + 2 * mlp + 2 * shared)
    assert float(experts.gemm_weights[0, 0]) == pytest.approx(2 * 16 / 4 * 3 * 96 * 56, rel=0.02)
