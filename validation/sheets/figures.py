"""Errors of some rows as figures, lines that are held to a bar, and both as Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Errors of some rows, as shares of what was measured: absolute, but for `bias`, the median of predicted / measured - 1."""

    rows: int
    mean: float
    median: float
    bias: float
    worst: float
    worst_id: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """Figures of one group of rows."""

    name: str
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class Line:
    """One figure over some rows: what was reached, as a share, and the least or the most that is asked for."""

    name: str
    rows: int
    reached: float
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether it is reached; None where nothing is asked for, or no row says anything."""
        if (self.least is None and self.most is None) or not self.rows:
            return None
        return (self.least is None or self.reached >= self.least) and (self.most is None or self.reached <= self.most)


def figures_of(errors: Sequence[tuple[str, float]]) -> Figures:
    """Return the figures of (id, predicted / measured - 1) of some rows; nan without any."""
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


def groups_of(errors: Iterable[tuple[str, str, float]]) -> list[Group]:
    """Figures by group, in the order of their names; `errors`: (group, id, predicted / measured - 1)."""
    members: dict[str, list[tuple[str, float]]] = {}
    for group, name, error in errors:
        members.setdefault(group, []).append((name, error))
    return [Group(name=name, figures=figures_of(own)) for name, own in sorted(members.items())]


def share_line(name: str, right: Iterable[bool], least: float | None = None, most: float | None = None) -> Line:
    """Line of the share that is right; 0 of none."""
    every = list(right)
    return Line(name=name, rows=len(every), reached=float(np.mean(every)) if every else 0.0, least=least, most=most)


def error_line(
    name: str, errors: Iterable[float], most: float | None = None, statistic: Callable[[Any], Any] = np.mean
) -> Line:
    """Line of the size of errors, their mean if nothing else is asked for; 0 of none."""
    sizes = np.abs(list(errors))
    return Line(name=name, rows=len(sizes), reached=float(statistic(sizes)) if len(sizes) else 0.0, most=most)


def bar_text(line: Line) -> str:
    """What one end of a line asks for, and whether it is missed."""
    end = f"at most {share(line.most)}" if line.most is not None else f"at least {share(line.least)}"
    return end if line.holds else f"{end}: missed"


def share(value: float | None, spec: str = ".1%") -> str:
    """Return a percentage; a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:{spec}}".replace("%", " %")


def table(header: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; `header`: names of the columns with `|` between them."""
    names = header.split(" | ")
    lines = [names, ["---"] * len(names), *([cell.replace("|", "/") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def group_table(groups: Iterable[Group]) -> str:
    """Return the table of the figures of groups."""
    return table("group | rows | mean error | median | bias | worst", map(group_cells, groups))


def group_cells(group: Group) -> tuple[str, ...]:
    """Cells of a group: name, rows, mean and median error, bias, worst row."""
    f = group.figures
    worst = f"{share(f.worst, '+.2%' if abs(f.worst) < 0.01 else '+.0%')} {f.worst_id}"
    return group.name, str(f.rows), share(f.mean), share(f.median), share(f.bias, "+.1%"), worst


def line_table(lines: Iterable[Line]) -> str:
    """Return the table of lines, those that are missed first."""
    ordered = sorted(lines, key=lambda line: (line.holds is not False, line.holds is None))
    return table("line | rows | reached | asked for | holds", (_line(line) for line in ordered))


def _line(line: Line) -> tuple[str, ...]:
    ends = {"at least": line.least, "at most": line.most}
    bars = " and ".join(f"{word} {share(end)}" for word, end in ends.items() if end is not None)
    reached = share(line.reached) if line.rows else "no row"
    return line.name, f"{line.rows:,}", reached, bars, {None: "", True: "yes", False: "NO"}[line.holds]


def missed_rows(errors: Iterable[tuple[str, str, float]], beyond: float) -> str:
    """Return a list by source of the rows that are more than `beyond` off; `errors`: (source, id, predicted / measured - 1)."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for source, name, error in errors:
        groups.setdefault(source, []).append((name, error))
    lines = []
    for source, members in sorted(groups.items()):
        far = sorted((one for one in members if abs(one[1]) > beyond), key=lambda one: -abs(one[1]))
        if far:
            listed = ", ".join(f"{name} {share(error, '+.0%')}" for name, error in far)
            lines.append(f"- {source}, {len(far)} of {len(members)}: {listed}")
    return "\n".join(lines) + "\n" if lines else "none\n"
