"""The command line that measures a job: `python -m autoconfig.trainer` under torchrun."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from autoconfig.profiler.folder import JobFolder
from autoconfig.profiler.runner import Command
from autoconfig.specs.import_path import import_path
from autoconfig.specs.job import Job


def torchrun(python: str = sys.executable, nodes: int = 1) -> Command:
    """One process per rank. `python`: the interpreter that has torch. Several nodes meet at the first one of the Slurm job."""

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

    head = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    return f"{head}; exec {shlex.join(launcher)} --rdzv-endpoint=$head:29511 {shlex.join(core)}"


def environment(threads: int | None = None) -> dict[str, str]:
    """Variables of a job: our code, never what lies in the working folder; so many threads a rank."""
    found = {"PYTHONPATH": str(import_path()), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    if threads is not None:
        found |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return found
