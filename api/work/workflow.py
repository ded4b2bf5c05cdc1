"""The durable work of `autoconfig worker`: one workflow a search, taken from a queue by any worker, finished by another where
one dies.

The engine is DBOS: the queue hands a workflow to exactly one worker, a worker's death gives it back. What DBOS leaves to its
user is here: every worker has an id of its own that stays as long as it lives, beats in a table, and takes up what workers with
a still heart had begun; the workflow's version is named and not a hash of the code.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import sqlalchemy as sa
from autoconfig.api import measurements, searches
from autoconfig.api.answers import answer
from autoconfig.api.problems import problem_bytes
from autoconfig.api.searches import (
    BEAT_SECONDS,
    PROFILE_QUEUE,
    QUEUE,
    WORKFLOW_VERSION,
    Answering,
    LeavingError,
    TakenForDeadError,
    Task,
)
from autoconfig.api.store import OPEN, WORKERS, dbos_url, engine_of
from autoconfig.api.work.recovery import Recovery, give_back
from autoconfig.profiler.ray_cluster import Share, check_cluster
from autoconfig.profiler.runner import RunnerError
from autoconfig.profiler.slurm import check_programs
from autoconfig.specs.errors import FileError, without_password
from dbos import DBOS, DBOSClient

from autoconfig.study.session import Options
from autoconfig.study.this_machine import check_python

LOG = logging.getLogger("autoconfig.worker")
POLL_SECONDS = 0.3
GRACE_SECONDS = 10.0
"""How long steps may go on after the order to stop."""


@dataclass
class WorkerProcess:
    """One worker. `run` until `stop` is set."""

    engine: sa.Engine
    database: str
    answering: Answering
    concurrency: int = 2
    profiles: bool = False
    """Whether it takes up searches that measure, one at a time."""
    id: str = field(default_factory=lambda: f"{socket.gethostname()[:24]}-{os.getpid()}-{uuid.uuid4().hex[:12]}")
    stop: threading.Event = field(default_factory=threading.Event)
    _gone: threading.Event = field(default_factory=threading.Event)
    """The database failed a step, or this worker was taken for dead: the process goes, another begins its steps again."""
    _active: set[str] = field(default_factory=set)
    _count: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Take searches up until told to stop, or taken for dead. The caller ends the process at once after it: threads of
        steps that have not ended may still run, and the next worker begins these steps again."""
        dbos = DBOS(
            config={
                "name": "autoconfig",
                "system_database_url": dbos_url(self.database),
                "executor_id": self.id,
                "application_version": WORKFLOW_VERSION,
                "log_level": "ERROR",
                "run_migrations": False,
            }
        )
        self._register()
        self._first_beat()
        queues = {QUEUE: self.concurrency} | ({PROFILE_QUEUE: 1} if self.profiles else {})
        DBOS.listen_queues([*queues])
        DBOS.launch()
        for queue, most in queues.items():
            DBOS.register_queue(queue, worker_concurrency=most, polling_interval_sec=POLL_SECONDS, on_conflict="always_update")
        client = DBOSClient(system_database_url=dbos_url(self.database), system_database_engine=self.engine)
        recovery = Recovery(self.engine, client, self.id)
        try:
            while not self.stop.wait(BEAT_SECONDS) and not self._gone.is_set():
                if not self._beat():
                    LOG.error("another worker took this one for dead; it ends")
                    self._gone.set()
                    break
                recovery.look()
        finally:
            for event in dbos.background_thread_stop_events:  # nothing is claimed from now on
                event.set()
            self._wait_for_steps()
            self._leave()

    def _register(self) -> None:
        @DBOS.step(name="answer_search")
        def answer_search(identity: str) -> str:
            return self._answer(identity)

        @DBOS.workflow(name=searches.WORKFLOW)
        def run_search(identity: str) -> str:
            return answer_search(identity)

    def _wait_for_steps(self) -> None:
        until = time.monotonic() + GRACE_SECONDS
        while self._active and time.monotonic() < until:
            time.sleep(0.05)

    def _answer(self, identity: str) -> str:
        with self._count:
            self._active.add(identity)
        try:
            ended = self._answer_once(identity)
        except TakenForDeadError:
            LOG.error("another worker took this one for dead before it began search %s; it ends", identity)
            self._gone.set()
            ended = None
        except sa.exc.SQLAlchemyError:
            LOG.exception("the database failed; this worker ends and search %s is begun again", identity)
            self._gone.set()
            ended = None
        finally:
            with self._count:
                self._active.discard(identity)
        while ended is None:  # the process is about to go
            threading.Event().wait()
        return ended

    def _answer_once(self, identity: str) -> str | None:
        """Idempotent: a search that is over stays as it is; one that was begun is begun again. None: neither ended nor failed,
        the next worker begins it again."""
        if self._leaving():
            return None
        open_yet = searches.begin(self.engine, identity, self.id)
        found = searches.get(self.engine, identity)
        if found is None or not (open_yet or found.may_have_jobs):
            return "over"
        try:
            status, body = self.answering(self._task(found))
        except LeavingError:
            return None if self._leaving() else "over"
        except sa.exc.SQLAlchemyError:
            raise
        except Exception:
            LOG.exception("search %s", identity)
            status, body = 500, problem_bytes(500, "a bug of ours; the worker's log has it")
        if self._leaving() and status != 200:
            return None
        ended = searches.end(self.engine, identity, **({"result": body} if status == 200 else {"problem": body}))
        return "ended" if ended else "over"

    def _task(self, found: searches.StoredSearch) -> Task:
        def say(kind: str, data: dict[str, Any]) -> None:
            searches.say(self.engine, found.id, kind, data)

        def cancelled() -> bool:
            now = searches.get(self.engine, found.id)
            return now is None or now.state not in OPEN

        def calibration() -> str | None:
            own = measurements.current(self.engine, found.owner)
            return None if own is None else own.text

        return Task(
            id=found.id,
            calibration=calibration,
            body=found.body,
            spent_seconds=found.spent_seconds,
            spend=partial(searches.spend, self.engine, found.id),
            say=say,
            cancelled=cancelled,
            stopping=self._leaving,
        )

    def _leaving(self) -> bool:
        return self.stop.is_set() or self._gone.is_set()

    def _first_beat(self) -> None:
        beat = {"version": WORKFLOW_VERSION, "beat": 0, "beaten": sa.func.now()}
        with self.engine.begin() as connection:
            connection.execute(WORKERS.insert().values(id=self.id, profiles=int(self.profiles), **beat))

    def _beat(self) -> bool:
        """False where the row is gone: this worker was taken for dead."""
        with self.engine.begin() as connection:
            beat = {"beat": WORKERS.c.beat + 1, "beaten": sa.func.now()}
            done = connection.execute(WORKERS.update().where(WORKERS.c.id == self.id).values(**beat))
        return done.rowcount == 1

    def _leave(self) -> None:
        """What this worker claimed and has not ended goes back to the queue; the next need not wait for the heart to stay
        still. The row goes first: what is claimed after it belongs to nobody, and is given back by whoever looks next."""
        with self.engine.begin() as connection:
            connection.execute(WORKERS.delete().where(WORKERS.c.id == self.id))
        give_back([self.id])


SCONTROL_S = 30.0


def check_measuring(options: Options) -> None:
    """The folder can be written to; jobs of this machine have an interpreter with torch and megatron-core, those of Slurm its
    programs and partition, those of Ray a cluster. Whether GPUs are enough is asked of each search. Raises FileError and
    RunnerError."""
    _check_folder(options.folder)
    if options.runner == "slurm":
        check_programs()
        if options.slurm.partition is not None:
            _check_partition(options.slurm.partition)
    elif options.runner == "ray":
        check_cluster(options.ray_address, Share())
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
    where = without_password(worker.database)
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
