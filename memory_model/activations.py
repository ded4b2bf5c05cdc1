"""Tensors that autograd saves in forward, per layer and micro-batch on one rank, in bytes, by part.

Parts are named after the module that saves them; the same names are used by recomputation and in `docs/memory_model.md`.
With 16-bit types, unfused attention, dropout and no tensor parallelism the parts of a GPT layer add up to
s b h (34 + 5 a s / h), Korthikanti et al. 2022, equation 1 (they ignore the norm statistics, which are a part of their own).
Symbols: specs.model; T, u, t, R: Shape. How many micro-batches of them a pipeline stage holds: chunks_in_flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import DENSE_KINDS, ModelSpec
from autoconfig.specs.models.parameters import BOTH_NORMS, NormShares, kv_heads_per_rank
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory


def gemm_input_bytes(numerics: Numerics, stack: StackMemory, matrix: str = "") -> float:
    """Bytes per element of a saved GEMM input: 1 where the stack saves it quantised to fp8, else the activation type's; none
    of a frozen matrix without an adapter, as only the gradients of its weights or of an adapter's first matrix read it.

    `matrix`: one of scenario.LORA_MODULES; empty: one that has no adapter. Source: megatron-core, tensor_parallel/layers.py,
    LinearWithFrozenWeight; Transformer Engine, pytorch/module/linear.py (saves inputs where weight.requires_grad); torch's
    autograd formula of addmm."""
    if numerics.peft == "lora" and matrix not in numerics.lora_target_modules:
        return 0.0
    if numerics.format.quantised and stack.fp8_gemm_inputs:
        return numerics.format.saved_bytes
    return float(numerics.activation_bytes)


def norm_input_bytes(numerics: Numerics, stack: StackMemory) -> float:
    """Saved per norm and input element: what the stack keeps. Where that is an fp32 copy (4) and its 16-bit product (2), the
    product is read by the gradient of the norm's weight alone, and a frozen norm has none of it."""
    product = stack.norm_input_bytes > 4.0 and not numerics.trains_all
    return (stack.norm_input_bytes - (2.0 if product else 0.0)) * numerics.activation_bytes / 2


def norm_inputs(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Inputs of the layer's norms: 2 T h / u each (the residual stream; counted once where both norms read the same)."""
    count = 1 if model.parallel_attention else 2
    return count * norm_input_bytes(numerics, stack) * shape.tokens * model.hidden_size / shape.sp


def norm_outputs(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape, kind: str) -> Number:
    """Inputs of qkv and fc1: 2 T h / u each; with sequence parallelism the local part is saved and gathered again, or (stack)
    the gathered input itself is saved, 2 T h. Of a layer (or half of one) of a hybrid both are what its kind reads."""
    ranks = 1.0 if stack.saves_gathered_inputs else shape.sp
    attention, mlp = (gemm_input_bytes(numerics, stack, matrix) for matrix in ("linear_qkv", "linear_fc1"))
    frozen = gemm_input_bytes(numerics, stack)
    if kind not in (*DENSE_KINDS, "mlp"):
        mlp = frozen
    if model.is_hybrid:
        attention = mlp = attention if kind == "attention" else mlp if kind == "mlp" else frozen
    each = (attention + mlp) / 2
    return model.num_layernorms_per_layer * each * shape.tokens * model.hidden_size / ranks


def norm_statistics(model: ModelSpec, stack: StackMemory, shape: Shape) -> Number:
    """fp32 mean and inverse deviation (LayerNorm) or inverse rms (RMSNorm) per norm and token: 4 or 8 T / u each."""
    per_norm = 2 if model.normalization == "LayerNorm" else 1
    return 2 * per_norm * stack.norm_statistics_bytes * shape.tokens / shape.sp


def dropout_masks(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """One byte per element of the two residual dropouts; nothing without dropout."""
    return (2.0 if numerics.hidden_dropout > 0 else 0.0) * shape.tokens * model.hidden_size / shape.sp


def query_key_value(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """q, k and v as attention reads them: 2 T (q + 2 kv) / t; the packed qkv is not kept beside them.

    MLA: k is built by concatenation, so q and k have a (d_n + d_r) channels each and v a d_v.
    """
    wide = numerics.activation_bytes
    if model.multi_latent_attention:
        channels = model.num_attention_heads * (2 * model.query_head_dim + model.v_head_dim)
        return wide * shape.tokens * channels / shape.tp
    heads, kv = model.num_attention_heads / shape.tp, kv_heads_per_rank(model, shape.tp)
    packed = wide * shape.tokens * model.kv_channels * (heads + 2 * kv)
    if model.position_embedding_type in ("rope", "yarn"):
        packed = packed + stack.rope_copy_bytes * shape.tokens * model.kv_channels * (heads + kv)
    return packed


def query_key_norms(model: ModelSpec, stack: StackMemory, numerics: Numerics, shape: Shape) -> Number:
    """Inputs of the norms of each head's q and k, copies out of the packed qkv, 2 T (q + kv) / t, with 4 T (a + a_kv) / t of
    fp32 statistics; nothing without such norms. Source: Transformer Engine 2.x, ops/basic/rmsnorm.py (op_forward saves
    input.contiguous()); RoPE needs no output of theirs."""
    if not model.qk_layernorm or model.multi_latent_attention:
        return 0.0 * shape.tokens
    heads = model.num_attention_heads / shape.tp + kv_heads_per_rank(model, shape.tp)
    per_head = norm_input_bytes(numerics, stack) * model.kv_channels + stack.norm_statistics_bytes
    return per_head * shape.tokens * heads


def expanded_key_value(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Where keys and values are repeated to all heads inside of core attention, q and the repeated ones are kept instead of
    what `query_key_value` says: 2 T 3 q / t in all; nothing without grouped queries."""
    grouped = not model.multi_latent_attention and model.num_query_groups < model.num_attention_heads
    if not (stack.expands_kv and stack.attention_kernel == "unfused" and grouped):
        return 0.0 * shape.tokens
    channels = 3 * model.kv_channels * model.num_attention_heads / shape.tp
    return numerics.activation_bytes * shape.tokens * channels - query_key_value(model, numerics, stack, shape)


def padded_values(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """torch's attention with MLA: values and output are padded to d_n + d_r channels; the output is kept padded and cut."""
    if not stack.torch_attention or not model.multi_latent_attention:
        return 0.0 * shape.tokens
    wide = numerics.activation_bytes * shape.tokens * model.num_attention_heads / shape.tp
    return wide * (2 * model.query_head_dim - model.value_head_dim)


def gathered_key_value(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """torch's attention with context parallelism: keys and values of the whole sequence, 2 s b 2 kv / t, and a mask of this
    rank's two chunks, 2 (s / 2 c) (s + s / 2 c), instead of its own keys and values (with RoPE also of the packed q, k, v)."""
    if not stack.torch_attention:
        return 0.0 * shape.tokens
    wide, heads = numerics.activation_bytes, model.num_attention_heads / shape.tp
    kv, width = kv_heads_per_rank(model, shape.tp), 2 * model.query_head_dim  # MLA: values are padded to the width of keys
    if model.multi_latent_attention:
        kv = heads
    chunk = shape.tokens / shape.batch / 2
    gathered = wide * (shape.tokens * shape.cp * kv * width + chunk * (shape.sequence + chunk))
    if model.position_embedding_type in ("rope", "yarn"):
        own = wide * shape.tokens * heads * model.query_head_dim
        gathered = gathered + own - query_key_value(model, numerics, stack, shape)
    return np.where(np.greater(shape.cp, 1), gathered, 0.0)


def rotary_angles(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Unfused RoPE keeps cosine and sine of queries and of keys: 4 x 2 s d / cp, whatever the micro-batch."""
    if not stack.rope_copy_bytes or model.position_embedding_type not in ("rope", "yarn"):
        return 0.0 * shape.tokens
    width = model.qk_pos_emb_head_dim if model.multi_latent_attention else model.kv_channels
    return 4.0 * numerics.activation_bytes * shape.tokens / shape.batch * width


def latents(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """MLA: compressed queries and keys/values before and after their norms, and the rotary key.

    2 T (2 (q_r + kv_r) / u + d_r).
    """
    if not model.multi_latent_attention:
        return 0.0 * shape.tokens
    ranks = 2 * ((model.q_lora_rank or 0) + model.kv_lora_rank)
    return numerics.activation_bytes * shape.tokens * (ranks / shape.sp + model.qk_pos_emb_head_dim)


def attention_output(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape, gpu: GpuSpec) -> Number:
    """Output of attention, which is the input of its projection: 2 T q / t once; once more where context parallelism is by
    all-to-all (before and after the second exchange) or all-gather (both halves of the sequence alone and together) and where
    the flash-attention package transposes it (`flash_package_runs`, micro-batch above 1); plus the quantised copy under fp8."""
    channels = model.num_attention_heads * model.value_head_dim / shape.tp
    twice = stack.cp_comm_type != "p2p" or stack.torch_attention
    copies = 1 + np.where(np.greater(shape.cp, 1), 1.0 if twice else 0.0, 0.0)
    if stack.flash_copies_output and stack.attention_kernel == "flash" and flash_package_runs(gpu, numerics):
        copies = copies + np.where(np.greater(shape.batch, 1), 1.0, 0.0)
    per_element = copies * numerics.activation_bytes
    if numerics.format.quantised and stack.fp8_gemm_inputs:
        per_element = per_element + gemm_input_bytes(numerics, stack, "linear_proj")
    return per_element * shape.tokens * channels


def flash_package_runs(gpu: GpuSpec, numerics: Numerics) -> bool:
    """Transformer Engine prefers the flash-attention package over cuDNN below compute capability 9.0, and with deterministic
    algorithms from 10.0 on (transformer_engine/pytorch/attention/dot_product_attention/utils.py get_attention_backend).

    Its batch-first output is copied to sequence-first: exactly 2 T q / t a layer more on A100 than on H100 in the golden
    values of Megatron-LM's 15B and 7B release tests, and nothing at micro-batch 1, where the transpose is a view.
    """
    capability = gpu.compute_capability or 0.0
    return capability < 9.0 or (numerics.deterministic and capability >= 10.0)


def attention_gate(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Gated attention keeps the gate and the output before it: 2 x 2 T q / t (megatron-core 0.19.2, attention.py)."""
    copies = 2 if model.attention_output_gate else 0
    return copies * numerics.activation_bytes * shape.tokens * model.query_size / shape.tp


def attention_scores(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """What only core attention saves. Flash: fp32 logsumexp 4 T a / t. Unfused: softmax 2, dropout mask 1 and dropped
    scores 2 bytes per score, 5 a s^2 b / t (Korthikanti et al. 2022, section 4.1), plus a mask where the stack keeps one."""
    heads = model.num_attention_heads / shape.tp
    if stack.attention_kernel == "flash":
        return 4.0 * shape.tokens * heads
    per_score = stack.score_bytes + (stack.score_dropout_bytes if numerics.attention_dropout > 0 else 0.0)
    scale = numerics.activation_bytes / 2
    pairs = shape.tokens * shape.sequence
    return scale * per_score * pairs * heads + stack.attention_mask_bytes * pairs / shape.batch


def attention_activations(
    model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape, gpu: GpuSpec
) -> dict[str, Number]:
    """All that an attention block saves, by part."""
    parts = {
        "latents": latents(model, numerics, shape),
        "query_key_value": query_key_value(model, numerics, stack, shape),
        "query_key_norms": query_key_norms(model, stack, numerics, shape),
        "expanded_key_value": expanded_key_value(model, numerics, stack, shape),
        "padded_values": padded_values(model, numerics, stack, shape),
        "gathered_key_value": gathered_key_value(model, numerics, stack, shape),
        "rotary_angles": rotary_angles(model, numerics, stack, shape),
        "attention_scores": attention_scores(model, numerics, stack, shape),
        "attention_output": attention_output(model, numerics, stack, shape, gpu),
    }
    if model.attention_output_gate:
        parts["attention_gate"] = attention_gate(model, numerics, shape)
    return parts


def mlp_inside(
    model: ModelSpec, ffn: int, numerics: Numerics, stack: StackMemory, shape: Shape, matrix: str = "linear_fc2"
) -> Number:
    """Inside of a dense MLP or of the shared experts (`matrix` empty): fc1 output 2 T G f / t (fused activations save their
    input only; one byte where the stack saves it in fp8) and fc2 input 2 T f / t."""
    extra = stack.gated_activation_extra_bytes if model.gated_linear_unit else 0.0
    eight_bits = numerics.format.quantised and stack.fp8_activation_input and model.gated_linear_unit
    width = 1.0 if eight_bits else numerics.activation_bytes
    each = width * model.gate_factor + extra + gemm_input_bytes(numerics, stack, matrix)
    return shape.tokens / shape.tp * ffn * each


def layer_input(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """What a checkpointed layer keeps: its input, 2 T h / u (2 s b h without sequence parallelism, Table 2 `full`)."""
    return numerics.activation_bytes * shape.tokens * model.hidden_size / shape.sp


Number = Any
"""int, float or NumPy array."""


def rerun_end(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """6 T h + 6 T h / u beside a layer that has run again, when its forward ends under DTensor's sequence parallelism; else 0.

    Whole: the gradient that backward has gathered before, the partial sum of the last GEMM and its copy by rank, which is
    scattered. Local: the result, the incoming gradient and the output of the MLP's norm. Source: torch/distributed/tensor,
    _redistribute.py and placement_types.py (_reduce_shard_tensor); torchtitan/distributed/activation_checkpoint.py lets the
    forward run to its end (early_stop is off)."""
    each = numerics.activation_bytes * shape.tokens * model.hidden_size
    total = 3.0 * each * (1.0 + 1.0 / np.asarray(shape.sp))
    return np.where(np.logical_and(stack.dtensor_parallel, np.greater(shape.sp, 1)), total, 0.0)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the tensors of one layer on one rank. Fields are scalars or arrays of one shape."""

    tokens: Number
    """T = s b / cp: tokens of one micro-batch on one rank."""
    sequence: Number
    """s: keys that one query can see (the whole sequence, context parallelism included)."""
    batch: Number
    """b: micro-batch size."""
    tp: Number
    """t."""
    sp: Number
    """u: t with sequence parallelism, else 1. What is replicated without it is divided by u."""
    cp: Number
    ep: Number
    etp: Number

    @classmethod
    def of(cls, *, seq_length: int, tp: Number, sp: Number, cp: Number, ep: Number, etp: Number, mbs: Number) -> Shape:
        """From the degrees of a plan; `sp` is the flag."""
        tp, cp, mbs = np.asarray(tp, float), np.asarray(cp, float), np.asarray(mbs, float)
        return cls(
            tokens=seq_length * mbs / cp,
            sequence=float(seq_length),
            batch=mbs,
            tp=tp,
            sp=np.where(sp, tp, 1.0),
            cp=cp,
            ep=np.asarray(ep, float),
            etp=np.asarray(etp, float),
        )


def warmup_chunks(pp: Number, vpp: Number, stage: Number, num_microbatches: Number) -> Number:
    """Forward passes of model chunks before a stage's first backward.

    1F1B: p - r - 1. Interleaved: 2 (p - r - 1) + (v - 1) p, at most m v
    (Narayanan et al. 2021, section 2.2; megatron-core pipeline_parallel/schedules.py, group size p).
    """
    pp, vpp = np.asarray(pp), np.asarray(vpp)
    plain = pp - stage - 1
    interleaved = 2 * (pp - stage - 1) + (vpp - 1) * pp
    return np.minimum(np.where(vpp > 1, interleaved, plain), num_microbatches * vpp)


def chunks_in_flight(pp: Number, vpp: Number, stage: Number, num_microbatches: Number) -> Number:
    """Model chunks (of 1/vpp of a stage's layers) held at the peak: min(m v, warm-up + 1).

    Stage 0 of the interleaved schedule equals Korthikanti et al.'s 1 + (p - 1)/(p v) layers; later stages hold less.
    """
    everything = np.asarray(num_microbatches) * np.asarray(vpp)
    return np.minimum(everything, warmup_chunks(pp, vpp, stage, num_microbatches) + 1)


def chunk_counts(pp: Number, vpp: Number, in_flight: Number, chunk: Number) -> Number:
    """How many of the first `in_flight` forward passes are of model chunk number `chunk`.

    The interleaved schedule runs p micro-batches of chunk 0, then p of chunk 1, ..., then the next p micro-batches.
    """
    pp, vpp, in_flight = np.asarray(pp), np.asarray(vpp), np.asarray(in_flight)
    whole, rest = np.divmod(in_flight, pp * vpp)
    counts = whole * pp + np.clip(rest - chunk * pp, 0, pp)
    return np.where(vpp > 1, np.where(chunk < vpp, counts, 0), np.where(np.equal(chunk, 0), in_flight, 0))


@dataclass(frozen=True, kw_only=True)
class KeptLayer:
    """One layer under selective recomputation."""

    kept: dict[str, Number]
    """Bytes that stay, by part of `tables.layer_activations`."""
    back_in_mlp: Number
    """Bytes that are back while the MLP's backward runs: the largest recomputed module of that half of the layer."""
    back_in_attention: Number
    """The same for attention's half."""


ATTENTION_MODULES = ("core_attn", "mla_up_proj", "layernorm")
MLP_MODULES = ("mlp", "moe", "moe_act", "shared_experts", "layernorm")
EXPERT_PARTS = (
    *("router", "expert_input", "expert_inside", "expert_activation", "scored_rows"),
    *("latent_experts", "shared_experts_inside"),
)
CORE_ATTENTION_PARTS = ("attention_scores", "expanded_key_value", "cross_attention_scores", "indexer", "latent_output")
MLP_PARTS = ("mlp_inside", *EXPERT_PARTS)
"""Parts that are gone when attention's backward starts."""


PARTS_OF_MODULE = {
    "core_attn": CORE_ATTENTION_PARTS,
    "mlp": ("mlp_inside",),
    "shared_experts": ("shared_experts_inside",),
    "moe_act": ("expert_activation",),
}
"""What recomputing a module frees; any other module that of the experts."""


def dropped_by_module(
    parts: Mapping[str, Number], module: str, stack: StackMemory, apart: NormShares = BOTH_NORMS
) -> dict[str, Number]:
    """Bytes per part that recomputing one module frees in a layer with these parts, `apart` of whose norms are modules of
    their own (parameters.norms_apart); empty without such a module."""
    if module == "layernorm":
        return {"norm_outputs": sum(apart) * parts["norm_outputs"]} if any(apart) else {}
    if module == "mla_up_proj":
        return {"query_key_value": parts["query_key_value"]} if np.any(parts.get("latents", 0.0)) else {}
    freed = {name: parts[name] for name in PARTS_OF_MODULE.get(module, EXPERT_PARTS) if name in parts}
    if module == "mlp" and freed and stack.norms_fused:
        own = 0.5 if "query_key_value" in parts else 1.0  # an MLP that is a layer of a hybrid has the layer's one norm
        freed["norm_outputs"] = own * parts["norm_outputs"]
    return freed


def kept_under_selective(
    parts: Mapping[str, Number], modules: tuple[str, ...], stack: StackMemory, apart: NormShares = BOTH_NORMS
) -> KeptLayer:
    """A layer's parts with every module of `modules` recomputed; what two modules both free is freed once."""
    freed: dict[str, Number] = {}
    norms: dict[str, Number] = {"attention": 0.0, "mlp": 0.0}  # outputs that are freed, by the half they stand before
    back = dict(norms)
    for module in modules:
        dropped = dropped_by_module(parts, module, stack, apart)
        for name, size in dropped.items():
            freed[name] = np.maximum(freed.get(name, 0.0), size)
        size, halves = sum(dropped.values()), {"attention": ATTENTION_MODULES, "mlp": MLP_MODULES}
        for share, (half, members) in zip(apart, halves.items(), strict=True):
            if module in members and dropped:
                own = share * parts["norm_outputs"] if module == "layernorm" else dropped.get("norm_outputs", 0.0)
                norms[half] = np.maximum(norms[half], own)
                back[half] = np.maximum(back[half], own if module == "layernorm" else size)
    if "norm_outputs" in freed:
        freed["norm_outputs"] = norms["attention"] + norms["mlp"]
    return KeptLayer(
        kept={name: size - freed[name] if name in freed else size for name, size in parts.items()},
        back_in_mlp=back["mlp"],
        back_in_attention=back["attention"],
    )


def kept_by_operator(model: ModelSpec, kind: str, numerics: Numerics, shape: Shape, parts: Mapping[str, Number]) -> KeptLayer:
    """Bytes that stay of one layer and micro-batch; `parts`: tables.layer_activations of the whole layer.

    Layer input w T h / u; q and v w T (q + kv) / t; output and logsumexp of attention w T q / t + 4 T a / t; first product of a
    dense MLP w T f / t; product of a gated MLP's down projection w T h, and with tensor parallelism both reduce-scattered
    outputs, 2 w T h / u. Experts are run again but for their all-to-all collectives, whose outputs stay where ep is above 1:
    rows that arrive, w R h, and rows that come back, w k T h / u (R: `experts.routed_rows` before etp gathers them); Qwen3,
    known by its normed queries and keys, runs these again, too. The router's product w T E, and one of the shared experts'
    first products, w T f_s / t. w: bytes per activation; MLA: q and k count as q.

    Source: torchtitan 0.2.2, models/{llama4,deepseek_v3,gpt_oss}/infra/parallelize.py, _op_sac_save_list (all_to_all_single;
    models/qwen3's list is without it; the one list of later releases has it for every model); every second product is run again
    (distributed/activation_checkpoint.py); ExpertParallel (distributed/expert_parallel.py) is there where ep is above 1.
    """
    if model.is_hybrid:  # torch's own policy is not described for recurrent layers: all stays
        return KeptLayer(kept=dict(parts), back_in_mlp=0.0, back_in_attention=0.0)
    w, tokens = numerics.activation_bytes, shape.tokens
    heads = model.num_attention_heads / shape.tp
    values = heads if model.multi_latent_attention else kv_heads_per_rank(model, shape.tp)
    hidden = w * tokens * model.hidden_size
    kept: dict[str, Number] = {
        "norm_inputs": hidden / shape.sp,
        "query_key_value": w * tokens * (heads * model.query_head_dim + values * model.value_head_dim),
        "attention_scores": parts["attention_scores"],
        "attention_output": w * tokens * heads * model.value_head_dim,
        "reduced_outputs": np.where(np.greater(shape.tp, 1), 2 * hidden / shape.sp, 0.0),
    }
    if kind in DENSE_KINDS:
        kept["mlp_inside"] = w * tokens * model.ffn_hidden_size / shape.tp
        kept["down_projection"] = hidden if model.gated_linear_unit else 0.0 * tokens
    if kind == "moe":
        # as many rows arrive, on average, as go out; a busier rank's arrive in greater number, and it sends the mean
        sent = w * model.moe_router_topk * tokens / shape.sp * model.expert_width
        factor = numerics.moe_capacity_factor or numerics.moe_imbalance or 1.0
        stay = np.greater(shape.ep, 1) & (model.multi_latent_attention or not model.qk_layernorm)
        kept["sent_rows"] = np.where(stay, (1.0 + factor) * sent, 0.0 * sent)
        kept["router"] = w * tokens * (model.num_moe_experts or 0)
        kept["shared_experts_inside"] = w * tokens * model.moe_shared_expert_intermediate_size / shape.tp
    back = sum(parts.values(), 0.0 * tokens) - sum(kept.values(), 0.0 * tokens)
    return KeptLayer(kept=kept, back_in_mlp=back, back_in_attention=back)


def recomputed_layers_per_chunk(recompute: Recompute, chunk_layers: Number) -> Number:
    """Layers of one model chunk that full recomputation runs again: all (uniform) or the first n (block)."""
    if recompute.granularity != "full":
        return 0 * np.asarray(chunk_layers)
    if recompute.method == "uniform":
        return np.asarray(chunk_layers)
    return np.minimum(recompute.num_layers, chunk_layers)


def checkpoints_per_chunk(recompute: Recompute, chunk_layers: Number, sublayers: int = 1) -> Number:
    """Layer inputs kept per model chunk: one per group of n layers (uniform), each of so many of ours (`sublayers`:
    ModelSpec.sublayers_per_layer); one per recomputed layer of ours (block)."""
    if recompute.granularity != "full":
        return 0 * np.asarray(chunk_layers)
    if recompute.method == "uniform":
        return -(-np.asarray(chunk_layers) // (recompute.num_layers * sublayers))
    return np.minimum(recompute.num_layers, chunk_layers)


def recomputed_activations(layers: Number, whole: Number) -> Number:
    """What is back at once in backward under full recomputation: `layers` of them, each whole (`returning_layers`); under
    selective recomputation the largest recomputed module (`KeptLayer`)."""
    return layers * whole


def mlp_released(by_operator: Number, whole: Number, kept: Number) -> Number:
    """The MLP's tensors of one layer, gone when attention's backward starts: as many as were kept, or are back where the whole
    layer is (`by_operator`, or full recomputation)."""
    return np.where(by_operator, whole, kept)


def returning_layers(recompute: Recompute, chunk_layers: Number, sublayers: int = 1) -> Number:
    """Whole layers that are back at once in backward under full recomputation: n of a uniform group. With block, one where
    every layer is recomputed; else the layers that were left alone are gone when the first recomputed one comes back."""
    if recompute.granularity != "full":
        return 0 * np.asarray(chunk_layers)
    if recompute.method == "block":
        return np.where(np.greater_equal(recompute.num_layers, chunk_layers), 1, 0)
    return np.minimum(recompute.num_layers * sublayers, chunk_layers)
