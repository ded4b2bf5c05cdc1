"""Step time against memory headroom: what a plan would add to the front of measured plans.

The front's worth is its hypervolume up to SLOWEST times the best step and down to no headroom at all (Zitzler and Thiele
1999). The next plan is the one that adds most on average over the draws (expected hypervolume improvement, Emmerich et al.
2006).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autoconfig.planning.answer import pareto_front
from autoconfig.study.candidates import Floats

SLOWEST = 2.0
"""Plans this many times slower than the best measured one add nothing."""


def gains(points: Sequence[tuple[float, float]], step: Floats, free: Floats) -> tuple[Floats, float]:
    """(hypervolume that each new point adds to the measured `points`, theirs). `step` [n, draws] seconds, `free` [n] bytes; the
    points' own order does not matter."""
    best = min(point[0] for point in points)
    end = SLOWEST * best
    front = [points[row] for row in pareto_front(*np.transpose(points)) if points[row][0] < end]
    starts = np.array([0.0, *(point[0] for point in front)])
    ends = np.array([*(point[0] for point in front), end])
    heights = np.array([0.0, *np.maximum.accumulate([max(0.0, point[1]) for point in front])])
    worth = float(((ends - starts) * heights).sum())
    added = np.zeros_like(step)
    for low, high, height in zip(starts, ends, heights, strict=True):
        width = np.clip(high - np.maximum(step, low), 0.0, None)
        added += width * np.maximum(0.0, free - height)[:, None]
    return added, worth


def chances_on_front(
    points: Sequence[tuple[float, float]],
    draws: npt.NDArray[np.float64],
    free: Floats,
    fits: npt.NDArray[np.bool_],
    share: float,
) -> tuple[Floats, float]:
    """(mean share of the front's worth that each row adds, share of the draws in which one row adds more than `share`).
    `draws` [n, draws] log step seconds."""
    added, worth = gains(points, np.exp(draws), free)
    relative = np.where(fits, added, 0.0) / max(worth, 1e-30)
    return relative.mean(axis=1), float((relative.max(axis=0) > share).mean())
