"""Runner: the one protocol behind which a job is started, watched and ended, and the command line that measures a job.

Everything that a runner must remember is in the job's folder, so that another process can go on where one was killed.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from autoconfig.profiler.folder import JobFolder
from autoconfig.specs.errors import InputError
from autoconfig.specs.import_path import with_import_path
from autoconfig.specs.job import Job


class Life(enum.StrEnum):
    """What the runner knows about life and death; the outcome is `outcome.outcome_of`."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """Not running, and nothing says how it ended."""


MEET = "AUTOCONFIG_MEET"
"""Variable of a job of several nodes: HOST:PORT where its nodes meet; under Slurm it is asked of the job itself."""
Command = Callable[[JobFolder, Job], list[str]]
"""The command line that measures the job in a folder; it writes result.json there."""


class Runner(Protocol):
    """Starts, watches and ends jobs."""

    name: str

    def submit(self, folder: JobFolder, limit_s: float) -> None:
        """Start the job in the folder, to be ended after `limit_s`; nothing where it runs already. Raises FileError,
        RunnerError."""

    def submit_together(self, jobs: Sequence[tuple[JobFolder, float]]) -> None:
        """`submit` of several at once, each (folder, limit_s): for a scheduler one request. Raises as `submit`."""

    def poll(self, folder: JobFolder) -> Life:
        """Look again. Safe from any process."""

    def cancel(self, folder: JobFolder) -> None:
        """End it and everything that it started, and wait until that is so. Nothing where it does not run."""


class RunnerError(InputError):
    """Jobs cannot be run here: a program is missing, or a scheduler refuses; the message says which and what to try."""


def torchrun(python: str = sys.executable, nodes: int = 1) -> Command:
    """One process per rank. `python`: the interpreter that has torch. Several nodes meet where MEET says, else at the first
    one of the Slurm job."""

    def command(folder: JobFolder, job: Job) -> list[str]:
        per_node = -(-job.num_processes // nodes)
        launcher = [python, "-m", "torch.distributed.run", f"--nproc-per-node={per_node}"]
        core = ["-m", "autoconfig.trainer", "--job", str(folder.job_file)]
        if nodes == 1:
            return [*launcher, "--standalone", *core]
        meet = ["--rdzv-backend=c10d", f"--rdzv-id={folder.name}"]
        return ["bash", "-c", _several_nodes([*launcher, f"--nnodes={nodes}", *meet], core)]

    return command


def _several_nodes(launcher: Sequence[str], core: Sequence[str]) -> str:
    import shlex

    head = """$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29511"""
    return f"meet=${{{MEET}:-{head}}}; exec {shlex.join(launcher)} --rdzv-endpoint=$meet {shlex.join(core)}"


def environment(threads: int | None = None) -> dict[str, str]:
    """Variables of a job: our code, then what the user's PYTHONPATH names (containers keep megatron-core there), never what
    lies in the working folder; so many threads a rank."""
    mine = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    found = {**with_import_path(mine), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    if threads is not None:
        found |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return found
