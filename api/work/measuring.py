"""What a worker that measures needs, looked at before it takes a search up."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from autoconfig.profiler.errors import RunnerError
from autoconfig.profiler.slurm import check_programs
from autoconfig.specs.errors import FileError

from autoconfig.study.interpreter import check_python
from autoconfig.study.session import Options

SCONTROL_S = 30.0


def check_measuring(options: Options) -> None:
    """The folder can be written to; jobs of this machine have an interpreter with torch and megatron-core, those of Slurm its
    programs and partition. Whether GPUs are enough is asked of each search. Raises FileError and RunnerError."""
    _check_folder(options.folder)
    if options.runner == "slurm":
        check_programs()
        if options.slurm.partition is not None:
            _check_partition(options.slurm.partition)
    else:
        check_python(options.python, 0)


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"{error.strerror or error}; name a folder on a disk that this user may write to"
        raise FileError(f"--profile-folder {str(folder)[:200]!r} cannot be used: {reason}") from error


def _check_partition(partition: str) -> None:
    """A controller that does not answer says nothing of it: jobs are tried again, and so is this."""
    command = ["scontrol", "show", "partition", partition]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_S, check=False)
    except subprocess.TimeoutExpired:
        return
    if done.returncode and "not found" in done.stdout + done.stderr:
        raise RunnerError(f"--partition {partition}: Slurm has no such partition; `sinfo` lists them")
