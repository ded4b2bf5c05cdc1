"""Peak bytes of every pipeline stage for many plans at once, and of one plan with every part named.

Direction of calls: `estimate_memory` -> `peaks.PeakTables`, where parts are added up -> `tables.layer_tables` (per unique shape
and recomputation) and `tables.stage_terms` (per row and stage) -> the formulas.

From bytes that tensors take to bytes that the device loses (CUDA context, NCCL, the allocator), and the chance to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.memory_model.activations import Number
from autoconfig.memory_model.alike import alike_in_memory
from autoconfig.memory_model.peaks import ROUNDING, PeakTables
from autoconfig.memory_model.tables import least_state_bytes
from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import CPU_ARCHITECTURE
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import StackMemory

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Predicted bytes. n rows, R recompute options, S priced stages."""

    peak_bytes: Floats
    """[n, R]: peak allocated bytes of the worst stage (what torch.cuda.max_memory_allocated would say)."""
    limit_bytes: Floats
    """[n]: the most that may be allocated on this GPU under this plan."""
    device_bytes: int
    """What the driver reports for this GPU."""
    per_stage_bytes: Floats | None = None
    """[n, R, S], with detail."""
    parts: dict[str, Floats] = field(default_factory=dict)
    """Part -> [n, R, S] at each stage's largest moment, with detail; they sum to per_stage_bytes."""
    moment: npt.NDArray[np.int64] | None = None
    """[n, R, S] index into MOMENTS, with detail."""

    @property
    def fit_probability(self) -> Floats:
        """[n, R]: chance that the plan runs without running out of memory."""
        return np.asarray(fit_probability(self.peak_bytes, self.limit_bytes[:, None], self.device_bytes))

    @property
    def fits(self) -> npt.NDArray[np.bool_]:
        """[n, R]: the peak is within the limit, which is a fit probability of at least one half."""
        return self.peak_bytes <= self.limit_bytes[:, None]


def estimate_memory(
    scenario: Scenario, layouts: Layouts, recomputes: Sequence[Recompute], *, margin: float = 0.0, detail: bool = False
) -> MemoryEstimate:
    """Peak memory of every (layout, recompute option). With `detail` every stage and part; rows
    with fewer stages repeat their last one.

    `margin` is the share of device memory that must stay free. Illegal combinations get numbers too; legality is not decided
    here.
    """
    limit, device = _limits(scenario, layouts, margin), scenario.cluster.memory_bytes
    if detail:
        stages, moment, parts = PeakTables.of(scenario, layouts, recomputes, named=True).detailed()
        peaks = stages.max(axis=2)
        return MemoryEstimate(
            peak_bytes=peaks, limit_bytes=limit, device_bytes=device, per_stage_bytes=stages, parts=parts, moment=moment
        )
    tables = PeakTables.of(scenario, layouts, recomputes) if len(layouts) and recomputes else None
    peaks = np.empty((len(layouts), len(recomputes))) if tables is None else tables.peaks(np.arange(len(layouts)))
    return MemoryEstimate(peak_bytes=peaks, limit_bytes=limit, device_bytes=device)


@dataclass(frozen=True, kw_only=True)
class FittingPlans:
    """Which of n layouts x R recompute options fit."""

    fits: npt.NDArray[np.bool_]
    """[n, R]"""
    limit_bytes: Floats
    """[n]"""
    tables: PeakTables | None
    """Of the layouts that may fit."""
    number: npt.NDArray[np.int64]
    """[n]: of a layout among these."""

    def peak_bytes(self, rows: npt.NDArray[np.int64]) -> Floats:
        """[rows, R]: the peaks of layouts of which some plan fits."""
        assert self.tables is not None or not len(rows)
        return np.empty((0, self.fits.shape[1])) if self.tables is None else self.tables.peaks(self.number[rows])


def plans_that_fit(
    scenario: Scenario,
    layouts: Layouts,
    recomputes: Sequence[Recompute],
    legal: npt.NDArray[np.bool_],
    *,
    margin: float = 0.0,
    run: Callable[[Callable[[Any], None], Sequence[Any]], Iterable[None]] = map,
) -> FittingPlans:
    """`estimate_memory(...).fits` of the `legal` ones [n, R], without the peaks of layouts that cannot fit: bounds first. Which
    options are legal must depend on a layout's stages alone. `run` is `map`, or that of a pool of threads."""
    limit = _limits(scenario, layouts, margin)
    fits = np.zeros(legal.shape, bool)
    hopeful = np.flatnonzero(least_state_bytes(scenario, layouts) * (1 - ROUNDING) <= limit)
    tables = None
    number = np.full(len(layouts), -1)
    if len(hopeful) and recomputes:
        first, number[hopeful] = alike_in_memory(scenario, layouts.take(hopeful), limit[hopeful])
        some = hopeful[first]
        tables = PeakTables.of(scenario, layouts.take(some), recomputes)
        fits[hopeful] = tables.fits(limit[some], legal[some], run)[number[hopeful]]
    return FittingPlans(fits=fits, limit_bytes=limit, tables=tables, number=number)


def _limits(scenario: Scenario, layouts: Layouts, margin: float) -> Floats:
    """[n]: the most that may be allocated."""
    cluster = scenario.cluster
    nccl = nccl_bytes(layouts.tp, layouts.pp, layouts.cp, layouts.ep, layouts.dp) + dispatch_buffer_bytes(scenario, layouts)
    if cluster.gpu.architecture == CPU_ARCHITECTURE:  # no driver context, no NCCL: jobs hold each rank to the limit itself
        return np.full(len(layouts), cluster.memory_bytes * (1.0 - margin))
    nccl = nccl + model_parallel_reserved_bytes(scenario.software.memory, layouts.tp, layouts.pp)
    fragments = scenario.software.memory.fragments
    return np.asarray(allocatable_bytes(cluster.memory_bytes, nccl, margin, fragments), float)


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


def nccl_bytes(tp: Number, pp: Number, cp: Number, ep: Number, dp: Number) -> Number:
    """One communicator per kind of parallelism in use (pipeline: two neighbours)."""
    groups = sum(np.greater(degree, 1).astype(float) for degree in (tp, cp, ep, dp)) + 2.0 * np.greater(pp, 1)
    return NCCL_BYTES_PER_GROUP * groups


def dispatch_buffer_bytes(scenario: Scenario, layouts: Layouts) -> Number:
    """HybridEP's registered buffers, outside of the allocator: ep T/u h activations, h of the experts (dispatch and combine
    share them), the routing map of ep T/u E fp32 twice, and T/u h activations for every further link domain. 0 for other
    dispatchers and without experts.

    Source: deepseek-ai/DeepEP, branch hybrid-ep (buffer allocation); no measured peak.
    """
    model = scenario.model
    registered = layouts.where(lambda settings: model.is_moe and settings.dispatcher == "hybridep")
    if not registered.any():
        return np.zeros(len(layouts))
    tokens = layouts.mbs * scenario.workload.seq_length / layouts.cp / np.where(layouts.sp, layouts.tp, 1)
    domains = np.ceil(layouts.ep * layouts.etp / scenario.cluster.link_domain_size)
    token_bytes = model.expert_width * scenario.numerics.activation_bytes
    inside = layouts.ep * tokens * (token_bytes + 8.0 * (model.num_moe_experts or 0))
    return np.where(registered & (layouts.ep > 1), inside + (domains - 1.0) * tokens * token_bytes, 0.0)


def model_parallel_reserved_bytes(stack: StackMemory, tp: Number, pp: Number) -> Number:
    """What a stack is known to lose besides where tp or pp is above 1 (`StackMemory.model_parallel_reserved_gib`)."""
    return stack.model_parallel_reserved_gib * GIB * np.logical_or(np.greater(tp, 1), np.greater(pp, 1))


def allocator_bytes(allocated: Number) -> Number:
    """Reserved but not allocated: 3 % of the peak (6 to 8 % were measured at tp 1 and at 128k sequences, where the allocator
    gives back cached blocks before it fails)."""
    return ALLOCATOR_SHARE * np.asarray(allocated)


def allocatable_bytes(device_bytes: Number, nccl: Number, margin: float = 0.0, fragments: float = 0.0) -> Number:
    """The most that tensors may take: what the driver reports less context, NCCL and the allocator's share, less the margin.
    `fragments`: share that is lost besides without expandable segments (StackMemory.fragments)."""
    lost = ALLOCATOR_SHARE + fragments
    return (np.asarray(device_bytes) * (1.0 - margin) - cuda_context_bytes() - nccl) / (1.0 + lost)


def fit_probability(predicted: Number, limit: Number, device_bytes: Number) -> Number:
    """Logistic in (limit - predicted): one half at the limit."""
    x = (np.asarray(limit) - predicted) / (FIT_WIDTH_SHARE * device_bytes)
    return 1.0 / (1.0 + np.exp(-np.clip(x, -40, 40)))


def headroom_bytes(chance: float, device_bytes: float) -> float:
    """Bytes below the limit from which `fit_probability` is at least `chance`, above 0 and below 1: its inverse."""
    return FIT_WIDTH_SHARE * device_bytes * float(np.log(chance / (1.0 - chance)))
