"""From the command line's words to a worker on a study, and from a finished worker to what is reported."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.storages import RDBStorage
from optuna.study import Study

from autoconfig.profiler.errors import RunnerError
from autoconfig.profiler.launch import environment, torchrun
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.lock import FileLock, holder, take
from autoconfig.profiler.runner import Runner
from autoconfig.profiler.slurm import SlurmOptions, SlurmRunner, check_programs
from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.hardware.gpu import CPU_ARCHITECTURE
from autoconfig.specs.scenario import Scenario
from autoconfig.study.candidates import Candidates, candidates_of
from autoconfig.study.jobs import full_job
from autoconfig.study.sampler import PlanSampler
from autoconfig.study.settings import Budget, StudySettings
from autoconfig.study.storage import check_name, close, errors_of, open_storage, open_study, sqlite_url
from autoconfig.study.this_machine import check_measured, on_this_device, operator_table
from autoconfig.study.training.work import TrainingWork
from autoconfig.study.worker import Listener, Worker
from autoconfig.training.question import Question, understand
from autoconfig.training.rank import rank_plans
from autoconfig.training.reasons import nothing_legal
from autoconfig.training.space import Constraints

OTHER_FOLDER = "; give another --folder"
JOBS, LOCK = "jobs", "search.lock"
CANDIDATES = "candidates"
"""Attribute of a study: a digest of its candidates."""
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

    def emulates(self, gpus: int) -> bool:
        """Whether full jobs of so many GPUs do not fit here: ranks are emulated, one at a time, on one device."""
        return self.gpus_here is not None and self.gpus_here < gpus


@dataclass(frozen=True, kw_only=True)
class Session:
    """A study that is ready to be worked on."""

    name: str
    study: Study
    storage: RDBStorage
    settings: StudySettings
    question: Question
    scenario: Scenario
    candidates: Candidates
    options: Options
    assumed: tuple[str, ...]
    """What the question left open, in words."""

    @property
    def emulated(self) -> bool:
        """Full jobs do not fit here: ranks are emulated, one at a time, on one device."""
        return self.options.emulates(self.scenario.cluster.num_gpus)

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
                study=self.study, scenario=self.scenario, candidates=self.candidates, settings=self.settings, sampler=sampler
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
        raise FileError(f"folder {str(folder)[:200]!r} cannot be made: {error.strerror or error}{OTHER_FOLDER}") from error
    try:
        lock = _take(folder / LOCK)
        if lock is None:
            who = holder(folder / LOCK) or "another process"
            raise FileError(f"folder {folder} is in use by a search ({who}): wait for it, or give this one its own --folder")
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    except OSError as error:
        reason = f"{error.strerror or error}{OTHER_FOLDER}"
        raise FileError(f"folder {str(folder)[:200]!r} cannot be written to: {reason}") from error
    return lock


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A study's question, answered as far as that needs no measurement."""

    settings: StudySettings
    question: Question
    scenario: Scenario
    candidates: Candidates
    assumed: tuple[str, ...]


def ask(settings: StudySettings, table: Path | None = None) -> Asked:
    """What the time and memory models say. `table`: measured operators of this CPU; without one a CPU has a GPU's speed, which
    is enough to refuse a question before anything is measured or written. Raises InputError and its kinds.
    """
    here = on_this_device(settings, table)
    settings, request = here.settings, here.request
    question = understand(request)
    scenario = question.scenario
    if settings.device_memory_bytes is not None:
        scenario = replace(scenario, cluster=replace(scenario.cluster, memory_bytes=settings.device_memory_bytes))
    if settings.device == "cpu" and table is None:
        gpu = replace(scenario.cluster.gpu, architecture=CPU_ARCHITECTURE)
        scenario = replace(scenario, cluster=replace(scenario.cluster, gpu=gpu))
    ranking = rank_plans(scenario, _buildable(question.constraints), request.memory_margin)
    if ranking.funnel.legal == 0:
        raise nothing_legal(question, ranking.space)
    if not len(ranking.row):
        raise NothingFitsError("no plan fits the memory limit: raise --device-memory, or see what autoconfig search says")
    candidates = candidates_of(ranking)
    full_job(scenario, candidates.plans[0], settings)
    assumed = (*question.assumed, *here.assumed)
    return Asked(settings=settings, question=question, scenario=scenario, candidates=candidates, assumed=assumed)


def check_question(name: str, given: StudySettings, options: Options) -> None:
    """Whether `open_session` and `make_runner` would take this, with nothing measured or written. Raises what they raise."""
    check_name(name)
    asked = ask(given)
    check_machine(options, asked.settings.device, asked.scenario.cluster.num_gpus)


def _take(path: Path) -> FileLock | None:
    try:
        return take(path)
    except FileError as error:
        raise FileError(f"{error}{OTHER_FOLDER}") from error


def open_session(
    name: str, given: StudySettings | None, options: Options, *, resume: bool, look_only: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Session:  # fmt: skip
    """Load or make the study, answer its question, and list its candidates. `say` hears what takes long; `look_only` measures
    nothing. Raises InputError and its kinds."""
    storage = open_storage(options.url)
    with errors_of(options.url):
        study, settings = open_study(storage, name, given, resume=resume)
        if look_only and settings.device == "cpu":
            check_measured(study, "autoconfig search")
        table = operator_table(study, options.folder, options.python, say) if settings.device == "cpu" else None
    asked = ask(settings, table)
    _check_digest(study, asked.candidates, name, options.url)
    return Session(
        name=name, study=study, storage=storage, settings=asked.settings, question=asked.question, scenario=asked.scenario,
        candidates=asked.candidates, options=options, assumed=asked.assumed,
    )  # fmt: skip


def _buildable(constraints: Constraints) -> Constraints:
    """Without what the training core does not build: sharding beyond the distributed optimizer, optimizer state on the CPU."""
    fsdp = constraints.excluded.get("fsdp", frozenset()) | {2, 3}
    return replace(constraints, excluded={**constraints.excluded, "fsdp": fsdp})


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
    check_machine(session.options, session.settings.device, session.scenario.cluster.num_gpus)
    options, device = session.options, session.settings.device
    threads = 1 if device == "cpu" else None
    if options.runner == "slurm":
        gpus = 1 if session.emulated else session.scenario.cluster.num_gpus
        per_node = session.scenario.cluster.gpus_per_node
        nodes = max(1, gpus // per_node)
        slurm = replace(options.slurm, nodes=nodes, gpus_per_node=min(gpus, per_node) if device == "cuda" else 0)
        return SlurmRunner(torchrun(options.python, nodes), slurm, environment(threads))
    return LocalRunner(torchrun(options.python), environment(threads), nvml=device == "cuda")


def check_machine(options: Options, device: str, gpus: int) -> None:
    """What the jobs of a question about `gpus` need here is here. Raises RunnerError."""
    if options.runner == "slurm":
        check_programs()
    elif device == "cuda":
        check_python(options.python, 1 if options.emulates(gpus) else gpus)
    else:
        check_python(options.python, 0)


@functools.cache
def check_python(python: str, gpus: int) -> None:
    """The interpreter has torch and megatron-core, and finds so many GPUs. Raises RunnerError; asked once in a process."""
    try:
        command = [python, "-c", HAS_TORCH, str(gpus)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PYTHON_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunnerError(f"--python {python} cannot be started: {reason}") from error
    if done.returncode == TOO_FEW_GPUS:
        found = int(done.stdout.split()[-1])
        fewer = f"--gpus-here {found} emulates ranks of each plan on one GPU" if found else "--device cpu measures on this CPU"
        raise RunnerError(
            f"no job can be measured here: torch finds {found or 'no'} usable GPU{'s' * (found > 1)}, jobs need {gpus}; "
            f"{fewer}, --runner slurm asks a cluster"
        )
    if done.returncode:
        raise RunnerError(
            f"{python} has no torch with megatron-core: pip install 'megatron-autoconfig[train]', or name another with --python"
        )
