"""Parameter counts, for the whole model and for one rank. Memory and time both stand on these.

Every function takes scalars or NumPy arrays for `tp`, `etp` and `ep` and returns parameters of ONE rank; with 1 everywhere
that is the whole module. Column-parallel matrices and their biases are divided by tp, row-parallel matrices by tp with a whole
bias, norms and routers are whole on every rank (Shoeybi et al. 2019, section 3; megatron-core tensor_parallel/layers.py).
Symbols: see specs.model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from autoconfig.specs.models.model import ModelSpec

Number = Any
"""int, float or NumPy array: formulas take all three."""


@dataclass(frozen=True, kw_only=True)
class LayerParameters:
    """Parameters of one transformer layer on one rank, by what shards them."""

    dense: Number
    """Held by every data-parallel rank: attention, dense MLP, shared experts, router, norms."""
    experts: Number
    """Held by expert-parallel rank: reduced over the expert data-parallel group only."""
    gemm_shapes: tuple[Number, ...]
    """Elements of each distinct GEMM weight of the layer, attention first: one expert stands for all."""


def padded_vocab_size(model: ModelSpec, tp: Number) -> Number:
    """V rounded up to a multiple of make_vocab_size_divisible_by x tp (Megatron-LM training/vocab_utils.py)."""
    multiple = model.make_vocab_size_divisible_by * np.asarray(tp)
    return -(-model.vocab_size // multiple) * multiple


def kv_heads_per_rank(model: ModelSpec, tp: Number) -> Number:
    """Key/value heads of one rank: n_kv / tp, at least one (tp > n_kv replicates them; transformer_config.py:1461)."""
    return np.maximum(model.num_query_groups / np.asarray(tp), 1)


def norm_parameters(model: ModelSpec, size: int) -> int:
    """Weight, and bias for LayerNorm, of one norm over `size` channels."""
    return size * (2 if model.normalization == "LayerNorm" and model.layernorm_bias else 1)


def attention_gemms(model: ModelSpec, tp: Number) -> dict[str, Number]:
    """Weight elements of the attention GEMMs of one rank, by Megatron's module name."""
    tp = np.asarray(tp)
    h, q = model.hidden_size, model.query_size
    if not model.multi_latent_attention:
        kv = kv_heads_per_rank(model, tp) * model.kv_channels
        return {"linear_qkv": h * (q / tp + 2 * kv), "linear_proj": q * h / tp}
    a, up = model.num_attention_heads, model.qk_head_dim + model.v_head_dim
    gemms: dict[str, Number] = {}
    if model.q_lora_rank:
        gemms["linear_q_down_proj"] = h * model.q_lora_rank + 0 * tp
        gemms["linear_q_up_proj"] = model.q_lora_rank * q / tp
    else:
        gemms["linear_q_proj"] = h * q / tp
    gemms["linear_kv_down_proj"] = h * (model.kv_lora_rank + model.qk_pos_emb_head_dim) + 0 * tp
    gemms["linear_kv_up_proj"] = model.kv_lora_rank * a * up / tp
    gemms["linear_proj"] = a * model.v_head_dim * h / tp
    return gemms


def attention_parameters(model: ModelSpec, tp: Number) -> Number:
    """Attention of one layer: GEMMs, biases, query/key norms, sinks. The layer's own norms are not in it."""
    h, q = model.hidden_size, model.query_size
    total = sum(attention_gemms(model, tp).values())
    tp = np.asarray(tp)
    if model.add_bias_linear or model.add_qkv_bias:
        total = total + (q / tp + 2 * kv_heads_per_rank(model, tp) * model.kv_channels)
    if model.add_bias_linear or model.add_attention_output_bias:
        total = total + h
    if model.multi_latent_attention:
        total = total + norm_parameters(model, model.kv_lora_rank) + norm_parameters(model, model.q_lora_rank or 0)
    elif model.qk_layernorm:
        total = total + 2 * norm_parameters(model, model.kv_channels)
    if model.attention_sinks:
        total = total + model.num_attention_heads / tp
    return total


def mlp_gemms(model: ModelSpec, ffn: int, tp: Number) -> dict[str, Number]:
    """Weight elements of one MLP of width `ffn`: fc1 (G ffn columns) and fc2, both divided by tp."""
    tp = np.asarray(tp)
    return {"linear_fc1": model.hidden_size * model.gate_factor * ffn / tp, "linear_fc2": ffn * model.hidden_size / tp}


def mlp_parameters(model: ModelSpec, ffn: int, tp: Number, bias: bool) -> Number:
    """One MLP of width `ffn`: G h f + f h, and with biases G f + h."""
    total = sum(mlp_gemms(model, ffn, tp).values())
    return total + model.gate_factor * ffn / np.asarray(tp) + model.hidden_size if bias else total


def router_parameters(model: ModelSpec) -> int:
    """h x E, whole on every rank; plus its bias where the router has one. The untrained correction bias is not in it."""
    experts = model.num_moe_experts or 0
    return model.hidden_size * experts + (experts if model.moe_router_bias else 0)


def layer_parameters(model: ModelSpec, moe: bool, tp: Number = 1, etp: Number = 1, ep: Number = 1) -> LayerParameters:
    """One dense (`moe=False`) or mixture-of-experts layer of one rank."""
    dense = attention_parameters(model, tp) + model.num_layernorms_per_layer * norm_parameters(model, model.hidden_size)
    gemms = tuple(attention_gemms(model, tp).values())
    if not moe:
        dense = dense + mlp_parameters(model, model.ffn_hidden_size, tp, model.add_bias_linear)
        return LayerParameters(
            dense=dense,
            experts=0 * np.asarray(ep),
            gemm_shapes=gemms + tuple(mlp_gemms(model, model.ffn_hidden_size, tp).values()),
        )
    dense = dense + router_parameters(model)
    if model.moe_shared_expert_intermediate_size:
        dense = dense + mlp_parameters(model, model.moe_shared_expert_intermediate_size, tp, model.add_bias_linear)
        dense = dense + (model.hidden_size if model.moe_shared_expert_gate else 0)
        gemms += tuple(mlp_gemms(model, model.moe_shared_expert_intermediate_size, tp).values())
    one = mlp_parameters(model, model.moe_ffn_hidden_size, etp, model.moe_expert_bias)
    gemms += tuple(mlp_gemms(model, model.moe_ffn_hidden_size, etp).values())
    return LayerParameters(dense=dense, experts=one * (model.num_moe_experts or 0) / np.asarray(ep), gemm_shapes=gemms)


def dense_gemm_weights(model: ModelSpec, moe: bool, tp: Number) -> Number:
    """GEMM weights of one layer on one rank without the routed experts (and without the router)."""
    ffn = model.moe_shared_expert_intermediate_size if moe else model.ffn_hidden_size
    return sum(attention_gemms(model, tp).values()) + sum(mlp_gemms(model, ffn, tp).values())


def embedding_parameters(model: ModelSpec, tp: Number = 1, vocab: Number | None = None) -> Number:
    """Word embedding V h / tp, learned positions (whole), embedding norm. `vocab` None means padded for tp."""
    rows = padded_vocab_size(model, tp) if vocab is None else vocab
    total = rows * model.hidden_size / np.asarray(tp)
    if model.position_embedding_type == "learned_absolute":
        total = total + model.max_position_embeddings * model.hidden_size
    return total + (norm_parameters(model, model.hidden_size) if model.embedding_layernorm else 0)


def output_layer_parameters(model: ModelSpec, tp: Number = 1, vocab: Number | None = None) -> Number:
    """V h / tp: the output layer's own matrix (untied), or its copy on the last stage (tied, pp > 1)."""
    return (padded_vocab_size(model, tp) if vocab is None else vocab) * model.hidden_size / np.asarray(tp)


def final_norm_parameters(model: ModelSpec) -> int:
    """The norm before the output layer."""
    return norm_parameters(model, model.hidden_size)


def mtp_layer_parameters(model: ModelSpec, tp: Number = 1, etp: Number = 1, ep: Number = 1) -> LayerParameters:
    """One multi-token-prediction depth: two norms, the 2h x h projection, one layer like the last, one final norm.

    Embedding and output layer are shared with the main model (DeepSeek-V3 report, section 2.2;
    megatron-core transformer/multi_token_prediction.py).
    """
    layer = layer_parameters(model, bool(model.moe_pattern[-1]), tp, etp, ep)
    projection = 2 * model.hidden_size * model.hidden_size / np.asarray(tp)
    return LayerParameters(
        dense=layer.dense + projection + 3 * norm_parameters(model, model.hidden_size),
        experts=layer.experts,
        gemm_shapes=(*layer.gemm_shapes, projection),
    )


def total_parameters(model: ModelSpec, *, mtp: bool = False) -> int:
    """All parameters, vocabulary unpadded, counted as the model's publisher counts (MTP modules only on request)."""
    num_moe = sum(model.moe_pattern)
    total = float(embedding_parameters(model, vocab=model.vocab_size)) + final_norm_parameters(model)
    if model.untie_embeddings_and_output_weights:
        total += float(output_layer_parameters(model, vocab=model.vocab_size))
    for moe, count in ((False, model.num_layers - num_moe), (True, num_moe)):
        if count:
            layer = layer_parameters(model, moe)
            total += count * float(layer.dense + layer.experts)
    if model.moe_router_enable_expert_bias:
        total += num_moe * (model.num_moe_experts or 0)
    if mtp and model.mtp_num_layers:
        depth = mtp_layer_parameters(model)
        total += model.mtp_num_layers * float(depth.dense + depth.experts)
    return round(total)


def active_matmul_parameters(model: ModelSpec) -> int:
    """Parameters of the matmuls that one token passes: active experts only, output layer in, input embedding out."""
    num_moe = sum(model.moe_pattern)
    attention = float(sum(attention_gemms(model, 1).values()))
    dense = attention + float(sum(mlp_gemms(model, model.ffn_hidden_size, 1).values()))
    expert_width = model.moe_router_topk * model.moe_ffn_hidden_size + model.moe_shared_expert_intermediate_size
    sparse = (
        attention + float(sum(mlp_gemms(model, expert_width, 1).values())) + model.hidden_size * (model.num_moe_experts or 0)
    )
    head = model.vocab_size * model.hidden_size
    depth = (sparse if model.moe_pattern[-1] else dense) + 2 * model.hidden_size**2 + head
    return round((model.num_layers - num_moe) * dense + num_moe * sparse + head + model.mtp_num_layers * depth)


def model_flops_per_token(model: ModelSpec, seq_length: int, convention: str = "causal", *, frozen: bool = False) -> float:
    """Forward and backward FLOPs of one trained token, no recomputation.

    `6 x active matmul parameters + 6 L a d s` for causal attention (half of the score matrix), 12 instead of 6 where
    publications count full attention (Narayanan et al. 2021, eq. 3; Korthikanti et al. 2022, eq. 7). Query and value head
    dims may differ (MLA). Sliding-window layers count min(s, window) keys. Frozen weights (LoRA) have no weight gradient: 4
    instead of 6; the adapters' own FLOPs are left out.
    """
    per_pair = 6.0 if convention == "causal" else 12.0
    head_dim = (model.query_head_dim + model.value_head_dim) / 2
    pairs = 0.0
    for sliding in (*model.sliding_pattern, *(0,) * model.mtp_num_layers):
        keys = float(seq_length)
        if sliding and model.window_size is not None and model.window_size < seq_length:
            keys = 2.0 * model.window_size if convention == "causal" else float(model.window_size)
        pairs += min(keys, float(seq_length))
    per_parameter = 4.0 if frozen else 6.0
    return per_parameter * active_matmul_parameters(model) + per_pair * model.num_attention_heads * head_dim * pairs
