"""Errors of step times by source and GPU, and those that the project holds itself to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autoconfig.accuracy.runs import Predicted
from autoconfig.calibration.observe import Dropped, gpu_name
from autoconfig.runs.sources import source_of, sources


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
class ErrorGroup:
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


def figures_of(errors: Sequence[tuple[str, float]]) -> Figures:
    """Of (id, predicted / measured - 1) of some runs; nan without any."""
    if not errors:
        return Figures(rows=0, mean=np.nan, median=np.nan, bias=np.nan, worst=np.nan, worst_id="")
    ratios = np.array([ratio for _, ratio in errors])
    absolute = np.abs(ratios)
    worst_id, worst = errors[int(absolute.argmax())]
    return Figures(
        rows=len(errors),
        mean=float(absolute.mean()),
        median=float(np.median(absolute)),
        bias=float(np.median(ratios)),
        worst=worst,
        worst_id=worst_id,
    )


def figures(predicted: Sequence[Predicted]) -> Figures | None:
    """Of step times; None without runs."""
    return figures_of([(p.run.case.id, p.ratio) for p in predicted]) if predicted else None


def is_large_dense(predicted: Predicted) -> bool:
    """Dense and above 1B parameters."""
    return predicted.run.large and not predicted.run.case.scenario.model.is_moe


def error_groups(predicted: Sequence[Predicted], dropped: Sequence[Dropped]) -> list[ErrorGroup]:
    """By source and GPU, in the order of the tables."""
    members: dict[tuple[str, str], list[Predicted]] = {}
    for p in predicted:
        members.setdefault((p.source, gpu_name(p.run.row)), []).append(p)
    lost: dict[tuple[str, str], list[Dropped]] = {}
    for d in dropped:
        lost.setdefault((d.source, d.gpu), []).append(d)
    return [_group(*key, members.get(key, []), lost.get(key, [])) for key in sorted({*members, *lost})]


def _group(source: str, gpu: str, members: Sequence[Predicted], lost: Sequence[Dropped]) -> ErrorGroup:
    return ErrorGroup(
        source=source,
        gpu=gpu,
        rows=len(members) + len(lost),
        all=figures(members),
        large=figures([p for p in members if is_large_dense(p)]),
        uncovered=dict(Counter(d.reason for d in lost).most_common()),
        points=tuple((p.run.measured_s, p.step_seconds) for p in members),
    )


def bars(predicted: Sequence[Predicted], leave_out: str | None) -> list[Bar]:
    """The bars of data/sources.toml that this way of leaving out answers; in-sample shows all of them, unjudged."""
    return [
        Bar(
            name=source.bar.name,
            leave_out=source.bar.leave_out,
            most=source.bar.most,
            reached=figures([p for p in predicted if p.run.large and source_of(p.source) is source]),
            in_sample=leave_out is None,
        )
        for source in sources()
        if source.bar is not None and leave_out in (None, source.bar.leave_out)
    ]


def resisting(predicted: Iterable[Predicted], least: float = 0.15) -> list[Predicted]:
    """Large runs of calibrated sources whose error is above `least`, worst first."""
    return sorted((p for p in predicted if is_large_dense(p) and abs(p.ratio) > least), key=lambda p: -abs(p.ratio))
