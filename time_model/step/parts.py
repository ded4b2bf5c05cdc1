"""A step's seconds by the formula that priced them. Keys are names of public functions of time_model."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.hardware.host import straggler_seconds
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.operators.operator import Operator
from autoconfig.time_model.step.rows import Column, Rows
from autoconfig.time_model.step.step import block_recompute_seconds, compute_seconds, hidden_exchange_seconds, schedule


def step_parts(job: TrainingJob, rows: Rows) -> dict[str, Column]:
    """Formula -> seconds of the step, [n, R]: the deciding stage's m micro-batches by operator, then what is added
    once a step."""
    costs = compute_seconds(job, rows)
    timing = schedule(job, rows, costs)
    deciding = np.argmax(np.stack(timing.stages), axis=0)
    m = rows.num_microbatches[:, None]
    layers = [m * _chosen(deciding, [stage[kind] for stage in rows.stage_layers]) for kind in range(len(costs.whole))]
    first, last = m * _chosen(deciding, rows.stage_first), m * _chosen(deciding, rows.stage_last)
    parts: dict[str, Column] = {}

    def add(name: str, seconds: Number) -> None:
        parts[name] = parts.get(name, 0.0) + seconds

    for op in rows.table.operators:
        add(op.formula, _weight(op, layers, first, last, job.model.mtp_num_layers) * _whole(op, rows)[:, None])
    if job.expert_overlap_share:
        add("expert_all_to_all_seconds", -layers[-1] * hidden_exchange_seconds(job, rows))
    for kind, weight in enumerate(layers):
        launched = 1.0 - (rows.pp == 1) * float(job.graphs_without_pipeline)
        add("host_floor_seconds", weight * (np.add(*rows.table.floor[kind])[rows.index] * launched)[:, None])
        add("recompute_seconds", weight * rows.table.recompute[kind][rows.index])
        if costs.fsdp:
            add("fsdp_seconds", weight * costs.fsdp[kind])
    add("fsdp_seconds", np.maximum(first, last) * rows.fsdp_outside[:, None])
    for r, recompute in enumerate(rows.recomputes):
        if recompute.method == "block":
            per_stage = [block_recompute_seconds(rows, costs, stage, recompute.num_layers) for stage in rows.stage_layers]
            parts["recompute_seconds"][:, r] += (m * _chosen(deciding[:, r : r + 1], per_stage))[:, 0]
    add("pipeline_bubble_seconds", timing.bubble)
    add("gradient_reduction_seconds", timing.reduction)
    add("parameter_gather_seconds", timing.gather)
    for name, column in (
        ("p2p_seconds", rows.p2p),
        ("embedding_gradient_seconds", rows.embedding_gradient),
        ("optimizer_seconds", rows.optimizer),
    ):
        add(name, column[:, None] + np.zeros_like(timing.bubble))
    add("straggler_seconds", straggler_seconds(sum(parts.values()), rows.num_gpus[:, None], job.software.straggler_growth))
    return parts


def _chosen(deciding: Number, per_stage: list[Column]) -> Number:
    """The column of the stage that decides, [n, R]."""
    return np.take_along_axis(np.stack(per_stage, axis=1), deciding, axis=1)


def _weight(op: Operator, layers: list[Number], first: Number, last: Number, depths: int) -> Number:
    """How often an operator runs in the step on the deciding stage, [n, R]."""
    by_layer = {
        "dense": layers[0],
        "moe": layers[-1],
        "all": sum(layers),
        "embedding": first,
        "head": last * (1 + depths),
        "mtp": last * depths,
    }
    return by_layer[op.layer]


def _whole(op: Operator, rows: Rows) -> Column:
    seconds: Column = np.broadcast_to(op.forward + op.dgrad + op.wgrad, rows.table.embedding[0].shape)[rows.index]
    return seconds
