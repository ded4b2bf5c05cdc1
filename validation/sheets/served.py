"""Benchmarks of a number of users (validation/tables/served_measurements.csv) and of rates (served_rates.csv), each group of
model, GPU and engine predicted by constants that saw nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from autoconfig.time_model.serving.tables import shipped_calibration

from validation.fit.closed_loop import SHARING, LeftOut, fit_pooled, predicted_left_out, runs_of
from validation.intake.served import known_setup
from validation.published import served_rows
from validation.sheets.figures import Group, Line, figures_of

Error = Callable[[LeftOut], float]


def tpot_error(one: LeftOut) -> float:
    """Of the mean time between tokens: predicted / measured - 1."""
    return one.tpot_s / one.run.tpot_s - 1.0


def ttft_error(one: LeftOut) -> float:
    """Of the mean time to first token."""
    return one.ttft_s / one.run.ttft_s - 1.0


def throughput_error(one: LeftOut) -> float:
    """Of output tokens a second, which no row prints: users x OSL / (TTFT + TPOT (OSL - 1)) on both sides."""
    later = one.run.case.lengths.osl - 1.0
    return (one.run.ttft_s + one.run.tpot_s * later) / (one.ttft_s + one.tpot_s * later) - 1.0


ERRORS: dict[str, Error] = {"TPOT": tpot_error, "TTFT": ttft_error, "output tokens/s": throughput_error}
BARS = {("TPOT", "mean"): 0.15, ("TPOT", "median"): 0.12, ("TTFT", "median"): 0.20, ("output tokens/s", "mean"): 0.17}
LOADS = {"closed": "served", "open": "served at a rate"}
INSIDE = (0.85, 0.95)
"""Share of runs inside the 90 % band."""


@cache
def left_out_runs() -> tuple[LeftOut, ...]:
    """All rows; constants are fitted on those whose set-up is known, less the row's group."""
    rows = served_rows()
    base = shipped_calibration()
    known = runs_of(rows)
    _, equations = fit_pooled(known, base, SHARING)
    return tuple(predicted_left_out(runs_of(rows, every=True), equations, base, SHARING))


def served_lines(found: Sequence[LeftOut]) -> Iterator[Line]:
    """Yield, of users and of rates, the figures of rows whose set-up is known, beside their bars, then of all rows; then the
    bands."""
    for load, which in LOADS.items():
        mine = [one for one in found if one.run.case.load == load]
        bars = BARS if load == "closed" else {}
        yield from _errors_beside(f"{which}, set-up known", [one for one in mine if known_setup(one.run.row)], bars)
        yield from _errors_beside(f"{which}, all rows", mine, {})
    for engine in SHARING:
        mine = [one for one in found if one.run.case.engine.name == engine and known_setup(one.run.row)]
        for name in ("tpot", "ttft"):
            known = [one for one in (_inside(run, name) for run in mine) if one is not None]
            low, high = INSIDE
            reached = float(np.mean(known))
            line = f"served: {engine}, {name.upper()} inside the band"
            yield Line(name=line, rows=len(known), reached=reached, least=low, most=high)


def _errors_beside(what: str, runs: Sequence[LeftOut], bars: Mapping[tuple[str, str], float]) -> Iterator[Line]:
    statistics: dict[str, Callable[[Sequence[float]], Any]] = {"mean": np.mean, "median": np.median}
    for name, error in ERRORS.items():
        for statistic, of in statistics.items():
            reached = float(of([abs(error(one)) for one in runs]))
            most = bars.get((name, statistic))
            yield Line(name=f"{what}: {name} ({statistic})", rows=len(runs), reached=reached, most=most)


def _inside(one: LeftOut, name: str) -> bool | None:
    """Whether measured over predicted is in the shipped band; None where the engine has none."""
    band = shipped_calibration().constants(one.run.case.engine, one.run.case.gpu).bands.get(name)
    ratio = getattr(one.run, f"{name}_s") / getattr(one, f"{name}_s")
    return None if band is None else band[0] <= ratio <= band[1]


def served_groups(found: Sequence[LeftOut]) -> list[Group]:
    """Return TPOT's, TTFT's and throughput's figures of every engine, and of every group."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for one in found:
        row, setup = one.run.row, "" if known_setup(one.run.row) else ", set-up not known"
        run = f"{row['isl']}/{row['osl']}, {row['scenario']}"
        for of in (one.run.case.engine.framework, one.run.group):
            for name, error in ERRORS.items():
                groups.setdefault(f"served: {of}{setup}: {name}", []).append((run, error(one)))
    return [Group(name=name, figures=figures_of(errors)) for name, errors in sorted(groups.items())]
