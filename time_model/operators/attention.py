"""Seconds of core attention: fused (flash, cuDNN) or unfused, and which pairs of tokens it looks at."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.hardware.operator_tables import GridTable


def attended_pairs(seq_length: Number, window: Number | None = None) -> Number:
    """Query-key pairs of one head and sample under a causal mask: s^2 / 2; with a window w < s: s w - w^2 / 2."""
    full = 0.5 * seq_length * seq_length
    if window is None:
        return full
    return np.where(window < seq_length, seq_length * window - 0.5 * window * window, full)


def flash_attention_flops(pairs: Number, heads: Number, batch: Number, query_dim: Number, value_dim: Number) -> Number:
    """Forward FLOPs: scores 2 d_q and values 2 d_v per pair, head and sample (4 b a s^2 d / 2 where both dims are d)."""
    return 2.0 * (query_dim + value_dim) * pairs * heads * batch


def flash_efficiency(length: Number, head_dim: float, *, e: float, s0: float, head_dim_half: float) -> Number:
    """Share of peak: e s/(s + s0), times d/(d + d0) normalised to 1 at d = 128 and never above.

    `length` is what one kernel call sees of the sequence. d0 = 50 gives 0.78 at d = 64. Source: findings on public
    measurements, sections 2 and 5 (within 5 % from s = 2k, 15 % at 1k).
    """
    narrow = min(1.0, head_dim / (head_dim + head_dim_half) * (128.0 + head_dim_half) / 128.0)
    return e * narrow * length / (length + s0)


def table_flash_efficiency(length: Number, head_dim: float, table: GridTable) -> Number:
    """Measured share of peak of the causal forward pass at this head dim and length.

    Source: prefill rows of aiconfigurator-core 0.12.0, launch and idle tail taken off (data/operators). Outside of the measured
    head dims and lengths (64 to 256, 1k to 16k) the nearest counts.
    """
    return table.at(np.full(np.shape(length), float(head_dim)), length)


def flash_tail_seconds(length: Number, head_dim: float, table: GridTable) -> Number:
    """What the last wave of a causal attention kernel leaves idle: grows with the length, not with batch or heads."""
    if table.tails is None:
        return 0.0 * length
    return length * np.interp(np.log(head_dim), table.axes[0], table.tails)


def flash_attention_seconds(flops: Number, efficiency: Number, *, flops_per_s: float, start_s: float) -> Number:
    """FLOPs over the reached rate, plus a start-up. Backward: 2.5 x the FLOPs at `backward` x the efficiency (the caller's)."""
    return start_s + flops / (flops_per_s * efficiency)


def unfused_attention_seconds(
    scores: Number,
    query_dim: float,
    value_dim: float,
    *,
    flops_per_s: float,
    rate: float,
    dim_half: float,
    hbm_bytes_per_s: float,
    pointwise: float,
    softmax_bytes: float,
    gemms_per_pass: int,
) -> Number:
    """Two batched GEMMs per pass (`gemms_per_pass` 1 forward, 2 backward), then softmax and dropout over all scores.

    Each GEMM: the longer of 2 d FLOPs per score at rate d/(d + dim_half) of peak, and 2 bytes of score traffic. `scores` counts
    a s^2 b of a rank, the masked half included. softmax_bytes per score: 4 forward (+5 dropout), 6 backward (+5).
    Source: findings on public measurements, section 2; Korthikanti et al. 2022, section 4.1 (which tensors).
    """
    total = scores * softmax_bytes / (hbm_bytes_per_s * pointwise)
    for dim in (query_dim, value_dim):
        compute = 2.0 * scores * dim / (flops_per_s * rate * dim / (dim + dim_half))
        traffic = 2.0 * scores / (hbm_bytes_per_s * pointwise)
        total = total + gemms_per_pass * np.maximum(compute, traffic)
    return total


def ring_correction_bytes(tokens: Number, channels: Number, ring: Number) -> Number:
    """Traffic of merging partial results of ring attention: 10 bytes per output element and further step.

    fp32 result read and written, 16-bit partial read; under the load-balanced causal split half of the later steps
    touch half of the tokens, hence 3/4 (Liu et al. 2023, Ring Attention; Transformer Engine context_parallel.py).
    """
    return 0.75 * 10.0 * tokens * channels * (ring - 1.0)
