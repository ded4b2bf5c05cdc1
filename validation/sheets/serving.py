"""Published serving runs, predicted with constants that have or have not seen their source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.time_model.serving.tables import shipped_calibration

from autoconfig.runs.predict_serving import ServingPrediction, predict_rows
from autoconfig.runs.table import Row, cell, number
from validation.fit.serving_fit import FirstToken, Sample, fit, samples_of
from validation.published import published_rows as rows_of
from validation.sheets.figures import Group, Line, error_line, groups_of
from validation.sources import ServingFigure, serving_figures

OUT_OF_MEMORY = re.compile(r"out of memory|\boom\b|insufficient (kv cache )?memory", re.IGNORECASE)
MIN_DIFFERENCE = 1.03
"""Two layouts count as a pair where their measured throughputs are further apart."""


def published_rows() -> list[dict[str, str]]:
    """The serving runs that ship with the project."""
    return list(rows_of("inference_measurements"))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One published run and its prediction."""

    row: Row
    predicted: ServingPrediction

    @property
    def measured_throughput(self) -> float | None:
        return number(self.row, "out_tok_s_gpu")

    def error(self, measured: str, predicted: float | None) -> float | None:
        value = number(self.row, measured) if cell(self.row, measured) else None
        return predicted / value - 1.0 if value and predicted is not None else None


@cache
def judged_runs(*, held_out: bool) -> tuple[Judged, ...]:
    """Predict all rows; `held_out`: each source with constants fitted on the others, else with the shipped ones."""
    rows = published_rows()
    predictions = _held_out(rows, *samples_of(rows)) if held_out else predict_rows(rows, shipped_calibration())
    return tuple(Judged(row=row, predicted=p) for row, p in zip(rows, predictions, strict=True))


def _held_out(rows: Sequence[Row], samples: Sequence[Sample], first: Sequence[FirstToken]) -> list[ServingPrediction]:
    result: list[ServingPrediction | None] = [None] * len(rows)
    for source in sorted({cell(row, "source") for row in rows}):
        constants = fit([s for s in samples if s.source != source], [f for f in first if f.source != source])
        mine = [i for i, row in enumerate(rows) if cell(row, "source") == source]
        for i, prediction in zip(mine, predict_rows([rows[i] for i in mine], constants), strict=True):
            result[i] = prediction
    return [p for p in result if p is not None]


def _moe(one: Judged) -> bool:
    try:
        return resolve_model(cell(one.row, "model"))[0].is_moe
    except AutoconfigError:
        return False


def serving_lines(judged: Sequence[Judged]) -> Iterator[Line]:
    """Yield the figures of validation/sources.toml beside their bars."""
    for figure in serving_figures():
        mine = [one for one in judged if _asked(one, figure)]
        bar = None if figure.bar is None else figure.bar / 100
        name = f"serving: {figure.name}"
        if figure.statistic in SHARES:
            right, count = SHARES[figure.statistic](mine)
            yield Line(name=name, rows=count, reached=right / max(count, 1), least=bar)
            continue
        errors = [one.error(figure.measured, getattr(one.predicted, figure.predicted)) for one in mine]
        if sizes := [error for error in errors if error is not None]:
            yield error_line(name, sizes, bar, OF_ERRORS[figure.statistic])


def _asked(one: Judged, figure: ServingFigure) -> bool:
    cells = all(re.fullmatch(pattern, cell(one.row, name), re.IGNORECASE) for name, pattern in figure.rows.items())
    return cells and figure.moe in (None, _moe(one))


def _fitting(judged: Sequence[Judged]) -> tuple[int, int]:
    """(runs of which the prediction says rightly whether they fit, runs predicted): a run fits unless its row says that
    memory ran out (OUT_OF_MEMORY in `status` or `notes`, and no throughput)."""
    predicted = [one for one in judged if one.predicted.fits is not None]
    return sum(one.predicted.fits != _ran_out(one.row) for one in predicted), len(predicted)


def _ran_out(row: Row) -> bool:
    words = f"{cell(row, 'status')} {cell(row, 'notes')}"
    return not cell(row, "out_tok_s_gpu") and OUT_OF_MEMORY.search(words) is not None


def tensor_parallel_order(judged: Sequence[Judged]) -> tuple[int, int]:
    """(pairs in the right order, pairs): runs alike but for TP whose measured throughput per GPU differs by more than 3 %."""
    alike: dict[tuple[str, ...], list[Judged]] = {}
    for one in judged:
        row = one.row
        if cell(row, "kind") == "max_throughput" and one.predicted.out_tok_s_gpu:
            key = tuple(cell(row, k) for k in ("source", "model", "gpu", "weights", "kv", "isl", "osl", "pp", "ep", "attn_dp"))
            alike.setdefault(key, []).append(one)
    right = []
    for a, b in (pair for group in alike.values() for pair in combinations(group, 2)):
        x, y = a.measured_throughput or 0.0, b.measured_throughput or 0.0
        if cell(a.row, "tp") != cell(b.row, "tp") and max(x, y) > MIN_DIFFERENCE * min(x, y):
            right.append((x > y) == ((a.predicted.out_tok_s_gpu or 0.0) > (b.predicted.out_tok_s_gpu or 0.0)))
    return sum(right), len(right)


OF_ERRORS: dict[str, Callable[[Sequence[float]], Any]] = {"mean": np.mean, "median": np.median, "worst": np.max}
SHARES = {"tp_order": tensor_parallel_order, "fit": _fitting}
"""Statistic -> (right, of how many)."""


def throughput_errors(judged: Sequence[Judged]) -> Iterator[tuple[str, str, float]]:
    """Yield (source, run, predicted over measured throughput of a GPU, less 1) of runs that are not held back by their load."""
    for one in judged:
        error = one.error("out_tok_s_gpu", one.predicted.out_tok_s_gpu)
        if error is not None and cell(one.row, "kind") != "online_qps":
            names = ("model", "gpu", "n_gpus", "tp", "isl", "osl")
            yield cell(one.row, "source"), " ".join(cell(one.row, name) or "-" for name in names), error


def serving_groups(judged: Sequence[Judged]) -> list[Group]:
    """Return the figures of throughput by source."""
    return groups_of((f"serving: {source}", run, error) for source, run, error in throughput_errors(judged))
