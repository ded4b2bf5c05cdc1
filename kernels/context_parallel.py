"""Context parallelism of attention in its all-gather form, on any backend of torch.distributed.

A sequence of s tokens lies on c ranks as megatron-core cuts it (utils.py, get_batch_on_this_cp_rank): 2 c chunks, rank r holds
the chunks r and 2 c - 1 - r, so that every rank has the same share of the causal triangle. Keys and values of the whole
sequence are gathered before attention; their gradients are summed and scattered back (Llama 3 report, section 3.3.2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def sequence_share(tensor: Tensor, rank: int, size: int, dim: int) -> Tensor:
    """What rank `rank` of `size` holds of a whole sequence that lies along `dim`."""
    chunks = tensor.chunk(2 * size, dim=dim)
    return tensor if size == 1 else torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], dim=dim)


def local_chunks(tensor: Tensor, group: Any) -> list[tuple[Tensor, int]]:
    """The two chunks along dimension 0 that this rank holds, each with its first position in the whole sequence."""
    size, rank = group.size(), group.rank()
    length = tensor.size(0) // 2
    return [(tensor[:length], rank * length), (tensor[length:], (2 * size - 1 - rank) * length)]


def gather_sequence(tensor: Tensor, group: Any) -> Tensor:
    """[s, ...] in the order of the sequence from each rank's [s / c, ...]; its gradient is the sum over ranks of this share."""
    return _GatherSequence.apply(tensor, group)


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        by_rank = tensor.new_empty(group.size() * tensor.size(0), *tensor.shape[1:])
        dist.all_gather_into_tensor(by_rank, tensor.contiguous(), group=group)
        return _chunks(by_rank, group)[_places(group)].flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        group = ctx.group
        chunks = _chunks(gradient, group)
        by_rank = chunks[_order(group)].flatten(0, 1).contiguous()
        share = gradient.new_empty(gradient.size(0) // group.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(share, by_rank, group=group)
        return share, None


def _chunks(tensor: Tensor, group: Any) -> Tensor:
    return tensor.unflatten(0, (2 * group.size(), -1))


def _order(group: Any) -> list[int]:
    """Chunk numbers in the order in which the ranks hold them: 0, 2c-1, 1, 2c-2, ..."""
    size = group.size()
    return [chunk for rank in range(size) for chunk in (rank, 2 * size - 1 - rank)]


def _places(group: Any) -> list[int]:
    """Where each chunk of the sequence lies in that order."""
    order = _order(group)
    return [order.index(chunk) for chunk in range(len(order))]
