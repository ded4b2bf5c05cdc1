"""From a question to a worker on its study, for every kind of study; and how a study is forgotten."""

from __future__ import annotations

import abc
import hashlib
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autoconfig.profiler.folder import FileLock, JobFolder, holder, read_json, take
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.ray_cluster import RayRunner, Share, check_address, check_cluster
from autoconfig.profiler.runner import Runner, environment
from autoconfig.profiler.slurm import SlurmOptions, SlurmRunner, check_programs
from autoconfig.specs.errors import FileError, InputError, option
from autoconfig.specs.job import Job
from autoconfig.study import trials as names
from autoconfig.study.settings import Budget, Settings
from autoconfig.study.storage import (
    DATABASE,
    check_name,
    close,
    delete_study,
    errors_of,
    list_studies,
    open_storage,
    open_study,
    opened,
    sqlite_url,
    study_id,
)
from autoconfig.study.this_machine import check_measured, forget_operators, operator_table
from autoconfig.study.work import StudyWork
from autoconfig.study.worker import Listener, Worker

OTHER_FOLDER = f"; give another {option('folder')}"
JOBS, LOCK = "jobs", "search.lock"
CANDIDATES = "candidates"
"""Attribute of a study: a digest of its candidates."""
WorkT = TypeVar("WorkT", bound=StudyWork)


class NothingFitsError(InputError):
    """The memory model lets no candidate through: exit code 3."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to measure; nothing here changes what is measured."""

    folder: Path
    storage_url: str | None = None
    runner: str = "local"
    python: str
    slots: int = 1
    job_limit_s: float = 3600.0
    gpus_here: int | None = None
    """GPUs that a job can have; None: all that the question is about."""
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    ray_address: str | None = None
    """HOST:PORT of the Ray cluster's head; None: RAY_ADDRESS says."""

    @property
    def url(self) -> str:
        return self.storage_url or sqlite_url(self.folder)

    def emulates(self, gpus: int) -> bool:
        """Whether full jobs of so many GPUs do not fit here: ranks are emulated, one at a time, on one device."""
        return self.gpus_here is not None and self.gpus_here < gpus


@dataclass(frozen=True, kw_only=True)
class Session(Generic[WorkT]):
    """A study that is ready to be worked on."""

    name: str
    study: Study
    storage: RDBStorage
    options: Options
    work: WorkT

    def close(self) -> None:
        close(self.storage)

    def runner(self) -> Runner:
        options, work = self.options, self.work
        check_machine(options, work)
        on_gpu = work.settings.device == "cuda"
        variables = environment(None if on_gpu else 1)
        if options.runner == "slurm":
            nodes = max(1, work.gpus // work.gpus_per_node)
            per_node = min(work.gpus, work.gpus_per_node) if on_gpu else 0
            slurm = replace(options.slurm, nodes=nodes, gpus_per_node=per_node)
            return SlurmRunner(work.command(options.python, nodes), slurm, variables)
        if options.runner == "ray":
            share = share_of(work)
            command = work.command(options.python, share.nodes)
            return RayRunner(command, check_address(options.ray_address), share, variables, nvml=on_gpu)
        return LocalRunner(work.command(options.python, 1), variables, nvml=on_gpu)

    def worker(self, runner: Runner, listener: Listener, budget: Budget, *, owner: str | None = None, **more: Any) -> Worker:
        """A worker of this process. Its trials belong to `owner`, else to this machine's folder."""
        return Worker(
            study=self.study,
            work=self.work,
            runner=runner,
            jobs_folder=self.options.folder / JOBS,
            owner=owner or owner_of(self.options.folder),
            listener=listener,
            budget=budget,
            slots=self.options.slots,
            job_limit_s=self.options.job_limit_s,
            **more,
        )


class Found(Protocol):
    """What a study found."""

    @property
    def measured(self) -> bool:
        """Whether anything was measured in full."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""


class StudyKind(abc.ABC, Generic[Settings, WorkT]):
    """A kind of study: what sets one of training apart from one of serving."""

    command: str
    settings: type[Settings]

    @abc.abstractmethod
    def ask(self, settings: Settings, options: Options, table: Path | None = None) -> WorkT:
        """The question, answered as far as that needs no measurement. `table`: measured operators of this CPU; without one the
        answer is only good enough to refuse the question. Raises InputError and its kinds."""

    @abc.abstractmethod
    def benchmark_python(self, python: str) -> str:
        """Who measures this CPU's operators, where jobs run under `python`. Raises RunnerError."""

    @abc.abstractmethod
    def found(self, session: Session[WorkT], price: float | None = None) -> Found:
        """Everything that the finished trials say. `price`: money for one of the study's GPUs and an hour."""

    @abc.abstractmethod
    def write_learned(self, session: Session[WorkT], target: Path) -> str | None:
        """A calibration file of what was measured; its name, None where nothing was. Raises FileError."""

    def check(self, name: str, given: Settings, options: Options) -> None:
        """Whether `open` and its session's `runner` would take this, with nothing measured or written. Raises what they
        raise."""
        check_name(name)
        check_machine(options, self.ask(given, options))

    def open(
        self,
        name: str,
        given: Settings | None,
        options: Options,
        *,
        resume: bool,
        look_only: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> Session[WorkT]:
        """Load or make the study, answer its question, and list its candidates. `say` hears what takes long; `look_only`
        measures nothing. Raises InputError and its kinds."""
        storage = open_storage(options.url)
        with errors_of(options.url):
            study, settings = open_study(storage, name, given, resume=resume, wanted=self.settings)
            table = None
            if settings.device == "cpu":
                if look_only:
                    check_measured(study, self.command)
                table = operator_table(study, options.folder, self.benchmark_python(options.python), say)
        work = self.ask(settings, options, table)
        with errors_of(options.url):
            _hold_candidates(study, work)
        return Session(name=name, study=study, storage=storage, options=options, work=work)


def _hold_candidates(study: Study, work: StudyWork) -> None:
    """A study goes on with the candidates that it was begun with, or with those of a newer version or another calibration that
    have all that it has tried among them. Raises InputError for others."""
    text = json.dumps([sorted(params.items()) for params in work.candidates.params])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if study.user_attrs.get(CANDIDATES) == digest:
        return
    lost = sum(work.candidates.row_of(trial.params) is None for trial in study.get_trials(deepcopy=False) if trial.params)
    if CANDIDATES in study.user_attrs and lost:
        raise InputError(
            f"study {study.study_name} was begun with other candidates (another version, calibration or memory limit), and of "
            f"its trials {lost} are not among today's: start a new one with --study"
        )
    study.set_user_attr(CANDIDATES, digest)


def check_machine(options: Options, work: StudyWork) -> None:
    """What the jobs need here is here. Raises RunnerError."""
    if options.runner == "slurm":
        check_programs()
    elif options.runner == "ray":
        check_cluster(options.ray_address, share_of(work))
    else:
        work.check_python(options.python)


def share_of(work: StudyWork) -> Share:
    """What a job has of a Ray cluster: a CPU for each of its ranks, and a GPU where it is about GPUs."""
    per_node = min(work.gpus, work.gpus_per_node)
    gpus = per_node if work.settings.device == "cuda" else 0
    return Share(nodes=max(1, work.gpus // work.gpus_per_node), gpus=gpus, cpus=per_node)


def owner_of(folder: Path) -> str:
    """Who a trial belongs to: the folder whose lock its search holds."""
    return f"{socket.gethostname()}:{folder.resolve()}"


def lock_folder(folder: Path) -> FileLock:
    """The folder is ours until the process ends. Raises FileError where it cannot be used or another search has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"folder {str(folder)[:200]!r} cannot be made: {error.strerror or error}{OTHER_FOLDER}") from error
    try:
        lock = _take(folder / LOCK)
        if lock is None:
            who = holder(folder / LOCK) or "another process"
            raise FileError(
                f"folder {folder} is in use by a search ({who}): wait for it, or give this one its own {option('folder')}"
            )
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    except OSError as error:
        reason = f"{error.strerror or error}{OTHER_FOLDER}"
        raise FileError(f"folder {str(folder)[:200]!r} cannot be written to: {reason}") from error
    return lock


def _take(path: Path) -> FileLock | None:
    try:
        return take(path)
    except FileError as error:
        raise FileError(f"{error}{OTHER_FOLDER}") from error


def forget(storage: RDBStorage, name: str, folder: Path, *, shared: bool, force: bool = False) -> None:
    """Delete a study. `shared`: the storage is not the folder's own, whose lock the caller holds; then other workers may be at
    it, and no job is ended: while trials run it is refused, but with `force`. Raises UnknownNameError, InputError, FileError,
    RunnerError."""
    trials = storage.get_all_trials(study_id(storage, name), deepcopy=False)
    running = [t for t in trials if t.state == TrialState.RUNNING]
    if shared and running and not force:
        owners = sorted({str(t.user_attrs.get(names.OWNER, "unknown")) for t in running})
        raise InputError(
            f"study {name} has {len(running)} running trial{'s' * (len(running) > 1)} (of {', '.join(owners[:4])}): end the "
            f"searches at it first; {option('force')} deletes it all the same, which ends them"
        )
    if not shared:
        _end_jobs(running, folder)
    delete_study(storage, name)
    left = {study.name for study in list_studies(storage)}
    if shared and (folder / DATABASE).exists():
        with opened(sqlite_url(folder)) as own:
            left |= {study.name for study in list_studies(own)}
    forget_operators(folder, name, left)


def _end_jobs(running: Sequence[FrozenTrial], folder: Path) -> None:
    """End the jobs of this folder's trials. Raises RunnerError."""
    for told in (trial.user_attrs for trial in running):
        if told.get(names.OWNER) == owner_of(folder) and names.JOB in told:
            job = JobFolder(folder.absolute() / JOBS / told[names.JOB])
            _runner_of(read_json(job.launch_file)).cancel(job)


def _runner_of(launch: Mapping[str, Any]) -> Runner:
    """Who started a job, by its launch.json. Raises RunnerError where a scheduler is gone."""
    if launch.get("runner") == RayRunner.name:
        return RayRunner(_none, str(launch["address"]))
    return SlurmRunner(_none, SlurmOptions()) if launch.get("runner") == SlurmRunner.name else LocalRunner(_none)


def _none(folder: JobFolder, job: Job) -> list[str]:
    raise AssertionError("nothing is started here")
