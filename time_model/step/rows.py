"""Columns of every row that do not depend on recomputation: stages, sends, data-parallel collectives, optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.layouts import Layouts, middle_layers, stage_table
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number, mtp_depths_held
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import TYPE_BYTES, Numerics
from autoconfig.specs.software.bitsandbytes import MOMENT_BYTES, MOMENT_SCALE
from autoconfig.specs.software.optimizers import MOMENTS_KEPT
from autoconfig.specs.software.software import StackTime
from autoconfig.time_model.collectives import (
    Group,
    Links,
    collective_seconds,
    data_group,
    expert_data_group,
    exposed_seconds,
    pipeline_crosses,
    rate_share,
    send_seconds,
)
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.operators.layer_table import LayerTable
from autoconfig.time_model.step.offload import offloaded_bytes


def pipeline_bubble_seconds(longest: Number, all_stages: Number, vpp: Number) -> Number:
    """Idle time of the stage that decides: (sum of the other stages) / v.

    The longest stage works m times in a row; before and after it waits for one micro-batch to pass all other stages, in
    chunks of 1/v; as often as the schedule runs in a step (Workload.schedule_calls). With p equal stages S this is
    (p - 1) S / v: over the ideal m S the fraction (p - 1)/(m v) of Narayanan et al. 2021, section 2.2.2.
    `longest` and `all_stages` are forward + backward of one micro-batch.
    """
    return (all_stages - longest) / vpp


def p2p_message_bytes(tokens: Number, hidden: int, activation_bytes: int, divided: Number) -> Number:
    """Activations of one micro-batch between stages, over what a rank sends of it (tp with SP or scatter-gather, else 1).

    Source: Narayanan et al. 2021, sections 3.2 and 4.1; Korthikanti et al. 2022.
    """
    return tokens * hidden * activation_bytes / divided


def p2p_seconds(
    send: Number, pp: Number, vpp: Number, num_microbatches: Number, overlap_share: float, calls: int = 1
) -> Number:
    """Exposed sends of one step: 2 m v of the deciding stage (hidden by `overlap_share` where interleaved) and 2 (p - 1) to
    fill and drain in each of the schedule's `calls`. 0 for one stage. Source: findings on public measurements, section 2
    (70 % hidden in NeMo of 2023 and later)."""
    steady = 2.0 * num_microbatches * vpp * np.where(vpp > 1, 1.0 - overlap_share, 1.0)
    return np.where(pp > 1, send * (steady + calls * 2.0 * (pp - 1)), 0.0)


def block_recomputed_layers(layers: Number, vpp: Number, num_layers: int) -> Number:
    """Layers that full:block:N recomputes on a stage: min(N, layers of a chunk) in each of its v chunks (Megatron's
    block method)."""
    return np.minimum(num_layers * vpp, layers)


def bucketed_exposed_seconds(
    communication: Number, compute: Number, buckets: Number, pp: Number, vpp: Number, *, overlaps: bool, interference: float
) -> Number:
    """Exposed time of gradient reduction (or parameter gather) of one step beside the last backward (first forward).

    Without overlap all of it. With overlap, one of `buckets` (about one per layer) has nothing to hide behind, the rest hides
    behind the `compute` of one micro-batch; of v model chunks all but one finish (start) while the others compute for p
    micro-batches, so only 1/v of what is late is exposed, unless it outlasts these too. A share (`interference`) of what
    is hidden is exposed. Assumes buckets of one layer. Rajbhandari et al. 2020 (ZeRO) for the volumes; the order is
    Megatron-Core's.
    """
    if not overlaps:
        return communication
    hideable = communication * (1.0 - 1.0 / np.maximum(buckets, 1.0))
    late = communication - np.minimum(hideable, compute)
    late = np.where(vpp > 1, np.maximum(late / vpp, communication - compute * pp), late)
    return late + interference * (communication - late)


def fsdp_seconds(
    gather: Number, scatter: Number, forward: Number, backward: Number, *, stage: Number, interference: Number
) -> Number:
    """Exposed traffic of one layer and micro-batch under FSDP: weights gathered before forward and backward (stage 3),
    gradients reduce-scattered after backward (stages 2 and 3), each prefetched beside the layer's compute.

    max(compute, traffic) + i min(compute, traffic) - compute, for forward and for backward. Source: findings on public
    measurements, section 2; Zhao et al. 2023 (PyTorch FSDP). i is 0.5 (A100) to 0.7 (H100): measured on MosaicML's runs,
    whose rings move at the links' rate; a ring on slower wires (experts spread one to a node) takes as much less of the GPU
    (collectives.rate_share).
    """
    stage = np.asarray(stage)
    whole = np.where(stage == 3, gather, 0.0)
    behind = np.where(stage > 0, whole + scatter, 0.0)
    return exposed_seconds(whole, forward, interference) + exposed_seconds(behind, backward, interference)


def gradient_reduction_seconds(
    reduction: Number, backward: Number, buckets: Number, pp: Number, vpp: Number, stack: StackTime
) -> Number:
    """Exposed time of reducing the gradients once per step, beside the first stage's backward (the last one to finish)."""
    return bucketed_exposed_seconds(
        reduction, backward, buckets, pp, vpp, overlaps=stack.overlap_grad_reduce, interference=stack.overlap_interference
    )


def parameter_gather_seconds(
    gather: Number, forward: Number, buckets: Number, pp: Number, vpp: Number, stack: StackTime
) -> Number:
    """Exposed time of gathering the updated weights once per step, beside the first stage's forward (the first to start)."""
    return bucketed_exposed_seconds(
        gather, forward, buckets, pp, vpp, overlaps=stack.overlap_param_gather, interference=stack.overlap_interference
    )


def reduction_communication(parameters: Number, group: Group, links: Links, gradient_bytes: int, sharded: Number) -> Number:
    """Reduce-scatter of the gradients where the optimizer is sharded, else all-reduce."""
    total = parameters * gradient_bytes
    return np.where(
        sharded,
        collective_seconds("reduce_scatter", total, group, links),
        collective_seconds("all_reduce", total, group, links),
    )


def embedding_gradient_seconds(parameters: Number, pp: Number, crosses: Number, gradient_bytes: int, links: Links) -> Number:
    """Tied embeddings: first and last stage sum their gradients (all-reduce of two ranks: each sends its copy once). 0
    without pipeline.

    Source: Megatron-LM's embedding group (parallel_state.py).
    """
    return np.where(pp > 1, send_seconds(parameters * gradient_bytes, crosses, links), 0.0)


def optimizer_bytes_per_parameter(numerics: Numerics, stack: StackTime) -> float:
    """HBM traffic per updated parameter: master weight and both moments read and written, plus what the stack passes
    over beside.

    fp32 states and 26 bytes beside: 50. Source: findings on public measurements, section 2 (about 50 bytes). Weights that are
    their own masters pass with their moments alone.
    """
    all_states = (numerics.main_params_dtype, numerics.exp_avg_dtype, numerics.exp_avg_sq_dtype)
    states = all_states[: 1 + MOMENTS_KEPT.get(numerics.optimizer, 2)]
    wide = numerics.activation_bytes
    held: float = len(states) * wide if numerics.weights_are_masters else sum(TYPE_BYTES[name] for name in states)
    if numerics.narrow_moments:
        weight = numerics.activation_bytes if numerics.weights_are_masters else TYPE_BYTES[numerics.main_params_dtype]
        held = weight + 2.0 * (MOMENT_BYTES + MOMENT_SCALE)
    return 2.0 * held + stack.optimizer_extra_bytes


def optimizer_seconds(
    updated: Number,
    held: Number,
    ranks: Number,
    offload: Number,
    *,
    numerics: Numerics,
    stack: StackTime,
    gradient_bytes: int,
    hbm_bytes_per_s: float,
    host_bytes_per_s: float,
    cpu_memory_bytes_per_s: float,
) -> Number:
    """One Adam step: traffic of the `updated` parameters of this rank, zeroing the gradients of all `held`, and a fixed part.

    The `offload` share is updated on the CPU instead: gradients down and weights up over the host link (6 bytes), and the
    states through CPU memory. `ranks`: owners that broadcast one after the other, where the stack does that (InternEvo:
    findings, section 6). Source of the fixed 3 ms: findings on public measurements, section 2.
    """
    traffic = optimizer_bytes_per_parameter(numerics, stack)
    on_gpu = (1.0 - offload) * updated * traffic / hbm_bytes_per_s
    on_cpu = offload * updated * (6.0 / host_bytes_per_s + traffic / cpu_memory_bytes_per_s)
    zeroing = held * gradient_bytes / hbm_bytes_per_s
    return on_gpu + on_cpu + zeroing + stack.optimizer_fixed_seconds + stack.optimizer_seconds_per_rank * ranks


Column = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """All that is known of each row before recomputation enters. Columns [n], lists of columns per priced stage or
    layer kind."""

    table: LayerTable
    recomputes: tuple[Recompute, ...]
    index: Index
    """Row of the layer table."""
    pp: Column
    vpp: Column
    num_microbatches: Column
    num_gpus: Column
    stage_layers: list[list[Column]]
    """By stage and kind: layers, multi-token-prediction depths included."""
    stage_first: list[Column]
    stage_last: list[Column]
    """1 where the priced stage is the first (last), else 0."""
    all_layers: list[float]
    """[kind]: layers of the whole model."""
    block_sizes: list[Column]
    """Layers of the first, the last and all middle stages (one column each), and how many middle stages there are."""
    fsdp: Column
    fsdp_gather: list[Column]
    fsdp_scatter: list[Column]
    """[kind]: collective time of one layer."""
    fsdp_interference: list[Column]
    """[kind]: share of it that is exposed though hidden."""
    fsdp_outside: Column
    """Exposed traffic of embedding and head per micro-batch, on the stages that hold them."""
    reduction: Column
    gather: Column
    """Collective time once per step."""
    embedding_gradient: Column
    p2p: Column
    optimizer: Column
    offloaded: Column
    """[n, R] or [n, 1]: bytes of a micro-batch that wait in host memory."""

    def slice(self, start: int, stop: int) -> Rows:
        """Rows start to stop."""
        return replace(
            self,
            **{
                f.name: _cut(getattr(self, f.name), start, stop)
                for f in fields(self)
                if f.name not in ("table", "recomputes", "all_layers")
            },
        )


def _cut(value: Any, start: int, stop: int) -> Any:
    return [_cut(item, start, stop) for item in value] if isinstance(value, list) else value[start:stop]


@dataclass(frozen=True, kw_only=True)
class _StageColumns:
    layers: list[list[Column]]
    first: list[Column]
    last: list[Column]
    whole: list[float]


def _stages(job: TrainingJob, layouts: Layouts) -> _StageColumns:
    """Layers of each priced stage by kind, those of multi-token-prediction depths on the last one."""
    model, stages = job.model, stage_table(job.model, layouts)
    behind = {kind: model.mtp_num_layers * model.mtp_kinds.count(kind) for kind in model.kinds}
    counts = {kind: stages.layers_of(kind) + behind[kind] * stages.is_last for kind in model.kinds}
    return _StageColumns(
        layers=[[counts[kind][:, s].astype(np.float64) for kind in model.kinds] for s in range(stages.layers.shape[1])],
        whole=[float(model.layer_kinds.count(kind) + behind[kind]) for kind in model.kinds],
        first=[column.astype(np.float64) for column in stages.is_first.T],
        last=[column.astype(np.float64) for column in stages.is_last.T],
    )


def rows_of(job: TrainingJob, layouts: Layouts, table: LayerTable, index: Index, recomputes: Sequence[Recompute]) -> Rows:
    """Price everything that does not depend on recomputation."""
    stages = _stages(job, layouts)
    pp, vpp, microbatches = (getattr(layouts, name).astype(np.float64) for name in ("pp", "vpp", "num_microbatches"))
    sizes = (
        layouts.first,
        np.where(layouts.pp > 1, layouts.last, 0),
        middle_layers(job.model, layouts),
        np.maximum(pp - 2.0, 0.0),
    )
    return Rows(
        table=table,
        recomputes=tuple(recomputes),
        index=index,
        pp=pp,
        vpp=vpp,
        num_microbatches=microbatches,
        num_gpus=layouts.num_gpus.astype(np.float64),
        stage_layers=stages.layers,
        stage_first=stages.first,
        stage_last=stages.last,
        all_layers=stages.whole,
        block_sizes=[column.astype(np.float64) for column in sizes],
        fsdp=layouts.fsdp.astype(np.float64),
        p2p=_p2p(job, layouts, table, index),
        offloaded=offloaded_bytes(job, layouts, recomputes),
        **_data_parallel(job, layouts, table, index, stages),
    )


def _p2p(job: TrainingJob, layouts: Layouts, table: LayerTable, index: Index) -> Column:
    tokens = layouts.mbs * job.scenario.workload.seq_length / layouts.cp
    divided = np.where(layouts.sp | job.software.scatter_gather, layouts.tp, 1)
    message = p2p_message_bytes(tokens, job.model.hidden_size, job.activation_bytes, divided)
    send = send_seconds(message, pipeline_crosses(layouts, job.cluster), job.links)
    if job.software.scatter_gather:
        send = send + np.where(layouts.sp, 0.0, table.hidden_gather[index])
    share, calls = job.software.p2p_overlap_share, job.scenario.workload.schedule_calls
    result: Column = p2p_seconds(send, layouts.pp, layouts.vpp, layouts.num_microbatches, share, calls)
    return result


def _held(model: ModelSpec, table: LayerTable, index: Index, stages: _StageColumns) -> tuple[Column, Column]:
    """Trained parameters, dense and of experts, of one rank of the fullest stage. Depths that share weights count once, and so
    does a tied output layer where one stage has both ends."""
    shared = [(model.mtp_num_layers - mtp_depths_held(model)) * model.mtp_kinds.count(kind) for kind in model.kinds]
    trained = table.trained
    dense, expert = ([p[index] for p in kinds] for kinds in (trained.dense, trained.expert))
    embedding, head, tied = (part[index] for part in (trained.embedding, trained.head, trained.tied))
    own = [
        [layers - last * again for layers, again in zip(stage, shared, strict=True)]
        for stage, last in zip(stages.layers, stages.last, strict=True)
    ]
    held = [
        _dot(layers, dense) + first * embedding + last * head - first * last * tied
        for layers, first, last in zip(own, stages.first, stages.last, strict=True)
    ]
    return np.maximum.reduce(held), np.maximum.reduce([_dot(layers, expert) for layers in own])


@dataclass(frozen=True, kw_only=True)
class _Exchange:
    """Gradient reduction and weight gather over both data-parallel groups."""

    job: TrainingJob
    dense: Group
    expert: Group
    fsdp: Number

    def reduce(self, dense: Number, expert: Number, sharded: Number) -> Number:
        job = self.job
        total = reduction_communication(dense, self.dense, job.links, job.gradient_bytes, sharded)
        if job.model.is_moe:
            total = total + reduction_communication(expert, self.expert, job.links, job.gradient_bytes, sharded)
        return total

    def gather(self, dense: Number, expert: Number) -> Number:
        job = self.job
        width = job.gathered_bytes(self.fsdp)
        total = collective_seconds("all_gather", dense * width, self.dense, job.links)
        if job.model.is_moe:
            total = total + collective_seconds("all_gather", expert * width, self.expert, job.links)
        return total

    def interference(self, dense: Number, expert: Number) -> Number:
        """FSDP's interference with the kernels beside it: the GPU's, by the rate of the ring, weights gathered as one."""
        links, full = self.job.links, self.job.gpu.fsdp_interference
        if not self.job.model.is_moe:
            return full * rate_share("all_gather", self.dense, links)
        times = [self.gather(dense, 0.0 * expert), self.gather(0.0 * dense, expert)]
        shares = [rate_share("all_gather", group, links) for group in (self.dense, self.expert)]
        exposed = sum(time * share for time, share in zip(times, shares, strict=True))
        return full * exposed / np.maximum(sum(times), 1e-12)


def _data_parallel(
    job: TrainingJob, layouts: Layouts, table: LayerTable, index: Index, stages: _StageColumns
) -> dict[str, Any]:
    """Collectives of gradients and weights once a step, the optimizer, tied embeddings, and FSDP's per-layer collectives."""
    groups = data_group(layouts, job.cluster), expert_data_group(layouts, job.cluster)
    exchange = _Exchange(job=job, dense=groups[0], expert=groups[1], fsdp=layouts.fsdp)
    dense, expert = _held(job.model, table, index, stages)
    sharded = layouts.dist_opt | (layouts.fsdp > 0)
    ranks, expert_ranks = np.where(sharded, exchange.dense.size, 1.0), np.where(sharded, exchange.expert.size, 1.0)
    owners = np.where(sharded, exchange.dense.size, 0.0)
    optimizer = optimizer_seconds(
        dense / ranks + expert / expert_ranks,
        dense + expert,
        owners,
        layouts.offload,
        numerics=job.numerics,
        stack=job.software,
        gradient_bytes=job.gradient_bytes,
        hbm_bytes_per_s=job.hbm_bytes_per_s,
        host_bytes_per_s=job.gpu.host_bytes_per_s,
        cpu_memory_bytes_per_s=job.gpu.cpu_memory_bytes_per_s,
    )
    tied = 0.0 * dense
    if not job.model.untie_embeddings_and_output_weights:
        tied = embedding_gradient_seconds(
            table.trained.embedding[index], layouts.pp, pipeline_crosses(layouts, job.cluster), job.gradient_bytes, job.links
        )
    return {
        "reduction": np.where(layouts.fsdp > 0, 0.0, exchange.reduce(dense, expert, sharded)),
        "gather": np.where(sharded & (layouts.fsdp < 3), exchange.gather(dense, expert), 0.0),
        "optimizer": optimizer,
        "embedding_gradient": tied,
        **_fsdp(exchange, layouts, table, index),
    }


def _fsdp(exchange: _Exchange, layouts: Layouts, table: LayerTable, index: Index) -> dict[str, Any]:
    """Collective time of one layer under FSDP, and what is exposed of those of embedding and head; empty lists where no
    row uses it. All weights are gathered, frozen ones too; gradients are those of the trained ones."""
    if not np.any(layouts.fsdp):
        return {
            "fsdp_interference": [],
            "fsdp_gather": [],
            "fsdp_scatter": [],
            "fsdp_outside": 0.0 * table.held.head[index],
        }
    layers, ends = table.held.layers(index), table.held.ends(index, layouts.pp)
    trained = table.trained
    none = 0.0 * ends
    outside = fsdp_seconds(
        exchange.gather(ends, none),
        exchange.reduce(trained.ends(index, layouts.pp), none, True),
        table.head[0][index],
        table.head[1][index],
        stage=layouts.fsdp,
        interference=exchange.interference(ends, none),
    )
    return {
        "fsdp_interference": [exchange.interference(dense, expert) for dense, expert in layers],
        "fsdp_gather": [exchange.gather(dense, expert) for dense, expert in layers],
        "fsdp_scatter": [exchange.reduce(dense, expert, True) for dense, expert in trained.layers(index)],
        "fsdp_outside": outside,
    }


def _dot(counts: Sequence[Number], values: Sequence[Number]) -> Number:
    return sum(count * value for count, value in zip(counts, values, strict=True))
