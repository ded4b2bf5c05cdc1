"""`autoconfig validate --inference`: every published serving run predicted with constants that have not seen its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autoconfig.calibration.serving_fit import FirstToken, Sample, fit, samples_of
from autoconfig.runs.cells import Row, cell, number
from autoconfig.runs.predict_serving import Prediction, predict_rows, read_table
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.time_model.serving.calibration import shipped_calibration

if TYPE_CHECKING:
    from autoconfig.planning.progress import Progress

NOT_JUDGED = ("encoder-decoder", "NeMo Megatron Launcher")
LEAST_DIFFERENCE = 1.03
"""Two layouts count as a pair where their measured throughputs are further apart."""
SATURATED = 0.9
"""Served over offered requests below which an open loop is saturated."""


def published_rows() -> list[dict[str, str]]:
    """The runs that ship with the project."""
    with resources.as_file(resources.files("autoconfig") / "data" / "published" / "inference_measurements.csv") as path:
        return read_table(Path(path))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One published run and its prediction."""

    row: Row
    predicted: Prediction

    @property
    def measured_throughput(self) -> float | None:
        return number(self.row, "out_tok_s_gpu")

    def error(self, measured: str, predicted: float | None) -> float | None:
        """predicted / measured - 1; None where either is missing."""
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
        """Whether the bar is met; None without one."""
        if self.bar is None:
            return None
        return bool(self.value >= self.bar if self.at_least else self.value <= self.bar)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Everything that `validate --inference` prints."""

    figures: tuple[Figure, ...]
    sources: tuple[Figure, ...]
    """Mean error of throughput by source and GPU."""
    unpredicted: tuple[tuple[str, int], ...]
    held_out: bool
    judged: tuple[Judged, ...]


def validate_inference(*, held_out: bool = True, progress: Progress | None = None) -> Validation:
    """Predict all rows; `held_out`: each source with constants fitted on the others, else with the shipped ones."""
    rows = published_rows()
    if held_out:
        samples, first = samples_of(rows)
        predictions = _held_out(rows, samples, first, progress)
    else:
        predictions = predict_rows(rows, shipped_calibration(), progress)
    judged = tuple(Judged(row=row, predicted=p) for row, p in zip(rows, predictions, strict=True))
    reasons: dict[str, int] = {}
    for one in judged:
        if one.predicted.note.startswith("not predicted"):
            reasons[one.predicted.note] = reasons.get(one.predicted.note, 0) + 1
    figures = tuple(_figures(judged))
    return Validation(
        figures=figures,
        sources=tuple(_by_source(judged)),
        unpredicted=tuple(sorted(reasons.items())),
        held_out=held_out,
        judged=judged,
    )


def _held_out(
    rows: Sequence[Row], samples: Sequence[Sample], first: Sequence[FirstToken], progress: Progress | None
) -> list[Prediction]:
    result: list[Prediction | None] = [None] * len(rows)
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


def _offline(one: Judged, weights: tuple[str, ...], gpus: tuple[str, ...], moe: bool) -> bool:
    row = one.row
    return (
        cell(row, "kind") == "max_throughput"
        and _moe(one) == moe
        and cell(row, "weights") in weights
        and any(cell(row, "gpu").startswith(g) for g in gpus)
    )


GROUPS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], bool, float], ...] = (
    ("max throughput, dense FP8, H100 / H200 / GH200", ("fp8",), ("H100", "H200", "GH200"), False, 8.0),
    ("max throughput, dense FP16, A100 / H100", ("fp16",), ("A100", "H100"), False, 10.0),
    ("max throughput, dense FP4, B200 / GB200", ("fp4",), ("B200", "GB200"), False, 12.0),
    ("max throughput, dense, L40S / RTX PRO 6000", ("fp8", "fp4"), ("L40S", "RTX"), False, 15.0),
    ("max throughput, mixtures of experts", ("fp16", "fp8", "fp4"), ("",), True, 18.0),
)


def _figures(judged: Sequence[Judged]) -> Iterator[Figure]:
    for name, weights, gpus, moe, bar in GROUPS:
        errors = [e for one in judged if _offline(one, weights, gpus, moe) and (e := _speed_error(one)) is not None]
        if errors:
            yield _mean(name, errors, bar)
    right, pairs = tensor_parallel_order(judged)
    yield Figure(
        name="order of TP, pairs more than 3 % apart", rows=pairs, value=100.0 * right / max(pairs, 1), bar=97.0, at_least=True
    )
    online = [one for one in judged if cell(one.row, "kind") == "online_qps"]
    between = [e for one in online if (e := one.error("tpot_mean_ms", one.predicted.tpot_ms)) is not None]
    yield _mean("open loop, TPOT", between, 15.0)
    token = [e for one in online if (e := one.error("ttft_mean_ms", one.predicted.ttft_ms)) is not None]
    yield _median("open loop, TTFT (median)", token, 30.0)
    saturated = [e for one in online if cell(one.row, "offered_qps").lower() == "inf" and (e := _speed_error(one)) is not None]
    yield Figure(
        name="open loop, saturation rate (worst)",
        rows=len(saturated),
        value=100.0 * float(np.max(np.abs(saturated))),
        bar=15.0,
        median=100.0 * float(np.median(saturated)),
    )
    yield _mean("open loop, saturation rate (mean)", saturated, None)
    served: tuple[tuple[str, bool, float | None], ...] = (("dense", False, 12.0), ("mixture of experts", True, None))
    for name, moe, limit in served:
        server = [
            one
            for one in judged
            if cell(one.row, "kind") == "mlperf" and cell(one.row, "scenario") == "Server" and _moe(one) == moe
        ]
        errors = [e for one in server if (e := one.error("tpot_mean_ms", one.predicted.tpot_ms)) is not None]
        yield _median(f"MLPerf server, {name}, TPOT (median)", errors, limit)
        priced = [e for one in server if (e := one.error("tpot_mean_ms", one.predicted.offered_tpot_ms)) is not None]
        yield _median(f"MLPerf server, {name}, TPOT, limits unread (median)", priced, None)
        offline = [
            e
            for one in judged
            if cell(one.row, "kind") == "mlperf"
            and cell(one.row, "scenario") == "Offline"
            and _moe(one) == moe
            and (e := _speed_error(one)) is not None
        ]
        yield _mean(f"MLPerf offline, {name}, throughput", offline, None)
    ran = [one for one in judged if one.predicted.fits is not None]
    yield Figure(
        name="runs that fit",
        rows=len(ran),
        value=100.0 * sum(bool(o.predicted.fits) for o in ran) / len(ran),
        bar=100.0,
        at_least=True,
    )


def _speed_error(one: Judged) -> float | None:
    return one.error("out_tok_s_gpu", one.predicted.out_tok_s_gpu)


def _mean(name: str, errors: Sequence[float], bar: float | None) -> Figure:
    return Figure(
        name=name,
        rows=len(errors),
        value=100.0 * float(np.mean(np.abs(errors))),
        bar=bar,
        median=100.0 * float(np.median(errors)),
    )


def _median(name: str, errors: Sequence[float], bar: float | None) -> Figure:
    return Figure(
        name=name,
        rows=len(errors),
        value=100.0 * float(np.median(np.abs(errors))),
        bar=bar,
        median=100.0 * float(np.median(errors)),
    )


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
                if cell(a.row, "tp") != cell(b.row, "tp") and max(x, y) > LEAST_DIFFERENCE * min(x, y):
                    pairs += 1
                    right += (x > y) == ((a.predicted.out_tok_s_gpu or 0.0) > (b.predicted.out_tok_s_gpu or 0.0))
    return right, pairs


def _by_source(judged: Sequence[Judged]) -> Iterator[Figure]:
    groups: dict[str, list[float]] = {}
    for one in judged:
        error = _speed_error(one)
        if error is not None and cell(one.row, "kind") != "online_qps":
            name = f"{cell(one.row, 'source')} | {cell(one.row, 'gpu')} | {'experts' if _moe(one) else 'dense'}"
            groups.setdefault(name, []).append(error)
    for name, errors in sorted(groups.items()):
        yield _mean(name, errors, None)


def validation_json(found: Validation) -> dict[str, Any]:
    """The answer as JSON."""

    def line(figure: Figure) -> dict[str, Any]:
        return {
            "name": figure.name,
            "rows": figure.rows,
            "value": round(figure.value, 3),
            "unit": figure.unit,
            "bar": figure.bar,
            "met": figure.met,
            "median_error": None if figure.median is None else round(figure.median, 3),
        }

    return {
        "held_out": found.held_out,
        "figures": [line(f) for f in found.figures],
        "by_source": [line(f) for f in found.sources],
        "not_predicted": [{"reason": reason, "rows": count} for reason, count in found.unpredicted],
    }
