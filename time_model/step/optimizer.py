"""Seconds of the optimizer step."""

from __future__ import annotations

from autoconfig.specs.models.parameters import Number
from autoconfig.specs.numerics import TYPE_BYTES, Numerics
from autoconfig.specs.software.software import StackTime


def optimizer_bytes_per_parameter(numerics: Numerics, stack: StackTime) -> float:
    """HBM traffic per updated parameter: master weight and both moments read and written, plus what the stack passes
    over beside.

    fp32 states and 26 bytes beside: 50. Source: findings on public measurements, section 2 (about 50 bytes).
    """
    states = (numerics.main_params_dtype, numerics.exp_avg_dtype, numerics.exp_avg_sq_dtype)
    return 2.0 * sum(TYPE_BYTES[name] for name in states) + stack.optimizer_extra_bytes


def optimizer_seconds(
    updated: Number,
    held: Number,
    ranks: Number,
    offload: Number,
    *,
    numerics: Numerics,
    stack: StackTime,
    gradient_bytes: int,
    hbm_bytes_per_s: float,
    host_bytes_per_s: float,
    cpu_memory_bytes_per_s: float,
) -> Number:
    """One Adam step: traffic of the `updated` parameters of this rank, zeroing the gradients of all `held`, and a fixed part.

    The `offload` share is updated on the CPU instead: gradients down and weights up over the host link (6 bytes), and the
    states through CPU memory. `ranks`: owners that broadcast one after the other, where the stack does that (InternEvo:
    findings, section 6). Source of the fixed 3 ms: findings on public measurements, section 2.
    """
    traffic = optimizer_bytes_per_parameter(numerics, stack)
    on_gpu = (1.0 - offload) * updated * traffic / hbm_bytes_per_s
    on_cpu = offload * updated * (6.0 / host_bytes_per_s + traffic / cpu_memory_bytes_per_s)
    zeroing = held * gradient_bytes / hbm_bytes_per_s
    return on_gpu + on_cpu + zeroing + stack.optimizer_fixed_seconds + stack.optimizer_seconds_per_rank * ranks
