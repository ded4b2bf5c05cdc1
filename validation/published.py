"""The published runs: rows of validation/tables as questions with a measured time, and what is left of them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autoconfig.specs.errors import InputError

from autoconfig.calibration.observe import Run, gpu_name, run_of
from autoconfig.runs.table import Row, cell
from validation.sources import as_training_row, recipe_row_of_2026, source_of

TABLES = Path(__file__).parent / "tables"
NO_CATALOGUE_MODEL = "NVIDIA, model not in the catalogue"


def published_rows(name: str = "training_measurements") -> Iterator[dict[str, str]]:
    """Rows of a published table."""
    yield from csv.DictReader((TABLES / f"{name}.csv").read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A row that has no prediction to compare, and why."""

    id: str
    source: str
    gpu: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PublishedRuns:
    """Every row of the tables that ship: runs with a whole plan and a time, and the others with the reason."""

    runs: tuple[Run, ...]
    dropped: tuple[Dropped, ...]


@cache
def published_runs() -> PublishedRuns:
    """All published tables, NVIDIA's rows in the columns of the first."""
    runs: list[Run] = []
    dropped: list[Dropped] = []
    for row, reason in every_published_row():
        found = reason or run_of(row)
        if isinstance(found, Run):
            runs.append(found)
        else:
            reason = _without_particulars(found).removeprefix("it ")
            dropped.append(Dropped(id=cell(row, "id"), source=cell(row, "source"), gpu=gpu_name(row), reason=reason))
    return PublishedRuns(runs=tuple(runs), dropped=tuple(dropped))


def every_published_row() -> Iterator[tuple[Row, str]]:
    """(row in the columns of training_measurements.csv, reason why it cannot be read or an empty text)."""
    yield from ((row, "") for name in ("training_measurements", "cloud_measurements") for row in published_rows(name))
    tables = (("nvidia_training_measurements", as_training_row), ("nvidia_training_2026", recipe_row_of_2026))
    for name, read in tables:
        for row in published_rows(name):
            if cell(row, "task") == "inference":
                continue
            gpu = cell(row, "system") or cell(row, "gpu")
            try:
                yield read(row), ""
            except InputError as error:
                yield {**row, "id": cell(row, "model"), "source": NO_CATALOGUE_MODEL, "gpu": gpu}, str(error)


def _without_particulars(reason: str) -> str:
    """So that like reasons are counted together."""
    return re.split(r"[:;(]|, (?:use|known)", re.sub(r"'[^']*'", "...", reason))[0].strip()[:90]


def useful_for_calibration(run: Run) -> bool:
    """Above 1B parameters, from a published source for it, with a time that needs no guess of a FLOPs convention."""
    row = run.row
    direct = cell(row, "metric_step_s") or cell(row, "metric_tokens_per_s_per_gpu") or cell(row, "flops_convention")
    return bool(run.large and direct and "calibrate" in source_of(run.case.source).use)
