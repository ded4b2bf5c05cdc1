"""Which rank came last: a collective ends on all ranks at once, so the kernel of the last one is the shortest."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from autoconfig.evidence.records import LastArrival
from autoconfig.evidence.traces.activity import CollectiveKey
from autoconfig.evidence.traces.timeline import Call, TracedRank

LEAST_WAIT_S = 10e-6
"""Others waited at least so long, and a tenth of the collective: else all came together."""
LEAST_WAIT = 0.10


def compare(traces: Sequence[TracedRank]) -> tuple[LastArrival, ...]:
    """Of several ranks' traces how often each came last to a collective that they share, the most often first; nothing where
    ranks are not told apart, or share none.

    A collective is found again by its group and its place among those of its group and step. Where a trace does not list a
    group's ranks, it is shared where it is of all ranks, or where no trace says how many it has.
    """
    by_rank = {trace.parts.rank: trace for trace in traces if trace.parts.rank is not None}
    if len(by_rank) < 2 or len(by_rank) < len(traces):
        return ()
    world = next((trace.parts.world_size for trace in traces if trace.parts.world_size), None)
    placed: dict[tuple[CollectiveKey, int, int], dict[int, float]] = defaultdict(dict)
    for rank, trace in by_rank.items():
        for place, seconds in _places(trace.calls, world):
            placed[place][rank] = seconds
    waits: dict[int, list[float]] = defaultdict(list)
    shared: Counter[int] = Counter()
    for seconds_of in placed.values():
        if len(seconds_of) < 2:
            continue
        shared.update(seconds_of.keys())
        last = min(seconds_of, key=seconds_of.__getitem__)
        wait = statistics.median(taken - seconds_of[last] for rank, taken in seconds_of.items() if rank != last)
        if wait > max(LEAST_WAIT_S, LEAST_WAIT * seconds_of[last]):
            waits[last].append(wait)
    found = [
        LastArrival(rank=rank, collectives=count, last=len(waits[rank]), others_waited_s=sum(waits[rank]))
        for rank, count in shared.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.last, -one.others_waited_s)))


def _places(calls: Iterable[Call], world: int | None) -> Iterable[tuple[tuple[CollectiveKey, int, int], float]]:
    """(where a collective stands, its seconds) of those that other ranks take part in for certain."""
    seen: Counter[tuple[CollectiveKey, int]] = Counter()
    for call in calls:
        key = call.key
        if not key.members and key.ranks != world and not (key.ranks is None and not key.group):
            continue
        seen[key, call.step] += 1
        yield (key, call.step, seen[key, call.step]), call.seconds
