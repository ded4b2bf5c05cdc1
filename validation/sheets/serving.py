"""`autoconfig validate --inference`: every published serving run predicted with constants that have not seen its source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.time_model.serving.tables import shipped_calibration

from autoconfig.runs.predict_serving import ServingPrediction, predict_rows
from autoconfig.runs.table import Row, cell, number
from validation.fit.serving_fit import FirstToken, Sample, fit, samples_of
from validation.published import published_rows as rows_of
from validation.sources import ServingFigure, serving_figures

if TYPE_CHECKING:
    from autoconfig.planning.progress import Progress

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


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the report: what, over how many runs, the figure, and the bar it is held to (None: printed only)."""

    name: str
    rows: int
    value: float
    unit: str = "%"
    bar: float | None = None
    at_least: bool = False
    median: float | None = None
    """Median of the signed errors in %, where the figure is a mean error."""

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        return bool(self.value >= self.bar if self.at_least else self.value <= self.bar)


@dataclass(frozen=True, kw_only=True)
class ServingValidation:
    """Everything that `validate --inference` prints."""

    figures: tuple[Figure, ...]
    sources: tuple[Figure, ...]
    unpredicted: tuple[tuple[str, int], ...]
    held_out: bool
    judged: tuple[Judged, ...]


def validate_inference(*, held_out: bool = True, progress: Progress | None = None) -> ServingValidation:
    """Predict all rows; `held_out`: each source with constants fitted on the others, else with the shipped ones."""
    rows = published_rows()
    if held_out:
        samples, first = samples_of(rows)
        predictions = _held_out(rows, samples, first, progress)
    else:
        predictions = predict_rows(rows, shipped_calibration(), progress)
    judged = tuple(Judged(row=row, predicted=p) for row, p in zip(rows, predictions, strict=True))
    reasons = Counter(one.predicted.note for one in judged if one.predicted.failed)
    return ServingValidation(
        figures=tuple(_figures(judged)),
        sources=tuple(_by_source(judged)),
        unpredicted=tuple(sorted(reasons.items())),
        held_out=held_out,
        judged=judged,
    )


def _held_out(
    rows: Sequence[Row], samples: Sequence[Sample], first: Sequence[FirstToken], progress: Progress | None
) -> list[ServingPrediction]:
    result: list[ServingPrediction | None] = [None] * len(rows)
    for source in sorted({cell(row, "source") for row in rows}):
        if progress is not None:
            progress(source)
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


def _figures(judged: Sequence[Judged]) -> Iterator[Figure]:
    for asked in serving_figures():
        mine = [one for one in judged if _asked(one, asked)]
        if asked.statistic in SHARES:
            right, count = SHARES[asked.statistic](mine)
            share = 100.0 * right / max(count, 1)
            yield Figure(name=asked.name, rows=count, value=share, bar=asked.bar, at_least=True)
            continue
        found = (one.error(asked.measured, getattr(one.predicted, asked.predicted)) for one in mine)
        if errors := [error for error in found if error is not None]:
            yield _figure(asked.name, errors, asked.statistic, asked.bar)


def _asked(one: Judged, figure: ServingFigure) -> bool:
    cells = all(re.fullmatch(pattern, cell(one.row, name), re.IGNORECASE) for name, pattern in figure.rows.items())
    return cells and figure.moe in (None, _moe(one))


def _figure(name: str, errors: Sequence[float], statistic: str, bar: float | None) -> Figure:
    value = 100.0 * float(OF_ERRORS[statistic](np.abs(errors)))
    return Figure(name=name, rows=len(errors), value=value, bar=bar, median=100.0 * float(np.median(errors)))


def _fitting(judged: Sequence[Judged]) -> tuple[int, int]:
    """(runs of which the prediction says rightly whether they fit, runs predicted): a run fits unless its row says that
    memory ran out (OUT_OF_MEMORY in `status` or `notes`, and no throughput)."""
    known = [one for one in judged if one.predicted.fits is not None]
    return sum(one.predicted.fits != _ran_out(one.row) for one in known), len(known)


def _ran_out(row: Row) -> bool:
    said = f"{cell(row, 'status')} {cell(row, 'notes')}"
    return not cell(row, "out_tok_s_gpu") and OUT_OF_MEMORY.search(said) is not None


def tensor_parallel_order(judged: Sequence[Judged]) -> tuple[int, int]:
    """(pairs in the right order, pairs): runs alike but for TP whose measured throughput per GPU differs by more than 3 %."""
    alike: dict[tuple[str, ...], list[Judged]] = {}
    for one in judged:
        row = one.row
        if cell(row, "kind") == "max_throughput" and one.predicted.out_tok_s_gpu:
            key = tuple(cell(row, k) for k in ("source", "model", "gpu", "weights", "kv", "isl", "osl", "pp", "ep", "attn_dp"))
            alike.setdefault(key, []).append(one)
    right = pairs = 0
    for group in alike.values():
        for i, a in enumerate(group):
            for b in group[i + 1 :]:
                x, y = a.measured_throughput or 0.0, b.measured_throughput or 0.0
                if cell(a.row, "tp") != cell(b.row, "tp") and max(x, y) > MIN_DIFFERENCE * min(x, y):
                    pairs += 1
                    right += (x > y) == ((a.predicted.out_tok_s_gpu or 0.0) > (b.predicted.out_tok_s_gpu or 0.0))
    return right, pairs


OF_ERRORS: dict[str, Callable[[npt.NDArray[np.float64]], np.float64]] = {"mean": np.mean, "median": np.median, "worst": np.max}
SHARES = {"tp_order": tensor_parallel_order, "fit": _fitting}
"""Statistic -> (right, of how many)."""


def _by_source(judged: Sequence[Judged]) -> Iterator[Figure]:
    groups: dict[str, list[float]] = {}
    for one in judged:
        error = one.error("out_tok_s_gpu", one.predicted.out_tok_s_gpu)
        if error is not None and cell(one.row, "kind") != "online_qps":
            name = f"{cell(one.row, 'source')} | {cell(one.row, 'gpu')} | {'experts' if _moe(one) else 'dense'}"
            groups.setdefault(name, []).append(error)
    for name, errors in sorted(groups.items()):
        yield _figure(name, errors, "mean", None)


if __name__ == "__main__":
    from rich.console import Console

    from validation.sheets.sheets import show_serving_validation

    show_serving_validation(Console(), validate_inference())
