"""What a GPU did with its time: parts and causes of idleness that add up to the span.

Each instant counts once. Kernels that compute come first; of several at once the one that began first. Then communication
while nothing computes (exposed), then copies, then idleness (idle.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autoconfig.evidence.kernels import COMMUNICATION, UNKNOWN, fallback_of, group_of, part_of, part_of_group
from autoconfig.evidence.records import CollectiveUse, Origin, TraceParts
from autoconfig.evidence.traces.activity import COPY, Activity, CollectiveKey
from autoconfig.evidence.traces.idle import Gaps, causes
from autoconfig.evidence.traces.unions import Floats, Union, merged, seconds, union

DRAINED = 0.02
"""Share of a step that the GPU may go on working after the host ended it, and still count as drained."""
FALLBACK_SHARE = 0.01
"""Of kernel time, from which on a slow path is named: a router in fp32 is none."""
WORLD = "default_pg"
"""torch's name of the group of all ranks."""
COPIES = "copy"
POINT_TO_POINT = "send_recv"
MOST_UNKNOWN = 10
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective of a trace, to be found again in another rank's."""

    key: CollectiveKey
    step: int
    """Ordinal of the step that launched it; 0 without steps."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TracedRank:
    """A trace's parts, and its collectives in order of time."""

    parts: TraceParts
    calls: tuple[Call, ...]


@dataclass(frozen=True, kw_only=True)
class GpuWork:
    """The events of one GPU in order of their start, in seconds since the trace's first."""

    start: Floats
    end: Floats
    name: Integers
    """Index of the activity's names, or COPY."""
    key: Integers
    """Index of the activity's keys of collectives, or -1."""
    size_bytes: Floats
    launch: Floats
    """When the host began to launch it; nan where the trace does not say."""
    launched: Floats
    """When it had."""

    def only(self, chosen: NDArray[np.bool_]) -> GpuWork:
        """The events that are chosen."""
        return GpuWork(**{name: values[chosen] for name, values in vars(self).items()})

    def within(self, first: float, last: float) -> GpuWork:
        """The events between two moments, cut at both."""
        part = self.only((self.end > first) & (self.start < last))
        return replace(part, start=np.maximum(part.start, first), end=np.minimum(part.end, last))


@dataclass(frozen=True, kw_only=True)
class TraceSpan:
    """What of a trace is looked at."""

    first: float
    last: float
    """On the GPU."""
    steps: Floats
    """Seconds of each whole step; none: the trace says nothing of steps."""
    host: tuple[float, float]
    """The same on the host, which may run ahead."""
    bounds: Floats
    """When the host began each step, and ended the last."""


def rank_trace(activity: Activity, origin: Origin) -> TracedRank | None:
    """The parts of the GPU that was busy longest; None where the trace holds no kernel."""
    if not len(activity.start):
        return None
    unit, base, device = activity.unit, activity.start[0], activity.busiest()
    work = _work(activity, device, base)
    window = _window(activity, work, base)
    inside = work.within(window.first, window.last)
    span = window.last - window.first
    if not len(inside.start) or not span > 0:
        return None
    busy, uses = _parts(activity, inside)
    length = inside.end - inside.start
    kernels = inside.name != COPY
    by_name = np.bincount(inside.name[kernels], weights=length[kernels], minlength=len(activity.name_ids)).astype(np.float64)
    total = float(by_name.sum())
    unknown = [
        (name, float(spent))
        for name, spent in zip(activity.name_ids, by_name, strict=True)
        if spent and part_of(name) == UNKNOWN
    ]
    host = np.array(window.host)
    parts = TraceParts(
        origin=origin,
        rank=activity.rank,
        world_size=activity.world_size,
        device=activity.devices.get(device, ""),
        steps=len(window.steps),
        span_s=span,
        step_seconds=tuple(float(step) for step in window.steps),
        parts=busy,
        idle=causes(activity, _gaps(inside, window), base),
        collectives=uses,
        kernel_seconds=total,
        unknown_kernel_share=sum(spent for _, spent in unknown) / total if total else 0.0,
        unknown_kernels=tuple(sorted(unknown, key=lambda one: -one[1])[:MOST_UNKNOWN]),
        launches=_count(seconds(activity.launched, unit, base), window),
        graph_launches=_count(seconds(activity.graphs, unit, base), window),
        synchronizations=_count(seconds(activity.synchronized.start, unit, base), window),
        allocations=_count(seconds(activity.allocated.start, unit, base), window),
        collections_s=float(merged(activity.collections, unit, base).between(host[:1], host[1:])[0]),
        names=_fallbacks(activity, by_name, total),
    )
    return TracedRank(parts=parts, calls=_calls(activity, inside, window))


def _count(times: Floats, window: TraceSpan) -> int:
    return int(((times >= window.host[0]) & (times < window.host[1])).sum())


def _work(activity: Activity, device: int, base: float) -> GpuWork:
    on = np.flatnonzero(np.frombuffer(activity.device, dtype=np.int32) == device)
    start = seconds(activity.start, activity.unit, base)
    order = on[np.argsort(start[on], kind="stable")]
    key, size = np.full(len(start), -1, dtype=np.int64), np.zeros(len(start))
    if len(activity.called):
        called = np.frombuffer(activity.called, dtype=np.int64)
        key[called] = np.frombuffer(activity.called_key, dtype=np.int32)
        size[called] = np.frombuffer(activity.called_bytes)
    launch, launched = _launches(activity, np.frombuffer(activity.correlation, dtype=np.int64)[order], base)
    return GpuWork(
        start=start[order],
        end=start[order] + np.frombuffer(activity.duration)[order] * activity.unit,
        name=np.frombuffer(activity.name, dtype=np.int32)[order].astype(np.int64),
        key=key[order],
        size_bytes=size[order],
        launch=launch,
        launched=launched,
    )


def _launches(activity: Activity, correlation: Integers, base: float) -> tuple[Floats, Floats]:
    """When the host began and ended the call behind each event."""
    missing = np.full(len(correlation), np.nan)
    if not len(activity.call_start):
        return missing, missing
    correlations = np.frombuffer(activity.call_correlation, dtype=np.int64)
    order = np.argsort(correlations, kind="stable")
    at = np.minimum(np.searchsorted(correlations[order], correlation), len(correlations) - 1)
    found = order[at]
    there = (correlations[found] == correlation) & (correlation >= 0)
    start = seconds(activity.call_start, activity.unit, base)
    length = np.frombuffer(activity.call_duration) * activity.unit
    return np.where(there, start[found], np.nan), np.where(there, start[found] + length[found], np.nan)


def _window(activity: Activity, work: GpuWork, base: float) -> TraceSpan:
    """All whole steps. Where the host runs ahead of the GPU they are counted where the GPU works on them: from the first kernel
    that a step launched."""
    whole = (float(work.start[0]), float(work.end.max()))
    steps = sorted(activity.steps.values())
    if not steps:
        return TraceSpan(first=whole[0], last=whole[1], steps=np.zeros(0), host=(-np.inf, np.inf), bounds=np.zeros(0))
    begin = (np.array([start for start, _ in steps]) - base) * activity.unit
    end = float((steps[-1][0] + steps[-1][1] - base) * activity.unit)
    bounds = np.append(begin, end)
    mean = (end - begin[0]) / len(begin)
    order = np.argsort(work.launch, kind="stable")  # nan last
    cuts = np.searchsorted(work.launch[order], bounds)
    firsts = [work.start[order[low:high]].min() if high > low else np.nan for low, high in pairwise(cuts)]
    of_last = work.end[order[cuts[-2] : cuts[-1]]]
    done = float(of_last.max()) if len(of_last) else whole[1]
    host = (float(begin[0]), end)
    if done <= end + DRAINED * mean or np.isnan(firsts).any():
        if np.isnan(work.launch).all() and whole[1] > end + DRAINED * mean:
            return TraceSpan(
                first=whole[0],
                last=whole[1],
                steps=np.full(len(begin), (whole[1] - whole[0]) / len(begin)),
                host=host,
                bounds=bounds,
            )
        return TraceSpan(first=host[0], last=end, steps=np.diff(bounds), host=host, bounds=bounds)
    return TraceSpan(first=float(firsts[0]), last=done, steps=np.diff(np.append(firsts, done)), host=host, bounds=bounds)


def _groups(activity: Activity) -> list[str]:
    """The group of each key: that of all ranks is the data-parallel one where no other is named."""
    alone = {key.group for key in activity.keys} <= {WORLD, ""}
    return ["dp" if key.group == WORLD and alone else group_of(key.group) for key in activity.keys]


def _parts(activity: Activity, work: GpuWork) -> tuple[dict[str, float], tuple[CollectiveUse, ...]]:
    """(seconds of each part, collectives by name and group)."""
    groups = _groups(activity)
    names = [part_of(name) for name in activity.name_ids]
    of_keys = [part_of_group(group, key.name) for group, key in zip(groups, activity.keys, strict=True)]
    table = sorted({COPIES, *names, *of_keys})
    place = {name: at for at, name in enumerate(table)}
    by_name = np.array([*(place[name] for name in names), place[COPIES]])  # COPY is the last
    by_key = np.array([*(place[name] for name in of_keys), 0])
    own = by_name[work.name]
    keyed = work.key >= 0
    part = np.where(keyed & (own == place.get(COMMUNICATION, -1)), by_key[work.key], own)
    copied = work.name == COPY
    computed = ~keyed & ~copied
    compute, talk, copies = _union(work, computed), _union(work, keyed), _union(work, copied)
    length = np.zeros(len(work.start))
    length[computed] = compute.end - compute.start
    length[keyed] = talk.end - talk.start - compute.between(talk.start, talk.end)
    length[copied] = copies.end - copies.start - _union(work, ~copied).between(copies.start, copies.end)
    spent = np.bincount(part, weights=length, minlength=len(table))
    hidden = compute.between(work.start[keyed], work.end[keyed])
    parts = {name: float(spent[at]) for at, name in enumerate(table) if spent[at] > 0}
    return parts, _uses(activity, groups, work.only(keyed), hidden)


def _union(work: GpuWork, chosen: NDArray[np.bool_]) -> Union:
    return union(work.start[chosen], work.end[chosen])


def _uses(activity: Activity, groups: list[str], work: GpuWork, hidden: Floats) -> tuple[CollectiveUse, ...]:
    """Collectives by name, group and size of the group, the longest first; `work` holds nothing else."""
    length = work.end - work.start
    sums = [
        np.bincount(work.key, weights=values, minlength=len(groups))
        for values in (np.ones(len(length)), length, length - hidden, work.size_bytes)
    ]
    uses: dict[tuple[str, str, int | None], Floats] = {}
    for at, (key, group) in enumerate(zip(activity.keys, groups, strict=True)):
        row = np.array([column[at] for column in sums])
        if row[0]:
            name = (key.name, group, key.ranks)
            uses[name] = uses.get(name, np.zeros(len(row))) + row
    return tuple(
        CollectiveUse(
            name=name,
            group=group,
            ranks=ranks,
            count=int(row[0]),
            seconds=float(row[1]),
            exposed_s=max(0.0, float(row[2])),
            size_bytes=float(row[3]) or None,
        )
        for (name, group, ranks), row in sorted(uses.items(), key=lambda one: -one[1][1])
    )


def _fallbacks(activity: Activity, by_name: Floats, total: float) -> frozenset[str]:
    seconds: dict[str, float] = {}
    for name, spent in zip(activity.name_ids, by_name, strict=True):
        if slow := fallback_of(name):
            seconds[slow] = seconds.get(slow, 0.0) + float(spent)
    return frozenset(slow for slow, spent in seconds.items() if spent >= FALLBACK_SHARE * total > 0)


def _gaps(work: GpuWork, window: TraceSpan) -> Gaps:
    """The stretches in which the GPU did nothing, with the launch of what ended each."""
    reached = np.concatenate(([window.first], np.maximum.accumulate(work.end)))
    idle = work.start > reached[:-1]
    tail = reached[-1:] < window.last
    end = np.append(work.start[idle], reached[-1:][tail] * 0 + window.last)
    bounds = window.bounds
    return Gaps(
        start=np.append(reached[:-1][idle], reached[-1:][tail]),
        end=end,
        launch=np.append(work.launch[idle], end[len(end) - int(tail.sum()) :]),
        launched=np.append(work.launched[idle], end[len(end) - int(tail.sum()) :]),
        bounds=bounds,
    )


def _calls(activity: Activity, work: GpuWork, window: TraceSpan) -> tuple[Call, ...]:
    keys = list(activity.keys)
    at = [int(one) for one in np.flatnonzero(work.key >= 0) if keys[work.key[one]].name != POINT_TO_POINT]
    steps = np.searchsorted(window.bounds, np.nan_to_num(work.launch[at], nan=-np.inf), side="right")
    length = (work.end - work.start)[at]
    return tuple(
        Call(key=keys[work.key[one]], step=int(step), seconds=float(spent))
        for one, step, spent in zip(at, steps, length, strict=True)
    )
