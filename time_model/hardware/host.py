"""What the host costs: the least time of a layer, and the growth of a step with the number of GPUs."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.software.software import StackTime

BACKWARD_OVER_FORWARD = 1.6
WITH_TENSOR_PARALLELISM = 1.15


def layer_launch_seconds(stack: StackTime, experts: Number, *, graphed: bool) -> Number:
    """Forward time that the host needs to launch one layer: c, and with experts what routing and each local expert add.

    `experts`: local experts, 0 in a dense layer. `graphed`: attention, router and permutation are CUDA graphs, so that only
    the experts are launched one by one. Source: findings on public measurements, sections 2-4 (0.9 ms measured on
    Megatron-DeepSpeed 2022-23; others weakly determined); the experts' share from two published runs that take 9.2 and
    9.6 ms a layer, forward and backward, at 16 local experts whatever the GPU (docs/time_model.md, Host).
    """
    experts = np.asarray(experts, dtype=np.float64)
    routing = np.where(experts > 0.0, stack.moe_host_seconds, 0.0)
    shared = 0.0 * routing if graphed else stack.host_floor_seconds + routing
    return shared + stack.expert_host_seconds * experts


def host_floor_seconds(
    gpu_forward: Number, gpu_backward: Number, tp: Number, stack: StackTime, launches: Number | None = None
) -> tuple[Number, Number]:
    """Extra (forward, backward) time of one layer because the host has to launch it.

    The host needs c (`launches`, else the stack's) for a layer's forward and 1.6 c for its backward, both x 1.15 with
    tensor parallelism, 0 under CUDA graphs. sqrt(GPU^2 + host^2) - GPU: where both take alike, short kernels wait for the
    host and long ones for the GPU, and neither hides the other wholly; far apart, the longer decides. Source: vTrain's
    single-node runs, whose layers take 3.8, 5.2, 7.0 and 11.7 ms where the GPU needs 1.9, 3.4, 6.0 and 11.5 and the host 3.5
    (docs/time_model.md, Host).
    """
    c = stack.host_floor_seconds if launches is None else launches
    host = (0.0 if stack.cuda_graphs else 1.0) * c * np.where(np.asarray(tp) > 1, WITH_TENSOR_PARALLELISM, 1.0)
    return np.hypot(gpu_forward, host) - gpu_forward, np.hypot(gpu_backward, BACKWARD_OVER_FORWARD * host) - gpu_backward


def straggler_ratio(num_gpus: Number, growth: float) -> Number:
    """Step time over that on one 8-GPU node: 1 + g log2(GPUs / 8). Source: findings on public measurements, sections 2
    and 4."""
    return 1.0 + growth * np.maximum(np.log2(np.asarray(num_gpus) / 8.0), 0.0)


def straggler_seconds(step_seconds: Number, num_gpus: Number, growth: float) -> Number:
    """What waiting for the slowest rank adds to a step."""
    return step_seconds * (straggler_ratio(num_gpus, growth) - 1.0)
