"""From layers to the step: stages, schedule, data parallelism. Tables [rows, recomputes]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.hardware.host import straggler_ratio
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.step.data_parallel import fsdp_seconds, gradient_reduction_seconds, parameter_gather_seconds
from autoconfig.time_model.step.pipeline import block_recomputed_layers, pipeline_bubble_seconds
from autoconfig.time_model.step.rows import Column, Rows


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """[kind]: seconds of one layer and micro-batch on each row, [n, R] or [n]."""

    whole: list[Number]
    """Forward, backward, recomputation and FSDP's felt traffic; full:block columns without their recomputation."""
    forward: list[Column]
    fsdp: list[Number]


def compute_seconds(job: TrainingJob, rows: Rows) -> LayerCosts:
    """Gather the layer table by row and add what FSDP's traffic makes felt."""
    table, index = rows.table, rows.index
    whole, forward, felt = [], [], []
    for kind, (fore, back, again) in enumerate(zip(table.forward, table.backward, table.recompute, strict=True)):
        cost = (again + (fore + back)[:, None]).take(index, axis=0)
        forward.append(fore[index])
        if job.graphs_without_pipeline:
            floor = [part[index] * (rows.pp == 1) for part in table.floor[kind]]
            cost, forward[-1] = cost - (floor[0] + floor[1])[:, None], forward[-1] - floor[0]
        if kind == len(table.forward) - 1 and job.expert_overlap_share:
            cost = cost - hidden_exchange_seconds(job, rows)
        if rows.fsdp_gather:
            extra = fsdp_seconds(
                rows.fsdp_gather[kind][:, None],
                rows.fsdp_scatter[kind][:, None],
                forward[-1][:, None],
                cost - forward[-1][:, None],
                stage=rows.fsdp[:, None],
                interference=rows.fsdp_interference[kind][:, None],
            )
            felt.append(extra)
            cost = cost + extra
        whole.append(cost)
    return LayerCosts(whole=whole, forward=forward, fsdp=felt)


def hidden_exchange_seconds(job: TrainingJob, rows: Rows) -> Number:
    """Expert all-to-all of one layer that the other micro-batch's compute hides, [n, R]: interleaved stages, no full
    recomputation.

    Source: Megatron-Core's combined 1F1B schedule (overlap_moe_expert_parallel_comm) and what it asks for; the share is the
    stack's, measured on one pair of runs.
    """
    whole = np.array([recompute.granularity != "full" for recompute in rows.recomputes], dtype=np.float64)
    hidden = job.expert_overlap_share * rows.table.expert_exchange
    return (np.take(hidden, rows.index) * (rows.vpp > 1))[:, None] * whole


def outside_seconds(rows: Rows, stage: int) -> Column:
    """Embedding, head and their FSDP traffic per micro-batch on one priced stage, [n]."""
    table, index = rows.table, rows.index
    embedding, head = (table.embedding[0] + table.embedding[1])[index], (table.head[0] + table.head[1])[index]
    ends = np.maximum(rows.stage_first[stage], rows.stage_last[stage])
    result: Column = rows.stage_first[stage] * embedding + rows.stage_last[stage] * head + ends * rows.fsdp_outside
    return result


def block_recompute_seconds(rows: Rows, costs: LayerCosts, layers: list[Column], num_layers: int) -> Column:
    """full:block:N on one stage: the forward time of its average layer times the layers recomputed there."""
    count = sum(layers)
    forward = sum(n * f for n, f in zip(layers, costs.forward, strict=True)) / np.maximum(count, 1.0)
    result: Column = block_recomputed_layers(count, rows.vpp, num_layers) * forward
    return result


def stage_seconds(rows: Rows, costs: LayerCosts, stage: int) -> Column:
    """Forward and backward of one micro-batch on one priced stage, [n, R]."""
    layers = rows.stage_layers[stage]
    total: Column = layers[0][:, None] * costs.whole[0]
    for n, cost in zip(layers[1:], costs.whole[1:], strict=True):
        total += n[:, None] * cost
    total += outside_seconds(rows, stage)[:, None]
    for r, recompute in enumerate(rows.recomputes):
        if recompute.method == "block":
            total[:, r] += block_recompute_seconds(rows, costs, layers, recompute.num_layers)
    return total


def all_stage_seconds(rows: Rows, costs: LayerCosts) -> Column:
    """The sum over all stages of the pipeline, [n, R]."""
    table, index = rows.table, rows.index
    total: Column = rows.all_layers[0] * costs.whole[0]
    for n, cost in zip(rows.all_layers[1:], costs.whole[1:], strict=True):
        total += n * cost
    ends = (table.embedding[0] + table.embedding[1] + table.head[0] + table.head[1])[index]
    total += (ends + rows.fsdp_outside * np.minimum(rows.pp, 2.0))[:, None]
    average = sum(n * f for n, f in zip(rows.all_layers, costs.forward, strict=True)) / sum(rows.all_layers)
    for r, recompute in enumerate(rows.recomputes):
        if recompute.method == "block":
            first, last, middle = (block_recomputed_layers(n, rows.vpp, recompute.num_layers) for n in rows.block_sizes[:3])
            total[:, r] += (first + last + middle * rows.block_sizes[3]) * average
    return total


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The parts of a step that depend on recomputation, [n, R]."""

    stages: list[Column]
    longest: Column
    bubble: Column
    reduction: Column
    gather: Column


def schedule(job: TrainingJob, rows: Rows, costs: LayerCosts) -> Schedule:
    """Stage times, bubble, and data-parallel time beside the first stage's compute."""
    stages = [stage_seconds(rows, costs, s) for s in range(len(rows.stage_layers))]
    longest = stages[0]
    for stage in stages[1:]:
        longest = np.maximum(longest, stage)
    vpp, pp = rows.vpp[:, None], rows.pp[:, None]
    bubble = pipeline_bubble_seconds(longest, np.maximum(all_stage_seconds(rows, costs), longest), vpp)
    forward = sum(n * f for n, f in zip(rows.stage_layers[0], costs.forward, strict=True)) + rows.table.embedding[0][rows.index]
    buckets = np.add.reduce(rows.stage_layers[0])[:, None]
    return Schedule(
        stages=stages,
        longest=longest,
        bubble=bubble,
        reduction=gradient_reduction_seconds(
            rows.reduction[:, None], stages[0] - forward[:, None], buckets, pp, vpp, job.software
        ),
        gather=parameter_gather_seconds(rows.gather[:, None], forward[:, None], buckets, pp, vpp, job.software),
    )


def row_seconds(job: TrainingJob, rows: Rows, costs: LayerCosts) -> Column:
    """Seconds of one step, [n, R]: (m S_max + bubble + sends + data parallelism + optimizer) x straggler growth."""
    timing = schedule(job, rows, costs)
    total = rows.num_microbatches[:, None] * timing.longest
    total += timing.bubble
    total += timing.reduction
    total += timing.gather + (rows.p2p + rows.embedding_gradient + rows.optimizer)[:, None]
    result: Column = total * straggler_ratio(rows.num_gpus[:, None], job.software.straggler_growth)
    return result
