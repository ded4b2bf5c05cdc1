"""What Transformer Engine and the fused kernels around it replace in megatron-core's own modules, as stand-ins for traces.

`stand_ins` puts them in place and takes them away: fused activations, bias-dropout-add, RoPE, the loss that overwrites its
logits, gradient accumulation fused into the weight gradient. See `te_stand_ins` for the modules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import megatron.core.fusions.fused_bias_dropout as bias_dropout
import megatron.core.fusions.fused_bias_geglu as geglu
import megatron.core.fusions.fused_bias_gelu as gelu
import megatron.core.fusions.fused_bias_swiglu as swiglu
import megatron.core.models.common.embeddings.rope_utils as rope
import megatron.core.models.common.language_module.language_module as language_module
import megatron.core.models.gpt.gpt_layer_specs as layer_specs
import megatron.core.tensor_parallel.layers as layers
import torch
from torch.autograd import Function

from trainer import te_stand_ins

CONFIG = {
    "gradient_accumulation_fusion": True,
    "bias_dropout_fusion": True,
    "bias_activation_fusion": True,
    "masked_softmax_fusion": False,
}
"""Fields of TransformerConfig that Transformer Engine's usual run sets and that stand-ins make possible."""


class _Rope(Function):
    """Fused rotary embedding: saves the angles only."""

    @staticmethod
    def forward(ctx: Any, x: Any, angles: Any) -> Any:
        ctx.save_for_backward(angles)
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.new_empty(gradient.shape), None


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


def _half(y: torch.Tensor, *_: Any) -> torch.Tensor:
    return y.new_empty((*y.shape[:-1], y.shape[-1] // 2))


def _bias_dropout_add(x_with_bias: Any, residual: torch.Tensor, probability: float) -> torch.Tensor:
    x, bias = x_with_bias
    return _BiasDropoutAdd.apply(x, bias, residual, probability)


def _patches() -> list[tuple[Any, str, Any]]:
    """(module, name, stand-in). Kernels that torch.compile fuses allocate their result and nothing else."""
    accumulate = SimpleNamespace(wgrad_gemm_accum_fp32=lambda *_: None, wgrad_gemm_accum_fp16=lambda *_: None)
    return [
        (swiglu, "swiglu", _half),
        (swiglu, "bias_swiglu", _half),
        (swiglu, "weighted_swiglu", _half),
        (swiglu, "swiglu_back", lambda g, y: torch.empty_like(y)),
        (swiglu, "bias_swiglu_back", lambda g, y, bias: torch.empty_like(y)),
        (swiglu, "weighted_swiglu_back", lambda g, y, weights: (torch.empty_like(y), torch.empty_like(weights))),
        (geglu, "geglu", _half),
        (geglu, "bias_geglu", lambda bias, y: _half(y)),
        (geglu, "geglu_back", lambda g, y: torch.empty_like(y)),
        (geglu, "bias_geglu_back", lambda g, y, bias: torch.empty_like(y)),
        (gelu, "bias_gelu", lambda bias, y: torch.empty_like(y)),
        (gelu, "bias_gelu_back", lambda g, bias, y: torch.empty_like(y)),
        (bias_dropout, "bias_dropout_add_fused_train", _bias_dropout_add),
        (rope, "fused_apply_rotary_pos_emb", lambda x, angles, **_: _Rope.apply(x, angles)),
        (layers, "_grad_accum_fusion_available", True),
        (layers, "fused_weight_gradient_mlp_cuda", accumulate),
        (language_module, "te_parallel_cross_entropy", lambda logits, labels, *_: _LossInPlace.apply(logits, labels)),
        (layer_specs, "TESpecProvider", te_stand_ins.SpecProvider),
        (layer_specs, "HAVE_TE", True),
    ]


@contextlib.contextmanager
def stand_ins(*, cp_comm_type: str = "p2p", workspace_bytes: int = 0) -> Iterator[None]:
    """Inside, megatron-core's Transformer Engine layer spec builds the stand-ins. `cp_comm_type` and `workspace_bytes` are
    facts of the software stack (specs/software.py)."""
    attention, caches = te_stand_ins.DotProductAttention, te_stand_ins.DummyWeightGradients
    with contextlib.ExitStack() as stack:
        for owner, name, value in _patches():
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        stack.enter_context(mock.patch.object(attention, "exchange", cp_comm_type))
        stack.enter_context(mock.patch.object(attention, "workspace_bytes", workspace_bytes))
        stack.enter_context(mock.patch.object(caches, "buffers", {}))
        yield
