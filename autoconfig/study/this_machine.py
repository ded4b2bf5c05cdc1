"""A study on this machine: the interpreter that runs jobs, asked of itself; its CPU's measured operators."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from autoconfig.profiler.folder import write_text
from autoconfig.profiler.processes import MARK, die_with_parent, end_marked
from autoconfig.profiler.runner import RunnerError
from autoconfig.specs.errors import FileError, InputError, option
from autoconfig.specs.hardware.local_gpu import memory_bytes
from autoconfig.specs.import_path import with_import_path

TOO_FEW_GPUS = 14
HAS_TORCH = f"""
import importlib.util as u, sys
if not all(map(u.find_spec, ("torch", "megatron.core"))): sys.exit(1)
if int(sys.argv[1]):
    import torch
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    print(found)
    sys.exit({TOO_FEW_GPUS} if found < int(sys.argv[1]) else 0)
"""
"""Asked of the jobs' interpreter, with the number of GPUs that a job needs."""
PYTHON_S = 120.0
"""What its answer may take: torch lies on a busy file system, maybe."""


def asked(python: str, question: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the interpreter answers to a short program. Raises RunnerError where it cannot be started."""
    try:
        command = [python, "-c", question, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PYTHON_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunnerError(
            f"{option('python')} {python} cannot be started: {getattr(error, 'strerror', None) or error}"
        ) from error


@functools.cache
def check_python(python: str, gpus: int) -> None:
    """The interpreter has torch and megatron-core, and finds so many GPUs. Raises RunnerError; asked once in a process."""
    done = asked(python, HAS_TORCH, str(gpus))
    if done.returncode == TOO_FEW_GPUS:
        found = int(done.stdout.split()[-1])
        fewer = (
            f"{option('gpus_here')} {found} emulates ranks of each plan on one GPU"
            if found
            else f"{option('device')} cpu measures on this CPU"
        )
        raise RunnerError(
            f"no job can be measured here: torch finds {found or 'no'} usable GPU{'s' * (found > 1)}, jobs need {gpus}; "
            f"{fewer}, {option('runner')} slurm asks a cluster"
        )
    if done.returncode:
        raise RunnerError(
            f"{python} has no torch with megatron-core: pip install 'megatron-autoconfig[train]', "
            f"or name another with {option('python')}"
        )


if TYPE_CHECKING:
    from optuna.study import Study  # slow to load, and not needed to ask a question

TABLE = "operator_table"
"""Attribute of a study: its measured operators."""
TABLE_FILE = "cpu.json"
CPU_SHARE = 0.5
"""Of the machine's memory, over the ranks: the default limit on a CPU."""
BENCHMARK_S = "60s"
BENCHMARK_INTERRUPTED = 130


def rank_memory_bytes(ranks: int) -> int:
    """The default limit of a rank on this machine's CPU."""
    return int(CPU_SHARE * memory_bytes() / ranks)


def table_file(folder: Path, study_name: str) -> Path:
    """Where `operator_table` writes: one file for each study of a folder."""
    return folder / f"{hashlib.sha256(study_name.encode()).hexdigest()[:8]}-{TABLE_FILE}"


def operator_table(study: Study, folder: Path, python: str, say: Callable[[str], None]) -> Path:
    """The file of this machine's operators: kept in the study, measured once by `kernels.benchmark`. Raises InputError."""
    path = table_file(folder, study.study_name)
    kept = study.user_attrs.get(TABLE)
    if kept is None:
        say("measuring this CPU's operators ...")
        end_marked(path, 0.0)  # what a search killed with -9 may have left
        _benchmark(path, python)
        kept = json.loads(path.read_text(encoding="utf-8"))
        study.set_user_attr(TABLE, kept)
    else:
        write_text(path, json.dumps(kept) + "\n")
    return path


def check_measured(study: Study, command: str) -> None:
    """Raises InputError where this machine's operators were not measured yet; `command` goes on with a study."""
    if TABLE not in study.user_attrs:
        name = study.study_name
        raise InputError(f"study {name} has measured nothing yet; {command} {option('resume')} {name} goes on with it")


def forget_operators(folder: Path, study_name: str, left: Collection[str]) -> None:
    """Take away the operators' file of a deleted study, unless one of the studies `left` uses the same. Raises FileError."""
    path = table_file(folder, study_name)
    if path in {table_file(folder, name) for name in left}:
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{str(path)[:200]!r} cannot be deleted: {error.strerror or error}") from error


def _benchmark(path: Path, python: str) -> None:
    """A busy machine may be too slow for the collectives: then the link is assumed. No process is left behind."""
    for ranks in ((), ("--ranks", "1")):
        done = _run_benchmark(
            path, (python, "-P", "-m", "autoconfig.kernels.benchmark", "--output", str(path), "--device", "cpu", *ranks)
        )
        if done.returncode == 0 and path.exists():
            return
        if done.returncode == BENCHMARK_INTERRUPTED:
            raise KeyboardInterrupt
    said = " ".join((done.stderr or done.stdout).rpartition("error: ")[2].split())[-300:]
    raise InputError(f"this CPU cannot be measured: {said or f'exit code {done.returncode}'}")


def _run_benchmark(path: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    variables = with_import_path({**os.environ, MARK: str(path)})
    try:
        return subprocess.run(
            [*command, "--budget", BENCHMARK_S],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
            preexec_fn=die_with_parent(),
        )
    except OSError as error:
        raise InputError(f"{option('python')} {command[0]} cannot be started: {error.strerror or error}") from error
    finally:
        end_marked(path, 0.0)
