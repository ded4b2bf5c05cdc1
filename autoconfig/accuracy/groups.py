"""Errors of step times by source and GPU, and the lines that the project holds itself to."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from autoconfig.accuracy.runs import Dropped, Predicted, gpu_name


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Errors of some runs: absolute share of the measured step, except bias, the median of predicted / measured - 1."""

    rows: int
    mean: float
    median: float
    bias: float
    worst: float
    worst_id: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """One source on one GPU."""

    source: str
    gpu: str
    rows: int
    """Rows in the published table."""
    all: Figures | None
    large: Figures | None
    """Dense models above 1B parameters only."""
    uncovered: dict[str, int]
    """Reason -> rows."""
    points: tuple[tuple[float, float], ...] = ()
    """(measured, predicted) seconds."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A line to reach, and what was reached."""

    name: str
    leave_out: str
    most: float
    reached: Figures | None
    in_sample: bool = False
    """The constants have seen the rows: the line is printed and not judged."""

    @property
    def holds(self) -> bool | None:
        """None where the constants have seen the rows."""
        return None if self.in_sample else self.reached is not None and self.reached.mean <= self.most


def figures(predicted: Sequence[Predicted]) -> Figures | None:
    """None without runs."""
    if not predicted:
        return None
    ratios = np.array([p.ratio for p in predicted])
    errors = np.abs(ratios)
    worst = int(errors.argmax())
    return Figures(
        rows=len(ratios),
        mean=float(errors.mean()),
        median=float(np.median(errors)),
        bias=float(np.median(ratios)),
        worst=float(ratios[worst]),
        worst_id=predicted[worst].run.case.id,
    )


def is_large_dense(predicted: Predicted) -> bool:
    """Dense and above 1B parameters."""
    return predicted.run.large and not predicted.run.case.scenario.model.is_moe


def error_groups(predicted: Sequence[Predicted], dropped: Sequence[Dropped]) -> list[Group]:
    """By source and GPU, in the order of the tables."""
    members: dict[tuple[str, str], list[Predicted]] = {}
    for p in predicted:
        members.setdefault((p.source, gpu_name(p.run.row)), []).append(p)
    lost: dict[tuple[str, str], list[Dropped]] = {}
    for d in dropped:
        lost.setdefault((d.source, d.gpu), []).append(d)
    return [_group(*key, members.get(key, []), lost.get(key, [])) for key in sorted({*members, *lost})]


def _group(source: str, gpu: str, members: Sequence[Predicted], lost: Sequence[Dropped]) -> Group:
    return Group(
        source=source,
        gpu=gpu,
        rows=len(members) + len(lost),
        all=figures(members),
        large=figures([p for p in members if is_large_dense(p)]),
        uncovered=dict(Counter(d.reason for d in lost).most_common()),
        points=tuple((p.run.measured_s, p.step_seconds) for p in members),
    )


@cache
def _bars() -> list[dict[str, Any]]:
    text = (resources.files("autoconfig") / "data" / "accuracy_bars.json").read_text(encoding="utf-8")
    bars: list[dict[str, Any]] = json.loads(text)["bars"]
    return bars


def bars(predicted: Iterable[Predicted], leave_out: str | None) -> list[Bar]:
    """The lines of data/accuracy_bars.json that this way of leaving out answers; in-sample shows all of them, unjudged."""
    every = list(predicted)
    found = []
    for bar in _bars():
        if leave_out not in (None, bar["leave_out"]):
            continue
        mine = [
            p
            for p in every
            if re.search(bar["source"], p.source) and p.run.large and p.run.case.scenario.model.is_moe == bar.get("moe", False)
        ]
        line = Bar(
            name=bar["name"],
            leave_out=bar["leave_out"],
            most=bar["most"],
            reached=figures(mine),
            in_sample=leave_out is None,
        )
        found.append(line)
    return found


def resisting(predicted: Iterable[Predicted], least: float = 0.15) -> list[Predicted]:
    """Large runs of calibrated sources whose error is above `least`, worst first."""
    return sorted((p for p in predicted if is_large_dense(p) and abs(p.ratio) > least), key=lambda p: -abs(p.ratio))
