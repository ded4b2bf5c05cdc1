"""`python -m validation.diagnosis.groups` writes tables/calibration_groups.csv: published groups of runs (one source, GPU and
software, four rows or more) of which one healthy run calibrates and the others are predicted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from autoconfig.diagnosis.calibration import one_run_weight
from validation.diagnosis.alarms import alarms
from validation.published import write_list
from validation.sheets.figures import Line, table

LIST = Path(__file__).parents[1] / "tables" / "calibration_groups.csv"
LEAST_ROWS = 4
LEAST_GAIN, MOST_HARM = 0.008, 0.015
"""Asked for: the mean error falls by so much, and no group's grows by more."""


@dataclass(frozen=True, kw_only=True)
class CalibrationGroup:
    """Runs of one source, GPU and software."""

    source: str
    gpu: str
    software: str
    moe: bool
    rows: int
    before: float
    """Mean of |log(measured / predicted)|, constants without the publisher."""
    after: float
    """That mean where one run calibrates and the others are predicted, over every choice of it."""


@cache
def groups() -> tuple[CalibrationGroup, ...]:
    """Every group, in the order of the tables."""
    members: dict[tuple[str, str, str, bool], list[tuple[float, float]]] = {}
    for one in alarms():
        members.setdefault((one.source, one.gpu, one.software, one.moe), []).append((one.log_ratio, one.p95))
    return tuple(_group(key, runs) for key, runs in members.items() if len(runs) >= LEAST_ROWS)


def _group(key: tuple[str, str, str, bool], runs: list[tuple[float, float]]) -> CalibrationGroup:
    source, gpu, software, moe = key
    errors = np.array([error for error, _ in runs])
    healthy = np.array([error <= p95 for error, p95 in runs])
    moved = np.where(healthy, one_run_weight(moe=moe) * errors, 0.0)  # what is not healthy calibrates nothing
    left = np.abs(errors[:, None] - moved[None, :])
    others = ~np.eye(len(runs), dtype=bool)
    before, after = float(np.abs(errors).mean()), float(left[others].mean())
    return CalibrationGroup(source=source, gpu=gpu, software=software, moe=moe, rows=len(runs), before=before, after=after)


def group_lines() -> Iterator[Line]:
    """Yield what calibration from one run is held to."""
    before = statistics.mean(one.before for one in groups())
    after = statistics.mean(one.after for one in groups())
    yield Line(name="error of groups that one run calibrates", rows=len(groups()), reached=after, most=before - LEAST_GAIN)
    harm = max(one.after - one.before for one in groups())
    yield Line(name="worst harm to a group", rows=len(groups()), reached=harm, most=MOST_HARM)


def listed() -> list[list[str]]:
    """Return the groups as they stand in the list: what they are and how many rows."""
    return [[one.source, one.gpu, one.software, "experts" if one.moe else "dense", str(one.rows)] for one in groups()]


def by_group() -> str:
    """Return a table of the groups."""
    rows = [(*row, f"{one.before:.1%}", f"{one.after:.1%}") for row, one in zip(listed(), groups(), strict=True)]
    return table("source | GPU | software | kind | rows | before | after", rows)


if __name__ == "__main__":
    write_list(LIST, ("source", "gpu", "software", "kind", "rows"), listed())
