"""`autoconfig calibrate --gpu local` and `--gpu-table FILE`: make, or take over, the operator table that `--gpu local` reads.

The benchmark runs as a process of its own (`python -P -m autoconfig.kernels.benchmark`), because planning never imports torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.hardware.operator_table import gpu_of_table, local_folder, read_operator_table, write_operator_table
from autoconfig.specs.import_path import with_import_path

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
            f"{folder} cannot be made: {error.strerror or error}; keep the file and say --gpu-table {source}"
        ) from error
    target = folder / f"{gpu.id}.json"
    write_operator_table(target, data)
    return target, gpu
