"""`autoconfig calibrate`: a calibration from measured runs; the shipped one is made so from the published runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from autoconfig.files import write_atomically
from autoconfig.fit import fit, refine
from autoconfig.observe import Run, all_published_rows, observe, timed_runs, useful_for_calibration
from autoconfig.predict import read_table
from specs.errors import FileError, InputError
from time_model.calibration import Calibration, parse, shipped, to_json

MAX_FILE_BYTES = 16 * 2**20


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


def write_calibration(calibration: Calibration, target: Path) -> None:
    """As JSON, written beside and renamed. Raises FileError."""
    text = json.dumps(to_json(calibration), indent=1) + "\n"

    def write(file: Path) -> None:
        file.write_text(text, encoding="utf-8")

    write_atomically(target, write)


def read_calibration(source: Path) -> Calibration:
    """A file that `write_calibration` wrote. Raises FileError or InputError."""
    try:
        if source.stat().st_size > MAX_FILE_BYTES:
            raise FileError(f"{source} is larger than {MAX_FILE_BYTES // 2**20} MiB")
        return parse(json.loads(source.read_text(encoding="utf-8")), str(source))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, OSError):
            raise FileError(f"{source} cannot be read: {error.strerror or error}") from error
        raise InputError(f"{source} is not a calibration; write one with autoconfig calibrate") from error
