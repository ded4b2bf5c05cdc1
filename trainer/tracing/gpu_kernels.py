"""What torch's CUDA kernels save and allocate, as stand-ins for traces on fake CPU tensors.

On a CPU torch decomposes RMSNorm into six operators and keeps fp32 copies, runs no compiled kernels and has no flash attention
with dropout. These stand-ins keep what the GPU's kernels keep:

| operator | saved | source |
|---|---|---|
| scaled_dot_product_attention, flash | q, k, v, output, fp32 logsumexp | _scaled_dot_product_flash_attention |
| the same with a mask (efficient kernel) | and the mask as a bias in the type of q | _scaled_dot_product_efficient_attention |
| layer_norm, rms_norm | input, fp32 statistics | native_layer_norm, _fused_rms_norm |
| dropout | the mask, one byte per element | native_dropout |
| bias + activation, bias + dropout + add | the input; the mask | megatron-core fusions, one kernel each by torch.compile |
| cross entropy, `native` fusion | fp32 exponentials, beside the fp32 logits | the same; 10 bytes a logit in the golden values |
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import megatron.core.fusions.fused_bias_dropout as bias_dropout
import megatron.core.fusions.fused_bias_geglu as geglu
import megatron.core.fusions.fused_bias_gelu as gelu
import megatron.core.fusions.fused_bias_swiglu as swiglu
import megatron.core.fusions.fused_cross_entropy as cross_entropy
import megatron.core.models.bert.bert_lm_head as bert_lm_head
import megatron.core.models.common.embeddings.rope_utils as rope
import megatron.core.models.common.language_module.language_module as language_module
import megatron.core.models.gpt.gpt_layer_specs as layer_specs
import megatron.core.tensor_parallel.layers as layers
import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.transformer.multi_latent_attention as latent_attention
import torch
import torch.nn.functional as F
from autoconfig.trainer.host.cpu import patched
from autoconfig.trainer.tracing import te_stand_ins
from autoconfig.trainer.tracing.stand_in import StandIn, fp32
from torch.autograd import Function

CONFIG = {"bias_dropout_fusion": True, "bias_activation_fusion": True}


class _FlashAttention(Function):
    """[b, n, s, d] queries, [b, g, s, d] keys and values; keys may be longer than queries. The backward's fp32 accumulator of
    dq is the kernel's own buffer."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
        out = _like(q, v.shape[-1])
        statistics = fp32(q, *q.shape[:3])
        ctx.save_for_backward(q, k, v, out, statistics, bias)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        q, k, v, *_ = ctx.saved_tensors
        accumulator = fp32(q, *q.shape)
        dq, dk, dv = (_like(x, x.shape[-1]) for x in (q, k, v))
        del accumulator
        return dq, dk, dv, None


def _like(x: torch.Tensor, width: int) -> torch.Tensor:
    """Dense, in the order of memory that megatron-core's x has, which is [s, b, n, d]: what empty_like makes of it."""
    batch, heads, length, _ = x.shape
    return x.new_empty((length, batch, heads, width)).permute(1, 2, 0, 3)


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, *_: Any, **__: Any
) -> torch.Tensor:
    """In place of torch.nn.functional's."""
    bias = None if attn_mask is None else query.new_empty(attn_mask.shape)
    return _FlashAttention.apply(query, key, value, bias)


def _norm(x: torch.Tensor, weight: Any, bias: Any, statistics: int) -> Any:
    saved = [fp32(x, *x.shape[:-1]) for _ in range(statistics)]
    return torch.empty_like(x, memory_format=torch.contiguous_format), (x, weight, *saved)


def _dropout(x: torch.Tensor) -> Any:
    mask = x.new_empty(x.shape, dtype=torch.bool)
    return torch.empty_like(x), (mask,)


class _BiasDropoutAdd(Function):
    """residual + dropout(x + bias): saves the mask, one byte per element, and nothing without dropout."""

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any, residual: Any, probability: float) -> Any:
        mask = x.new_empty(x.shape, dtype=torch.bool) if probability > 0 else None
        ctx.save_for_backward(mask)
        ctx.bias = None if bias is None else bias.shape
        return torch.empty_like(residual)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (mask,) = ctx.saved_tensors
        dx = gradient if mask is None else torch.empty_like(gradient)
        return dx, None if ctx.bias is None else gradient.new_empty(ctx.bias), gradient, None


def _half(y: torch.Tensor, *_: Any) -> torch.Tensor:
    return y.new_empty((*y.shape[:-1], y.shape[-1] // 2))


_predicted_logits = cross_entropy.calculate_predicted_logits


def _predicted_logits_compiled(logits: torch.Tensor, *arguments: Any) -> Any:
    """What the eager code overwrites, a compiled kernel makes anew: fp32 logits and their exponentials live together."""
    *others, _ = _predicted_logits(logits, *arguments)
    return *others, torch.empty_like(logits)


def pointwise() -> list[tuple[Any, str, Any]]:
    """(module, name, stand-in) of megatron-core's compiled kernels: each allocates its result and nothing else."""
    return [
        (swiglu, "swiglu", _half),
        (swiglu, "bias_swiglu", _half),
        (swiglu, "weighted_swiglu", _half),
        (swiglu, "swiglu_back", lambda g, y: torch.empty_like(y)),
        (swiglu, "bias_swiglu_back", lambda g, y, bias: torch.empty_like(y)),
        (swiglu, "weighted_swiglu_back", lambda g, y, weights: (torch.empty_like(y), torch.empty_like(weights))),
        (geglu, "geglu", _half),
        (geglu, "bias_geglu", lambda y, bias: _half(y)),  # called with its arguments in this order
        (geglu, "geglu_back", lambda g, y: torch.empty_like(y)),
        (geglu, "bias_geglu_back", lambda g, y, bias: torch.empty_like(y)),
        (geglu, "weighted_quick_geglu", _half),
        (geglu, "weighted_quick_geglu_back", lambda g, y, weights, _: (torch.empty_like(y), torch.empty_like(weights))),
        (gelu, "bias_gelu", lambda bias, y: torch.empty_like(y)),
        (gelu, "bias_gelu_back", lambda g, bias, y: torch.empty_like(y)),
        (bias_dropout, "bias_dropout_add_fused_train", lambda x, residual, p: _BiasDropoutAdd.apply(*x, residual, p)),
        (cross_entropy, "calculate_predicted_logits", _predicted_logits_compiled),
    ]


def gpu_kernels() -> AbstractContextManager[None]:
    """Inside, norms, attention and megatron-core's fused kernels keep what they keep on a GPU, and compute nothing."""
    operators = [
        (F, "layer_norm", lambda x, shape, weight=None, bias=None, eps=1e-5: StandIn.apply(_norm, x, weight, bias, 2)),
        (F, "rms_norm", lambda x, shape, weight=None, eps=None: StandIn.apply(_norm, x, weight, None, 1)),
        (F, "dropout", lambda x, p=0.5, training=True, inplace=False: StandIn.apply(_dropout, x) if p > 0 and training else x),
        (F, "scaled_dot_product_attention", scaled_dot_product_attention),
    ]
    return patched([*operators, *pointwise()])


def _rope(x: torch.Tensor, angles: torch.Tensor) -> Any:
    """Fused rotary embedding: saves the angles only."""
    return x.new_empty(x.shape), (angles,)


class _LossInPlace(Function):
    """Cross entropy whose gradient overwrites the logits (loss_fusion `overwrite` of the measured runs)."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        ctx.save_for_backward(logits)
        return logits.new_empty(labels.shape, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (logits,) = ctx.saved_tensors
        return logits, None


class _Permute(Function):
    """Fused permutation: saves an int32 map of 2 E + 1 per token (transformer_engine/pytorch/triton/permutation.py)."""

    @staticmethod
    def forward(ctx: Any, x: Any, probs: Any, routing_map: Any, rows: int) -> Any:
        row_map = x.new_empty((x.shape[0], 2 * routing_map.shape[1] + 1), dtype=torch.int32)
        ctx.save_for_backward(row_map)
        ctx.shapes = x.shape, None if probs is None else probs.shape
        ctx.mark_non_differentiable(row_map)
        return x.new_empty((rows, x.shape[1])), None if probs is None else probs.new_empty(rows), row_map

    @staticmethod
    def backward(ctx: Any, gradient: Any, of_probs: Any, _: Any) -> Any:
        shape, probs = ctx.shapes
        return gradient.new_empty(shape), None if probs is None else of_probs.new_empty(probs), None, None


def _unpermute(x: torch.Tensor, row_map: torch.Tensor, shape: Any) -> Any:
    return x.new_empty(shape), (row_map,)


def _permute_with_probs(tokens: Any, probs: Any, routing_map: Any, num_out_tokens: Any = None, **_: Any) -> Any:
    return _Permute.apply(tokens, probs, routing_map, num_out_tokens)


def _patches() -> list[tuple[Any, str, Any]]:
    accumulate = SimpleNamespace(wgrad_gemm_accum_fp32=lambda *_: None, wgrad_gemm_accum_fp16=lambda *_: None)
    return [
        (rope, "fused_apply_rotary_pos_emb", lambda x, angles, **_: StandIn.apply(_rope, x, angles)),
        (layers, "_grad_accum_fusion_available", True),
        (layers, "fused_weight_gradient_mlp_cuda", accumulate),
        (language_module, "te_parallel_cross_entropy", lambda logits, labels, *_: _LossInPlace.apply(logits, labels)),
        (moe_utils, "HAVE_TE", True),
        (moe_utils, "fused_permute", _permute_with_probs),
        (moe_utils, "fused_permute_with_probs", _permute_with_probs),
        (
            moe_utils,
            "fused_unpermute",
            lambda x, row_map, restore_shape=None, **_: StandIn.apply(_unpermute, x, row_map, restore_shape),
        ),
        (moe_utils, "fused_sort_chunks_by_index", _permute_with_probs),  # never called: trainer/tracing/fake_ranks.py sorts
        (moe_utils, "fused_sort_chunks_by_index_with_probs", _permute_with_probs),
        (latent_attention, "TELinear", te_stand_ins.Linear),
        (latent_attention, "TEColumnParallelLinear", te_stand_ins.ColumnParallelLinear),
        (layer_specs, "TESpecProvider", te_stand_ins.SpecProvider),
        (layer_specs, "TENorm", te_stand_ins.Norm),
        (bert_lm_head, "LNImpl", te_stand_ins.Norm),  # Apex's norm, which saves the same
        (layer_specs, "HAVE_TE", True),
    ]


def transformer_engine(cp_comm_type: str, workspace_bytes: int, *, copies_output: bool) -> AbstractContextManager[None]:
    """Inside, megatron-core's Transformer Engine layer spec builds the stand-ins. `cp_comm_type` and `workspace_bytes` are
    facts of the software stack (specs/software/software.py), `copies_output` of the GPU's attention kernel."""
    facts = {"exchange": cp_comm_type, "workspace_bytes": workspace_bytes, "copies_output": copies_output}
    own = [(te_stand_ins.DotProductAttention, name, value) for name, value in facts.items()]
    return patched([*_patches(), *own, (te_stand_ins.DummyWeightGradients, "buffers", {})], create=True)
