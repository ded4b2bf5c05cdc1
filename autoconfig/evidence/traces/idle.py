"""Why a GPU did nothing: what the next kernel waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoconfig.evidence.traces.activity import Activity, Spans
from autoconfig.evidence.traces.unions import Floats, merged, seconds

SHORT_GAP_S = 10e-6
"""Between kernels that are both queued: dependencies and the start of a kernel."""
RETURN_S = 1e-6
"""A synchronisation may end so much before the kernel that it waited for does, by the clocks of host and GPU."""
LEAST_S = 1e-12
"""Shorter is rounding."""
DATA, ALLOCATION, SYNCHRONIZATION, LATE = "data", "allocation", "synchronization", "late_launch"
WAITING, BETWEEN, BOUNDARY, UNKNOWN = "waiting", "between_kernels", "step_boundary", "unknown"


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Stretches in which the GPU did nothing; seconds since the trace's first event."""

    start: Floats
    end: Floats
    launch: Floats
    """When the host began to launch what ended the gap; nan where the trace does not say."""
    launched: Floats
    bounds: Floats
    """When the host began each step."""


def causes(activity: Activity, gaps: Gaps, base: float) -> dict[str, float]:
    """Seconds by cause; they add up to the gaps.

    Where the host launched the next kernel only after the GPU had nothing to do, the wait is the host's: for data and around
    cudaMalloc and cudaFree as long as these took, the rest behind a synchronisation that ended in the gap, at the edge of a
    step, or because it launches late. Where the kernel was queued, the gap is short, or it waited for an event or a peer.
    """
    start, end, launch = gaps.start, gaps.end, gaps.launch
    gap = end - start
    late, known = launch >= start, ~np.isnan(launch)
    short = ~late & (gap <= SHORT_GAP_S)
    until = np.where(late, np.clip(gaps.launched, start, end), np.where(known | short, start, end))
    data = merged(activity.data, activity.unit, base).between(start, until)
    allocation = np.minimum(merged(activity.allocated, activity.unit, base).between(start, until), until - start - data)
    rest = gap - data - allocation
    waited = late & _ends_within(activity.synchronized, activity.unit, base, start, launch)
    at_edge = late & _holds(gaps.bounds, start, launch)
    conditions = [waited, at_edge, late, short, known]
    cause = np.select(conditions, range(len(conditions)), default=len(conditions))
    seconds_of = np.bincount(cause, weights=rest, minlength=len(conditions) + 1)
    names = (SYNCHRONIZATION, BOUNDARY, LATE, BETWEEN, WAITING, UNKNOWN)
    idle = dict(zip(names, seconds_of, strict=True)) | {DATA: data.sum(), ALLOCATION: allocation.sum()}
    return {name: float(value) for name, value in idle.items() if value > LEAST_S}


def _ends_within(spans: Spans, unit: float, base: float, start: Floats, end: Floats) -> NDArray[np.bool_]:
    """Whether a stretch that began before `start` ends between both."""
    if not len(spans):
        return np.zeros(len(start), dtype=bool)
    began = seconds(spans.start, unit, base)
    ended = began + np.frombuffer(spans.duration) * unit
    order = np.argsort(ended, kind="stable")
    at = np.searchsorted(ended[order], start - RETURN_S)
    found = order[np.minimum(at, len(order) - 1)]
    return (at < len(order)) & (ended[found] <= end) & (began[found] < start)


def _holds(moments: Floats, start: Floats, end: Floats) -> NDArray[np.bool_]:
    """Whether one of the moments lies between both."""
    return np.searchsorted(moments, start, side="left") < np.searchsorted(
        moments, np.nan_to_num(end, nan=-np.inf), side="right"
    )
