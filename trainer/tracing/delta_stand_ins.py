"""Stand-ins for the kernels of Gated DeltaNet that have no CPU code: they save, allocate and free what the kernels of
flash-linear-attention do, and compute nothing. For traces on fake tensors only.

Source: fla-core 0.6.0 (fla/ops/gated_delta_rule/chunk.py, fla/ops/common, fla/modules), its Triton kernels; read, not run.
Three functions that megatron-core 0.19.2 compiles are stood in for too; a compiled one saves its inputs, not fp32 copies.
T: tokens; H: value heads; C = 64: tokens of a chunk.

| stand-in | saved | allocated for a while |
|---|---|---|
| causal_conv1d (CausalConv1dFunction) | input, a view of in_proj's output | backward: output before SiLU, fp32 dW |
| l2norm (L2NormFunction) | output, fp32 inverse norm of each head | - |
| chunk_gated_delta_rule (ChunkGatedDeltaRuleFunction) | q, k, v, beta, fp32 sums of g, A [T, H, C] | w, u, new v, states of \
every chunk; backward: see `_DeltaRule.backward` |
| _compute_g_and_beta | A_log, dt_bias, alpha, beta | - |
| _apply_gated_norm, _apply_output_gate | both factors of the product | - |
"""

from __future__ import annotations

from typing import Any

import torch
from autoconfig.trainer.tracing.stand_in import StandIn, fp32
from torch.autograd import Function

CHUNK = 64


class _CausalConv(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight, bias)
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, bias = ctx.saved_tensors
        linear, dx = x.new_empty(x.shape), torch.empty_like(x)
        chunks = x.shape[0] * -(-x.shape[1] // CHUNK)
        partial = [weight.new_empty((chunks, *w.shape), dtype=torch.float32) for w in (weight, bias) if w is not None]
        del linear, partial
        return dx, torch.empty_like(weight), None if bias is None else torch.empty_like(bias)


def causal_conv1d(x: Any, weight: Any, bias: Any = None, **_: Any) -> tuple[Any, None]:
    """In place of fla.modules.convolution.causal_conv1d. `x` [b, s, d], strided; -> [b, s, d], no final state."""
    return _CausalConv.apply(x, weight, bias), None


def l2norm(x: torch.Tensor) -> torch.Tensor:
    """In place of fla.modules.l2norm.l2norm."""
    return StandIn.apply(_l2norm, x)


def _l2norm(x: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    return out, (out, fp32(x, *x.shape[:-1]))


class _DeltaRule(Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        """q, k [b, s, H, d_k], v [b, s, H, d_v], g (fp32) and beta [b, s, H] -> [b, s, H, d_v]."""
        sums = torch.empty_like(g)
        factors = k.new_empty((*g.shape, CHUNK))
        w, u = torch.empty_like(k), torch.empty_like(v)
        states, new = _states(k, v), torch.empty_like(u)
        out = torch.empty_like(v)
        del w, u, states, new
        ctx.save_for_backward(q, k, v, sums, beta, factors)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """w, u, the states and the new values again; then, all of them held to the end, gradients of v by the chunk's own
        tokens (gone when those by the states are there), of the states, of q, k, w, of k and v once more, of g and beta."""
        q, k, v, sums, beta, _ = ctx.saved_tensors
        w, u = torch.empty_like(k), torch.empty_like(v)
        states, new = _states(k, v), torch.empty_like(u)
        local = torch.empty_like(gradient)
        of_states, of_new = _states(k, v), torch.empty_like(gradient)
        del local
        dq, dk, dw = (torch.empty_like(x) for x in (q, k, w))
        dg = torch.empty_like(sums)
        again, dv, db, more = (torch.empty_like(x) for x in (k, v, beta, sums))
        del w, u, states, new, of_states, of_new, dw, again, more
        return dq, dk, dv, dg, db


def _states(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[b, chunks, H, d_k, d_v], 16 bits."""
    batch, length, heads, width = k.shape
    return k.new_empty((batch, -(-length // CHUNK), heads, width, v.shape[-1]))


def chunk_gated_delta_rule(q: Any, k: Any, v: Any, *, g: Any, beta: Any, **_: Any) -> tuple[Any, None]:
    """In place of fla.ops.gated_delta_rule.chunk_gated_delta_rule, called as megatron-core's GatedDeltaNet does."""
    return _DeltaRule.apply(q, k, v, g, beta), None


def compute_g_and_beta(_: Any, a_log: Any, dt_bias: Any, alpha: Any, beta: Any) -> tuple[Any, Any]:
    """In place of GatedDeltaNet._compute_g_and_beta: decays in fp32 and the sigmoid of beta."""
    return StandIn.apply(_gates_of_rule, a_log, dt_bias, alpha, beta)


def _gates_of_rule(a_log: Any, dt_bias: Any, alpha: Any, beta: Any) -> Any:
    out = torch.empty_like(beta)
    return (fp32(alpha, *alpha.shape), out), (a_log, dt_bias, alpha, out)


def _gated(x: torch.Tensor, gate: torch.Tensor) -> Any:
    """x times an activation of the gate, through fp32 inside of the kernel."""
    return x.new_empty(x.shape), (x, gate)


def apply_gated_norm(layer: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """In place of GatedDeltaNet._apply_gated_norm; its norm is Transformer Engine's, on which the compiler stops."""
    return StandIn.apply(_gated, layer.out_norm(x.reshape(-1, x.shape[-1])), gate.reshape(-1, gate.shape[-1]))


def apply_output_gate(_: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """In place of SelfAttention._apply_output_gate, of gated attention."""
    return StandIn.apply(_gated, x, gate.contiguous().view(x.shape))
