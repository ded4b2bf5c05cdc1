"""Mamba-2 and Gated DeltaNet in a serving engine: a state instead of a cache, read and written once for every new token."""

from __future__ import annotations

from typing import Protocol

from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.hybrid import (
    delta_rule_flops_per_token,
    gdn_convolved,
    gdn_projected,
    gdn_values,
    mamba_convolved,
    mamba_inner,
    mamba_projected,
    scan_flops_per_token,
    state_layer_bytes,
)
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.time_model.hardware.efficiency import efficiency_of

PROJECTED = {"mamba": mamba_projected, "gdn": gdn_projected}
"""Columns of in_proj."""
STATE_HBM = 0.8
"""Share of HBM's bandwidth at which states are read and written, that of other memory-bound kernels (docs/time_model.md,
pointwise); no measured row."""
UPDATE_KERNELS_S = 2 * 2.5e-6
"""Of one layer and iteration: the convolution's and the state's update."""


class RecurrentJob(Protocol):
    """What of a ServingJob is read here."""

    @property
    def model(self) -> ModelSpec: ...
    @property
    def gpu(self) -> GpuSpec: ...
    @property
    def plan(self) -> EnginePlan: ...


def widths(model: ModelSpec, kind: str, tp: int) -> tuple[float, float]:
    """(columns of in_proj, rows of out_proj) of one rank."""
    inner = mamba_inner(model) if kind == "mamba" else gdn_values(model)
    return PROJECTED[kind](model) / tp, inner / tp


def pointwise_bytes(model: ModelSpec, kind: str, tp: int) -> float:
    """Of one token in one sublayer: norm and residual 8 h, and 2 (G + 1) f/t of an activation, or convolution and gated norm of
    a recurrent layer, 4 bytes a channel each."""
    own = 0.0
    if kind == "mlp":
        own = 2.0 * (model.gate_factor + 1.0) * model.ffn_hidden_size / tp
    elif kind in PROJECTED:
        channels = mamba_convolved(model) if kind == "mamba" else gdn_convolved(model)
        own = 4.0 * channels / tp + 4.0 * widths(model, kind, tp)[1]
    return 8.0 * model.hidden_size + own


def decode_seconds(job: RecurrentJob, sequences: Number) -> Number:
    """All recurrent layers of all stages: every sequence's state is read and written once, 2 state bytes over HBM. 0 without
    such layers."""
    total: Number = 0.0 * sequences
    for kind in PROJECTED:
        layers = job.model.layer_kinds.count(kind)
        if layers:
            moved = 2.0 * state_layer_bytes(job.model, kind, job.plan.tp) * sequences
            total = total + layers * (moved / (STATE_HBM * job.gpu.hbm_bytes_per_s) + UPDATE_KERNELS_S)
    return total


def prefill_seconds(job: RecurrentJob, tokens: Number) -> Number:
    """All recurrent layers: the chunked scan or delta rule over the prompts' tokens, FLOPs over what training's kernels reach
    (time_model/operators/recurrent.py: they are the same). 0 without such layers."""
    reached, peak, total = efficiency_of(job.gpu).recurrent, job.gpu.sixteen_bit_flops_per_s, 0.0 * tokens
    for kind, flops, share in (
        ("mamba", scan_flops_per_token, reached.scan),
        ("gdn", delta_rule_flops_per_token, reached.delta_rule),
    ):
        layers = job.model.layer_kinds.count(kind)
        if layers:
            total = total + layers * (flops(job.model) / job.plan.tp * tokens / (peak * share) + UPDATE_KERNELS_S)
    return total
