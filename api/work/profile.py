"""A search that measures: the study of `autoconfig search --profile`, taken up by whichever worker has the search.

The study is named after the search, its trials belong to the search and not to a machine, its jobs are folders by content hash
under the worker's `--profile-folder`: a worker that follows a dead one finds the jobs that still run and starts none twice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from autoconfig.api.answers import request_from
from autoconfig.api.problems import of_error, problem_bytes
from autoconfig.api.searches import TRIAL, LeavingError, Task
from autoconfig.profiler.folder import take
from autoconfig.profiler.runner import RunnerError
from autoconfig.specs.errors import AutoconfigError, FileError, InputError
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState

from autoconfig.planning.prices import price_for
from autoconfig.planning.request_fields import DEFAULT_BUDGET
from autoconfig.render.study import TrainingWords
from autoconfig.study import trials as names
from autoconfig.study.session import Options, Session
from autoconfig.study.settings import Budget, parse_budget, parse_time
from autoconfig.study.training.session import TRAINING
from autoconfig.study.training.settings import settings_of_options
from autoconfig.study.training.work import TrainingWork
from autoconfig.study.work import Stage, Verdict
from autoconfig.study.worker import Control, Listener, Worker

LOG = logging.getLogger("autoconfig.worker")
ATTEMPTS, AGAIN_SECONDS = 4, 20.0
"""How often a runner is tried that fails: Slurm's controller is restarted now and then. Jobs that run are found again."""
KEEP_SECONDS = 5.0
"""How often the time that was spent is stored: what a kill forgets."""
LOOK_SECONDS = 1.0
"""How often a search is looked at for its cancellation."""


def measure(task: Task, options: Options) -> tuple[int, bytes]:
    """The study, from its beginning or from where a dead worker left it; of a search that was cancelled the jobs that run are
    ended, and no other begun. `options`: how this worker runs jobs.

    Raises LeavingError where the process is to end: jobs that run go on, and the next worker finds them. Raises
    sqlalchemy.exc.SQLAlchemyError where the database fails.
    """
    spent = _Spent(task)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _database_errors():
                return 200, _study(task, options, spent, last=attempt == ATTEMPTS)
        except (RunnerError, FileError):
            LOG.exception("search %s: this worker cannot run jobs (attempt %d of %d)", task.id, attempt, ATTEMPTS)
        except AutoconfigError as error:
            return of_error(error)
        if attempt < ATTEMPTS:
            task.say("progress", {"text": f"the worker cannot run jobs at present; it tries again in {AGAIN_SECONDS:.0f} s"})
            _wait(task, AGAIN_SECONDS)
    return 500, problem_bytes(500, "the worker that took the search up cannot run jobs; its log says why")


def _wait(task: Task, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not task.cancelled():
        if task.stopping():
            raise LeavingError
        time.sleep(min(LOOK_SECONDS, seconds))


def _study(task: Task, options: Options, spent: _Spent, last: bool) -> bytes:
    """`last`: a runner that fails is not tried again."""
    budget = parse_budget(task.body.get("budget") or DEFAULT_BUDGET)
    settings = settings_of_options(request_from(task.body), task.body)
    options = replace(options, job_limit_s=parse_time(task.body["job_timeout"]))
    options.folder.mkdir(parents=True, exist_ok=True)
    listener = _Follower(task, spent)
    look_only = listener.control.cancel
    with (
        _only_here(task, options),
        contextlib.closing(TRAINING.open(task.id, settings, options, resume=False, look_only=look_only)) as session,
    ):
        worker = session.worker(
            session.runner(),
            listener,
            _left(budget, session, spent.seconds),
            owner=f"search:{task.id}",
            control=listener.control,
        )
        with _jobs_ended(worker, last):
            reason = worker.run()
        found = TRAINING.found(session, price_for(settings.request.price, session.work.gpu))
    body = {**found.to_json(), "calibration": session.work.scenario.calibration.version, "stopped": reason}
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


@contextlib.contextmanager
def _only_here(task: Task, options: Options) -> Iterator[None]:
    """One process of this machine works on the study: one that was taken for dead and lives may still be at it."""
    path = options.folder / f"{task.id}.lock"
    while (lock := take(path)) is None:
        task.check()
        time.sleep(LOOK_SECONDS)
    with lock:
        yield


@contextlib.contextmanager
def _jobs_ended(worker: Worker, last: bool) -> Iterator[None]:
    """A search that fails leaves no jobs. They go on where the search does: with another attempt, or another worker."""
    try:
        yield
    except (LeavingError, sa.exc.SQLAlchemyError, StorageInternalError):
        raise
    except (RunnerError, FileError):
        if last:
            worker.abandon()
        raise
    except Exception:
        worker.abandon()
        raise


def _left(budget: Budget, session: Session[TrainingWork], seconds: float) -> Budget:
    """The budget is the search's, not the worker's: without what was spent before. `seconds`: while a worker had it; the time
    between workers costs nothing, as no job is begun in it."""
    trials = names.told(session.study.get_trials(deepcopy=False))
    over = [t for t in trials if t.state != TrialState.RUNNING]
    hours = session.work.scenario.cluster.num_gpus * sum(t.duration.total_seconds() for t in over if t.duration) / 3600
    return Budget(
        seconds=None if budget.seconds is None else max(0.0, budget.seconds - seconds),
        gpu_hours=None if budget.gpu_hours is None else max(0.0, budget.gpu_hours - hours),
        trials=None if budget.trials is None else max(0, budget.trials - len(over)),
    )


class _Spent:
    """Seconds while workers had a search, this one and those before; stored now and then."""

    def __init__(self, task: Task) -> None:
        self._task, self._begun = task, time.monotonic()
        self._kept = self._begun

    @property
    def seconds(self) -> float:
        return self._task.spent_seconds + time.monotonic() - self._begun

    def keep(self) -> None:
        if time.monotonic() - self._kept >= KEEP_SECONDS:
            self._kept = time.monotonic()
            self._task.spend(self.seconds)


class _Follower(Listener):
    """Tells the search's followers, and hears of its cancellation and of the process's end."""

    def __init__(self, task: Task, spent: _Spent) -> None:
        gone = task.cancelled()
        self.control = Control(finish=gone, cancel=gone)
        self._task, self._spent, self._looked = task, spent, time.monotonic()

    def started(self, trial: FrozenTrial, stage: Stage, again: bool) -> None:
        self.say(TrainingWords().started(trial, stage, again))

    def ended(self, trial: FrozenTrial, verdict: Verdict) -> None:
        attributes = trial.user_attrs
        text, outcome = TrainingWords().ended(trial), attributes.get(names.OUTCOME)
        data: dict[str, Any] = {"text": text, "trial": trial.number, "outcome": outcome}
        if (seconds := attributes.get(names.STEP_SECONDS)) is not None:
            data["step_seconds"] = seconds
        self._task.say(TRIAL, data)

    def tick(self, worker: Worker) -> None:
        if self._task.stopping():
            raise LeavingError
        self._spent.keep()
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self.control.finish = self.control.cancel = self._task.cancelled()

    def say(self, text: str) -> None:
        self._task.say("progress", {"text": text})


@contextlib.contextmanager
def _database_errors() -> Iterator[None]:
    """Failures of the study's database are the database's, not the question's."""
    try:
        yield
    except StorageInternalError as error:
        raise sa.exc.SQLAlchemyError(str(error)) from error
    except (InputError, FileError) as error:
        if isinstance(error.__cause__, sa.exc.SQLAlchemyError | StorageInternalError):
            raise sa.exc.SQLAlchemyError(str(error)) from error
        raise
