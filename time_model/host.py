"""What the host costs: the least time of a layer, and the growth of a step with the number of GPUs."""

from __future__ import annotations

import numpy as np

from specs.parameters import Number
from specs.software import StackTime

BACKWARD_OVER_FORWARD = 1.6
WITH_TENSOR_PARALLELISM = 1.15


def host_floor_seconds(gpu_forward: Number, gpu_backward: Number, tp: Number, stack: StackTime) -> tuple[Number, Number]:
    """Extra (forward, backward) time of one layer where the host launches slower than the GPU runs.

    Layer forward takes at least c, backward 1.6 c, both x 1.15 with tensor parallelism; c is the stack's, 0 under CUDA graphs.
    Source: findings on public measurements, sections 2-4 (0.9 ms measured on Megatron-DeepSpeed 2022-23; others weakly
    determined).
    """
    c = 0.0 if stack.cuda_graphs else stack.host_floor_seconds
    least = c * np.where(np.asarray(tp) > 1, WITH_TENSOR_PARALLELISM, 1.0)
    return np.maximum(least - gpu_forward, 0.0), np.maximum(BACKWARD_OVER_FORWARD * least - gpu_backward, 0.0)


def straggler_ratio(num_gpus: Number, growth: float) -> Number:
    """Step time over that on one 8-GPU node: 1 + g log2(GPUs / 8). Source: findings on public measurements, sections 2
    and 4."""
    return 1.0 + growth * np.maximum(np.log2(np.asarray(num_gpus) / 8.0), 0.0)


def straggler_seconds(step_seconds: Number, num_gpus: Number, growth: float) -> Number:
    """What waiting for the slowest rank adds to a step."""
    return step_seconds * (straggler_ratio(num_gpus, growth) - 1.0)
