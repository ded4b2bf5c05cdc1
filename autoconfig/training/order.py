"""In which order plans are told: the plainest of a tie first, ties, the safe choice, the Pareto set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from autoconfig.specs.layouts import first_positions, pareto_front
from autoconfig.training.rank import RESOLUTION, SAFE_FIT, SLOWEST, Ranking

PARETO_POINTS = 12
PLAINER = 0.03
"""A plainer plan may come before the fastest when it is so much slower at most: half of a tie."""


def plainest_first(ranking: Ranking) -> Ranking:
    """The same with the layouts within PLAINER of the fastest in another order: fewest unusual settings first, of these the
    fastest. Unusual are chunks of one layer, uneven stages where even ones exist, context parallelism, FSDP, selective
    recomputation of several modules, and full recomputation of a part of the layers."""
    steps = ranking.step_seconds[ranking.best]
    count = int(np.searchsorted(steps, steps[0] * (1 + PLAINER), side="right")) if len(steps) else 0
    tied = ranking.best[:count]
    rows, num_layers = ranking.space.layouts.take(ranking.row[tied]), ranking.scenario.model.num_layers
    lists = np.array([len(option.modules) > 1 or option.method == "block" for option in ranking.options], bool)
    uneven = (num_layers % rows.pp == 0) & (rows.pp > 1) & (rows.first * rows.pp != num_layers)
    thin = (rows.vpp > 1) & (rows.pp * rows.vpp == num_layers)
    strange = np.sum([uneven, thin, rows.cp > 1, rows.fsdp > 0, lists[ranking.option[tied]]], axis=0)
    order = np.argsort(strange, kind="stable")
    return replace(ranking, best=np.concatenate([tied[order], ranking.best[count:]]))


def tie_groups(step_seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Group number (from 1) of every plan of a ranking: a group is all plans within RESOLUTION of its first."""
    groups = np.zeros(len(step_seconds), np.int64)
    start, group = 0, 0
    while start < len(step_seconds):
        group += 1
        end = int(np.searchsorted(step_seconds, step_seconds[start] * (1 + RESOLUTION), side="right"))
        groups[start:end] = group
        start = max(end, start + 1)
    return groups


def pareto_positions(ranking: Ranking) -> list[int]:
    """Positions of plans that no other plan beats in both step time and memory headroom; at most PARETO_POINTS, spread out,
    none slower than SLOWEST times the first."""
    if not len(ranking.row):
        return []
    within = int(np.searchsorted(ranking.step_seconds, SLOWEST * ranking.step_seconds[0], side="right"))
    free = (ranking.limit_bytes - ranking.peak_bytes)[:within]
    front = pareto_front(ranking.step_seconds[:within], free)
    if len(front) > PARETO_POINTS:
        wanted = np.geomspace(ranking.step_seconds[front[0]], ranking.step_seconds[front[-1]], PARETO_POINTS)
        nearest = np.abs(ranking.step_seconds[front][None, :] - wanted[:, None]).argmin(axis=1)
        front = front[sorted(set(nearest.tolist()))]
    return [int(position) for position in front]


def safe_position(ranking: Ranking) -> int | None:
    """Position of the fastest plan whose chance to fit is at least SAFE_FIT; None where there is none."""
    likely = np.flatnonzero(ranking.fit_chances() >= SAFE_FIT)
    return int(likely[0]) if len(likely) else None


def in_order(ranking: Ranking, sort_by: str) -> npt.NDArray[np.int64]:
    """One plan per layout: fastest first, or smallest, or likeliest where none has the asked chance to fit."""
    if sort_by != "memory" and ranking.fit_chance_met:
        return ranking.best
    size = ranking.peak_bytes - (0.0 if sort_by == "memory" else ranking.limit_bytes)
    smallest = np.lexsort((ranking.step_seconds, size))
    return smallest[first_positions(ranking.space.layout_id[ranking.row[smallest]])]
