"""Stretches of time made disjoint, and how much of one set another covers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoconfig.evidence.traces.activity import Spans

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Union:
    """Stretches made disjoint, in order of time: of several at once the one that began first."""

    start: Floats
    end: Floats
    before: Floats
    """Covered time before each."""

    def covered(self, times: Floats) -> Floats:
        """Covered time before each of `times`."""
        if not len(self.start):
            return np.zeros_like(times)
        at = np.searchsorted(self.start, times, side="right") - 1
        inside = np.clip(times - self.start[at], 0.0, self.end[at] - self.start[at])
        return np.where(at >= 0, self.before[at] + inside, 0.0)

    def between(self, start: Floats, end: Floats) -> Floats:
        """Covered time within each stretch."""
        return self.covered(end) - self.covered(start)


def union(start: Floats, end: Floats) -> Union:
    """Stretches, sorted by their start, made disjoint; each keeps its place, and may be left with nothing."""
    reached = np.maximum.accumulate(end) if len(end) else end
    first = np.maximum(start, np.concatenate(([-np.inf], reached[:-1]))) if len(end) else start
    last = np.maximum(end, first)
    return Union(first, last, np.concatenate(([0.0], np.cumsum(last - first)[:-1])) if len(end) else end)


def merged(spans: Spans, unit: float, base: float) -> Union:
    """Stretches of the host in seconds since the first event, disjoint."""
    start, duration = seconds(spans.start, unit, base), np.frombuffer(spans.duration) * unit
    order = np.argsort(start, kind="stable")
    return union(start[order], (start + duration)[order])


def seconds(values: array[float], unit: float, base: float) -> Floats:
    """Times of a trace in seconds since its first event."""
    return (np.frombuffer(values) - base) * unit if len(values) else np.zeros(0)
