"""Micro-batches whose activations a pipeline stage holds at its peak, exactly as the schedules run them."""

from __future__ import annotations

import numpy as np
from autoconfig.memory_model.shapes import Number

SCHEDULES = ("1f1b", "gpipe", "zb-h1", "zb-h2")
"""Interleaving is 1f1b with vpp above 1. Megatron plans use 1f1b; the others are here to compare."""


def warmup_chunks(pp: Number, vpp: Number, stage: Number, num_microbatches: Number) -> Number:
    """Forward passes of model chunks before a stage's first backward.

    1F1B: p - r - 1. Interleaved: 2 (p - r - 1) + (v - 1) p, at most m v
    (Narayanan et al. 2021, section 2.2; megatron-core pipeline_parallel/schedules.py, group size p).
    """
    pp, vpp = np.asarray(pp), np.asarray(vpp)
    plain = pp - stage - 1
    interleaved = 2 * (pp - stage - 1) + (vpp - 1) * pp
    return np.minimum(np.where(vpp > 1, interleaved, plain), num_microbatches * vpp)


def chunks_in_flight(pp: Number, vpp: Number, stage: Number, num_microbatches: Number, schedule: str = "1f1b") -> Number:
    """Model chunks (of 1/vpp of a stage's layers) held at the peak: min(m v, warm-up + 1).

    GPipe holds all m. Zero-bubble schedules keep weight-gradient inputs too, so that every stage holds p micro-batches
    with ZB-H1 and 2 p - 1 with ZB-H2 (Qi et al. 2023, Table 2). Stage 0 of the interleaved schedule equals Korthikanti et al.'s
    1 + (p - 1)/(p v) layers; later stages hold less.
    """
    everything = np.asarray(num_microbatches) * np.asarray(vpp)
    if schedule == "gpipe":
        return everything
    if schedule == "zb-h1":
        return np.minimum(everything, np.asarray(pp) + 0 * np.asarray(stage))
    if schedule == "zb-h2":
        return np.minimum(everything, 2 * np.asarray(pp) - 1 + 0 * np.asarray(stage))
    return np.minimum(everything, warmup_chunks(pp, vpp, stage, num_microbatches) + 1)


def chunk_counts(pp: Number, vpp: Number, in_flight: Number, chunk: int) -> Number:
    """How many of the first `in_flight` forward passes are of model chunk number `chunk`.

    The interleaved schedule runs p micro-batches of chunk 0, then p of chunk 1, ..., then the next p micro-batches.
    """
    pp, vpp, in_flight = np.asarray(pp), np.asarray(vpp), np.asarray(in_flight)
    whole, rest = np.divmod(in_flight, pp * vpp)
    counts = whole * pp + np.clip(rest - chunk * pp, 0, pp)
    return np.where(vpp > 1, np.where(chunk < vpp, counts, 0), in_flight if chunk == 0 else 0)
