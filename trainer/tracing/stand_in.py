"""A kernel that saves, allocates and frees what a GPU's kernel does, and computes nothing: for traces on fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function

Kernel = Callable[..., tuple[Any, tuple[torch.Tensor | None, ...]]]
"""Inputs -> (output or outputs, what is saved for the backward)."""


class StandIn(Function):
    """`StandIn.apply(kernel, *inputs)`: the kernel's output; its backward makes one empty gradient of each input that wants
    one."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, *inputs: Any) -> Any:
        output, saved = kernel(*inputs)
        ctx.save_for_backward(*saved)
        ctx.inputs = [(x.shape, x.dtype) if isinstance(x, torch.Tensor) else None for x in inputs]
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        wanted = zip(ctx.inputs, ctx.needs_input_grad[1:], strict=True)
        return None, *(gradient.new_empty(like[0], dtype=like[1]) if like and needed else None for like, needed in wanted)


def fp32(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """An empty fp32 tensor on the device of `like`."""
    return like.new_empty(shape, dtype=torch.float32)


def keeps_input(x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
    """A compiled pointwise kernel of one input, such as an activation: saves it."""
    return torch.empty_like(x), (x,)
