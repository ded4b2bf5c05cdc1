"""Seconds of one training step for many plans at once, and a lower bound of it from the layers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from autoconfig.specs.layouts import Layouts, middle_layers, priced_together
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.run_settings import RunSettings
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.collectives import exposed_seconds
from autoconfig.time_model.job import TrainingJob, overlapped, shapes_of
from autoconfig.time_model.operators.kernels import step_launch_seconds, straggler_ratio, straggler_seconds
from autoconfig.time_model.operators.layer_table import LayerTable, layer_table
from autoconfig.time_model.operators.operator import Operator
from autoconfig.time_model.step.offload import activation_offload_seconds
from autoconfig.time_model.step.rows import (
    Column,
    Index,
    Rows,
    block_recomputed_layers,
    fsdp_seconds,
    gradient_reduction_seconds,
    parameter_gather_seconds,
    pipeline_bubble_seconds,
    rows_of,
)

PAIRS_PER_CHUNK = 65_536
"""Layouts x recomputes that are combined at once: the working arrays stay in the cache."""

ROWS_PER_TABLE = 65_536
"""Layouts that share one layer table: bounds its memory where nearly every row has a shape of its own (experts)."""

ROUNDING = 1e-9
"""Share by which sums in another order may differ: the bound is lowered by it."""

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """Seconds of one training step. Tables are [layouts, recomputes]."""

    step_seconds: Table
    parts: dict[str, Table] = field(default_factory=dict)
    """Only with detail: name of the public function of time_model -> seconds of the step; they sum to step_seconds."""
    level: str = "default"
    """calibrated where operator tables of this GPU stand behind the constants, default where they were inherited."""
    origin: str = ""
    """Which entries of data/gpu_efficiency.json were used, and the software stack."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """What the step times of n layouts, all with the same switches, under R recompute options draw on."""

    job: TrainingJob
    layouts: Layouts
    recomputes: Sequence[Recompute]
    table: LayerTable
    """Layers of the distinct (tp, sp, cp, mbs, fsdp[, ep, etp, overlapped])."""
    index: Index
    """[n]: row of the table."""

    @classmethod
    def of(cls, job: TrainingJob, layouts: Layouts, recomputes: Sequence[Recompute]) -> StepTimes:
        """Price the layers of every distinct shape once. Raises InputError where the GPU lacks the precision."""
        names = ("mbs", "tp", "sp", "cp", "fsdp") + (("ep", "etp") if job.model.is_moe else ())
        first, index = layouts.unique(*names, also=[overlapped(layouts, job)] if job.model.is_moe else [])
        table = layer_table(job, shapes_of(layouts.take(first), job), recomputes)
        return cls(job=job, layouts=layouts, recomputes=recomputes, table=table, index=index)

    def rows(self, which: Index) -> Rows:
        """These layouts, with all that does not depend on recomputation."""
        return rows_of(self.job, self.layouts.take(which), self.table, self.index[which], self.recomputes)

    def seconds(self, which: Index) -> Table:
        """[which, R]: seconds of one step."""
        step = np.empty((len(which), len(self.recomputes)))
        for block in priced_together(self.job.model, self.layouts.take(which), ROWS_PER_TABLE):
            priced = np.empty((len(block), len(self.recomputes)))
            _price(self.job, self.rows(which[block]), priced)
            step[block] = priced
        step *= self.job.factors.step
        return step

    def least_seconds(self, which: Index, fits: npt.NDArray[np.bool_] | None = None) -> Column:
        """[which]: no plan of the layout has a shorter step; with `fits` [which, R] none of these plans.

        A step is (m S + (A - S) / v + other parts) x straggler growth, with A the time of one micro-batch on all p stages and
        S that of the longest. With v >= 1 and m >= 1 this grows with S and with A. Left out are parts that are never negative:
        sends, data parallelism, the optimizer, FSDP's traffic. A is then at least all layers forward and backward with what an
        option runs again (of full:block the layers of every stage, times the quickest kind's forward), and embedding and head;
        S at least A / p, the mean of the stages, and the most layers on one stage times the quickest kind of layer.
        """
        table, layouts, model, index = self.table, self.layouts.take(which), self.job.model, self.index[which]
        again = table.recompute if fits is not None else [seconds.min(axis=1, keepdims=True) for seconds in table.recompute]
        counts = [model.layer_kinds.count(kind) for kind in table.kinds]
        costs = zip(counts, table.forward, table.backward, again, strict=True)
        used = [(count, fore[:, None], (fore + back)[:, None] + more) for count, fore, back, more in costs if count]
        ends = table.embedding[0] + table.embedding[1] + table.head[0] + table.head[1]
        every = sum(count * layer for count, _, layer in used) + ends[:, None]
        quickest = np.minimum.reduce([layer for *_, layer in used])
        every = every.take(index, axis=0)
        pp, vpp, m, gpus = (
            getattr(layouts, name).astype(np.float64)[:, None] for name in ("pp", "vpp", "num_microbatches", "num_gpus")
        )
        sizes = layouts.first, np.where(layouts.pp > 1, layouts.last, 0), middle_layers(model, layouts)
        if fits is not None:
            forward = np.minimum.reduce([whole for count, whole in zip(counts, table.again, strict=True) if count])[index]
            for r, recompute in enumerate(self.recomputes):
                if recompute.method == "block":
                    first, last, middle = (block_recomputed_layers(n, vpp[:, 0], recompute.num_layers) for n in sizes)
                    every[:, r] += (first + last + middle * np.maximum(pp[:, 0] - 2.0, 0.0)) * forward
        longest = np.maximum(every / pp, np.maximum.reduce(sizes)[:, None] * quickest.take(index, axis=0))
        step = m * longest + self.job.scenario.workload.schedule_calls * np.maximum(every - longest, 0.0) / vpp
        least = (step if fits is None else np.where(fits, step, np.inf)).min(axis=1)
        ratio = straggler_ratio(gpus[:, 0], self.job.software.straggler_growth) * self.job.factors.step
        return np.asarray(least * ratio * (1.0 - ROUNDING))


def alike(layouts: Layouts, recomputes: Sequence[Recompute]) -> list[tuple[RunSettings, Index, Index]]:
    """(settings, rows, recompute options) of plans that run with the same switches: those of the row, beside the recomputation
    (RunSettings.beside)."""
    groups = []
    for settings, rows in layouts.by_settings():
        beside = [settings.beside(recompute) for recompute in recomputes]
        for one in dict.fromkeys(beside):
            groups.append((one, rows, np.flatnonzero([other == one for other in beside])))
    return groups


@dataclass(frozen=True, kw_only=True)
class MixedTimes:
    """The step times of n layouts under R recompute options, of which few differ in their switches."""

    groups: list[tuple[StepTimes, Index, Index]]
    """(times, position of each of the n layouts among theirs or -1, recompute options) of each of `alike`."""
    size: int
    """R."""

    @classmethod
    def of(cls, scenario: Scenario, layouts: Layouts, recomputes: Sequence[Recompute]) -> MixedTimes:
        """Price the layers of every distinct shape once. Raises InputError where the GPU lacks the precision."""
        groups = []
        for settings, rows, columns in alike(layouts, recomputes):
            some = layouts if len(rows) == len(layouts) else layouts.take(rows)
            place = np.full(len(layouts), -1)
            place[rows] = np.arange(len(rows))
            times = StepTimes.of(TrainingJob(scenario, settings), some, [recomputes[column] for column in columns])
            groups.append((times, place, columns))
        return cls(groups=groups, size=len(recomputes))

    def seconds(self, which: Index) -> Table:
        """[which, R]: seconds of one step."""
        if len(self.groups) == 1:
            return self.groups[0][0].seconds(which)
        step = np.empty((len(which), self.size))
        for times, place, columns in self.groups:
            mine = np.flatnonzero(place[which] >= 0)
            step[np.ix_(mine, columns)] = times.seconds(place[which[mine]])
        return step

    def least_seconds(self, which: Index, fits: npt.NDArray[np.bool_] | None = None) -> Column:
        """[which]: as `StepTimes.least_seconds`."""
        if len(self.groups) == 1:
            return self.groups[0][0].least_seconds(which, fits)
        least = np.full(len(which), np.inf)
        for times, place, columns in self.groups:
            mine = np.flatnonzero(place[which] >= 0)
            some = None if fits is None else fits[np.ix_(mine, columns)]
            least[mine] = np.minimum(least[mine], times.least_seconds(place[which[mine]], some))
        return least

    @property
    def level(self) -> str:
        """As `TimeEstimate.level`."""
        return self.groups[0][0].job.gpu.level


def estimate_step_time(
    scenario: Scenario, layouts: Layouts, recomputes: Sequence[Recompute], *, detail: bool = False
) -> TimeEstimate:
    """Price every layout under every recomputation. Raises InputError where the GPU lacks the precision.

    A layer is priced once per distinct shape and gathered; pipeline, data parallelism and the optimizer are added per row.
    Legality is not checked here: a silly plan gets its price.
    """
    job = TrainingJob.of(scenario)
    step = np.empty((len(layouts), len(recomputes)))
    parts: dict[str, Table] = {}
    for settings, every, columns in alike(layouts, recomputes):
        job, options = TrainingJob(scenario, settings), [recomputes[column] for column in columns]
        for rows in (every[start : start + ROWS_PER_TABLE] for start in range(0, len(every), ROWS_PER_TABLE)):
            times = StepTimes.of(job, layouts if len(rows) == len(layouts) else layouts.take(rows), options)
            step[np.ix_(rows, columns)] = times.seconds(np.arange(len(rows)))
            for block in priced_together(job.model, times.layouts, ROWS_PER_TABLE) if detail else []:
                for name, values in step_parts(job, times.rows(block)).items():
                    parts.setdefault(name, np.zeros_like(step))[np.ix_(rows[block], columns)] = values * job.factors.step
    return TimeEstimate(
        step_seconds=step, parts=parts, level=job.gpu.level, origin=f"{job.gpu.origin}; {scenario.software.name}"
    )


def _price(job: TrainingJob, rows: Rows, step: Table) -> None:
    """Fill `step` chunk by chunk."""
    size = max(1, PAIRS_PER_CHUNK // step.shape[1])
    for start in range(0, len(step), size):
        chunk = rows.slice(start, start + size) if len(step) > size else rows
        step[start : start + size] = row_seconds(job, chunk, compute_seconds(job, chunk))


def forward_seconds(scenario: Scenario, layouts: Layouts) -> Column:
    """[n]: seconds of a pass of the global batch through the model without gradients, as log-probabilities and values need.

    m S_max + (sum of the other stages) / v and the sends, S of forward alone: the bubble of a forward-only pipeline is
    (p - 1) S / v as in training (Narayanan et al. 2021, section 2.2.2). FSDP's gathers are exposed as in training.
    """
    seconds = np.empty(len(layouts))
    for settings, rows in layouts.by_settings():
        seconds[rows] = _forward_seconds(TrainingJob(scenario, settings), layouts.take(rows))
    return seconds


def _forward_seconds(job: TrainingJob, layouts: Layouts) -> Column:
    rows = StepTimes.of(job, layouts, [NONE]).rows(np.arange(len(layouts)))
    table, index = rows.table, rows.index
    kinds = [fore[index] for fore in table.forward]
    if rows.fsdp_gather:
        whole = [np.where(rows.fsdp == 3, gather, 0.0) for gather in rows.fsdp_gather]
        pairs = zip(kinds, whole, rows.fsdp_interference, strict=True)
        kinds = [cost + exposed_seconds(gather, cost, share) for cost, gather, share in pairs]
    embedding, head = table.embedding[0][index], table.head[0][index]
    stages = [
        sum(n * cost for n, cost in zip(layers, kinds, strict=True)) + first * embedding + last * head
        for layers, first, last in zip(rows.stage_layers, rows.stage_first, rows.stage_last, strict=True)
    ]
    longest = np.maximum.reduce(stages)
    every = sum(n * cost for n, cost in zip(rows.all_layers, kinds, strict=True)) + embedding + head
    calls = job.scenario.workload.schedule_calls
    total = rows.num_microbatches * longest + calls * pipeline_bubble_seconds(longest, np.maximum(every, longest), rows.vpp)
    total = (total + rows.p2p / 2.0) * straggler_ratio(rows.num_gpus, job.software.straggler_growth)
    return np.asarray(total * job.factors.step)


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """[kind]: seconds of one layer and micro-batch on each row, [n, R] or [n]."""

    whole: list[Number]
    """Forward, backward, recomputation and FSDP's exposed traffic; full:block columns without their recomputation."""
    forward: list[Column]
    again: list[Column]
    """What a whole layer that runs again adds."""
    fsdp: list[Number]


def compute_seconds(job: TrainingJob, rows: Rows) -> LayerCosts:
    """Gather the layer table by row and add what FSDP's traffic exposes."""
    table, index = rows.table, rows.index
    whole, forward, exposed = [], [], []
    rerun = [seconds[index] for seconds in table.again]
    for kind, (fore, back, again) in enumerate(zip(table.forward, table.backward, table.recompute, strict=True)):
        cost = (again + (fore + back)[:, None]).take(index, axis=0)
        forward.append(fore[index])
        if rows.fsdp_gather:
            extra = fsdp_seconds(
                rows.fsdp_gather[kind][:, None],
                rows.fsdp_scatter[kind][:, None],
                forward[-1][:, None],
                cost - forward[-1][:, None],
                stage=rows.fsdp[:, None],
                interference=rows.fsdp_interference[kind][:, None],
            )
            exposed.append(extra)
            cost = cost + extra
        whole.append(cost)
    return LayerCosts(whole=whole, forward=forward, again=rerun, fsdp=exposed)


def outside_seconds(rows: Rows, stage: int) -> Column:
    """Embedding, head and their FSDP traffic per micro-batch on one priced stage, [n]."""
    table, index = rows.table, rows.index
    embedding, head = (table.embedding[0] + table.embedding[1])[index], (table.head[0] + table.head[1])[index]
    ends = np.maximum(rows.stage_first[stage], rows.stage_last[stage])
    result: Column = rows.stage_first[stage] * embedding + rows.stage_last[stage] * head + ends * rows.fsdp_outside
    return result


def block_recompute_seconds(rows: Rows, costs: LayerCosts, layers: list[Column], num_layers: int) -> Column:
    """full:block:N on one stage: what its average layer adds that runs again, times the layers recomputed there."""
    count = sum(layers)
    forward = sum(n * f for n, f in zip(layers, costs.again, strict=True)) / np.maximum(count, 1.0)
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
    average = sum(n * f for n, f in zip(rows.all_layers, costs.again, strict=True)) / sum(rows.all_layers)
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
    offload: Column


def schedule(job: TrainingJob, rows: Rows, costs: LayerCosts) -> Schedule:
    """Stage times, bubble, and data-parallel time beside the first stage's compute."""
    stages = [stage_seconds(rows, costs, s) for s in range(len(rows.stage_layers))]
    longest = stages[0]
    for stage in stages[1:]:
        longest = np.maximum(longest, stage)
    vpp, pp = rows.vpp[:, None], rows.pp[:, None]
    bubble = pipeline_bubble_seconds(longest, np.maximum(all_stage_seconds(rows, costs), longest), vpp)
    forward = sum(n * f for n, f in zip(rows.stage_layers[0], costs.forward, strict=True)) + rows.table.embedding[0][rows.index]
    behind = stages[0] - forward[:, None]
    buckets = np.add.reduce(rows.stage_layers[0])[:, None]
    waited: Number = 0.0
    if job.settings.offload_layers:
        waited = activation_offload_seconds(rows.offloaded, forward[:, None], behind, job.gpu.host_bytes_per_s)
    return Schedule(
        stages=stages,
        longest=longest,
        bubble=job.scenario.workload.schedule_calls * bubble,
        reduction=gradient_reduction_seconds(rows.reduction[:, None], behind, buckets, pp, vpp, job.software),
        gather=parameter_gather_seconds(rows.gather[:, None], forward[:, None], buckets, pp, vpp, job.software),
        offload=rows.num_microbatches[:, None] * waited,
    )


def waiting_seconds(rows: Rows) -> Column:
    """[n]: what the stage that waits longest for launches of its layers waits in a step."""
    floor = [np.add(*extra)[rows.index] for extra in rows.table.floor]
    stages = [sum(n * extra for n, extra in zip(layers, floor, strict=True)) for layers in rows.stage_layers]
    return np.asarray(rows.num_microbatches * np.maximum.reduce(stages))


def row_seconds(job: TrainingJob, rows: Rows, costs: LayerCosts) -> Column:
    """Seconds of one step, [n, R]: (m S_max + bubble + offload + sends + data parallelism + optimizer + launches once a step)
    x straggler growth."""
    timing = schedule(job, rows, costs)
    total = rows.num_microbatches[:, None] * timing.longest
    total += timing.bubble
    total += timing.offload
    total += timing.reduction
    total += timing.gather + (rows.p2p + rows.embedding_gradient + rows.optimizer)[:, None]
    total += step_launch_seconds(total, waiting_seconds(rows)[:, None], job.software.step_host_seconds)
    result: Column = total * straggler_ratio(rows.num_gpus[:, None], job.software.straggler_growth)
    return result


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

    by_kind = dict(zip(rows.table.kinds, layers, strict=True))
    for op in rows.table.operators:
        add(op.formula, _weight(op, by_kind, first, last, job.model.mtp_num_layers) * _whole(op, rows)[:, None])
    for kind, weight in enumerate(layers):
        add("host_floor_seconds", weight * np.add(*rows.table.floor[kind])[rows.index][:, None])
        add("recompute_seconds", weight * rows.table.recompute[kind][rows.index])
        if costs.fsdp:
            add("fsdp_seconds", weight * costs.fsdp[kind])
    add("fsdp_seconds", np.maximum(first, last) * rows.fsdp_outside[:, None])
    for r, recompute in enumerate(rows.recomputes):
        if recompute.method == "block":
            per_stage = [block_recompute_seconds(rows, costs, stage, recompute.num_layers) for stage in rows.stage_layers]
            parts["recompute_seconds"][:, r] += (m * _chosen(deciding[:, r : r + 1], per_stage))[:, 0]
    add("pipeline_bubble_seconds", timing.bubble)
    if job.settings.offload_layers:
        add("activation_offload_seconds", timing.offload)
    add("gradient_reduction_seconds", timing.reduction)
    add("parameter_gather_seconds", timing.gather)
    for name, column in (
        ("p2p_seconds", rows.p2p),
        ("embedding_gradient_seconds", rows.embedding_gradient),
        ("optimizer_seconds", rows.optimizer),
    ):
        add(name, column[:, None] + np.zeros_like(timing.bubble))
    waiting = waiting_seconds(rows)[:, None]
    add("step_launch_seconds", step_launch_seconds(sum(parts.values()), waiting, job.software.step_host_seconds))
    add("straggler_seconds", straggler_seconds(sum(parts.values()), rows.num_gpus[:, None], job.software.straggler_growth))
    return parts


def _chosen(deciding: Number, per_stage: list[Column]) -> Number:
    """The column of the stage that decides, [n, R]."""
    return np.take_along_axis(np.stack(per_stage, axis=1), deciding, axis=1)


def _weight(op: Operator, layers: dict[str, Number], first: Number, last: Number, depths: int) -> Number:
    """How often an operator runs in the step on the deciding stage, [n, R]; `layers` by kind."""
    by_layer = {
        **layers,
        "all": sum(layers.values()),
        "embedding": first,
        "head": last * (1 + depths),
        "mtp": last * depths,
    }
    return by_layer[op.layer]


def _whole(op: Operator, rows: Rows) -> Column:
    seconds: Column = np.broadcast_to(op.forward + op.dgrad + op.wgrad, rows.table.embedding[0].shape)[rows.index]
    return seconds
