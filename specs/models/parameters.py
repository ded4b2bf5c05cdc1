"""Parameter counts, for the whole model and for one rank. Memory and time both stand on these.

Every function takes scalars or NumPy arrays for `tp`, `etp` and `ep` and returns parameters of ONE rank; with 1 everywhere
that is the whole module. Column-parallel matrices and their biases are divided by tp, row-parallel matrices by tp with a whole
bias, norms and routers are whole on every rank (Shoeybi et al. 2019, section 3; megatron-core tensor_parallel/layers.py).
Symbols: see specs.model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from autoconfig.specs.models.hybrid import (
    delta_rule_flops_per_token,
    gdn_gemms,
    gdn_parameters,
    mamba_gemms,
    mamba_parameters,
    scan_flops_per_token,
)
from autoconfig.specs.models.model import DENSE_KINDS, ModelSpec

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


def query_columns(model: ModelSpec) -> int:
    """q, or 2 q where attention's output is gated: the gate comes out of the same matrix."""
    return model.query_size * (2 if model.attention_output_gate else 1)


def indexer_gemms(model: ModelSpec) -> dict[str, Number]:
    """Weight elements of the indexer of sparse attention, whole on every rank: queries q_r n_I d_I out of the compressed ones,
    one key h d_I, weights of the heads h n_I. Empty without one. Source: DeepSeek-V3.2 (arXiv:2512.02556), section 2.1;
    megatron-core 0.19.2, experimental_attention_variant/dsa.py (parallel_mode duplicated)."""
    if not model.is_sparse:
        return {}
    h, heads, dim = model.hidden_size, model.dsa_indexer_n_heads, model.dsa_indexer_head_dim
    return {
        "indexer.linear_wq_b": (model.q_lora_rank or 0) * heads * dim,
        "indexer.linear_wk": h * dim,
        "indexer.linear_weights_proj": h * heads,
    }


def indexer_key_bytes(model: ModelSpec) -> float:
    """Of one cached token and layer of a serving engine: d_I in fp8 and an fp32 scale for 128 of them; 0 without an indexer.
    Source: vLLM, DeepseekV32IndexerCache (132 bytes)."""
    return model.dsa_indexer_head_dim * (1.0 + 4.0 / 128.0)


def attention_gemms(model: ModelSpec, tp: Number) -> dict[str, Number]:
    """Weight elements of the attention GEMMs of one rank, by Megatron's module name."""
    tp = np.asarray(tp)
    h, q = model.hidden_size, model.query_size
    if not model.multi_latent_attention:
        kv = kv_heads_per_rank(model, tp) * model.kv_channels
        return {"linear_qkv": h * (query_columns(model) / tp + 2 * kv), "linear_proj": q * h / tp}
    a, up = model.num_attention_heads, model.qk_head_dim + model.v_head_dim
    queries: dict[str, Number] = {"linear_q_proj": h * q / tp}
    if rank := model.q_lora_rank:
        queries = {"linear_q_down_proj": h * rank + 0 * tp, "linear_q_up_proj": rank * q / tp}
    return queries | {
        "linear_kv_down_proj": h * (model.kv_lora_rank + model.qk_pos_emb_head_dim) + 0 * tp,
        "linear_kv_up_proj": model.kv_lora_rank * a * up / tp,
        "linear_proj": a * model.v_head_dim * h / tp,
        **{name: size + 0 * tp for name, size in indexer_gemms(model).items()},
    }


def attention_parameters(model: ModelSpec, tp: Number) -> Number:
    """Attention of one layer: GEMMs, biases, query/key norms, sinks. The layer's own norms are not in it."""
    h = model.hidden_size
    total = sum(attention_gemms(model, tp).values())
    tp = np.asarray(tp)
    if model.add_bias_linear or model.add_qkv_bias:
        total = total + (query_columns(model) / tp + 2 * kv_heads_per_rank(model, tp) * model.kv_channels)
    if model.add_bias_linear or model.add_attention_output_bias:
        total = total + h
    if model.multi_latent_attention:
        total = total + norm_parameters(model, model.kv_lora_rank) + norm_parameters(model, model.q_lora_rank or 0)
        total = total + 2 * model.dsa_indexer_head_dim  # the LayerNorm of the indexer's key
    elif model.qk_layernorm_full:
        keys = model.num_query_groups * model.kv_channels
        total = total + norm_parameters(model, model.query_size) + norm_parameters(model, keys)
    elif model.qk_layernorm:
        total = total + 2 * norm_parameters(model, model.kv_channels)
    if model.attention_sinks:
        total = total + model.num_attention_heads / tp
    return total


def cross_attention_gemms(model: ModelSpec, tp: Number) -> dict[str, Number]:
    """Weight elements of a decoder layer's attention over the encoder's output, by Megatron's module name."""
    tp = np.asarray(tp)
    h, q = model.hidden_size, model.query_size
    kv = kv_heads_per_rank(model, tp) * model.kv_channels
    return {"cross_linear_q": h * q / tp, "cross_linear_kv": h * 2 * kv, "cross_linear_proj": q * h / tp}


def cross_attention_parameters(model: ModelSpec, tp: Number) -> Number:
    """Cross-attention of one decoder layer with its norm: GEMMs and biases."""
    total = sum(cross_attention_gemms(model, tp).values()) + norm_parameters(model, model.hidden_size)
    if not model.add_bias_linear:
        return total
    return total + model.query_size / np.asarray(tp) + 2 * kv_heads_per_rank(model, tp) * model.kv_channels + model.hidden_size


def mlp_gemms(model: ModelSpec, ffn: int, tp: Number) -> dict[str, Number]:
    """Weight elements of one MLP of width `ffn`: fc1 (G ffn columns) and fc2, both divided by tp."""
    tp = np.asarray(tp)
    return {"linear_fc1": model.hidden_size * model.gate_factor * ffn / tp, "linear_fc2": ffn * model.hidden_size / tp}


def mlp_parameters(model: ModelSpec, ffn: int, tp: Number, bias: bool) -> Number:
    """One MLP of width `ffn`: G h f + f h, and with biases G f + h."""
    total = sum(mlp_gemms(model, ffn, tp).values())
    return total + model.gate_factor * ffn / np.asarray(tp) + model.hidden_size if bias else total


def _mlp_biases(model: ModelSpec) -> bool:
    return model.add_bias_linear or model.add_mlp_bias


def expert_gemms(model: ModelSpec, etp: Number) -> dict[str, Number]:
    """Weight elements of one routed expert: an MLP of f_e on the experts' width (h, or the latent one), divided by etp."""
    width, etp = model.expert_width, np.asarray(etp)
    columns = model.moe_ffn_hidden_size / etp
    return {"linear_fc1": width * model.gate_factor * columns, "linear_fc2": columns * width}


def expert_parameters(model: ModelSpec, etp: Number) -> Number:
    """One routed expert with its biases."""
    total = sum(expert_gemms(model, etp).values())
    biases = model.gate_factor * model.moe_ffn_hidden_size / np.asarray(etp) + model.expert_width
    return total + biases if model.moe_expert_bias else total


def latent_gemms(model: ModelSpec) -> dict[str, Number]:
    """Projections to the experts' latent width and back, whole on every rank (megatron-core 0.19.2, moe/moe_layer.py:
    fc1_latent_proj and fc2_latent_proj); empty without one."""
    size = model.hidden_size * (model.moe_latent_size or 0)
    return {"fc1_latent_proj": size, "fc2_latent_proj": size} if size else {}


def router_parameters(model: ModelSpec) -> int:
    """h x E, whole on every rank; plus its bias where the router has one. The untrained correction bias is not in it."""
    experts = model.num_moe_experts or 0
    return model.hidden_size * experts + (experts if model.moe_router_bias else 0)


def layer_parameters(model: ModelSpec, kind: str, tp: Number = 1, etp: Number = 1, ep: Number = 1) -> LayerParameters:
    """One layer of this kind (ModelSpec.kinds) of one rank."""
    dense, gemms = _mixer(model, kind, tp)
    if kind in (*DENSE_KINDS, "mlp"):
        dense = dense + mlp_parameters(model, model.ffn_hidden_size, tp, _mlp_biases(model))
        gemms += tuple(mlp_gemms(model, model.ffn_hidden_size, tp).values())
    if kind != "moe":
        return LayerParameters(dense=dense, experts=0 * np.asarray(ep), gemm_shapes=gemms)
    dense = dense + router_parameters(model) + sum(latent_gemms(model).values())
    gemms += tuple(latent_gemms(model).values())
    if model.moe_shared_expert_intermediate_size:
        dense = dense + mlp_parameters(model, model.moe_shared_expert_intermediate_size, tp, _mlp_biases(model))
        dense = dense + (model.hidden_size if model.moe_shared_expert_gate else 0)
        gemms += tuple(mlp_gemms(model, model.moe_shared_expert_intermediate_size, tp).values())
    gemms += tuple(expert_gemms(model, etp).values())
    experts = expert_parameters(model, etp) * (model.num_moe_experts or 0) / np.asarray(ep)
    return LayerParameters(dense=dense, experts=experts, gemm_shapes=gemms)


def _mixer(model: ModelSpec, kind: str, tp: Number) -> tuple[Number, tuple[Number, ...]]:
    """(parameters, GEMM weights) of what a layer of this kind has before any MLP or experts, and of its norms."""
    norms = model.num_layernorms_per_layer * norm_parameters(model, model.hidden_size)
    if kind == "decoder":
        own = attention_parameters(model, tp) + norms + cross_attention_parameters(model, tp)
        return own, (*attention_gemms(model, tp).values(), *cross_attention_gemms(model, tp).values())
    if not model.is_hybrid:
        return attention_parameters(model, tp) + norms, tuple(attention_gemms(model, tp).values())
    norm = norm_parameters(model, model.hidden_size) + 0 * np.asarray(tp)
    if kind not in _MIXERS:
        return norm, ()
    parameters, gemms = _MIXERS[kind]
    return parameters(model, tp) + norm, tuple(gemms(model, tp).values())


_MIXERS = {
    "mamba": (mamba_parameters, mamba_gemms),
    "gdn": (gdn_parameters, gdn_gemms),
    "attention": (attention_parameters, attention_gemms),
}
"""Kind of layer of a hybrid -> its parameters, and those of them that are GEMM weights."""


def dense_gemm_weights(model: ModelSpec, kind: str, tp: Number) -> Number:
    """GEMM weights of one layer on one rank without the routed experts (and without the router)."""
    total = sum(_mixer(model, kind, tp)[1], 0.0 * np.asarray(tp))
    if kind in (*DENSE_KINDS, "mlp"):
        return total + sum(mlp_gemms(model, model.ffn_hidden_size, tp).values())
    if kind == "moe":
        shared = sum(mlp_gemms(model, model.moe_shared_expert_intermediate_size, tp).values())
        return total + shared + sum(latent_gemms(model).values())
    return total


def linear_rows(model: ModelSpec, tp: Number) -> Number:
    """Rows (outputs) of the linear layers of one dense layer on one rank: their weights over their inputs."""
    tp, h = np.asarray(tp), model.hidden_size
    inputs = {
        "linear_q_up_proj": model.q_lora_rank or 0,
        "linear_kv_up_proj": model.kv_lora_rank,
        "linear_proj": model.num_attention_heads * model.value_head_dim / tp,
        "linear_fc2": model.ffn_hidden_size / tp,
    }
    gemms = attention_gemms(model, tp) | mlp_gemms(model, model.ffn_hidden_size, tp)
    return sum(weights / inputs.get(name, h) for name, weights in gemms.items())


def largest_matrices(model: ModelSpec, tp: Number) -> tuple[Number, Number]:
    """Elements of the largest weight matrix of a dense layer's attention and of its MLP on one rank, as transformers holds
    them: queries, keys and values apart, gate and up apart."""
    tp, h = np.asarray(tp), model.hidden_size
    gemms = attention_gemms(model, tp)
    if not model.multi_latent_attention:
        gemms["linear_qkv"] = h * query_columns(model) / tp
    return np.maximum.reduce([size + 0 * tp for size in gemms.values()]), h * model.ffn_hidden_size / tp


def embedding_parameters(model: ModelSpec, tp: Number = 1, vocab: Number | None = None) -> Number:
    """Word embedding V h / tp; whole on every rank: learned positions, token types, embedding norm, tables of relative
    positions (buckets x a, one for each stack or layer). `vocab` None means padded for tp."""
    rows = padded_vocab_size(model, tp) if vocab is None else vocab
    total = rows * model.hidden_size / np.asarray(tp) + model.num_tokentypes * model.hidden_size
    if model.position_embedding_type == "learned_absolute":
        total = total + model.max_position_embeddings * model.hidden_size
    if model.relative_attention_num_buckets:
        tables = model.num_layers if model.relative_attention_in_every_layer else stacks(model)
        total = total + tables * model.relative_attention_num_buckets * model.num_attention_heads
    return total + (norm_parameters(model, model.hidden_size) if model.embedding_layernorm else 0)


def stacks(model: ModelSpec) -> int:
    """2 for an encoder and a decoder, else 1."""
    return 2 if model.is_encoder_decoder else 1


def output_layer_parameters(model: ModelSpec, tp: Number = 1, vocab: Number | None = None) -> Number:
    """V h / tp: the output layer's own matrix (untied), or its copy on the last stage (tied, pp > 1)."""
    return (padded_vocab_size(model, tp) if vocab is None else vocab) * model.hidden_size / np.asarray(tp)


def final_norm_parameters(model: ModelSpec) -> int:
    """The norm behind each stack; whole on every rank, like what stands before the output layer of BERT: a linear layer and a
    norm, and beside it the pooler and its two classes (megatron-core models/bert/bert_model.py)."""
    h, total = model.hidden_size, stacks(model) * norm_parameters(model, model.hidden_size) if model.final_layernorm else 0
    if model.masked_lm_head:
        total += h * h + h + norm_parameters(model, h)
    return total + (h * h + h + 2 * h + 2 if model.bert_binary_head else 0)


def output_bias_parameters(model: ModelSpec, tp: Number = 1, vocab: Number | None = None) -> Number:
    """V / tp biases of the output layer, where it has them."""
    rows = padded_vocab_size(model, tp) if vocab is None else vocab
    return (rows if model.output_layer_bias else 0) / np.asarray(tp)


def mtp_layer_parameters(model: ModelSpec, tp: Number = 1, etp: Number = 1, ep: Number = 1) -> LayerParameters:
    """One multi-token-prediction depth: two norms, the 2h x h projection, its layers (`mtp_kinds`), one final norm.

    Embedding and output layer are shared with the main model (DeepSeek-V3 report, section 2.2;
    megatron-core transformer/multi_token_prediction.py).
    """
    layers = [layer_parameters(model, kind, tp, etp, ep) for kind in model.mtp_kinds]
    projection = 2 * model.hidden_size * model.hidden_size / np.asarray(tp)
    return LayerParameters(
        dense=sum(layer.dense for layer in layers) + projection + 3 * norm_parameters(model, model.hidden_size),
        experts=sum(layer.experts for layer in layers),
        gemm_shapes=(*(shape for layer in layers for shape in layer.gemm_shapes), projection),
    )


def mtp_depths_held(model: ModelSpec) -> int:
    """Depths that have weights of their own."""
    return min(model.mtp_num_layers, 1) if model.mtp_use_repeated_layer else model.mtp_num_layers


@lru_cache(maxsize=256)  # asked again for every sample of a fit
def total_parameters(model: ModelSpec, *, mtp: bool = False) -> int:
    """All parameters, vocabulary unpadded, counted as the model's publisher counts (MTP modules only on request)."""
    total = float(embedding_parameters(model, vocab=model.vocab_size)) + final_norm_parameters(model)
    total += float(output_bias_parameters(model, vocab=model.vocab_size))
    if model.untie_embeddings_and_output_weights:
        total += float(output_layer_parameters(model, vocab=model.vocab_size))
    for kind, count in Counter(model.layer_kinds).items():
        layer = layer_parameters(model, kind)
        total += count * float(layer.dense + layer.experts)
    corrected = model.num_moe_experts or 0 if model.moe_router_enable_expert_bias else 0
    total += model.layer_kinds.count("moe") * corrected
    if mtp and model.mtp_num_layers:
        depth = mtp_layer_parameters(model)
        own = float(depth.dense + depth.experts) + model.is_hybrid * model.mtp_kinds.count("moe") * corrected
        total += mtp_depths_held(model) * own
    return round(total)


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token passes: all but the routed experts that it does not reach, in all layers."""
    experts = (model.num_moe_experts or model.moe_router_topk) - model.moe_router_topk
    idle = round(model.layer_kinds.count("moe") * experts * float(expert_parameters(model, 1))) if model.is_moe else 0
    return total_parameters(model) - idle


def active_matmul_parameters(model: ModelSpec) -> int:
    """Parameters of the matmuls that one token passes: active experts only, output layer in, input embedding out."""
    head, one = model.vocab_size * model.hidden_size, {kind: _active_matmuls(model, kind) for kind in model.kinds}
    depth = sum(one[kind] for kind in model.mtp_kinds) + 2 * model.hidden_size**2 + head
    head += model.hidden_size**2 if model.masked_lm_head else 0
    return round(sum(one[kind] for kind in model.layer_kinds) + head + model.mtp_num_layers * depth)


def _active_matmuls(model: ModelSpec, kind: str) -> float:
    """Of one layer of this kind."""
    total = float(dense_gemm_weights(model, kind, 1))
    if kind == "moe":
        total += model.moe_router_topk * float(sum(expert_gemms(model, 1).values()))
        total += model.hidden_size * (model.num_moe_experts or 0)
    return total


def indexer_flops_per_token(model: ModelSpec, seq_length: float) -> float:
    """Forward FLOPs of the scores of one token with all keys that it may see, s / 2 of them: n_I d_I s."""
    return float(model.dsa_indexer_n_heads * model.dsa_indexer_head_dim * seq_length)


def model_flops_per_token(
    model: ModelSpec,
    seq_length: int,
    convention: str = "causal",
    *,
    frozen: bool = False,
    decoder_seq_length: int | None = None,
) -> float:
    """Forward and backward FLOPs of one trained token, no recomputation.

    `6 x active matmul parameters + 6 L a d s` for causal attention (half of the score matrix), 12 instead of 6 where
    publications count full attention (Narayanan et al. 2021, eq. 3; Korthikanti et al. 2022, eq. 7). Query and value head
    dims may differ (MLA). Sliding-window layers count min(s, window) keys. Frozen weights (LoRA) have no weight gradient: 4
    instead of 6; the adapters' own FLOPs are left out. Sparse attention counts min(s, K) keys of the latents
    (d = kv_r + d_r / 2) and the forward of the indexer's scores. Scans and delta rules of hybrids: 3 x their forward. Encoders
    see both halves of the matrix; with a decoder behind one the token is the encoder's, and the decoder's come in proportion.
    """
    if model.is_encoder_decoder:
        return _encoder_decoder_flops(model, seq_length, decoder_seq_length or seq_length, convention, frozen=frozen)
    per_pair = 6.0 if convention == "causal" and not model.is_encoder_only else 12.0
    head_dim = (model.query_head_dim + model.value_head_dim) / 2
    if model.is_sparse:
        head_dim = model.kv_lora_rank + model.qk_pos_emb_head_dim / 2
    window, pairs = model.dsa_indexer_topk or model.window_size, 0.0
    depths = model.mtp_num_layers * (model.mtp_kinds.count("attention") if model.is_hybrid else 1)
    for sliding in (*model.sliding_pattern[: model.attention_layers], *(0,) * depths):
        keys = float(seq_length)
        if (sliding or model.is_sparse) and window is not None and window < seq_length:
            keys = 2.0 * window if convention == "causal" else float(window)
        pairs += min(keys, float(seq_length))
    per_parameter = 4.0 if frozen else 6.0
    attention = per_pair * model.num_attention_heads * head_dim * pairs
    attention += (model.num_layers + depths) * indexer_flops_per_token(model, seq_length)
    return per_parameter * active_matmul_parameters(model) + attention + 3.0 * _recurrent_flops_per_token(model)


def _encoder_decoder_flops(model: ModelSpec, seq: int, decoder_seq: int, convention: str, *, frozen: bool) -> float:
    """Of one token of the encoder. Keys and values of cross-attention are made of the encoder's tokens, once a layer."""
    share, encoder = decoder_seq / seq, model.encoder_num_layers
    decoder, heads = model.num_layers - encoder, model.query_size
    shared = float(cross_attention_gemms(model, 1)["cross_linear_kv"])
    own = _active_matmuls(model, "decoder") - shared
    matmuls = encoder * _active_matmuls(model, "encoder") + decoder * (shared + share * own)
    matmuls += share * model.vocab_size * model.hidden_size
    causal = 6.0 if convention == "causal" else 12.0
    attention = 12.0 * encoder * seq + share * decoder * (causal * decoder_seq + 12.0 * seq)
    return (4.0 if frozen else 6.0) * matmuls + attention * heads


def _recurrent_flops_per_token(model: ModelSpec) -> float:
    """Forward FLOPs of the scans and delta rules of all layers, depths of prediction included."""
    kinds = Counter((*model.layer_kinds, *model.mtp_kinds * model.mtp_num_layers))
    flops = {"mamba": scan_flops_per_token, "gdn": delta_rule_flops_per_token}
    return sum(kinds[kind] * formula(model) for kind, formula in flops.items() if kinds[kind])


NormShares = tuple[float, float]
"""Of a layer's norms: before attention (or the recurrent mixer), and before the MLP or experts."""
BOTH_NORMS: NormShares = (0.5, 0.5)


def norms_apart(model: ModelSpec, kind: str, fused: bool) -> NormShares:
    """The shares of a layer's norms that are modules of their own, which recomputing `layernorm` runs again. With Transformer
    Engine (`fused`) the norms before dense attention and dense MLPs are a part of the matrix behind them; those before Mamba-2
    and cross-attention are never run again.

    Source: megatron-core 0.19.2, models/gpt/gpt_layer_specs.py and models/hybrid/hybrid_layer_specs.py (where a norm is
    IdentityOp), transformer/transformer_layer.py (which leaves those out, and knows input_layernorm and pre_mlp_layernorm
    only), ssm/mamba_layer.py (no recomputation).
    """
    second = kind in ("mlp", "moe") if model.is_hybrid else True
    first = not (model.is_hybrid and second) and kind != "mamba"
    if fused:
        first, second = first and model.multi_latent_attention and kind != "gdn", kind == "moe"
    count = 1 if model.is_hybrid else 3 if kind == "decoder" else max(2, model.num_layernorms_per_layer)
    return float(first) / count, float(second) / count
