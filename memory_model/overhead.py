"""From bytes that tensors take to bytes that the device loses: CUDA context, NCCL, the allocator; and the chance to fit."""

from __future__ import annotations

import numpy as np
from autoconfig.memory_model.shapes import Number
from autoconfig.specs.software.software import StackMemory
from autoconfig.specs.units import GIB

CUDA_CONTEXT_BYTES = int(0.5 * GIB)
"""Driver context and loaded libraries, 0.4 to 0.6 GiB (findings; nvidia-smi of an idle torch process)."""
NCCL_BYTES_PER_GROUP = int(0.25 * GIB)
"""Channels and buffers of one communicator in use, 0.1 to 0.5 GiB (findings; an assumption, seen only in the OOM threshold)."""
ALLOCATOR_SHARE = 0.03
"""Reserved over allocated: 2.8 to 3.0 % on SimuMax B200 for tp 2 to 8 and short sequences."""
FIT_WIDTH_SHARE = 0.025
"""Width of the logistic in (limit - predicted) over device memory: 2 GiB on 80 GB (findings: Aleph Alpha, Brier 0.027)."""


def cuda_context_bytes() -> int:
    """CUDA_CONTEXT_BYTES, the same for every plan."""
    return CUDA_CONTEXT_BYTES


def workspace_bytes(stack: StackMemory) -> int:
    """GEMM and attention workspaces that stay allocated among the tensors; a fact of the software stack."""
    return stack.workspace_bytes


def nccl_bytes(tp: Number, pp: Number, cp: Number, ep: Number, dp: Number) -> Number:
    """One communicator per kind of parallelism in use (pipeline: two neighbours)."""
    groups = sum(np.greater(degree, 1).astype(float) for degree in (tp, cp, ep, dp)) + 2.0 * np.greater(pp, 1)
    return NCCL_BYTES_PER_GROUP * groups


def model_parallel_reserved_bytes(stack: StackMemory, tp: Number, pp: Number) -> Number:
    """What a stack is known to lose besides where tp or pp is above 1 (`StackMemory.model_parallel_reserved_gib`)."""
    return stack.model_parallel_reserved_gib * GIB * np.logical_or(np.greater(tp, 1), np.greater(pp, 1))


def allocator_bytes(allocated: Number) -> Number:
    """Reserved but not allocated: 3 % of the peak (6 to 8 % were measured at tp 1 and at 128k sequences, where the allocator
    gives back cached blocks before it fails)."""
    return ALLOCATOR_SHARE * np.asarray(allocated)


def allocatable_bytes(device_bytes: Number, nccl: Number, margin: float = 0.0) -> Number:
    """The most that tensors may take: what the driver reports less context, NCCL and the allocator's share, less the margin."""
    return (np.asarray(device_bytes) * (1.0 - margin) - cuda_context_bytes() - nccl) / (1.0 + ALLOCATOR_SHARE)


def fit_probability(predicted: Number, limit: Number, device_bytes: Number) -> Number:
    """Logistic in (limit - predicted): one half at the limit."""
    x = (np.asarray(limit) - predicted) / (FIT_WIDTH_SHARE * device_bytes)
    return 1.0 / (1.0 + np.exp(-np.clip(x, -40, 40)))
