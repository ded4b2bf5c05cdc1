"""What the answers of both lanes and of studies pick from ranked plans: the Pareto front, one plan a layout, a few of many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def pareto_front(least: npt.ArrayLike, most: npt.ArrayLike, slack: float = 0.0) -> Ints:
    """Rows that no other row beats in one value without being worse in the other, in the order of `least`.

    `least` is better where it is small, `most` where it is large; of equal rows the first stands for all. With `slack` a row
    is kept only where its `most` exceeds that of the row kept before by more than this share.
    """
    low, high = np.asarray(least, float), np.asarray(most, float)
    if not len(low):
        return np.zeros(0, np.int64)
    order = np.argsort(low, kind="stable")
    ahead = np.concatenate([[True], high[order][1:] > np.maximum.accumulate(high[order])[:-1]])
    front = order[ahead]
    front = front[np.append(low[front][1:] > low[front][:-1], True)]  # of rows with one `least` the last has the most
    if not slack:
        return front
    kept: list[int] = []
    for row in front:
        if not kept or high[row] > high[kept[-1]] * (1 + slack):
            kept.append(row)
    return np.array(kept, np.int64)


def on_front(least: npt.ArrayLike, most: npt.ArrayLike) -> list[bool]:
    """Which rows are on the front; of equal rows all."""
    pairs = np.stack([np.asarray(least, float), np.asarray(most, float)], axis=1)
    front = {tuple(pair) for pair in pairs[pareto_front(*pairs.T)].tolist()}
    return [tuple(pair) in front for pair in pairs.tolist()]


def first_positions(ids: Ints) -> Ints:
    """Position of the first entry of every id (0 or more), ascending; in linear time, unlike a sort of millions."""
    first = np.full(int(ids.max(initial=-1)) + 1, len(ids))
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)  # of entries of one id the last assignment stays: the first entry
    return np.sort(first[first < len(ids)])


def spread(rows: Sequence[int], most: int) -> list[int]:
    """At most so many of the rows, evenly spread, both ends among them."""
    return [rows[int(i)] for i in np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round())]
