"""`autoconfig calibrate`: a calibration from measured runs; the shipped one is made so from the published runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from autoconfig.calibration_file import read_calibration, write_calibration
from autoconfig.fit import fit, refine
from autoconfig.observe import Run, all_published_rows, observe, timed_runs, useful_for_calibration
from autoconfig.predict import read_table
from specs.errors import InputError
from time_model.calibration import NAMES, Calibration, shipped


def published_calibration() -> Calibration:
    """Fitted on the published runs that `observe.useful_for_calibration` lets in."""
    runs = [run for run in timed_runs(all_published_rows()) if useful_for_calibration(run)]
    return fit([observe(run) for run in runs], _version("published", runs))


def calibrate_file(source: Path, base: Calibration | None = None) -> tuple[Calibration, int]:
    """(calibration, number of runs used) of a user's own table. Raises FileError, InputError where no row has plan and time."""
    rows = read_table(source)
    runs = timed_runs(rows)
    if not runs:
        raise InputError(
            f"{source}: none of its {len(rows)} rows has a whole plan and a measured time (metric_step_s, "
            "metric_tokens_per_s_per_gpu, metric_tflops_per_gpu or metric_mfu)"
        )
    return refine(base or shipped(), [observe(run) for run in runs], _version("runs", runs)), len(runs)


def _version(kind: str, runs: Sequence[Run]) -> str:
    """Names the runs behind a calibration: their number and a hash of ids and times."""
    text = "\n".join(f"{run.case.id} {run.measured_s:.6g} {run.case.plan}" for run in runs)
    return f"{kind}-{len(runs)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def describe(calibration: Calibration, source: Path) -> list[str]:
    """A line per entry that the user's runs made: its factors, and which of them the runs do not determine."""
    ids = {row.get("id", "") for row in read_table(source)}
    lines = []
    for entry in calibration.entries:
        if not entry.rows or not set(entry.rows) <= ids:
            continue
        known = ", ".join(f"{name} x {getattr(entry.factors, name):.3f}" for name in entry.determined) or "nothing"
        kept = ", ".join(f"{name} x {getattr(entry.factors, name):.3f}" for name in NAMES if name not in entry.determined)
        lines.append(
            f"{entry.generation} on {entry.architecture} ({entry.kind}), {len(entry.rows)} runs: determined {known}; "
            f"not determined, kept near where they were: {kept or 'nothing'}"
        )
    return lines


__all__ = ["calibrate_file", "describe", "published_calibration", "read_calibration", "write_calibration"]
