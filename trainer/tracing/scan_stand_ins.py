"""Stand-ins for the kernels of Mamba-2 that have no CPU code: they save, allocate and free what the kernels of mamba-ssm and
causal-conv1d do, and compute nothing. For traces on fake tensors only.

Source: state-spaces/mamba at e9594ce, mamba_ssm/ops/triton; read, not run. C: tokens of a chunk; S: batch x chunks x heads x
channels of a head x state, elements of the states of all chunks.

| stand-in | saved | allocated for a while |
|---|---|---|
| split_conv1d_scan (ssd_combined.py, MambaSplitConv1dScanCombinedFn) | in_proj's output, the scan's output before its gate | \
forward: convolved x, B, C and fp32 states; backward: see `_SplitConvScan.backward` |
| GatedNorm (layernorm_gated.py, LayerNormFn), called without a gate | input, fp32 inverse deviation of each group | - |
"""

from __future__ import annotations

from typing import Any

import torch
from autoconfig.trainer.tracing.stand_in import StandIn, fp32
from torch.autograd import Function


class _SplitConvScan(Function):
    """Convolution, scan and gate in one: `mamba_split_conv1d_scan_combined` without norm and output projection."""

    @staticmethod
    def forward(ctx: Any, projected: Any, conv: Any, conv_bias: Any, dt_bias: Any, a: Any, d: Any, sizes: Any) -> Any:
        """`projected` [b, s, 2 d_i + 2 g n + H]; `sizes`: heads, channels of a head, groups, state, C. -> [b, s, d_i]."""
        heads, width, groups, state, chunk = ctx.sizes = sizes
        batch, length, _ = projected.shape
        convolved = projected.new_empty((batch, length, heads * width + 2 * groups * state))
        steps = [fp32(projected, batch, heads, length) for _ in range(2)]  # dt and the sums of its decays
        states = fp32(projected, *_states(projected, sizes))
        passed = projected.new_empty(states.shape)
        del states
        products = fp32(projected, batch, -(-length // chunk), groups, chunk, chunk)
        gated, before = (projected.new_empty((batch, length, heads * width)) for _ in range(2))
        del convolved, steps, passed, products
        ctx.save_for_backward(projected, conv, conv_bias, before, a, d, dt_bias)
        return gated

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Beside what is saved: x, B, C convolved again and their gradient, the gradient of in_proj's output, of the scan's
        output before the gate, fp32 products of B and C, and while states are passed back 4 S of states, 4 S of their
        gradients and 2 S of each in 16 bits; behind them fp32 gradients of B, C and their products."""
        projected, conv, conv_bias, before, a, d, dt_bias = ctx.saved_tensors
        heads, width, groups, state, chunk = ctx.sizes
        batch, length, _ = projected.shape
        convolved = projected.new_empty((batch, length, heads * width + 2 * groups * state))
        of_projected, of_convolved = torch.empty_like(projected), torch.empty_like(convolved)
        steps = [fp32(projected, batch, heads, length) for _ in range(2)]
        products = fp32(projected, batch, -(-length // chunk), groups, chunk, chunk)
        first = fp32(projected, *_states(projected, ctx.sizes))
        states = torch.empty_like(first)
        del first
        of_output = torch.empty_like(before)
        of_states = torch.empty_like(states)
        halves = [projected.new_empty(states.shape) for _ in range(2)]
        del states, of_states
        of_steps = fp32(projected, batch, heads, length)
        of_groups = [fp32(projected, batch, length, groups, state) for _ in range(2)]
        of_products = torch.empty_like(products)
        del halves, of_output, of_steps, of_groups, of_products, products, steps, convolved, of_convolved
        return of_projected, *(torch.empty_like(x) for x in (conv, conv_bias, dt_bias, a, d)), None


def _states(projected: torch.Tensor, sizes: tuple[int, ...]) -> tuple[int, ...]:
    heads, width, _, state, chunk = sizes
    return projected.shape[0], -(-projected.shape[1] // chunk), heads, width, state


def split_conv1d_scan(
    projected: Any, conv: Any, conv_bias: Any, dt_bias: Any, a: Any, D: Any, *, headdim: int, ngroups: int, **named: Any
) -> Any:
    """In place of mamba_split_conv1d_scan_combined, called as megatron-core's MambaMixer does."""
    state = (conv.shape[0] - D.shape[0] * headdim) // ngroups // 2
    sizes = (D.shape[0], headdim, ngroups, state, named["chunk_size"])
    return _SplitConvScan.apply(projected, conv, conv_bias, dt_bias, a, D, sizes)


def _grouped_norm(x: torch.Tensor, weight: torch.Tensor, groups: int) -> Any:
    return torch.empty_like(x), (x, weight, fp32(x, groups, x.numel() // x.shape[-1]))


class GatedNorm(torch.nn.Module):
    """MambaMixer's norm behind the scan. MambaMixer calls it without the gate: the scan has applied it."""

    def __init__(self, width: int, *, group_size: int, device: Any, dtype: torch.dtype, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(width, device=device, dtype=dtype))
        self.groups = width // group_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return StandIn.apply(_grouped_norm, x, self.weight, self.groups)
