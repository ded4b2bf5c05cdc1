"""Bytes of a serving engine on one GPU: weights by format, KV cache, activations, runtime; how many sequences fit at once.

Symbols as in specs.model. Everything is of the busiest pipeline stage. `batch` and `tokens` may be arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.hybrid import (
    gdn_gemms,
    gdn_projected,
    gdn_values,
    mamba_gemms,
    mamba_inner,
    mamba_projected,
    state_layer_bytes,
)
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import (
    Number,
    attention_gemms,
    expert_gemms,
    indexer_key_bytes,
    kv_heads_per_rank,
    latent_gemms,
    mlp_gemms,
    norm_parameters,
    padded_vocab_size,
)
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import KV_BYTES, EngineSpec, ModuleFormats

LOGIT_BYTES = 4.0
"""Logits are sampled in fp32."""
RECURRENT_GEMMS = {"mamba": mamba_gemms, "gdn": gdn_gemms}
RESERVED_LOGITS, RESERVED_TOKEN_BYTES, TOP_K_BYTES = 5, 7 * 4, 1024 * 8 * 8
"""Of a slot of TensorRT-LLM's C++ runtime: rows of the vocabulary, bytes a token, top-K's candidates (1,024 in 8 blocks)."""


@dataclass(frozen=True, kw_only=True)
class ServingMemory:
    """Bytes per GPU by part, and what they leave for sequences."""

    weights_bytes: Number
    activation_bytes: Number
    runtime_bytes: Number
    kv_pool_bytes: Number
    """What the engine turns into KV cache; negative where not even the weights fit."""
    kv_bytes_per_sequence: Number
    """Cache of one whole sequence (all of its tokens, blocks rounded up)."""
    device_bytes: Number

    @property
    def kept_free_bytes(self) -> Number:
        """What the engine leaves free beside its cache."""
        return self.device_bytes - self.weights_bytes - self.activation_bytes - self.runtime_bytes - self.kv_pool_bytes

    @property
    def max_concurrency(self) -> Number:
        """Whole sequences that the pool holds on one attention rank: TensorRT-LLM's GUARANTEED_NO_EVICT admission."""
        return np.floor(np.maximum(self.kv_pool_bytes, 0.0) / self.kv_bytes_per_sequence)


def stage_layers(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers of the busiest stage: the last ceil(L / pp) ones, which hold the output layer too."""
    return tuple(range(model.num_layers - -(-model.num_layers // pp), model.num_layers))


@dataclass(frozen=True, kw_only=True)
class StageWeights:
    """Which weights a pipeline stage holds."""

    layers: tuple[int, ...]
    embedding: bool
    output: bool


def busiest_stage(model: ModelSpec, pp: int) -> StageWeights:
    """The last stage."""
    return StageWeights(layers=stage_layers(model, pp), embedding=pp == 1, output=True)


def attends(model: ModelSpec, kind: str) -> bool:
    """A layer of this kind looks at a cache of keys and values."""
    return kind == "attention" if model.is_hybrid else True


def state_sequence_bytes(model: ModelSpec, plan: EnginePlan) -> float:
    """States of one sequence in all recurrent layers of a stage."""
    return sum(state_layer_bytes(model, model.layer_kinds[layer], plan.tp) for layer in stage_layers(model, plan.pp))


def weight_parts_bytes(
    model: ModelSpec, plan: EnginePlan, formats: ModuleFormats, stage: StageWeights | None = None
) -> dict[str, float]:
    """Weights of one GPU by part, of the busiest stage unless another is named.

    Attention, recurrent layers and dense MLPs are divided over tp, routed experts over tp x adp; each weight takes the bytes of
    its format, scales and zero points included; router, norms and embedding 2 bytes, and the output layer too unless the
    checkpoint says otherwise. With pp = 1 embedding and output layer are both here.
    """
    stage = stage or busiest_stage(model, plan.pp)
    attention = sum(attention_gemms(model, plan.tp).values()) * formats.bytes_of("attention")
    norms = 2.0 * (1 if model.is_hybrid else 2) * norm_parameters(model, model.hidden_size)
    parts = {"attention": 0.0, "mlp": 0.0, "experts": 0.0, "embedding and output": 0.0, "norms and routers": 0.0}
    for layer in stage.layers:
        kind = model.layer_kinds[layer]
        parts["norms and routers"] += norms
        if kind in RECURRENT_GEMMS:
            weights = sum(RECURRENT_GEMMS[kind](model, plan.tp).values()) * formats.bytes_of("recurrent")
            parts["recurrent"] = parts.get("recurrent", 0.0) + float(weights)
        elif attends(model, kind):
            parts["attention"] += float(attention)
        if kind == "moe":
            each = sum(expert_gemms(model, 1).values())
            shared = sum(mlp_gemms(model, model.moe_shared_expert_intermediate_size, plan.tp).values())
            shared = shared + sum(latent_gemms(model).values())
            count = float(model.num_moe_experts or 0)
            parts["experts"] += float(each * count / (plan.tp * plan.adp)) * formats.bytes_of("experts")
            parts["mlp"] += float(shared) * formats.bytes_of("mlp")
            parts["norms and routers"] += 2.0 * count * model.hidden_size
        elif kind in ("dense", "mlp"):
            parts["mlp"] += float(sum(mlp_gemms(model, model.ffn_hidden_size, plan.tp).values())) * formats.bytes_of("mlp")
    vocabulary = float(padded_vocab_size(model, plan.tp)) * model.hidden_size / plan.tp
    output = formats.bytes_of("output") if model.untie_embeddings_and_output_weights else 0.0
    held = 2.0 if stage.embedding or (stage.output and not output) else 0.0
    parts["embedding and output"] = vocabulary * (held + (output if stage.output else 0.0))
    return parts


def weights_bytes(model: ModelSpec, plan: EnginePlan, formats: ModuleFormats) -> float:
    """All weights of one GPU."""
    return sum(weight_parts_bytes(model, plan, formats).values())


def checkpoint_bytes(model: ModelSpec, formats: ModuleFormats) -> float:
    """Weights of the published files: those of one GPU that holds all, and of each multi-token-prediction depth its layer, its
    projection of 2 h to h and copies of embedding and output layer in 16 bits (DeepSeek-V3's files, arXiv:2412.19437, section
    2.2). Biases are not counted."""
    whole = weights_bytes(model, EnginePlan(), formats)
    if not model.mtp_num_layers:
        return whole
    h, last = model.hidden_size, model.replace(mtp_num_layers=0)
    shorter = last.replace(num_layers=model.num_layers - 1, moe_layer_freq=_all_but_last(model.moe_layer_freq))
    layer = whole - weights_bytes(shorter, EnginePlan(), formats)
    return whole + model.mtp_num_layers * (layer + 2.0 * (2.0 * h * h + 2.0 * float(model.vocab_size) * h))


def _all_but_last(pattern: int | tuple[int, ...]) -> int | tuple[int, ...]:
    return pattern if isinstance(pattern, int) else pattern[:-1]


def kv_layer_bytes(model: ModelSpec, tp: int, kv: str) -> float:
    """Cached bytes of one token in one layer on one rank.

    2 n_kv/t d numbers (at least one head a rank); multi-latent attention: the latent and the rotary key, kv_r + d_r, once on
    every rank (DeepSeek-V2, arXiv:2405.04434, Table 1). With an indexer also its key, and an fp8 latent has an fp32 scale for
    128 numbers beside a 16-bit rotary key, kv_r + kv_r / 32 + 2 d_r bytes (vLLM, fp8_ds_mla: 656 bytes).
    """
    if model.is_sparse and kv == "fp8":
        return model.kv_lora_rank * (1.0 + 4.0 / 128.0) + 2.0 * model.qk_pos_emb_head_dim + indexer_key_bytes(model)
    if model.multi_latent_attention:
        return (model.kv_lora_rank + model.qk_pos_emb_head_dim) * KV_BYTES[kv] + indexer_key_bytes(model)
    return float(2.0 * kv_heads_per_rank(model, tp) * model.kv_channels) * KV_BYTES[kv]


def kv_sequence_bytes(model: ModelSpec, plan: EnginePlan, engine: EngineSpec, length: Number) -> Number:
    """Cache of one sequence of `length` tokens on one rank: full layers keep all blocks, sliding ones the window's, recurrent
    ones their state."""
    each, block = kv_layer_bytes(model, plan.tp, plan.kv), engine.kv_block_tokens
    total: Number = 0.0
    for layer in stage_layers(model, plan.pp):
        if not attends(model, model.layer_kinds[layer]):
            continue
        slides = model.sliding_pattern[layer] and engine.keeps_window_only and model.window_size
        total = total + np.ceil(np.asarray(np.minimum(length, slides) if slides else length) / block) * block
    return each * total + state_sequence_bytes(model, plan)


def kv_token_bytes(model: ModelSpec, plan: EnginePlan) -> float:
    """Cache of one token in all layers of a stage, windows and states aside."""
    layers = sum(attends(model, model.layer_kinds[layer]) for layer in stage_layers(model, plan.pp))
    return kv_layer_bytes(model, plan.tp, plan.kv) * layers


def activation_bytes(model: ModelSpec, plan: EnginePlan, engine: EngineSpec, tokens: Number) -> Number:
    """Live at once in an iteration: hidden buffers, the widest layer's inputs and outputs; without logits (slot_bytes).

    2 (c h + w) bytes a token, w = (G + 1) f/t of a dense MLP, or _routed_width, or what a recurrent layer projects and puts
    out, over tp.
    """
    h, g = model.hidden_size, model.gate_factor + 1.0
    width = g * model.ffn_hidden_size / plan.tp if {"dense", "mlp"} & {*model.layer_kinds} else 0.0
    if "mamba" in model.layer_kinds:
        width = max(width, (mamba_projected(model) + mamba_inner(model)) / plan.tp)
    if "gdn" in model.layer_kinds:
        width = max(width, (gdn_projected(model) + gdn_values(model)) / plan.tp)
    if model.is_moe:
        width = max(width, _routed_width(model, plan))
    return 2.0 * tokens * (engine.activation_live_buffers * h + width)


def _routed_width(model: ModelSpec, plan: EnginePlan) -> float:
    """Numbers of 16 bits that routed experts hold for each token of one attention rank.

    adp k (max(G f, h) + max(f, h)), f = f_e ep/(tp adp), and 2 adp h with attention data parallelism: a rank is given the
    tokens of all attention ranks and reserves a row for each of their k choices, whichever rank's experts they are; two buffers
    hold in turn inputs or results of the first product, and results before the activation or of the second one
    (TensorRT-LLM: moe_kernels.cu, getWorkspaceDeviceBufferSizes, whose num_rows is that of the gathered input in
    fused_moe_cutlass.py; vLLM's workspaces are the same: fused_moe, workspace_shapes). Gathered are inputs and outputs.
    """
    h, f = model.expert_width, model.moe_ffn_hidden_size * plan.ep / (plan.tp * plan.adp)
    rows = plan.adp * model.moe_router_topk
    gathered = 2.0 * plan.adp * model.hidden_size if plan.adp > 1 else 0.0
    return rows * (max(model.gate_factor * f, h) + max(f, h)) + gathered


def slot_bytes(model: ModelSpec, plan: EnginePlan, engine: EngineSpec, length: Number) -> Number:
    """Logits and decoding state of one sequence: 4 V, fp32 logits; more where the engine reserves its slots.

    TensorRT-LLM's C++ runtime holds 5 rows of V for each of max_batch_size sequences (the engine's logits: runtimeBuffers.cpp;
    logits to sample from and counts for penalties: penaltyLayer.cpp; log-probabilities and candidates of top-K:
    samplingTopKKernels.cu; biases: gptDecoderBatched.cpp) and 7 numbers a token (ids, gathered ids, parents, log-probabilities
    twice, cache indirection in and out). With tp > 1 its network holds 16-bit logits gathered, split, concatenated, and its own
    share: 2 V (3 + 1/t) (tensorrt_llm/functional.py, allgather).
    """
    vocabulary = float(padded_vocab_size(model, plan.tp))
    if not engine.reserves_slots:
        return LOGIT_BYTES * vocabulary
    gathered = 2.0 * vocabulary * (3.0 + 1.0 / plan.tp) if plan.tp > 1 else 0.0
    return RESERVED_LOGITS * LOGIT_BYTES * vocabulary + TOP_K_BYTES + RESERVED_TOKEN_BYTES * length + gathered


def serving_memory(
    model: ModelSpec,
    plan: EnginePlan,
    formats: ModuleFormats,
    gpu: GpuSpec,
    engine: EngineSpec,
    *,
    length: Number,
    batch: Number | None = None,
    tokens: Number | None = None,
    kv_memory_ratio: float | None = None,
) -> ServingMemory:
    """Memory of one GPU for sequences of `length` tokens (input and output together).

    The pool is the engine's share of what weights, activations and runtime leave free: TensorRT-LLM and megatron-core (vLLM
    and SGLang: memory_model.engines). `batch`: sequences that run, or max_batch_size where the engine reserves its slots.
    """
    batch = plan.batch if batch is None else batch
    tokens = plan.tokens if tokens is None else tokens
    share = engine.kv_memory_ratio if kv_memory_ratio is None else kv_memory_ratio
    weights = weights_bytes(model, plan, formats)
    slots = np.asarray(batch) / (plan.adp * plan.pp)
    active = activation_bytes(model, plan, engine, tokens) + slots * slot_bytes(model, plan, engine, length)
    used = weights + active + engine.runtime_bytes
    device = float(gpu.memory_bytes)
    pool = share * (device - used)
    return ServingMemory(
        weights_bytes=weights + 0.0 * active,
        activation_bytes=active,
        runtime_bytes=engine.runtime_bytes + 0.0 * active,
        kv_pool_bytes=pool,
        kv_bytes_per_sequence=kv_sequence_bytes(model, plan, engine, length),
        device_bytes=device,
    )
