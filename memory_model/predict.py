"""Peak bytes of every pipeline stage for many plans at once, and of one plan with every part named.

Direction of calls: `estimate_memory` -> `tables.layer_tables` (per unique shape and recomputation) and
`tables.stage_terms` (per row and stage) -> the formulas. The combination below is the only place where parts are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memory_model import overhead
from memory_model.recomputation import checkpoints_per_chunk, recomputed_layers_per_chunk, returning_layers
from memory_model.tables import LayerTable, StageTerms, layer_tables, stage_terms
from specs.cluster import ClusterSpec
from specs.layouts import Layouts
from specs.model import ModelSpec
from specs.numerics import Numerics, Workload
from specs.recompute import Recompute
from specs.software import SoftwareStack

Floats = npt.NDArray[np.float64]
ROWS_PER_BLOCK = 8192
"""Rows combined at once, so that temporaries stay in the processor's cache."""
MOMENTS = ("mlp_backward", "attention_backward", "loss", "output_layer_backward", "optimizer_step")


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
        return np.asarray(overhead.fit_probability(self.peak_bytes, self.limit_bytes[:, None], self.device_bytes))

    @property
    def fits(self) -> npt.NDArray[np.bool_]:
        """[n, R]: the peak is within the limit, which is a fit probability of at least one half."""
        return self.peak_bytes <= self.limit_bytes[:, None]


def estimate_memory(
    *,
    model: ModelSpec,
    cluster: ClusterSpec,
    numerics: Numerics,
    stack: SoftwareStack,
    workload: Workload,
    layouts: Layouts,
    recomputes: Sequence[Recompute],
    margin: float = 0.0,
    detail: bool = False,
) -> MemoryEstimate:
    """Peak memory of every (layout, recompute option). With `detail` every stage and part (rows must then share one pp).

    `margin` is the share of device memory that must stay free. Illegal combinations get numbers too; legality is not
    decided here.
    """

    def priced(block: Layouts) -> tuple[LayerTable, StageTerms]:
        layer = layer_tables(model, cluster.gpu, numerics, stack, workload, block, recomputes)
        return layer, stage_terms(model, cluster, numerics, stack, workload, block, every=detail)

    nccl = overhead.nccl_bytes(layouts.tp, layouts.pp, layouts.cp, layouts.ep, layouts.dp)
    limit = np.asarray(overhead.allocatable_bytes(cluster.memory_bytes, nccl, margin), float)
    if detail:
        return _detailed(*priced(layouts), recomputes, limit, cluster.memory_bytes)
    peaks = np.empty((len(layouts), len(recomputes)))
    for start in range(0, len(layouts), ROWS_PER_BLOCK):
        rows = slice(start, start + ROWS_PER_BLOCK)
        layer, terms = priced(layouts.take(rows))
        for r, recompute in enumerate(recomputes):
            _, moments = _stage_moments(layer, terms, recompute, r)
            np.max(_largest(moments), axis=1, out=peaks[rows, r])
    return MemoryEstimate(peak_bytes=peaks, limit_bytes=limit, device_bytes=cluster.memory_bytes)


def _detailed(
    layer: LayerTable, terms: StageTerms, recomputes: Sequence[Recompute], limit: Floats, device_bytes: int
) -> MemoryEstimate:
    """Every stage with its parts, at the stage's largest moment."""
    stages, parts, chosen = [], [], []
    for r, recompute in enumerate(recomputes):
        held, moments = _stage_moments(layer, terms, recompute, r)
        per_stage = _largest(moments)
        moment = np.argmax(np.stack([np.broadcast_to(moments[name], per_stage.shape) for name in MOMENTS]), axis=0)
        stages.append(per_stage)
        chosen.append(moment)
        parts.append(_parts(layer, terms, recompute, r, held, moment))
    per_stage = np.stack(stages, axis=1)
    merged = {name: np.stack([p[name] for p in parts], axis=1) for name in parts[0]}
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


def _kept_share(terms: StageTerms, recompute: Recompute) -> Floats:
    """[n, S]: share of a stage's layers that full recomputation leaves alone."""
    if recompute.granularity != "full":
        return np.ones(terms.chunk_layers.shape)
    return 1.0 - recomputed_layers_per_chunk(recompute, terms.chunk_layers) / terms.chunk_layers


@dataclass(frozen=True, kw_only=True)
class _Stages:
    """[n, S] under one recompute option."""

    held: Floats
    """Activations saved from forward."""
    back: dict[str, Floats]
    """Moment -> recomputed activations that are back."""
    released: Floats
    """MLP activations of one layer, gone when attention's backward starts."""


def _stage_moments(layer: LayerTable, terms: StageTerms, recompute: Recompute, r: int) -> tuple[_Stages, dict[str, Floats]]:
    """What the stages hold and their total bytes by moment, under recompute option number `r`."""
    share = _kept_share(terms, recompute)
    held = np.zeros(terms.state.shape)
    for kind, table in layer.kinds.items():
        held += terms.layers_in_flight[kind] * table.kept[:, r, None]
    held *= share
    back_mlp, back_attention = (_largest_kind(terms, layer, name, r) for name in ("back_in_mlp", "back_in_attention"))
    if recompute.granularity == "full":
        inputs = checkpoints_per_chunk(recompute, terms.chunk_layers) * terms.chunks_in_flight
        held = held + inputs * layer.layer_input[:, None]
        back_mlp = returning_layers(recompute, terms.chunk_layers) * _largest_kind(terms, layer, "whole", r)
        back_attention, released = back_mlp, _largest_kind(terms, layer, "mlp_whole", r) * (back_mlp > 0)
    else:
        released = _largest_kind(terms, layer, "mlp_kept", r)
    base = terms.state + held
    moments = {
        "mlp_backward": base + back_mlp + _largest_kind(terms, layer, "mlp_backward", r),
        "attention_backward": base + back_attention - released + layer.attention_backward[:, None],
        "loss": base + terms.loss,
        "output_layer_backward": base + terms.output_layer_backward,
        "optimizer_step": terms.state + terms.optimizer_step,
    }
    return _Stages(held=held, back={"mlp_backward": back_mlp, "attention_backward": back_attention}, released=released), moments


def _largest_kind(terms: StageTerms, layer: LayerTable, name: str, r: int) -> Floats:
    """[n, S]: the largest value of a per-layer quantity over the kinds of layer (dense, moe) that each stage holds."""
    values: Floats | None = None
    for kind, table in layer.kinds.items():
        column = getattr(table, name)
        column = column[:, r] if column.ndim == 2 else column
        here = np.where(terms.layers_in_flight[kind] > 0, column[:, None], 0.0) if len(layer.kinds) > 1 else column[:, None]
        values = here if values is None else np.maximum(values, here)
    assert values is not None
    return values


def _parts(
    layer: LayerTable,
    terms: StageTerms,
    recompute: Recompute,
    r: int,
    stages: _Stages,
    moment: npt.NDArray[np.int64],
) -> dict[str, Floats]:
    """Every part [n, S] at each stage's largest moment."""
    shape = stages.held.shape
    share = _kept_share(terms, recompute)
    in_step = moment == MOMENTS.index("optimizer_step")
    parts: dict[str, Floats] = {name: np.broadcast_to(value, shape).copy() for name, value in terms.state_parts.items()}
    for kind, table in layer.kinds.items():
        for name, column in table.parts_kept[r].items():
            value = terms.layers_in_flight[kind] * column[:, None] * share
            parts[name] = parts.get(name, 0.0) + np.where(in_step, 0.0, value)
    activations = {name for table in layer.kinds.values() for name in table.parts_kept[r]}
    named = sum((parts[name] for name in activations), np.zeros(shape))
    parts["layer_input"] = np.where(in_step, 0.0, stages.held) - named
    parts["recomputed_activations"] = np.zeros(shape)
    for name in ("mlp_backward", "attention_backward"):
        chosen = moment == MOMENTS.index(name)
        parts["recomputed_activations"] = parts["recomputed_activations"] + np.where(chosen, stages.back[name], 0.0)
        value = _largest_kind(terms, layer, name, r) if name == "mlp_backward" else layer.attention_backward[:, None]
        parts[name] = np.where(chosen, value, 0.0)
    parts["mlp_released"] = -np.where(moment == MOMENTS.index("attention_backward"), stages.released, 0.0)
    for name in ("loss", "output_layer_backward", "optimizer_step"):
        parts[name] = np.where(moment == MOMENTS.index(name), getattr(terms, name), 0.0)
    return parts
