"""From the command line's words to a worker on a study, and from a finished worker to what is reported."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.storages import RDBStorage
from optuna.study import Study

from autoconfig.question import Question, understand
from autoconfig.rules import Setting
from autoconfig.search import rank_plans
from autoconfig.space import Wish
from autoconfig.study.candidates import Candidates, candidates_of
from autoconfig.study.jobs import full_job
from autoconfig.study.sampler import PlanSampler
from autoconfig.study.settings import Budget, StudySettings
from autoconfig.study.storage import close, errors_of, open_storage, open_study, sqlite_url
from autoconfig.study.this_machine import on_this_device, operator_table
from autoconfig.study.training_work import TrainingWork
from autoconfig.study.worker import Listener, Worker
from autoconfig.verdict import nothing_legal
from profiler.errors import RunnerError
from profiler.launch import environment, torchrun
from profiler.local import LocalRunner
from profiler.lock import FileLock, holder, take
from profiler.runner import Runner
from profiler.slurm import SlurmOptions, SlurmRunner
from specs.errors import FileError, InputError

JOBS, LOCK = "jobs", "search.lock"
CANDIDATES = "candidates"
"""Attribute of a study: a digest of its candidates."""
HAS_TORCH = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'megatron.core'))))"


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

    @property
    def url(self) -> str:
        """The storage."""
        return self.storage_url or sqlite_url(self.folder)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A study that is ready to be worked on."""

    name: str
    study: Study
    storage: RDBStorage
    settings: StudySettings
    question: Question
    setting: Setting
    candidates: Candidates
    options: Options
    assumed: tuple[str, ...]
    """What the question left open, in words."""

    @property
    def emulated(self) -> bool:
        """Full jobs do not fit here: ranks are emulated, one at a time, on one device."""
        here = self.options.gpus_here
        return here is not None and here < self.setting.cluster.num_gpus

    def close(self) -> None:
        """Give back the storage's connections."""
        close(self.storage)

    def worker(self, runner: Runner, listener: Listener, budget: Budget, *, owner: str | None = None, **more: Any) -> Worker:
        """A worker of this process. Its trials belong to `owner`, else to this machine's folder."""
        headroom = self.settings.objective == "headroom"
        sampler = PlanSampler(self.candidates, self.settings.seed, headroom=headroom, emulated=self.emulated)
        self.study.sampler = sampler
        return Worker(
            study=self.study,
            work=TrainingWork(
                study=self.study, setting=self.setting, candidates=self.candidates, settings=self.settings, sampler=sampler
            ),
            candidates=self.candidates,
            sampler=sampler,
            runner=runner,
            jobs_folder=self.options.folder / JOBS,
            owner=owner or owner_of(self.options.folder),
            listener=listener,
            budget=budget,
            slots=self.options.slots,
            job_limit_s=self.options.job_limit_s,
            **more,
        )


def owner_of(folder: Path) -> str:
    """Who a trial belongs to: the folder whose lock its search holds."""
    return f"{socket.gethostname()}:{folder.resolve()}"


def lock_folder(folder: Path) -> FileLock:
    """The folder is ours until the process ends. Raises FileError where it cannot be used or another search has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"folder {str(folder)[:200]!r} cannot be made: {error.strerror or error}") from error
    try:
        lock = take(folder / LOCK)
        if lock is None:
            who = holder(folder / LOCK) or "another process"
            raise FileError(f"folder {folder} is in use by a search ({who}): wait for it, or give this one its own --folder")
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    except OSError as error:
        reason = f"{error.strerror or error}; give another --folder"
        raise FileError(f"folder {str(folder)[:200]!r} cannot be written to: {reason}") from error
    return lock


def open_session(name: str, given: StudySettings | None, options: Options, *, resume: bool) -> Session:
    """Load or make the study, answer its question, and list its candidates. Raises InputError and its kinds."""
    storage = open_storage(options.url)
    with errors_of(options.url):
        study, settings = open_study(storage, name, given, resume=resume)
        table = operator_table(study, settings, options.folder, options.python) if settings.device == "cpu" else None
    here = on_this_device(settings, table)
    settings, request = here.settings, here.request
    question = understand(request)
    setting = question.setting
    if settings.device_memory_bytes is not None:
        setting = replace(setting, cluster=replace(setting.cluster, memory_bytes=settings.device_memory_bytes))
    ranking = rank_plans(setting, _buildable(question.wish), request.memory_margin)
    if ranking.funnel.legal == 0:
        raise nothing_legal(question, ranking.space)
    if not len(ranking.row):
        raise NothingFitsError("no plan fits the memory limit: raise --device-memory, or see what autoconfig search says")
    candidates = candidates_of(ranking)
    full_job(setting, candidates.plans[0], settings)
    _check_digest(study, candidates, name, options.url)
    return Session(
        name=name, study=study, storage=storage, settings=settings, question=question, setting=setting,
        candidates=candidates, options=options, assumed=(*question.assumed, *here.assumed),
    )  # fmt: skip


def _buildable(wish: Wish) -> Wish:
    """Without what the training core does not build: sharding beyond the distributed optimizer, optimizer state on the CPU."""
    fsdp = wish.excluded.get("fsdp", frozenset()) | {2, 3}
    return replace(wish, excluded={**wish.excluded, "fsdp": fsdp})


class NothingFitsError(InputError):
    """The memory model lets no plan through: exit code 3."""


def _check_digest(study: Study, candidates: Candidates, name: str, url: str) -> None:
    """The candidates are those that the study began with."""
    text = json.dumps([sorted(params.items()) for params in candidates.params])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    with errors_of(url):
        if CANDIDATES not in study.user_attrs:
            study.set_user_attr(CANDIDATES, digest)
    if study.user_attrs[CANDIDATES] != digest:
        raise InputError(
            f"study {name} was begun with other candidates (another version or calibration): start a new one with --study"
        )


def make_runner(session: Session) -> Runner:
    """The runner that the options name. Raises RunnerError where it cannot be used."""
    options, device = session.options, session.settings.device
    threads = 1 if device == "cpu" else None
    if options.runner == "slurm":
        gpus = 1 if session.emulated else session.setting.cluster.num_gpus
        per_node = session.setting.cluster.gpus_per_node
        nodes = max(1, gpus // per_node)
        slurm = replace(options.slurm, nodes=nodes, gpus_per_node=min(gpus, per_node) if device == "cuda" else 0)
        return SlurmRunner(torchrun(options.python, nodes), slurm, environment(threads))
    check_python(options.python)
    return LocalRunner(torchrun(options.python), environment(threads), nvml=device == "cuda")


def check_python(python: str) -> None:
    """The interpreter has torch and megatron-core. Raises RunnerError."""
    try:
        done = subprocess.run([python, "-c", HAS_TORCH], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunnerError(f"--python {python} cannot be started: {reason}") from error
    if done.returncode:
        raise RunnerError(
            f"{python} has no torch with megatron-core: pip install 'megatron-autoconfig[train]', or name another with --python"
        )
