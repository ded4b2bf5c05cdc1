"""The pipeline schedule: 1F1B and its interleaved form, with stages of different length."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number


def pipeline_bubble_seconds(longest: Number, all_stages: Number, vpp: Number) -> Number:
    """Idle time of the stage that decides: (sum of the other stages) / v.

    The longest stage works m times in a row; before and after it waits for one micro-batch to pass all other stages, in
    chunks of 1/v. With p equal stages S this is (p - 1) S / v: over the ideal m S the fraction (p - 1)/(m v) of
    Narayanan et al. 2021, section 2.2.2. `longest` and `all_stages` are forward + backward of one micro-batch.
    """
    return (all_stages - longest) / vpp


def p2p_message_bytes(tokens: Number, hidden: int, activation_bytes: int, divided: Number) -> Number:
    """Activations of one micro-batch between stages, over what a rank sends of it (tp with SP or scatter-gather, else 1).

    Source: Narayanan et al. 2021, sections 3.2 and 4.1; Korthikanti et al. 2022.
    """
    return tokens * hidden * activation_bytes / divided


def p2p_seconds(send: Number, pp: Number, vpp: Number, num_microbatches: Number, overlap_share: float) -> Number:
    """Felt sends of one step: 2 m v of the deciding stage (hidden by `overlap_share` where interleaved) and 2 (p - 1) to fill
    and drain. 0 for one stage. Source: findings on public measurements, section 2 (70 % hidden in NeMo of 2023 and later)."""
    steady = 2.0 * num_microbatches * vpp * np.where(vpp > 1, 1.0 - overlap_share, 1.0)
    return np.where(pp > 1, send * (steady + 2.0 * (pp - 1)), 0.0)


def block_recomputed_layers(layers: Number, vpp: Number, num_layers: int) -> Number:
    """Layers that full:block:N recomputes on a stage: min(N, layers of a chunk) in each of its v chunks (Megatron's
    block method)."""
    return np.minimum(num_layers * vpp, layers)
