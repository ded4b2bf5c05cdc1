"""Mixture-of-experts routing of a stated size, for fake tensors (which have no values to route by) and for single ranks (whose
peers are not there to send).

Megatron's all-to-all dispatcher asks the routing map how many rows go where. Inside `fixed_routing` it is told: every rank
sends top-k x its tokens, evenly over all experts, and receives `imbalance` times as many (capacity: what capacity says).
Everything else is megatron-core's code; only what needs values of the map (masked_select) gets a size instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.transformer.moe.token_dispatcher as token_dispatcher
import numpy as np
import numpy.typing as npt
import torch
from torch.autograd import Function

Counts = npt.NDArray[np.int64]


class _MaskedSelect(Function):
    """Saves what torch's masked_select saves; the number of selected elements is given."""

    @staticmethod
    def forward(ctx: Any, x: Any, mask: Any, count: int) -> Any:
        ctx.save_for_backward(x, mask)
        return x.new_empty(count)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, _ = ctx.saved_tensors
        return torch.empty_like(x), None, None


class _SortChunks(Function):
    """Splits, and joins in another order: one new tensor each way, nothing saved."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.empty_like(gradient)


def spread(total: int, parts: int) -> Counts:
    """`total` in `parts` whole numbers that differ by one at most."""
    counts = np.full(parts, total // parts, np.int64)
    counts[: total % parts] += 1
    return counts


@contextlib.contextmanager
def fixed_routing(imbalance: float = 1.0, *, values: bool = False) -> Iterator[None]:
    """`imbalance`: rows that this rank's experts receive over a balanced load. `values`: tensors have some, so that only the
    counts are fixed."""

    def preprocess(self: Any, routing_map: torch.Tensor) -> Counts:
        """Counts as numpy arrays, which the dispatcher takes where it expects tensors on the CPU."""
        rows, group = routing_map.size(0) * self.config.moe_router_topk, self.ep_size * self.tp_size
        if self.drop_and_pad:
            factor = self.config.moe_expert_capacity_factor
            self.capacity = moe_utils.get_capacity(num_tokens=rows, num_experts=self.num_experts, capacity_factor=factor)
            self.num_out_tokens = self.capacity * self.num_experts
            return np.full(self.num_local_experts, self.capacity * group, np.int64)
        received = round(rows * (imbalance if group > 1 else 1.0))
        self.num_out_tokens = rows
        if group > 1:
            self.input_splits = spread(rows, self.ep_size)
            self.output_splits = spread(received, self.ep_size)
            self.output_splits_tp = np.full(self.tp_size, received, np.int64)
        by_expert = spread(received * self.tp_size, self.num_local_experts)
        if self.num_local_experts > 1:
            chunks = np.stack([spread(int(count), group) for count in by_expert], axis=1)
            self.num_global_tokens_per_local_expert = chunks
        return by_expert

    plain = token_dispatcher.permute

    def permute(tokens: Any, routing_map: Any, *arguments: Any, **named: Any) -> Any:
        count = named.get("num_out_tokens")

        def masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return _MaskedSelect.apply(x, mask, count)

        with mock.patch.object(torch.Tensor, "masked_select", masked_select):
            return plain(tokens, routing_map, *arguments, **named)

    def sort_chunks(x: Any, *_: Any, probs: Any = None, **__: Any) -> Any:
        return _SortChunks.apply(x), None if probs is None else _SortChunks.apply(probs)

    dispatcher = token_dispatcher.MoEAlltoAllTokenDispatcher
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(dispatcher, "preprocess", preprocess))
        here = mock.patch.object(dispatcher, "_maybe_dtoh_and_synchronize", lambda self, point, counts=None: counts)
        stack.enter_context(here)
        if not values:
            stack.enter_context(mock.patch.object(token_dispatcher, "permute", permute))
            stack.enter_context(mock.patch.object(token_dispatcher, "sort_chunks_by_idxs", sort_chunks))
        stack.callback(moe_utils.get_moe_layer_wise_logging_tracker().clear)  # it is of this run's number of layers
        yield
