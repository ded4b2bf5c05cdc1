"""Peak bytes of every pipeline stage for many plans at once, and of one plan with every part named.

Direction of calls: `estimate_memory` -> `tables.layer_tables` (per unique shape and recomputation) and
`tables.stage_terms` (per row and stage) -> the formulas. The combination below is the only place where parts are added up.

From bytes that tensors take to bytes that the device loses (CUDA context, NCCL, the allocator), and the chance to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.memory_model.activations import (
    Number,
    checkpoints_per_chunk,
    mlp_released,
    recomputed_activations,
    recomputed_layers_per_chunk,
)
from autoconfig.memory_model.alike import alike_in_memory
from autoconfig.memory_model.fsdp import ACCUMULATED, FIRST_LAYER, LAYERS, NEXT_LAYER, OUTPUT
from autoconfig.memory_model.peaks import ROUNDING, PeakTables
from autoconfig.memory_model.tables import LayerBytes, StageTerms, layer_tables, least_state_bytes, stage_terms
from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import CPU_ARCHITECTURE
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import StackMemory

Floats = npt.NDArray[np.float64]
MOMENTS = (
    "mlp_backward", "attention_backward", "loss", "output_layer_backward", FIRST_LAYER, "embedding_backward",
    "optimizer_step_bytes",
)  # fmt: skip


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
        both = layer_tables(scenario, layouts, recomputes), stage_terms(scenario, layouts, every=True)
        return _detailed(*both, recomputes, limit, device)
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


@dataclass(frozen=True, kw_only=True)
class _Fixed:
    """What no recompute option changes: [n, S]."""

    layer: LayerBytes
    terms: StageTerms
    present: dict[str, npt.NDArray[np.bool_]]
    """Kind of layer -> the stage holds some."""
    mlp_backward: Floats
    attention_backward: Floats
    whole: Floats
    mlp_whole: Floats

    @classmethod
    def of(cls, layer: LayerBytes, terms: StageTerms) -> _Fixed:
        present = {kind: held > 0 for kind, held in terms.layers_in_flight.items()}
        largest = {name: _largest_of_kinds(layer.columns(name), present) for name in ("mlp_backward", "whole", "mlp_whole")}
        attention = layer.attention_backward[layer.shape, None]
        return cls(layer=layer, terms=terms, present=present, attention_backward=attention, **largest)

    def largest(self, name: str, r: int) -> Floats:
        """[n, S]: the largest value over the kinds of layer on each stage of a column that depends on the recompute option."""
        return _largest_of_kinds(self.layer.columns(name, r), self.present)


def _largest_of_kinds(columns: dict[str, Floats], present: dict[str, npt.NDArray[np.bool_]]) -> Floats:
    if len(columns) == 1:
        return next(iter(columns.values()))[:, None]
    values = [np.where(present[kind], column[:, None], 0.0) for kind, column in columns.items()]
    return np.maximum.reduce(values)


def _detailed(
    layer: LayerBytes, terms: StageTerms, recomputes: Sequence[Recompute], limit: Floats, device_bytes: int
) -> MemoryEstimate:
    """Every stage with its parts, at the stage's largest moment."""
    fixed = _Fixed.of(layer, terms)
    stages, parts, chosen = [], [], []
    for r, recompute in enumerate(recomputes):
        held, moments = _stage_moments(fixed, recompute, r)
        per_stage = _largest(moments)
        moment = np.argmax(np.stack([np.broadcast_to(moments[name], per_stage.shape) for name in MOMENTS]), axis=0)
        stages.append(per_stage)
        chosen.append(moment)
        parts.append(_parts(fixed, recompute, r, held, moment))
    per_stage = np.stack(stages, axis=1)
    names = dict.fromkeys(name for option in parts for name in option)  # an option may recompute the whole of a part
    merged = {name: np.stack([p.get(name, np.zeros(p["layer_input"].shape)) for p in parts], axis=1) for name in names}
    return MemoryEstimate(
        peak_bytes=per_stage.max(axis=2),
        limit_bytes=limit,
        device_bytes=device_bytes,
        per_stage_bytes=per_stage,
        parts=merged,
        moment=np.stack(chosen, axis=1),
    )


def _largest(moments: dict[str, Floats]) -> Floats:
    largest = moments["mlp_backward"]
    for name in MOMENTS[1:]:
        largest = np.maximum(largest, moments[name])
    return largest


@dataclass(frozen=True, kw_only=True)
class _Stages:
    """[n, S] under one recompute option."""

    held: Floats
    """Activations saved from forward."""
    inputs: Floats
    """The part of `held` that is inputs of checkpointed layers."""
    back: dict[str, Floats]
    """Moment -> recomputed activations that are back."""
    released: Floats
    """MLP activations of one layer, gone when attention's backward starts."""


def _held(layer: LayerBytes, terms: StageTerms, recompute: Recompute, r: int) -> tuple[Floats, Floats]:
    """Activations saved from forward, and the part of them that is inputs of checkpointed layers."""
    held = np.zeros(terms.state.shape)
    for kind, kept in layer.columns("kept", r).items():
        held += terms.layers_in_flight[kind] * kept[:, None]
    inputs: Floats = np.zeros((1, 1))
    if recompute.granularity == "full":
        held *= 1.0 - recomputed_layers_per_chunk(recompute, terms.chunk_layers) / terms.chunk_layers
        checkpoints = checkpoints_per_chunk(recompute, terms.chunk_layers, layer.sublayers) * terms.chunks_in_flight
        inputs = checkpoints * layer.layer_input[:, None]
        held += inputs
    return held, inputs


def _stage_moments(fixed: _Fixed, recompute: Recompute, r: int) -> tuple[_Stages, dict[str, Floats]]:
    """What the stages hold and their total bytes by moment, under recompute option number `r`."""
    terms = fixed.terms
    held, inputs = _held(fixed.layer, terms, recompute, r)
    back_mlp, back_attention = (
        recomputed_activations(recompute, terms.chunk_layers, fixed.whole, fixed.largest(name, r), fixed.layer.sublayers)
        for name in ("back_in_mlp", "back_in_attention")
    )
    released = mlp_released(recompute, fixed.mlp_whole, fixed.largest("mlp_kept", r))
    base, units = terms.state - terms.absent_gradients + held, terms.unit_bytes
    during = {
        "mlp_backward": back_mlp + fixed.mlp_backward + terms.tied_weight_gradient,
        "attention_backward": back_attention - released + fixed.attention_backward + terms.tied_weight_gradient,
    }
    accumulated = accumulated_gradients(terms, held)
    base = base + accumulated
    behind = chunk_behind(held, terms.chunks_in_flight, terms.chunk_layers)
    layers, _ = _beside_layers(terms, held)
    moments = {
        **{name: base - terms.final_released + layers + size for name, size in during.items()},
        "loss": base + units["loss"] + terms.loss,
        "output_layer_backward": base
        + np.where(units_reduced(terms), units[OUTPUT], units["output_layer_backward"] + terms.output_layer_backward),
        FIRST_LAYER: terms.state
        + accumulated
        - terms.final_released
        + held
        - behind
        + units[FIRST_LAYER]
        + np.maximum(*during.values()),
        "embedding_backward": terms.state
        + terms.unit_bytes[ACCUMULATED]
        - terms.final_released
        + held
        - held / terms.chunks_in_flight
        + units["embedding_backward"]
        + terms.embedding_backward
        + terms.tied_weight_gradient,
        "optimizer_step_bytes": terms.state + terms.optimizer_step_bytes,
    }
    back = {"mlp_backward": back_mlp, "attention_backward": back_attention}
    return _Stages(held=held, inputs=inputs, back=back, released=released), moments


def chunk_behind(held: Floats, chunks: Floats, layers: Floats) -> Floats:
    """Of `held`: activations of a chunk whose first layer runs backward, without that layer's own."""
    return held / chunks * (1.0 - 1.0 / np.maximum(layers, 1.0))


def accumulated_gradients(terms: StageTerms, held: Floats) -> Floats:
    """What of whole gradients in a pipeline exceeds the activations of a micro-batch, which are gone when they come."""
    return np.maximum(terms.unit_bytes[ACCUMULATED] - held / terms.chunks_in_flight, 0.0)


def units_reduced(terms: StageTerms) -> npt.NDArray[np.bool_]:
    """[n, S]: the reduction of the output layer's gradients holds more than its backward."""
    moment = terms.unit_bytes["output_layer_backward"] + terms.output_layer_backward
    return np.asarray(terms.has_output & (terms.unit_bytes[OUTPUT] > moment))


def _beside_layers(terms: StageTerms, held: Floats) -> tuple[Floats, Floats]:
    """(FSDP's units beside the backward of the last layer or of the one before it, whichever is more, less the activations that
    are gone then; these)."""
    one = held / terms.chunks_in_flight / np.maximum(terms.chunk_layers, 1.0)
    last, following = terms.unit_bytes[LAYERS], terms.unit_bytes[NEXT_LAYER] - one
    second = (terms.chunk_layers > 2) & (following > last)
    return np.where(second, following, last), np.where(second, one, 0.0)


def _parts(fixed: _Fixed, recompute: Recompute, r: int, stages: _Stages, moment: npt.NDArray[np.int64]) -> dict[str, Floats]:
    """Every part [n, S] at each stage's largest moment; they sum to the peak."""
    terms, shape = fixed.terms, stages.held.shape
    share = 1.0 - recomputed_layers_per_chunk(recompute, terms.chunk_layers) / terms.chunk_layers
    at = {name: moment == number for number, name in enumerate(MOMENTS)}
    in_first = at[FIRST_LAYER]
    mlp = stages.back["mlp_backward"] + fixed.mlp_backward
    in_mlp = mlp >= stages.back["attention_backward"] - stages.released + fixed.attention_backward
    at["mlp_backward"] = at["mlp_backward"] | (in_first & in_mlp)
    at["attention_backward"] = at["attention_backward"] | (in_first & ~in_mlp)
    parts = {name: np.broadcast_to(value, shape).copy() for name, value in terms.state_parts.items()}
    for kind, table in fixed.layer.kinds.items():
        for name, column in table.parts_kept[r].items():
            value = terms.layers_in_flight[kind] * column[fixed.layer.shape, None] * share
            parts[name] = parts.get(name, 0.0) + np.where(at["optimizer_step_bytes"], 0.0, value)
    parts["layer_input"] = np.where(at["optimizer_step_bytes"], 0.0, stages.inputs)
    parts["recomputed_activations"] = sum(
        (np.where(at[name], back, 0.0) for name, back in stages.back.items()), np.zeros(shape)
    )
    parts["mlp_released"] = -np.where(at["attention_backward"], stages.released, 0.0)
    for name in ("mlp_backward", "attention_backward"):
        parts[name] = np.where(at[name], getattr(fixed, name), 0.0)
    for name in ("loss", "output_layer_backward", "embedding_backward", "optimizer_step_bytes"):
        parts[name] = np.where(at[name], getattr(terms, name), 0.0)
    waiting = at["mlp_backward"] | at["attention_backward"] | at["embedding_backward"]
    parts["tied_weight_gradient"] = np.where(waiting, terms.tied_weight_gradient, 0.0)
    late = at["embedding_backward"] | at["optimizer_step_bytes"] | in_first
    parts["gradient_bytes"] -= np.where(late, 0.0, terms.absent_gradients)
    behind = chunk_behind(stages.held, terms.chunks_in_flight, terms.chunk_layers)
    layers, gone = _beside_layers(terms, stages.held)
    released = {"embedding_backward": stages.held / terms.chunks_in_flight, FIRST_LAYER: behind, LAYERS: gone}
    at[LAYERS] = ~in_first & (at["mlp_backward"] | at["attention_backward"])
    parts["chunk_released"] = -sum((np.where(at[name], size, 0.0) for name, size in released.items()), np.zeros(shape))
    reduced = units_reduced(terms)
    parts["output_layer_backward"] = np.where(reduced, 0.0, parts["output_layer_backward"])
    output = np.where(reduced, terms.unit_bytes[OUTPUT], terms.unit_bytes["output_layer_backward"])
    for name, size in {**terms.unit_bytes, LAYERS: layers + gone, "output_layer_backward": output}.items():
        if name in at:
            parts["fsdp_unit_bytes"] = parts["fsdp_unit_bytes"] + np.where(at[name], size, 0.0)
    late = np.where(at["embedding_backward"], terms.unit_bytes[ACCUMULATED], accumulated_gradients(terms, stages.held))
    parts["fsdp_unit_bytes"] = parts["fsdp_unit_bytes"] + np.where(at["optimizer_step_bytes"], 0.0, late)
    parts["final_norm"] -= np.where(at[LAYERS] | in_first | at["embedding_backward"], terms.final_released, 0.0)
    return parts


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
