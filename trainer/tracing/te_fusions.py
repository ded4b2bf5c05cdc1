"""What Transformer Engine replaces in megatron-core's own modules, as stand-ins for traces.

`transformer_engine` puts them in place and takes them away: fused RoPE, the loss that overwrites its logits, gradient
accumulation fused into the weight gradient, and the modules of `te_stand_ins` in megatron-core's layer specification.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import megatron.core.models.common.embeddings.rope_utils as rope
import megatron.core.models.common.language_module.language_module as language_module
import megatron.core.models.gpt.gpt_layer_specs as layer_specs
import megatron.core.tensor_parallel.layers as layers
import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.transformer.multi_latent_attention as latent_attention
import torch
from autoconfig.trainer.tracing import te_stand_ins
from torch.autograd import Function


class _Rope(Function):
    """Fused rotary embedding: saves the angles only."""

    @staticmethod
    def forward(ctx: Any, x: Any, angles: Any) -> Any:
        ctx.save_for_backward(angles)
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.new_empty(gradient.shape), None


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


class _Unpermute(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, row_map: Any, shape: Any) -> Any:
        ctx.save_for_backward(row_map)
        ctx.shape = x.shape
        return x.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.new_empty(ctx.shape), None, None


def _permute_with_probs(tokens: Any, probs: Any, routing_map: Any, num_out_tokens: Any = None, **_: Any) -> Any:
    return _Permute.apply(tokens, probs, routing_map, num_out_tokens)


def _unpermute(tokens: Any, row_map: Any, restore_shape: Any = None, **_: Any) -> Any:
    return _Unpermute.apply(tokens, row_map, restore_shape)


def _patches() -> list[tuple[Any, str, Any]]:
    """(module, name, stand-in)."""
    accumulate = SimpleNamespace(wgrad_gemm_accum_fp32=lambda *_: None, wgrad_gemm_accum_fp16=lambda *_: None)
    return [
        (rope, "fused_apply_rotary_pos_emb", lambda x, angles, **_: _Rope.apply(x, angles)),
        (layers, "_grad_accum_fusion_available", True),
        (layers, "fused_weight_gradient_mlp_cuda", accumulate),
        (language_module, "te_parallel_cross_entropy", lambda logits, labels, *_: _LossInPlace.apply(logits, labels)),
        (moe_utils, "HAVE_TE", True),
        (moe_utils, "fused_permute", _permute_with_probs),
        (moe_utils, "fused_permute_with_probs", _permute_with_probs),
        (moe_utils, "fused_unpermute", _unpermute),
        (moe_utils, "fused_sort_chunks_by_index", _permute_with_probs),  # never called: trainer/tracing/fixed_routing.py sorts
        (moe_utils, "fused_sort_chunks_by_index_with_probs", _permute_with_probs),
        (latent_attention, "TELinear", te_stand_ins.Linear),
        (latent_attention, "TEColumnParallelLinear", te_stand_ins.ColumnParallelLinear),
        (layer_specs, "TESpecProvider", te_stand_ins.SpecProvider),
        (layer_specs, "TENorm", te_stand_ins.Norm),
        (layer_specs, "HAVE_TE", True),
    ]


@contextlib.contextmanager
def transformer_engine(*, cp_comm_type: str = "p2p", workspace_bytes: int = 0, copies_output: bool = False) -> Iterator[None]:
    """Inside, megatron-core's Transformer Engine layer spec builds the stand-ins. `cp_comm_type` and `workspace_bytes` are
    facts of the software stack (specs/software/software.py), `copies_output` of the GPU's attention kernel."""
    attention, caches = te_stand_ins.DotProductAttention, te_stand_ins.DummyWeightGradients
    with contextlib.ExitStack() as stack:
        for owner, name, value in _patches():
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        stack.enter_context(mock.patch.object(attention, "exchange", cp_comm_type))
        stack.enter_context(mock.patch.object(attention, "workspace_bytes", workspace_bytes))
        stack.enter_context(mock.patch.object(attention, "copies_output", copies_output))
        stack.enter_context(mock.patch.object(caches, "buffers", {}))
        yield
