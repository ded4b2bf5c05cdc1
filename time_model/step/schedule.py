"""What a step needs beside its layers: the pipeline schedule, data parallelism, the optimizer."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.numerics import TYPE_BYTES, Numerics
from autoconfig.specs.software.software import StackTime
from autoconfig.time_model.network.collectives import Group, Links, collective_seconds, exposed_seconds, send_seconds


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
    """Exposed sends of one step: 2 m v of the deciding stage (hidden by `overlap_share` where interleaved) and 2 (p - 1) to
    fill and drain. 0 for one stage. Source: findings on public measurements, section 2 (70 % hidden in NeMo of 2023 and
    later)."""
    steady = 2.0 * num_microbatches * vpp * np.where(vpp > 1, 1.0 - overlap_share, 1.0)
    return np.where(pp > 1, send * (steady + 2.0 * (pp - 1)), 0.0)


def block_recomputed_layers(layers: Number, vpp: Number, num_layers: int) -> Number:
    """Layers that full:block:N recomputes on a stage: min(N, layers of a chunk) in each of its v chunks (Megatron's
    block method)."""
    return np.minimum(num_layers * vpp, layers)


def bucketed_exposed_seconds(
    communication: Number, compute: Number, buckets: Number, pp: Number, vpp: Number, *, overlaps: bool, interference: float
) -> Number:
    """Exposed time of gradient reduction (or parameter gather) of one step beside the last backward (first forward).

    Without overlap all of it. With overlap, one of `buckets` (about one per layer) has nothing to hide behind, the rest hides
    behind the `compute` of one micro-batch; of v model chunks all but one finish (start) while the others compute for p
    micro-batches, so only 1/v of what is late is exposed, unless it outlasts these too. A share (`interference`) of what
    is hidden is exposed. Assumes buckets of one layer. Rajbhandari et al. 2020 (ZeRO) for the volumes; the order is
    Megatron-Core's.
    """
    if not overlaps:
        return communication
    hideable = communication * (1.0 - 1.0 / np.maximum(buckets, 1.0))
    late = communication - np.minimum(hideable, compute)
    late = np.where(vpp > 1, np.maximum(late / vpp, communication - compute * pp), late)
    return late + interference * (communication - late)


def fsdp_seconds(
    gather: Number, scatter: Number, forward: Number, backward: Number, *, stage: Number, interference: Number
) -> Number:
    """Exposed traffic of one layer and micro-batch under FSDP: weights gathered before forward and backward (stage 3),
    gradients reduce-scattered after backward (stages 2 and 3), each prefetched beside the layer's compute.

    max(compute, traffic) + i min(compute, traffic) - compute, for forward and for backward. Source: findings on public
    measurements, section 2; Zhao et al. 2023 (PyTorch FSDP). i is 0.5 (A100) to 0.7 (H100): measured on MosaicML's runs,
    whose rings move at the links' rate; a ring on slower wires (experts spread one to a node) takes as much less of the GPU
    (collectives.rate_share).
    """
    stage = np.asarray(stage)
    whole = np.where(stage == 3, gather, 0.0)
    behind = np.where(stage > 0, whole + scatter, 0.0)
    return exposed_seconds(whole, forward, interference) + exposed_seconds(behind, backward, interference)


def gradient_reduction_seconds(
    reduction: Number, backward: Number, buckets: Number, pp: Number, vpp: Number, stack: StackTime
) -> Number:
    """Exposed time of reducing the gradients once per step, beside the first stage's backward (the last one to finish)."""
    return bucketed_exposed_seconds(
        reduction, backward, buckets, pp, vpp, overlaps=stack.overlap_grad_reduce, interference=stack.overlap_interference
    )


def parameter_gather_seconds(
    gather: Number, forward: Number, buckets: Number, pp: Number, vpp: Number, stack: StackTime
) -> Number:
    """Exposed time of gathering the updated weights once per step, beside the first stage's forward (the first to start)."""
    return bucketed_exposed_seconds(
        gather, forward, buckets, pp, vpp, overlaps=stack.overlap_param_gather, interference=stack.overlap_interference
    )


def reduction_communication(parameters: Number, group: Group, links: Links, gradient_bytes: int, sharded: Number) -> Number:
    """Reduce-scatter of the gradients where the optimizer is sharded, else all-reduce."""
    total = parameters * gradient_bytes
    return np.where(
        sharded,
        collective_seconds("reduce_scatter", total, group, links),
        collective_seconds("all_reduce", total, group, links),
    )


def embedding_gradient_seconds(parameters: Number, pp: Number, crosses: Number, gradient_bytes: int, links: Links) -> Number:
    """Tied embeddings: first and last stage sum their gradients (all-reduce of two ranks: each sends its copy once). 0
    without pipeline.

    Source: Megatron-LM's embedding group (parallel_state.py).
    """
    return np.where(pp > 1, send_seconds(parameters * gradient_bytes, crosses, links), 0.0)


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
