"""Published runs of T5, mT5 and BERT (validation/tables/t5_bert.csv) against the predictions of the same rows; in no fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import mean

import numpy as np

from autoconfig.runs.encoder_row import training_row_of
from autoconfig.runs.predict import Prediction, predict_rows
from autoconfig.runs.table import Row, cell, number
from validation.published import published_rows
from validation.sheets.figures import Line, error_line

ALLOCATED, PEAK, THROUGHPUT, SCALING = 0.02, 0.04, 0.15, 0.08
"""At most: median of allocated bytes, median of peaks, mean error of tokens per second, largest deviation from the shape."""
ENCODER_TOKENS = 512
"""Of one sample: what NVIDIA's tables count (NeMo-Framework-Launcher README, section 7)."""


@cache
def encoder_lines() -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """Return (memory of Megatron-LM's CI runs, published throughput and how it grows with the GPUs)."""
    rows = list(published_rows("t5_bert"))
    predictions = {p.id: p for p in predict_rows([training_row_of(row) for row in rows])}
    return tuple(_memory(rows, predictions)), tuple(_throughput(rows, predictions))


def _memory(rows: Sequence[Row], predictions: Mapping[str, Prediction]) -> Iterator[Line]:
    runs = [row for row in rows if cell(row, "kind") == "ci_golden"]
    for name, column, most in (("allocated after the step", "mem_alloc_gib", ALLOCATED), ("peak", "mem_peak_gib", PEAK)):
        errors = []
        for row in runs:
            one, measured = predictions[cell(row, "id")], number(row, column)
            gib = one.after_step_gib if column == "mem_alloc_gib" else one.peak_gib
            if gib and measured:
                errors.append(gib / measured - 1.0)
        yield error_line(f"T5 and BERT in CI, {name}: median error", errors, most, np.median)


def _throughput(rows: Sequence[Row], predictions: Mapping[str, Prediction]) -> Iterator[Line]:
    ratios: dict[tuple[str, bool], list[float]] = {}
    for row in rows:
        rate, gpus = _tokens_per_second(row), number(row, "gpus")
        predicted = predictions[cell(row, "id")].tokens_per_second_per_gpu
        if cell(row, "kind") == "published_training" and rate and gpus and predicted:
            ratios.setdefault((cell(row, "model"), bool(cell(row, "step_s"))), []).append(predicted * gpus / rate)
    errors = [1.0 / ratio - 1.0 for group in ratios.values() for ratio in group]
    yield error_line("T5 and BERT, published step time: mean error", errors, THROUGHPUT)
    scaled = [group for (_, timed), group in ratios.items() if not timed]
    shapes = [ratio / mean(group) - 1.0 for group in scaled for ratio in group]
    yield error_line("T5 and BERT, shape of scaling: largest deviation", shapes, SCALING, np.max)


def _tokens_per_second(row: Row) -> float | None:
    """Tokens of the encoder a second, from the rate or the step as published."""
    batch, seconds = number(row, "gbs"), number(row, "step_s")
    return number(row, "tokens_per_s") or (batch * ENCODER_TOKENS / seconds if batch and seconds else None)
