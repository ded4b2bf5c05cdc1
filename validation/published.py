"""The published runs: rows of validation/tables as questions with a measured time."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from autoconfig.calibration.observe import Run, run_of
from autoconfig.runs.table import cell
from validation.sources import source_of

TABLES = Path(__file__).parent / "tables"
SERVED_TABLES = ("served_measurements", "served_rates")
"""Benchmarks of users, and of arrivals at a rate."""
STEP_TABLES = ("training_measurements", "cloud_measurements", "nvidia_training_measurements", "nvidia_training_2026")


def published_rows(name: str = "training_measurements") -> Iterator[dict[str, str]]:
    """Rows of a published table."""
    yield from csv.DictReader((TABLES / f"{name}.csv").read_text(encoding="utf-8").splitlines())


def write_list(target: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table of these columns."""
    with target.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def served_rows() -> list[dict[str, str]]:
    """Rows of benchmarks of servers."""
    return [row for table in SERVED_TABLES for row in published_rows(table)]


def step_rows() -> Iterator[dict[str, str]]:
    """Yield the rows of the tables that fits are made on."""
    for table in STEP_TABLES:
        yield from published_rows(table)


@cache
def published_runs() -> tuple[Run, ...]:
    """Return the runs of the tables that fits are made on with a whole plan and a time."""
    return tuple(run for row in step_rows() if isinstance(run := run_of(row), Run))


def useful_for_calibration(run: Run) -> bool:
    """Above 1B parameters, from a published source for it, with a time that needs no guess of a FLOPs convention."""
    row = run.row
    direct = cell(row, "metric_step_s") or cell(row, "metric_tokens_per_s_per_gpu") or cell(row, "flops_convention")
    return bool(run.large and direct and "calibrate" in source_of(run.case.source).use)
