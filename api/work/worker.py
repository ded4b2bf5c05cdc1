"""`autoconfig worker`: a process that works on searches, and what one that measures needs."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
from functools import partial
from pathlib import Path

import click
from autoconfig.api.answers import answer
from autoconfig.api.store import engine_of
from autoconfig.api.work.workflow import Task, WorkerProcess
from autoconfig.profiler.runner import RunnerError
from autoconfig.profiler.slurm import check_programs
from autoconfig.specs.errors import FileError

from autoconfig.study.session import Options
from autoconfig.study.this_machine import check_python

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


EXIT_TAKEN_FOR_DEAD = 1


def run(database: str, concurrency: int, profiling: Options | None = None) -> None:
    """Work until SIGTERM or Ctrl-C; what has not ended is left to the next worker. `profiling`: how it runs jobs.
    Raises InputError."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    worker = WorkerProcess(
        stop=stop,
        engine=engine_of(database),
        database=database,
        answering=partial(answer_search, profiling=profiling),
        concurrency=concurrency,
        profiles=profiling is not None,
    )
    click.echo(_said(worker, profiling), err=True)
    try:
        worker.run()
    finally:
        logging.shutdown()
        os._exit(0 if stop.is_set() else EXIT_TAKEN_FOR_DEAD)


def _said(worker: WorkerProcess, profiling: Options | None) -> str:
    """What a worker is, for its log."""
    where = worker.engine.url.render_as_string(hide_password=True)
    if profiling is None:
        measures = "measures none (no --profile-folder)"
    else:
        measures = f"measures one at a time ({profiling.runner} jobs in {profiling.folder})"
    return f"worker {worker.id} takes searches of {where}, {worker.concurrency} at a time; {measures}"


def answer_search(task: Task, profiling: Options | None = None) -> tuple[int, bytes]:
    """The answer to one search."""
    if task.body.get("profile"):
        from autoconfig.api.work.profile import measure

        assert profiling is not None, "the queue of profiling searches is listened to by workers that profile"
        return measure(task, profiling)
    task.say("progress", {"text": "ranking plans by formula"})
    status, text = answer("plans", task.body, task.calibration())
    if status == 200:
        found = json.loads(text)
        best = found["plans"][0]["short"] if found["plans"] else None
        task.say("progress", {"text": "plans are ranked", "plans": len(found["plans"]), "best": best})
    return status, text
