"""Runs that no constant has seen and that were added after the formulas, beside their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoconfig.runs.predict import predict_rows
from autoconfig.runs.table import cell, number
from autoconfig.runs.training_row import measured_step_seconds, read_case
from validation.published import published_rows

SHORT = 8192
MOST = 0.08
"""Mean absolute error that runs of at most SHORT tokens of HELD are held to."""
HELD = "torchtitan-benchmarks"
"""The source that MOST is for; the others are printed."""
UNSEEN = "unseen_measurements"


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """One run beside its prediction with the shipped constants."""

    id: str
    source: str
    what: str
    seq_length: int
    remark: str
    measured_s: float
    predicted_s: float
    inside: bool
    measured_gib: float | None
    predicted_gib: float | None

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0


def unseen_runs() -> tuple[Unseen, ...]:
    """Every row of validation/tables/unseen_measurements.csv. Raises InputError for a row that cannot be read, ValueError
    for one that cannot be predicted: the table ships with the project."""
    rows = list(published_rows(UNSEEN))
    found = []
    for row, prediction in zip(rows, predict_rows(rows), strict=True):
        case = read_case(row)
        measured = measured_step_seconds(row, case.scenario)
        if prediction.step_seconds is None or prediction.confidence is None or measured is None:
            raise ValueError(f"{cell(row, 'id')}: {prediction.note or 'no measured time'}")
        band = prediction.confidence
        workload = case.scenario.workload
        found.append(
            Unseen(
                id=cell(row, "id"),
                source=case.source,
                what=f"{cell(row, 'model')}, {cell(row, 'gpus')} x {cell(row, 'gpu')}, {cell(row, 'precision')}, sequence "
                f"{workload.seq_length:,}, {case.plan}",
                seq_length=workload.seq_length,
                remark=cell(row, "notes"),
                measured_s=measured,
                predicted_s=prediction.step_seconds,
                inside=band.step_seconds_p5 <= measured <= band.step_seconds_p95,
                measured_gib=number(row, "peak_mem_gib"),
                predicted_gib=prediction.peak_gib,
            )
        )
    return tuple(found)


def mean_error_of_short(runs: Sequence[Unseen]) -> float:
    """Mean absolute error of the runs of HELD of at most SHORT tokens."""
    short = [abs(run.error) for run in runs if run.source == HELD and run.seq_length <= SHORT]
    return sum(short) / len(short)
