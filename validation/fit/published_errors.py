"""Errors on published runs with no fitted constant, by closed forms alone and with operator tables, and after calibration.

`python -m validation.fit.published_errors` writes the table between the markers of docs/time_model.md.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import autoconfig.time_model.job
import numpy as np
from autoconfig.specs.files import replace_section
from autoconfig.time_model.hardware.efficiency import formula_efficiency_of

from autoconfig.calibration.observe import gpu_name, predicted_seconds
from autoconfig.planning.calibration_file import shipped
from validation.published import published_runs
from validation.sheets.training import Constants, predict_runs
from validation.sources import source_of

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "time_model.md"
BEGIN, END = "<!-- published errors: written by validation/fit/published_errors.py -->", "<!-- end of published errors -->"
MIN_ROWS = 2
Column = dict[str, list[float]]
"""Group -> rows, mean error, median bias, mean error after one scalar, mean error after calibration, in %."""


def column(closed: bool) -> Column:
    """Every group, by closed forms alone or with operator tables: NVIDIA's with the model left out of the calibration, others
    with the source. What is priced first stays so in this process."""
    if closed:
        setattr(autoconfig.time_model.job, "efficiency_of", formula_efficiency_of)  # noqa: B010
    runs = [run for run in published_runs() if source_of(run.case.source).whole_step]
    calibrated = {True: Constants("model"), False: Constants("source")}
    groups: dict[str, list[tuple[float, float]]] = {}
    for nvidia in (True, False):
        mine = [run for run in runs if bool(source_of(run.case.source).publisher) == nvidia]
        for run, after in zip(mine, predict_runs(mine, calibrated[nvidia]), strict=True):
            name = run.case.source if nvidia else f"{run.case.source}, {gpu_name(run.row)}"
            plain = predicted_seconds(run.case.scenario, run.case.plan) / run.measured_s
            groups.setdefault(name, []).append((plain, after.ratio + 1.0))
    figures: Column = {}
    for name, pairs in sorted(groups.items()):
        raw, after = np.array(pairs).T
        if len(raw) >= MIN_ROWS:
            scaled = raw / np.median(raw)
            parts = (np.abs(raw - 1).mean(), np.median(raw) - 1, np.abs(scaled - 1).mean(), np.abs(after - 1).mean())
            figures[name] = [len(raw), *(round(100 * float(part), 1) for part in parts)]
    return figures


def table(closed: Column, tables: Column) -> str:
    """Both columns as one Markdown table."""
    lines = ["| source (rows) | closed forms | with tables | calibrated: closed, tables |", "|---|---|---|---|"]
    for name, (rows, *after) in tables.items():
        before = closed[name][1:]
        cells = [f"{mean:.1f}, {bias:+.1f} ({scalar:.1f})" for mean, bias, scalar, _ in (before, after)]
        lines.append(f"| {name} ({rows:.0f}) | {cells[0]} | {cells[1]} | {before[3]:.1f}, {after[3]:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Make both columns, each in a process that prices nothing else, and write the table."""
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:
        closed, tables = pool.map(column, (True, False))
    replace_section(DOCUMENT, BEGIN, END, f"{table(closed, tables)}\n\nShipped calibration: {shipped().version}.")


if __name__ == "__main__":
    main()
