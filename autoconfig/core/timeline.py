"""The step of one plan as a pipeline timeline: when each stage works on which micro-batch, forwards and backwards.

Each rank runs Megatron-LM's order of work (megatron-core, pipeline_parallel/schedules.py: 1F1B, and its interleaved form), and
each piece of work starts when the rank is free and what it needs has arrived. Durations are those that `explain` sums up: the
operators of the stage's layers, embedding and head on the ends. Data parallelism, the optimizer and
waits for the host are not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from autoconfig.specs.json_record import Keywords, Natural, NotNegative, Positive, Share
from autoconfig.specs.layouts import chunk_layers
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.hardware.efficiency import factors_for
from autoconfig.time_model.operators.listing import OperatorRow

MAX_MICROBATCHES = 16
"""Micro-batches drawn at most, rounded up to two rounds of the pipeline; the rest of the step repeats the middle."""
COMMUNICATION = ("tp_communication_seconds", "cp_communication_seconds", "expert_exchange_seconds")
"""Formulas of the operators inside a layer that wait for other ranks."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One micro-batch forwards or backwards through one chunk of layers; seconds from the start of the step."""

    stage: int
    chunk: int
    microbatch: int
    forward: bool
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class ChunkTimes:
    """One micro-batch through one chunk of layers of a stage; seconds."""

    forward_seconds: NotNegative
    """Without recomputation."""
    backward_seconds: NotNegative
    """Recomputation included."""
    forward_communication_seconds: NotNegative
    """Communication inside the layers, part of forward_seconds."""
    backward_communication_seconds: NotNegative
    """Communication inside the layers, part of backward_seconds."""


@dataclass(frozen=True, kw_only=True)
class StageTimeline:
    """One pipeline stage."""

    stage: Natural
    """From 0."""
    chunks: Annotated[tuple[ChunkTimes, ...], Keywords(minItems=1)]
    """One without interleaving."""
    work: tuple[Annotated[tuple[NotNegative, ...], Keywords(minItems=4, maxItems=4)], ...]
    """[1 forward or 0 backward, chunk, micro-batch, start in seconds], in the order of work."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The pipeline timeline of one plan."""

    calibration: str
    """Version of the calibration that scales the times."""
    short: str
    """The plan in its short form."""
    num_microbatches: Positive
    """Of a step, on each data-parallel rank."""
    shown_microbatches: Positive
    """Those in `work`; the rest of the step repeats its middle."""
    bubble_share: Share
    """Idle share of the stages in what is shown."""
    stages: Annotated[tuple[StageTimeline, ...], Keywords(minItems=1)]


def timeline(scenario: Scenario, plan: TrainPlan, operators: Sequence[OperatorRow]) -> Timeline:
    """The timeline of a legal plan from its operators (`time_model.operators.listing.explain_operators`)."""
    total = scenario.workload.global_batch_size // (plan.mbs * plan.dp)
    shown = min(total, max(2 * plan.pp, MAX_MICROBATCHES // plan.pp * plan.pp))
    seconds = chunk_seconds(scenario, plan, operators)
    waiting = chunk_seconds(scenario, plan, [row for row in operators if row.formula in COMMUNICATION])
    work = simulate(seconds, shown, plan.pp, plan.vpp)
    last = max(piece.end for piece in work)
    busy = sum(piece.end - piece.start for piece in work)
    return Timeline(
        calibration=scenario.calibration.version,
        short=str(plan),
        num_microbatches=total,
        shown_microbatches=shown,
        bubble_share=1.0 - busy / (plan.pp * last),
        stages=tuple(
            StageTimeline(
                stage=stage,
                chunks=tuple(
                    ChunkTimes(
                        forward_seconds=forward,
                        backward_seconds=backward,
                        forward_communication_seconds=waits[0],
                        backward_communication_seconds=waits[1],
                    )
                    for (forward, backward), waits in zip(seconds[stage], waiting[stage], strict=True)
                ),
                work=tuple((int(w.forward), w.chunk, w.microbatch, round(w.start, 7)) for w in work if w.stage == stage),
            )
            for stage in range(plan.pp)
        ),
    )


def chunk_seconds(scenario: Scenario, plan: TrainPlan, operators: Sequence[OperatorRow]) -> list[list[tuple[float, float]]]:
    """[stage][chunk]: (forward, backward with recomputation) seconds of one micro-batch, as calibrated."""
    model, factor = scenario.model, factors_for(scenario).step
    layers = chunk_layers(model, plan)
    kinds = [bool(moe) for moe in model.moe_pattern]
    found: list[list[tuple[float, float]]] = []
    for stage in range(plan.pp):
        chunks = []
        for chunk in range(plan.vpp):
            counts = _layer_kinds(kinds, layers, stage, chunk)
            first, last = stage == chunk == 0, stage == plan.pp - 1 and chunk == plan.vpp - 1
            times = {**counts, "embedding": float(first), "head": float(last), "mtp": float(last)}
            forward = factor * sum(times.get(row.layer, 0.0) * row.forward_seconds for row in operators)
            backward = factor * sum(
                times.get(row.layer, 0.0) * (row.dgrad_seconds + row.wgrad_seconds + row.recompute_seconds) for row in operators
            )
            chunks.append((forward, backward))
        found.append(chunks)
    return found


def _layer_kinds(kinds: list[bool], layers: Sequence[Sequence[int]], stage: int, chunk: int) -> dict[str, float]:
    """Layers of each kind in one chunk; chunk c of stage 0 comes after chunk c - 1 of the last stage."""
    start = sum(map(sum, layers[:chunk])) + sum(layers[chunk][:stage])
    own = kinds[start : start + layers[chunk][stage]]
    return {"all": float(len(own)), "moe": float(sum(own)), "dense": float(len(own) - sum(own))}


def simulate(seconds: Sequence[Sequence[tuple[float, float]]], microbatches: int, pp: int, vpp: int) -> list[Work]:
    """Every piece of work with its start and end. `microbatches` is a multiple of pp where vpp is above 1."""
    orders = [rank_order(stage, microbatches, pp, vpp) for stage in range(pp)]
    done: dict[tuple[bool, int, int, int], float] = {}
    free, position, found = [0.0] * pp, [0] * pp, []
    while any(position[stage] < len(orders[stage]) for stage in range(pp)):
        moved = False
        for stage in range(pp):
            while position[stage] < len(orders[stage]):
                forward, chunk, microbatch = orders[stage][position[stage]]
                before = _needed(forward, stage, chunk, microbatch, pp, vpp)
                if before is not None and before not in done:
                    break
                start = max(free[stage], 0.0 if before is None else done[before])
                end = start + seconds[stage][chunk][0 if forward else 1]
                done[forward, stage, chunk, microbatch] = free[stage] = end
                found.append(Work(stage=stage, chunk=chunk, microbatch=microbatch, forward=forward, start=start, end=end))
                position[stage] += 1
                moved = True
        assert moved, "the schedule waits for itself"
    return found


def _needed(forward: bool, stage: int, chunk: int, microbatch: int, pp: int, vpp: int) -> tuple[bool, int, int, int] | None:
    """The work that must have ended: the same micro-batch one chunk earlier, or later on its way back."""
    if forward:
        if stage > 0:
            return True, stage - 1, chunk, microbatch
        return (True, pp - 1, chunk - 1, microbatch) if chunk > 0 else None
    if stage < pp - 1:
        return False, stage + 1, chunk, microbatch
    return (False, 0, chunk + 1, microbatch) if chunk < vpp - 1 else (True, stage, chunk, microbatch)


def rank_order(stage: int, microbatches: int, pp: int, vpp: int) -> list[tuple[bool, int, int]]:
    """(forward, chunk, micro-batch) in the order of one rank: warm-up forwards, then one forward one backward, then the rest.

    1F1B warms up with pp - stage - 1 micro-batches; interleaved with 2 (pp - stage - 1) + (vpp - 1) pp chunks
    (schedules.py, get_pp_rank_microbatches), where one pass through the pipeline is all that there is, with everything.
    """
    total = microbatches * vpp
    warm = pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp
    warm = min(warm, total)
    order: list[tuple[bool, int, int]] = [(True, *_virtual(k, pp, vpp, True)) for k in range(warm)]
    for k in range(total - warm):
        order.append((True, *_virtual(warm + k, pp, vpp, True)))
        order.append((False, *_virtual(k, pp, vpp, False)))
    order += [(False, *_virtual(k, pp, vpp, False)) for k in range(total - warm, total)]
    return order


def _virtual(k: int, pp: int, vpp: int, forward: bool) -> tuple[int, int]:
    """(chunk, micro-batch) of a rank's k-th piece of work: pp micro-batches through one chunk, then through the next."""
    if vpp == 1:
        return 0, k
    round_, within = divmod(k, pp * vpp)
    chunk = within // pp
    return (chunk if forward else vpp - 1 - chunk), round_ * pp + within % pp
