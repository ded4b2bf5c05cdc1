"""Benchmarks of a number of users (validation/tables/served_measurements.csv) and of rates (served_rates.csv), each group of
model, GPU and engine predicted by constants that saw nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
from autoconfig.time_model.serving.tables import shipped_calibration

from validation.fit.closed_loop import SHARING, LeftOut, fit_pooled, predicted_left_out, runs_of
from validation.intake.served import known_setup
from validation.published import served_rows
from validation.sheets.figures import Group, Line, error_line, groups_of, share_line

Error = Callable[[LeftOut], float]


def throughput_error(one: LeftOut) -> float:
    """Error of output tokens a second, which no row prints: users x OSL / (TTFT + TPOT (OSL - 1)) on both sides."""
    later = one.run.case.lengths.osl - 1.0
    return (one.run.ttft_s + one.run.tpot_s * later) / (one.ttft_s + one.tpot_s * later) - 1.0


ERRORS: dict[str, Error] = {
    "TPOT": lambda one: one.tpot_s / one.run.tpot_s - 1.0,
    "TTFT": lambda one: one.ttft_s / one.run.ttft_s - 1.0,
    "output tokens/s": throughput_error,
}
"""What of a run is compared -> predicted over measured, less 1; times are means over the requests."""
BARS = {("TPOT", "mean"): 0.15, ("TPOT", "median"): 0.12, ("TTFT", "median"): 0.20, ("output tokens/s", "mean"): 0.17}
LOADS = {"closed": "served", "open": "served at a rate"}
INSIDE = (0.85, 0.95)
"""Share of runs inside the 90 % band."""


@cache
def left_out_runs() -> tuple[LeftOut, ...]:
    """All rows; constants are fitted on those whose set-up is known, less the row's group."""
    rows = served_rows()
    base = shipped_calibration()
    runs = runs_of(rows)
    _, equations = fit_pooled(runs, base, SHARING)
    return tuple(predicted_left_out(runs_of(rows, every=True), equations, base, SHARING))


def served_lines(runs: Sequence[LeftOut]) -> Iterator[Line]:
    """Yield, of users and of rates, the figures of rows whose set-up is known, beside their bars, then of all rows; then the
    bands."""
    for load, which in LOADS.items():
        mine = [one for one in runs if one.run.case.load == load]
        settled = [one for one in mine if known_setup(one.run.row)]
        yield from _error_lines(f"{which}, set-up known", settled, BARS if load == "closed" else {})
        yield from _error_lines(f"{which}, all rows", mine, {})
    for engine in SHARING:
        mine = [one for one in runs if one.run.case.engine.name == engine and known_setup(one.run.row)]
        for name in ("tpot", "ttft"):
            inside = [held for one in mine if (held := _inside(one, name)) is not None]
            yield share_line(f"served: {engine}, {name.upper()} inside the band", inside, *INSIDE)


def _error_lines(what: str, runs: Sequence[LeftOut], bars: Mapping[tuple[str, str], float]) -> Iterator[Line]:
    for name, error in ERRORS.items():
        errors = [error(one) for one in runs]
        for statistic, of in (("mean", np.mean), ("median", np.median)):
            yield error_line(f"{what}: {name} ({statistic})", errors, bars.get((name, statistic)), of)


def _inside(one: LeftOut, name: str) -> bool | None:
    """Whether measured over predicted is in the shipped band; None where the engine has none."""
    band = shipped_calibration().constants(one.run.case.engine, one.run.case.gpu).bands.get(name)
    ratio = getattr(one.run, f"{name}_s") / getattr(one, f"{name}_s")
    return None if band is None else band[0] <= ratio <= band[1]


def served_groups(runs: Sequence[LeftOut]) -> list[Group]:
    """Return TPOT's, TTFT's and throughput's figures of every engine, and of every group."""
    return groups_of(row for one in runs for row in _rows_of(one))


def _rows_of(one: LeftOut) -> Iterator[tuple[str, str, float]]:
    row, setup = one.run.row, "" if known_setup(one.run.row) else ", set-up not known"
    for of in (one.run.case.engine.framework, one.run.group):
        for name, error in ERRORS.items():
            yield f"served: {of}{setup}: {name}", f"{row['isl']}/{row['osl']}, {row['scenario']}", error(one)
