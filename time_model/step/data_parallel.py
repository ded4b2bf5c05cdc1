"""What data parallelism adds to a step: gradient reduction, parameter gather, and FSDP's per-layer traffic."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.software.software import StackTime
from autoconfig.time_model.network.collectives import Links, collective_seconds, exposed_seconds, send_seconds
from autoconfig.time_model.network.placement import Group


def bucketed_exposed_seconds(
    communication: Number, compute: Number, buckets: Number, pp: Number, vpp: Number, *, overlaps: bool, interference: float
) -> Number:
    """Felt time of gradient reduction (or parameter gather) of one step beside the last backward (first forward).

    Without overlap all of it. With overlap, one of `buckets` (about one per layer) has nothing to hide behind, the rest hides
    behind the `compute` of one micro-batch; of v model chunks all but one finish (start) while the others compute for p
    micro-batches, so only 1/v of what is late is felt, unless it outlasts these too. A share (`interference`) of what
    is hidden is
    felt. Assumes buckets of one layer. Rajbhandari et al. 2020 (ZeRO) for the volumes; the order is Megatron-Core's.
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
    """Felt traffic of one layer and micro-batch under FSDP: weights gathered before forward and backward (stage 3), gradients
    reduce-scattered after backward (stages 2 and 3), each prefetched beside the layer's compute.

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
    """Felt time of reducing the gradients once per step, beside the first stage's backward (the last one to finish)."""
    return bucketed_exposed_seconds(
        reduction, backward, buckets, pp, vpp, overlaps=stack.overlap_grad_reduce, interference=stack.overlap_interference
    )


def parameter_gather_seconds(
    gather: Number, forward: Number, buckets: Number, pp: Number, vpp: Number, stack: StackTime
) -> Number:
    """Felt time of gathering the updated weights once per step, beside the first stage's forward (the first one to start)."""
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
