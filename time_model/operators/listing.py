"""Every operator of one layer, the head and the embedding of a plan: what `autoconfig explain` lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from autoconfig.specs.json_record import Keywords, NotNegative
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.job import TrainingJob, shapes_of
from autoconfig.time_model.operators.layer_table import LayerTable, layer_table
from autoconfig.time_model.operators.operator import Operator

LAYERS = ("all", "dense", "encoder", "decoder", "mamba", "gdn", "attention", "mlp", "moe", "head", "embedding", "mtp")


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """One operator of one layer and one micro-batch on one rank, 0 where it does not apply."""

    operator: str
    """Its name."""
    layer: Annotated[str, Keywords(enum=LAYERS)]
    """all, dense or moe layers; encoder or decoder; of hybrids mamba, gdn, attention, mlp or moe; or head, embedding, mtp."""
    formula: str
    """Public function of time_model that priced it."""
    forward_seconds: NotNegative
    """Its forward."""
    dgrad_seconds: NotNegative
    """Gradient of the input; for operators without weights the whole backward."""
    wgrad_seconds: NotNegative
    """Gradient of the weights."""
    recompute_seconds: NotNegative
    """Its forward run again in backward under this plan's recomputation (of a layer that is recomputed, under full:block)."""
    forward_flops: NotNegative
    """Multiplications and additions of the forward."""
    forward_bytes: NotNegative
    """Through HBM, or sent where the operator communicates."""
    share_of_peak: NotNegative | None
    """Forward FLOPs over time and dense 16-bit (fp8 for fp8 GEMMs: the reached fp8 ceiling) rate; None without FLOPs."""


def explain_operators(scenario: Scenario, plan: TrainPlan) -> list[OperatorRow]:
    """Every operator of a layer, the head and the embedding of `plan`, and what a layer waits for the host, longest first
    within its layer kind."""
    layouts = scenario.layouts([plan])
    job = TrainingJob(scenario, layouts.by_settings()[0][0].beside(plan.recompute))
    shapes = shapes_of(layouts, job)
    table = layer_table(job, shapes, [plan.recompute])
    rows = [_row(op, plan.recompute) for op in table.operators] + _host_rows(table, job, plan.recompute)
    used = [row for row in rows if row.forward_seconds + row.dgrad_seconds + row.wgrad_seconds > 0.0]
    return sorted(
        used, key=lambda row: (LAYERS.index(row.layer), -(row.forward_seconds + row.dgrad_seconds + row.wgrad_seconds))
    )


def _host_rows(table: LayerTable, job: TrainingJob, recompute: Recompute) -> list[OperatorRow]:
    """What a layer of each kind waits for the host, beside its operators, in what runs again, too."""
    rows = []
    for layer, (forward, backward), whole, chosen in zip(table.kinds, table.floor, table.again, table.recompute, strict=True):
        if layer not in (*job.model.layer_kinds, *job.model.mtp_kinds):
            continue
        waiting, again = _number(forward), _number(whole if recompute.method == "block" else chosen)
        own = sum(
            _number(op.forward) * _recomputed_share(op, recompute) for op in table.operators if op.layer in ("all", layer)
        )
        rows.append(
            OperatorRow(
                operator="launches by the host",
                layer=layer,
                formula="host_floor_seconds",
                forward_seconds=waiting,
                dgrad_seconds=_number(backward),
                wgrad_seconds=0.0,
                recompute_seconds=max(again - own, 0.0),
                forward_flops=0.0,
                forward_bytes=0.0,
                share_of_peak=None,
            )
        )
    return rows


def _row(op: Operator, recompute: Recompute) -> OperatorRow:
    forward, flops = _number(op.forward), _number(op.flops)
    share = flops / (forward * op.peak_flops_per_s) if flops and forward and op.peak_flops_per_s else None
    return OperatorRow(
        operator=op.name,
        layer=op.layer,
        formula=op.formula,
        forward_seconds=forward,
        dgrad_seconds=_number(op.dgrad),
        wgrad_seconds=_number(op.wgrad),
        recompute_seconds=forward * _recomputed_share(op, recompute),
        forward_flops=flops,
        forward_bytes=_number(op.traffic),
        share_of_peak=share,
    )


def _recomputed_share(op: Operator, recompute: Recompute) -> float:
    if op.layer in ("head", "embedding", "mtp"):
        return 0.0
    if recompute.by_operator:
        return _number(op.again)
    return float(recompute.granularity == "full" or not set(op.modules).isdisjoint(recompute.modules))


def _number(value: object) -> float:
    return float(np.asarray(value).reshape(-1)[0])
