"""`autoconfig calibrate`: a calibration from measured runs."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autoconfig.calibration.observe import Run, observe, refine, run_of
from autoconfig.planning.calibration_file import shipped
from autoconfig.runs.predict import read_table
from autoconfig.runs.table import Row, cell
from autoconfig.runs.training_row import contradiction
from autoconfig.specs.errors import FileError, InputError, option
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.hardware.operator_table import gpu_of_table, local_folder, read_operator_table, write_operator_table
from autoconfig.specs.import_path import with_import_path
from autoconfig.specs.scenario import MOST, NAMES, Calibration


def calibrate_file(source: Path, base: Calibration | None = None) -> tuple[Calibration, int]:
    """(calibration, number of runs used) of a user's own table. Raises FileError, InputError where no row has plan and time."""
    runs, left_out = usable_runs(source)
    if not runs:
        reasons = "; ".join(left_out[:MAX_REASONS])
        raise InputError(
            f"{source}: none of its rows ({len(left_out):,}) has a whole plan and a measured time (metric_step_s, "
            f"metric_tokens_per_s_per_gpu, metric_tflops_per_gpu or metric_mfu): {reasons or 'it is empty'}"
        )
    return calibrate_runs(runs, base), len(runs)


def calibrate_runs(runs: Sequence[Run], base: Calibration | None = None) -> Calibration:
    """`base`, else the shipped calibration, refined with a cluster's own runs; its version names them."""
    return named(refine(base or shipped(), [observe(run) for run in runs], ""), "runs", runs)


MAX_REASONS = 5
"""Rows that are named with their reason; the others are counted."""


def usable_runs(source: Path) -> tuple[list[Run], list[str]]:
    """Rows that can calibrate, and a line with the reason for each of the others."""
    runs, left_out = [], []
    for number, row in enumerate(read_table(source), 1):
        run = usable(row)
        if isinstance(run, Run):
            runs.append(run)
        else:
            left_out.append(f"row {cell(row, 'id') or number}: {run}")
    return runs, left_out


def usable(row: Row) -> Run | str:
    """The run, or why it is not used."""
    run = run_of(row)
    if isinstance(run, str):
        return run
    if said := contradiction(row, run.case):
        return f"it contradicts itself: {said}"
    ratio = math.exp(observe(run).log_ratio)
    if not 1 / MOST <= ratio <= MOST:
        return (
            f"a step of {run.measured_s:.4g} s is {ratio:.3g} times what is predicted, beyond {MOST:g} times nothing is "
            "believed: check the units (metric_mfu is a fraction, metric_step_s in seconds)"
        )
    return run


def duplicates(runs: Sequence[Run]) -> list[str]:
    """A line per id that more than one run has."""
    counts = Counter(run.case.id for run in runs if run.case.id)
    return [f"id {name} names {count} runs; each counts" for name, count in counts.items() if count > 1]


def named(calibration: Calibration, kind: str, runs: Sequence[Run]) -> Calibration:
    """Calibration with a version: the number of runs behind it and a hash of them (ids, times, plans) and of its factors."""
    lines = [f"{run.case.id} {run.measured_s:.6g} {run.case.plan}" for run in runs]
    for entry in calibration.entries:
        factors = " ".join(f"{getattr(entry.factors, name):.4f}" for name in NAMES)
        lines.append(f"{entry.architecture} {entry.generation} {entry.kind} {factors}")
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
    return replace(calibration, version=f"{kind}-{len(runs)}-{digest}")


def describe(calibration: Calibration, source: Path) -> list[str]:
    """A line per entry that the user's runs made: its factors, and which of them the runs do not determine."""
    ids = {cell(row, "id") for row in read_table(source)}
    lines = []
    for entry in calibration.entries:
        if not entry.rows or not set(entry.rows) <= ids:
            continue
        determined = ", ".join(f"{name} x {getattr(entry.factors, name):.3f}" for name in entry.determined) or "nothing"
        others = ", ".join(f"{name} x {getattr(entry.factors, name):.3f}" for name in NAMES if name not in entry.determined)
        runs = f"{len(entry.rows):,} run" + "s" * (len(entry.rows) != 1)
        lines.append(
            f"{entry.generation} on {entry.architecture} ({entry.kind}), {runs}: determined {determined}; "
            f"not determined, kept near where they were: {others or 'nothing'}"
        )
    return lines


PATIENCE_S = 60.0
"""How long the benchmark may take to keep what it has after Ctrl-C."""


def run_benchmark(options: tuple[str, ...]) -> int:
    """The benchmark with these command-line options; its exit code. It speaks to the terminal itself.

    Raises InputError where it cannot be started, KeyboardInterrupt after Ctrl-C when it has kept what it measured.
    """
    command = [sys.executable, "-P", "-m", "autoconfig.kernels.benchmark", *options]
    try:
        process = subprocess.Popen(command, env=with_import_path({**os.environ}), stdout=subprocess.DEVNULL)
    except OSError as error:
        raise InputError(f"the benchmark cannot be started ({error.strerror}): {' '.join(command)}") from error
    with process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            try:
                process.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def install_table(source: Path) -> tuple[Path, GpuSpec]:
    """Copies a table to where `--gpu local` finds it; (place, GPU). Raises FileError or InputError."""
    data = read_operator_table(source)
    gpu = gpu_of_table(data, source)
    folder = local_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be made: {error.strerror or error}; keep the file and say {option('gpu_table')} {source}"
        ) from error
    target = folder / f"{gpu.id}.json"
    write_operator_table(target, data)
    return target, gpu
