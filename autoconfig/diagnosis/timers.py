"""Timers and traces of a run as phases of its step."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoconfig.diagnosis.budget import SeenPart
from autoconfig.diagnosis.expectation import (
    COMPUTE,
    CP,
    EXPERTS,
    GATHERS,
    GRADIENTS,
    HOST,
    OPTIMIZER,
    OUTSIDE,
    PIPELINE,
    STRAGGLERS,
    TP,
    phases_of,
)
from autoconfig.evidence.records import Evidence, Origin, Timer, TraceParts

FORWARD_BACKWARD = ("forward-backward", "fwd-bwd", "fwd-bwd-time", "fwd-bwd-s")
FORWARD, BACKWARD = ("forward-compute", "forward", "fwd"), ("backward-compute", "backward", "bwd")
REDUCTION = (
    *("all-grads-sync", "backward-params-all-reduce", "backward-allreduce", "bwd-allreduce", "grads-all-reduce"),
    *("comms", "reduce-grads"),
)
"""The last two: of GPT-NeoX's DeepSpeed, all communication, and that of gradients."""
EMBEDDING_REDUCTION = ("embedding-grads-all-reduce", "backward-embedding-all-reduce", "layernorm-grads-all-reduce")
GATHER = ("params-all-gather",)
WHOLE_STEP = ("train-batch",)
OPTIMIZER_STEP = ("optimizer", "step", "optimizer-step")
DATA = ("batch-generator", "data", "data-loading", "dataloader", "data-load", "load-data", "data-time", "get-batch", "batch")
RECEIVE = ("forward-recv", "backward-recv", "forward-recv-backward-send", "backward-recv-forward-send", "recv")
"""Names of one thing: of Megatron-LM, older and newer, of DeepSpeed, of InternEvo, with `-` for `_`."""
TOP_LEVEL = (FORWARD_BACKWARD, FORWARD, BACKWARD, OPTIMIZER_STEP, DATA)
IN_FORWARD_BACKWARD = (COMPUTE, TP, CP, EXPERTS, PIPELINE, HOST, STRAGGLERS)
IDLE_PHASE = {
    "late_launch": HOST,
    "synchronization": HOST,
    "between_kernels": COMPUTE,
    "data": OUTSIDE,
    "allocation": OUTSIDE,
    "step_boundary": OUTSIDE,
    "waiting": PIPELINE,
}
"""Cause of idleness in a trace -> phase; what is not known is left unexplained."""
NOT_A_PHASE = ("communication", "copy", "unknown")
"""Parts of a trace that no phase holds by their name."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A timer's seconds: medians over its lines."""

    name: str
    least: float
    most: float
    """Over ranks."""
    origins: tuple[Origin, ...]
    by_rank: Mapping[int, float]
    steps: tuple[Mapping[int, float], ...] = ()
    """Each line's own seconds by rank."""


def normal(name: str) -> str:
    """A timer's name in one spelling."""
    return name.strip().lower().replace("_", "-").removesuffix("-microstep")


def timed(evidence: Evidence, names: Sequence[str]) -> Timed | None:
    """The first of these timers that was printed; None where none was."""
    for name in names:
        printed = [timer for timer in evidence.timers if normal(timer.name) == name]
        if printed:
            return _median(name, printed)
    return None


def _median(name: str, found: Sequence[Timer]) -> Timed:
    ranks: dict[int, list[float]] = {}
    for timer in found:
        for rank, seconds in timer.by_rank.items():
            ranks.setdefault(rank, []).append(seconds)
    return Timed(
        name=name,
        least=statistics.median(timer.seconds_min for timer in found),
        most=statistics.median(timer.seconds_max for timer in found),
        origins=tuple(timer.origin for timer in found[:1]),
        by_rank={rank: statistics.median(seconds) for rank, seconds in ranks.items()},
        steps=tuple(timer.by_rank for timer in found if timer.by_rank),
    )


def timed_step(evidence: Evidence) -> float | None:
    """Seconds of the timer of the whole step, or of those that lie side by side in it; None without forward and backward, or
    optimizer."""
    batch = timed(evidence, WHOLE_STEP)
    if batch is not None:
        return batch.most
    whole = timed(evidence, FORWARD_BACKWARD)
    pieces = [whole] if whole else [timed(evidence, FORWARD), timed(evidence, BACKWARD)]
    rest = [timed(evidence, OPTIMIZER_STEP), timed(evidence, DATA) if not whole else None]
    seconds = [one.most for one in (*pieces, *rest) if one is not None]
    return sum(seconds) if len(seconds) > 1 else None


def parts_of(evidence: Evidence) -> list[SeenPart]:
    """The phases that evidence shows, the finest first: a trace, then timers."""
    return [*_of_traces(evidence.traces), *_of_timers(evidence)]


def _of_traces(traces: Sequence[TraceParts]) -> Iterable[SeenPart]:
    """Medians over the ranks that were traced, for one step."""
    with_steps = [trace for trace in traces if trace.span_s > 0]
    if not with_steps:
        return
    each = [_trace_phases(trace) for trace in with_steps]
    files = [trace.origin.file for trace in with_steps]
    source = f"trace {files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    for name in dict.fromkeys(name for phases in each for name in phases):
        seconds = statistics.median(phases.get(name, 0.0) for phases in each)
        yield SeenPart(names=(name,), seconds=seconds, source=source)


def _trace_phases(trace: TraceParts) -> dict[str, float]:
    """Seconds of a step of one trace by phase; communication whose group the trace does not say stands under its own name."""
    steps = max(1, trace.steps)
    known = {name: seconds for name, seconds in trace.parts.items() if name not in NOT_A_PHASE}
    phases = {name: seconds / steps for name, seconds in phases_of(known).items()}
    for cause, seconds in trace.idle.items():
        if phase := IDLE_PHASE.get(cause):
            phases[phase] = phases.get(phase, 0.0) + seconds / steps
    for name in ("communication", "copy"):
        if trace.parts.get(name):
            phases[f"{name}, of no known group" if name == "communication" else "copies"] = trace.parts[name] / steps
    return phases


def _of_timers(evidence: Evidence) -> Iterable[SeenPart]:
    optimizer, data = timed(evidence, OPTIMIZER_STEP), timed(evidence, DATA)
    whole = timed(evidence, FORWARD_BACKWARD)
    reduction, gather = timed(evidence, REDUCTION), timed(evidence, GATHER)
    if whole is not None:
        yield _part(IN_FORWARD_BACKWARD, whole, "forward and backward")
    elif (forward := timed(evidence, FORWARD)) and (backward := timed(evidence, BACKWARD)):
        inside = reduction.most if reduction and normal(reduction.name) in ("backward-allreduce", "bwd-allreduce") else 0.0
        seconds = forward.most + max(0.0, backward.most - inside)
        source = f"{forward.name}, {backward.name}"
        yield SeenPart(names=IN_FORWARD_BACKWARD, seconds=seconds, source=source, words="forward and backward")
    if reduction is not None:
        more = timed(evidence, EMBEDDING_REDUCTION)
        yield SeenPart(
            names=(GRADIENTS,), seconds=reduction.most + (more.most if more else 0.0), source=f"timer {reduction.name}"
        )
    if gather is not None:
        yield _part((GATHERS,), gather)
    if optimizer is not None:
        yield _part((OPTIMIZER,), optimizer)
    if data is not None and whole is None:
        yield _part((OUTSIDE,), data)


def _part(names: tuple[str, ...], one: Timed, words: str = "") -> SeenPart:
    return SeenPart(names=names, seconds=one.most, source=f"timer {one.name}", words=words)
