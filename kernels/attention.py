"""Attention cores with the interface that megatron-core builds and calls (transformer/attention.py, multi_latent_attention.py).

Shapes: s sequence on this rank, b micro-batch, n query heads and g key/value heads of this rank, d channels of a query or key
head, d_v of a value head. Queries [s, b, n, d], keys [s, b, g, d], values [s, b, g, d_v]; output [s, b, n d_v].
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.utils import is_layer_window_attention
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
        order = _order(group)
        places = [order.index(chunk) for chunk in range(len(order))]  # where each chunk of the sequence lies
        return _chunks(by_rank, group)[places].flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        group = ctx.group
        by_rank = _chunks(gradient, group)[_order(group)].flatten(0, 1).contiguous()
        share = gradient.new_empty(gradient.size(0) // group.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(share, by_rank, group=group)
        return share, None


def _chunks(tensor: Tensor, group: Any) -> Tensor:
    return tensor.unflatten(0, (2 * group.size(), -1))


def _order(group: Any) -> list[int]:
    """Chunk numbers in the order in which the ranks hold them: 0, 2c-1, 1, 2c-2, ..."""
    size = group.size()
    return [chunk for rank in range(size) for chunk in (rank, 2 * size - 1 - rank)]


class FlashAttention(torch.nn.Module):
    """Causal attention by torch's scaled_dot_product_attention: no score matrix is kept (flash, cuDNN or efficient kernel).
    Keeps q, k, v, the output and one logsumexp per row. Knows grouped queries, MLA's k_channels and v_channels (values are
    padded to the width of the keys, as the flash kernels want it), sliding windows, and context parallelism, for which keys and
    values of the whole sequence are gathered (`kernels/attention.py`). Attention sinks are refused."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
    ) -> None:
        """`k_channels` and `v_channels`: d and d_v where they differ from config.kv_channels. Raises ValueError for sinks."""
        super().__init__()
        if getattr(config, "softmax_type", "vanilla") != "vanilla":
            raise ValueError(f"softmax_type {config.softmax_type}: attention sinks need attention_kernel unfused")
        self.config = config
        self.softmax_scale = softmax_scale or 1.0 / math.sqrt(k_channels or config.kv_channels)
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        slides = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = config.window_size[0] if slides else None
        self.tp_group = pg_collection.tp if pg_collection is not None else None
        self.cp_group = pg_collection.cp if config.context_parallel_size > 1 else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Tensor:
        """[s, b, n d_v]. The mask is causal whatever `attention_mask` is."""
        key = with_whole_rotary_gradient(key, self.config, self.tp_group)
        width = value.size(-1)
        if width < query.size(-1):
            value = F.pad(value, (0, query.size(-1) - width))
        if self.cp_group is None:
            output = self._attend(query, key, value, first_row=0)
        else:
            key, value = gather_sequence(key, self.cp_group), gather_sequence(value, self.cp_group)
            output = self._attend_chunks(query, key, value)
        return output[..., :width].flatten(2)

    def _attend_chunks(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Both chunks of the sequence that this rank holds, each against the keys up to its own end."""
        outputs = []
        for rows, start in local_chunks(query, self.cp_group):
            end = start + rows.size(0)
            outputs.append(self._attend(rows, key[:end], value[:end], first_row=start))
        return torch.cat(outputs)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, first_row: int) -> Tensor:
        """[rows, b, n, d]: query rows that start at `first_row` of the sequence, keys that start at 0."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        mask = None
        if self.window is not None or first_row:
            mask = _mask(q.size(2), k.size(2), first_row, self.window, q.device)
        options: dict[str, Any] = {"scale": self.softmax_scale, "enable_gqa": q.size(1) != k.size(1)}
        options |= {"is_causal": True} if mask is None else {"attn_mask": mask}
        if self.training and self.dropout:
            options["dropout_p"] = self.dropout
            if not self.config.sequence_parallel:  # heads are divided over ranks: each drops its own
                with tensor_parallel.get_cuda_rng_tracker().fork():
                    return F.scaled_dot_product_attention(q, k, v, **options).permute(2, 0, 1, 3)
        return F.scaled_dot_product_attention(q, k, v, **options).permute(2, 0, 1, 3)


def with_whole_rotary_gradient(key: Tensor, config: Any, tp_group: Any) -> Tensor:
    """The same keys; the gradient of MLA's rotary channels is summed over tensor-parallel ranks. All heads share one rotary
    key. megatron-core's local layers gather it (multi_latent_attention.py, kv_combined) by a gather whose backward keeps this
    rank's part only, so the other ranks' heads would be missing from its gradient."""
    if not config.multi_latent_attention or config.tensor_model_parallel_size == 1:
        return key
    plain, rotary = key.split([config.qk_head_dim, config.qk_pos_emb_head_dim], dim=-1)
    return torch.cat([plain, _SummedGradient.apply(rotary, tp_group)], dim=-1)


class _SummedGradient(torch.autograd.Function):
    """Identity; the gradient is summed over the group. (megatron-core 0.16.1's own loses the sum of a gradient with gaps.)"""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        whole = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=ctx.group)
        return whole, None


def _mask(rows: int, columns: int, first_row: int, window: int | None, device: Any) -> Tensor:
    """[rows, columns], true where row `first_row + i` sees column j: j <= row, row - j <= window (Megatron's window_size)."""
    row = torch.arange(first_row, first_row + rows, device=device)[:, None]
    column = torch.arange(columns, device=device)[None]
    seen = column <= row
    return seen if window is None else seen & (row - column <= window)


class UnfusedAttention(DotProductAttention):
    """megatron-core's own attention, which keeps the scores, also for MLA's widths. DotProductAttention takes no k_channels and
    v_channels and sizes its output by kv_channels; the output has n d_v channels."""

    def __init__(self, *arguments: Any, k_channels: int | None = None, v_channels: int | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    def forward(self, query: Tensor, key: Tensor, *others: Any, **named: Any) -> Tensor:
        return super().forward(query, with_whole_rotary_gradient(key, self.config, self.tp_group), *others, **named)


class ParallelNorm:
    """torch's LayerNorm or RMSNorm, as `config.normalization` says, usable with sequence parallelism. megatron-core's
    WrappedTorchNorm refuses sequence parallelism because torch's norms do not mark their parameters: each tensor-parallel rank
    sees its share of the sequence, so the gradients of weight and bias must be summed over the ranks. megatron-core does that
    for every parameter with `sequence_parallel` set (finalize_model_grads.py), which is set here."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> torch.nn.Module:
        if config.layernorm_zero_centered_gamma:
            raise ValueError("layernorm_zero_centered_gamma needs Transformer Engine")
        kind = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}[config.normalization]
        norm = kind(hidden_size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm
