"""What stays allocated when a step has ended: model state, workspaces, and what the allocator's blocks hold beside it."""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from autoconfig.memory_model.tables import kinds_of, stage_terms
from autoconfig.specs.hardware.cluster import CPU_ARCHITECTURE
from autoconfig.specs.layouts import Layouts, stage_table
from autoconfig.specs.models.parameters import embedding_parameters, layer_parameters, output_layer_parameters
from autoconfig.specs.scenario import TYPE_BYTES, Scenario
from autoconfig.specs.software.bitsandbytes import MOMENT_BYTES

Floats = npt.NDArray[np.float64]
MIB = 2**20
STAYS = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "dummy_weight_gradients", "workspace_bytes")
"""Parts of a stage's memory that are there all the time."""
HOPPER = 9.0
CUBLAS_WORKSPACES = 2
"""One for each thread that calls it: forward, and autograd's backward (ATen/cuda/CUDABlas.cpp)."""


def cublas_workspace_bytes(compute_capability: float | None, deterministic: bool) -> float:
    """Of one thread: 32 MiB from Hopper on, and where runs are deterministic (CUBLAS_WORKSPACE_CONFIG=:4096:8, one of two
    values that Megatron-LM asks for), else 8 MiB and 128 KiB. Source: ATen/cuda/CUDABlas.cpp, parseChosenWorkspaceSize."""
    return 32.0 * MIB if deterministic or (compute_capability or 0.0) >= HOPPER else 8.125 * MIB


def allocated_after_step(scenario: Scenario, layouts: Layouts, *, last: bool = False) -> Floats:
    """[n]: bytes allocated after the optimizer's step on the fullest stage, or on the last one: what Megatron-LM logs as
    mem-allocated-bytes."""
    terms = stage_terms(scenario, layouts, every=True)
    total = sum((terms.state_parts[name] for name in STAYS), np.zeros(terms.state.shape))
    gpu = scenario.cluster.gpu
    if gpu.architecture != CPU_ARCHITECTURE:
        each = cublas_workspace_bytes(gpu.compute_capability, scenario.numerics.deterministic)
        total = total + np.maximum(0.0, CUBLAS_WORKSPACES * each - terms.state_parts["workspace_bytes"])
    total = total + _main_gradients(scenario, layouts, terms.state_parts["gradient_bytes"])
    stage = np.full(len(layouts), -1) if last else total.argmax(axis=1)
    rows = np.arange(len(layouts))
    return np.asarray(total[rows, stage] + _unsplit(scenario, layouts, stage))


def _main_gradients(scenario: Scenario, layouts: Layouts, buffers: Floats) -> Floats:
    """[n, S]: fp32 copies of 16-bit gradients, 4 bytes a parameter, which Megatron's optimizer keeps until the next step begins
    where it is not sharded. Source: megatron-core, optimizer/optimizer.py, Float16OptimizerWithFloat16Params
    (_copy_model_grads_to_main_grads: main_param.grad = model_param.main_grad.float())."""
    numerics, stack = scenario.numerics, scenario.software
    wide = TYPE_BYTES[numerics.grad_reduce_dtype] == TYPE_BYTES["fp32"]
    if wide or numerics.weights_are_masters or stack.sharding != "megatron":
        return np.zeros_like(buffers)
    whole = np.logical_not(layouts.dist_opt) & (layouts.fsdp == 0)
    return np.where(whole[:, None], buffers * TYPE_BYTES["fp32"] / TYPE_BYTES[numerics.grad_reduce_dtype], 0.0)


def _unsplit(scenario: Scenario, layouts: Layouts, stage: npt.NDArray[np.int64]) -> Floats:
    """[n]: `unsplit_bytes` of the chosen stages."""
    stages, numerics = stage_table(scenario.model, layouts, every=True), scenario.numerics
    states = (numerics.main_params_dtype, numerics.exp_avg_dtype, numerics.exp_avg_sq_dtype)
    widths = tuple(TYPE_BYTES[name] for name in states)[numerics.precision == "fp32" :]
    if numerics.weights_are_masters:
        widths = (numerics.activation_bytes,) * 2
    if numerics.narrow_moments:
        widths = (*widths[:-2], int(MOMENT_BYTES), int(MOMENT_BYTES))
    found = []
    for row, at in enumerate(stage):
        tp, etp, ep = (int(getattr(layouts, name)[row]) for name in ("tp", "etp", "ep"))
        sizes: list[tuple[float, ...]] = []
        for kind in kinds_of(scenario.model):
            shapes = tuple(float(size) for size in layer_parameters(scenario.model, kind, tp, etp, ep).gemm_shapes)
            sizes += [shapes] * int(stages.layers_of(kind)[row, at])
        ends = (float(embedding_parameters(scenario.model, tp)),) * bool(stages.is_first[row, at])
        if stages.is_last[row, at] and (scenario.model.untie_embeddings_and_output_weights or layouts.pp[row] > 1):
            ends += (float(output_layer_parameters(scenario.model, tp)),)
        sharded = bool(layouts.dist_opt[row]) or layouts.fsdp[row] > 0
        ranks = int(layouts.dp[row] * layouts.cp[row]) if sharded else 1
        trained = numerics.trains_all and layouts.offload[row] == 0
        found.append(unsplit_bytes((ends, *sizes), numerics.activation_bytes, widths, ranks) if trained else 0.0)
    return np.array(found)


SMALL, LARGE_SEGMENT, MIN_OWN_SEGMENT, ROUNDED = MIB, 20 * MIB, 10 * MIB, 2 * MIB
"""kSmallSize, kLargeBuffer, kMinLargeAlloc, kRoundLarge of c10/cuda/CUDACachingAllocator.cpp."""


def _first_part(tensors: list[float], whole: float) -> list[float]:
    """A rank's part of the buffer of all tensors: neighbours, up to so much."""
    held, part = 0.0, []
    for size in tensors:
        if held >= whole:
            break
        part.append(min(size, whole - held))
        held += size
    return part


@lru_cache(maxsize=4096)
def unsplit_bytes(layers: tuple[tuple[float, ...], ...], weight: int, states: tuple[int, ...], ranks: int) -> float:
    """What torch's blocks hold beside the tensors in them: a block is split only where more than 1 MiB is left, and what is
    not counts as allocated.

    Tensors above 1 MiB are placed in the order in which Megatron-LM makes them: weights (one buffer where the optimizer is
    sharded, as are gradients always), master weights, then both moments of each. Best fit; segments of 20 MiB, from 10 MiB on
    of their own. Activations' blocks of the first step, which states may take, are left out.
    """
    tensors = [size for layer in layers for size in layer]
    if ranks > 1:
        tensors = _first_part(tensors, sum(tensors) / ranks)
    master, *moments = states if len(states) == 3 else (0, *states)
    asked = [size * weight for size in tensors] if ranks == 1 else []
    asked += [size * master for size in tensors]
    asked += [size * width for size in tensors for width in moments]
    free: list[float] = []
    lost = 0.0
    for size in asked:
        if size <= SMALL:
            continue
        at = bisect_left(free, size)
        if at < len(free):
            block = free.pop(at)
        else:
            block = LARGE_SEGMENT if size < MIN_OWN_SEGMENT else -(-size // ROUNDED) * ROUNDED
        rest = block - size
        if rest > SMALL:
            insort(free, rest)
        else:
            lost += rest
    return lost
