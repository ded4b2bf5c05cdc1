"""What the host costs: the least time of a layer, and the growth of a step with the number of GPUs."""

from __future__ import annotations

import numpy as np

from specs.parameters import Number
from specs.software import StackTime

BACKWARD_OVER_FORWARD = 1.6
WITH_TENSOR_PARALLELISM = 1.15


def layer_launch_seconds(stack: StackTime, experts: Number, *, graphed: bool) -> tuple[Number, Number]:
    """Least forward time of one layer on the host: (attention and norms, routed experts), the second 0 in a dense layer.

    `experts`: local experts, 0 in a dense layer. `graphed`: attention, router and permutation are CUDA graphs, so that only
    the experts are launched one by one. Source: findings on public measurements, sections 2-4 (0.9 ms measured on
    Megatron-DeepSpeed 2022-23; others weakly determined); the experts' share from two published runs that take 9.2 and
    9.6 ms a layer, forward and backward, at 16 local experts whatever the GPU (docs/time_model.md, Host).
    """
    experts = np.asarray(experts, dtype=np.float64)
    routing = np.where(experts > 0.0, 0.0 if graphed else stack.moe_host_seconds, 0.0)
    return 0.0 * experts + (0.0 if graphed else stack.host_floor_seconds), routing + stack.expert_host_seconds * experts


def host_floor_seconds(
    gpu_forward: Number, gpu_backward: Number, tp: Number, stack: StackTime, launches: Number | None = None
) -> tuple[Number, Number]:
    """Extra (forward, backward) time of one layer where the host launches slower than the GPU runs.

    Layer forward takes at least c (`launches`, else the stack's), backward 1.6 c, both x 1.15 with tensor parallelism; 0
    under CUDA graphs.
    """
    c = stack.host_floor_seconds if launches is None else launches
    least = (0.0 if stack.cuda_graphs else 1.0) * c * np.where(np.asarray(tp) > 1, WITH_TENSOR_PARALLELISM, 1.0)
    return np.maximum(least - gpu_forward, 0.0), np.maximum(BACKWARD_OVER_FORWARD * least - gpu_backward, 0.0)


def straggler_ratio(num_gpus: Number, growth: float) -> Number:
    """Step time over that on one 8-GPU node: 1 + g log2(GPUs / 8). Source: findings on public measurements, sections 2
    and 4."""
    return 1.0 + growth * np.maximum(np.log2(np.asarray(num_gpus) / 8.0), 0.0)


def straggler_seconds(step_seconds: Number, num_gpus: Number, growth: float) -> Number:
    """What waiting for the slowest rank adds to a step."""
    return step_seconds * (straggler_ratio(num_gpus, growth) - 1.0)
