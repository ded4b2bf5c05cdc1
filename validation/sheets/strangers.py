"""Runs of publishers that nothing here was fitted to, asked as a user's table is.

Rows of `tables/strangers_training.csv` as their collector wrote them down, and once more with what their sources state about
settings (`tables/strangers_facts.csv`: a row, a column, its value and where it stands). The constants are the shipped ones, of
NVIDIA's own rows those that have seen no row of NVIDIA's. Says errors by publisher, model and GPU, the share of steps inside
the 90 % band and its half-width, errors of the peak, and how often `fits` is right of whole plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from autoconfig.runs.predict import Prediction, predict_rows
from autoconfig.runs.table import Row, cell, number
from validation.published import published_rows
from validation.sheets.figures import (
    Line,
    bar_text,
    error_line,
    figures_of,
    group_cells,
    groups_of,
    share,
    share_line,
    table,
)
from validation.sheets.training import Constants

MOST_MEAN, MOST_MEDIAN, LEAST_FITS = 0.12, 0.08, 0.95
"""Asked for: mean and median error of the step, and how often a whole plan's fit is right."""
INSIDE = (0.85, 0.95)
"""Asked for: share of the steps inside their 90 % band."""
OF_NVIDIA = "Megatron-Bridge"
"""How the sources of NVIDIA's own runs begin; MLPerf's are of its partners as well as its own."""
A_TABLE_OF_NVIDIA = "NVIDIA 2026 H100 dense TP"
"""A source of `sources.toml` whose publisher is NVIDIA."""
RAN = ("ran", "")


Answered = Sequence[tuple[Row, Prediction]]
"""Every row with its prediction."""


@cache
def strangers(*, facts: bool) -> Answered:
    """Predict every row, with what its source states of its settings or as it was collected."""
    stated: dict[str, dict[str, str]] = {}
    for fact in published_rows("strangers_facts") if facts else ():
        stated.setdefault(fact["id"], {})[fact["column"]] = fact["value"]
    rows = [{**row, **stated.get(row["id"], {})} for row in published_rows("strangers_training")]
    unseen = Constants("publisher").of(A_TABLE_OF_NVIDIA, "")
    predictions: dict[int, Prediction] = {}
    for own, constants in ((False, None), (True, unseen)):
        mine = [row for row in rows if cell(row, "source").startswith(OF_NVIDIA) == own]
        predictions |= {id(row): p for row, p in zip(mine, predict_rows(mine, constants), strict=True)}
    return tuple((row, predictions[id(row)]) for row in rows)


def timed(answered: Answered) -> Iterator[tuple[Row, Prediction, float, float]]:
    """Yield row, prediction, its seconds and the measured ones of each row that has both."""
    for row, p in answered:
        measured = number(row, "metric_step_s")
        if measured and p.step_seconds is not None:
            yield row, p, p.step_seconds, measured


def steps(answered: Answered) -> list[tuple[str, str, float, bool]]:
    """Return (group, id, predicted / measured step - 1, inside the band) of each row with a step time."""
    rows = []
    for row, p, seconds, measured in timed(answered):
        if p.confidence is not None:
            inside = p.confidence.step_seconds_p5 <= measured <= p.confidence.step_seconds_p95
            group = f"{cell(row, 'source')}, {cell(row, 'model')}, {cell(row, 'gpu')}"
            rows.append((group, cell(row, "id"), seconds / measured - 1, inside))
    return rows


def _fit_right(answered: Answered) -> list[bool]:
    """Whether `fits` is right, of each row with a whole plan."""
    whole = [(row, p) for row, p in answered if cell(row, "full_plan") == "1" and p.fits is not None]
    return [p.fits == (bool(number(row, "metric_step_s")) and cell(row, "status") in RAN) for row, p in whole]


def lines(answered: Answered, what: str) -> Iterator[Line]:
    """Yield what is held to."""
    errors = [error for *_, error, _ in steps(answered)]
    yield error_line(f"{what}: mean error of the step", errors, MOST_MEAN)
    yield error_line(f"{what}: median error of the step", errors, MOST_MEDIAN, np.median)
    yield share_line(f"{what}: inside the 90 % band", [inside for *_, inside in steps(answered)], INSIDE[0])
    yield share_line(f"{what}: fit right, whole plans", _fit_right(answered), LEAST_FITS)


STRANGERS = {"strangers, as their sources state their settings": True, "strangers, as collected": False}
"""What is said of the sheet -> whether the facts of the sources are in it."""


def page() -> str:
    """Return the figures as Markdown."""
    parts = []
    for what, facts in STRANGERS.items():
        answered = strangers(facts=facts)
        inside: dict[str, list[bool]] = {}
        for group, *_, held in steps(answered):
            inside.setdefault(group, []).append(held)
        groups = groups_of((group, name, error) for group, name, error, _ in steps(answered))
        rows = [(*group_cells(one)[:5], share(float(np.mean(inside[one.name])), ".0%")) for one in groups]
        parts.append(table(f"{what} | rows | mean | median | bias | inside", rows))
        bars = [(line.name, str(line.rows), share(line.reached), bar_text(line)) for line in lines(answered, what)]
        parts.append(table("figure | rows | reached | asked", bars))
        parts += _peaks_and_bands(answered)
        parts += [f"- {p.id}: {p.note}\n" for _, p in answered if p.step_seconds is None]
    return "\n".join(parts)


def _peaks_and_bands(answered: Answered) -> tuple[str, str]:
    """Errors of the peak of rows with a measured one, and half the 90 % band over the prediction of rows with one."""
    measured = [(p.peak_gib, number(row, "peak_mem_gib")) for row, p in answered]
    peaks = figures_of([("", peak / gib - 1) for peak, gib in measured if peak is not None and gib])
    bands = [(p.confidence, p.step_seconds) for _, p in answered if p.confidence is not None and p.step_seconds]
    half = float(np.median([(band.step_seconds_p95 - band.step_seconds_p5) / 2 / step for band, step in bands]))
    return (
        f"Peak: {peaks.rows} rows, mean {share(peaks.mean)}, median {share(peaks.median)}; half-width of the bands ",
        f"{share(half)} in the middle.\n",
    )
