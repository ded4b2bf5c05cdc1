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

from autoconfig.question import Question, Request, understand
from autoconfig.rules import Setting
from autoconfig.search import rank_plans
from autoconfig.space import Wish
from autoconfig.study.candidates import Candidates, candidates_of
from autoconfig.study.jobs import full_job
from autoconfig.study.sampler import PlanSampler
from autoconfig.study.settings import Budget, StudySettings
from autoconfig.study.storage import TABLE, close, errors_of, open_storage, open_study, sqlite_url
from autoconfig.study.worker import Listener, Worker
from autoconfig.verdict import nothing_legal
from profiler.errors import RunnerError
from profiler.folder import write_text
from profiler.launch import ROOT, environment, torchrun
from profiler.local import LocalRunner
from profiler.lock import FileLock, holder, take
from profiler.processes import MARK, end_marked
from profiler.runner import Runner
from profiler.slurm import SlurmOptions, SlurmRunner
from specs.errors import FileError, InputError
from specs.local_cpu import memory_bytes

JOBS, LOCK, TABLE_FILE = "jobs", "search.lock", "cpu.json"
CANDIDATES = "candidates"
"""Attribute of a study: a digest of its candidates."""
CPU_SHARE = 0.5
"""Of the machine's memory, over the ranks: the default limit on a CPU."""
BENCHMARK_S = "60s"
BENCHMARK_INTERRUPTED = 130
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

    def close(self) -> None:
        """Give back the storage's connections."""
        close(self.storage)

    def worker(self, runner: Runner, listener: Listener, budget: Budget, *, owner: str | None = None, **more: Any) -> Worker:
        """A worker of this process. Its trials belong to `owner`, else to this machine's folder."""
        sampler = PlanSampler(self.candidates, self.settings.seed, headroom=self.settings.objective == "headroom")
        self.study.sampler = sampler
        return Worker(
            study=self.study,
            setting=self.setting,
            candidates=self.candidates,
            settings=self.settings,
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
    lock = take(folder / LOCK)
    if lock is None:
        who = holder(folder / LOCK) or "another process"
        raise FileError(f"folder {folder} is in use by a search ({who}): wait for it, or give this one its own --folder")
    lock.write(f"process {os.getpid()} on {socket.gethostname()}")
    return lock


def open_session(name: str, given: StudySettings | None, options: Options, *, resume: bool) -> Session:
    """Load or make the study, answer its question, and list its candidates. Raises InputError and its kinds."""
    storage = open_storage(options.url)
    with errors_of(options.url):
        study, settings = open_study(storage, name, given, resume=resume)
        table = _operator_table(study, settings, options) if settings.device == "cpu" else None
    settings, request = _on_this_device(settings, table)
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
        candidates=candidates, options=options,
    )  # fmt: skip


def _buildable(wish: Wish) -> Wish:
    """Without what the training core does not build: sharding beyond the distributed optimizer, optimizer state on the CPU."""
    fsdp = wish.excluded.get("fsdp", frozenset()) | {2, 3}
    return replace(wish, excluded={**wish.excluded, "fsdp": fsdp})


class NothingFitsError(InputError):
    """The memory model lets no plan through: exit code 3."""


def _on_this_device(settings: StudySettings, table: Path | None) -> tuple[StudySettings, Request]:
    """A CPU: its measured operators, the stack that runs there, and a memory limit."""
    request = settings.request
    if settings.device != "cpu":
        return settings, request
    ranks = request.gpus or 1
    limit = settings.device_memory_bytes or int(CPU_SHARE * memory_bytes() / ranks)
    request = replace(request, gpu_table=str(table), gpus_per_node=ranks, software=request.software or "megatron-local")
    return replace(settings, device_memory_bytes=limit), request


def _operator_table(study: Study, settings: StudySettings, options: Options) -> Path:
    """The file of this machine's operators: kept in the study, measured once by `kernels.benchmark`."""
    if settings.request.gpu or settings.request.cluster:
        raise InputError("--device cpu measures this machine: leave --gpu and --cluster out")
    path = options.folder / f"{hashlib.sha256(study.study_name.encode()).hexdigest()[:8]}-{TABLE_FILE}"
    kept = study.user_attrs.get(TABLE)
    if kept is None:
        _benchmark(path, options.python)
        kept = json.loads(path.read_text(encoding="utf-8"))
        study.set_user_attr(TABLE, kept)
    else:
        write_text(path, json.dumps(kept) + "\n")
    return path


def _benchmark(path: Path, python: str) -> None:
    """A busy machine may be too slow for the collectives: then the link is assumed. No process is left behind."""
    for ranks in ((), ("--ranks", "1")):
        done = _run_benchmark(path, (python, "-P", "-m", "kernels.benchmark", "--output", str(path), "--device", "cpu", *ranks))
        if done.returncode == 0 and path.exists():
            return
        if done.returncode == BENCHMARK_INTERRUPTED:
            raise KeyboardInterrupt
    said = " ".join((done.stderr or done.stdout).split())[-300:]
    raise InputError(f"this CPU cannot be measured: {said or f'exit code {done.returncode}'}")


def _run_benchmark(path: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    variables = {**os.environ, "PYTHONPATH": paths, MARK: str(path)}
    try:
        return subprocess.run(
            [*command, "--budget", BENCHMARK_S], env=variables, capture_output=True, text=True, check=False, errors="replace"
        )
    finally:
        end_marked(path, 0.0)


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
    if options.runner == "slurm":
        gpus, per_node = session.setting.cluster.num_gpus, session.setting.cluster.gpus_per_node
        nodes = max(1, gpus // per_node)
        slurm = replace(options.slurm, nodes=nodes, gpus_per_node=min(gpus, per_node) if device == "cuda" else 0)
        return SlurmRunner(torchrun(options.python, nodes), slurm, environment())
    check_python(options.python)
    threads = 1 if device == "cpu" else None
    return LocalRunner(torchrun(options.python), environment(threads), nvml=device == "cuda")


def check_python(python: str) -> None:
    """The interpreter has torch and megatron-core. Raises RunnerError."""
    try:
        done = subprocess.run([python, "-c", HAS_TORCH], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunnerError(f"{python} cannot be started: {error}") from error
    if done.returncode:
        raise RunnerError(
            f"{python} has no torch with megatron-core: pip install 'megatron-autoconfig[train]', or name another with --python"
        )
