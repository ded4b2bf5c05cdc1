"""A measured frontier: batch sizes of megatron-core's static inference engine as an Optuna study of two objectives.

Each trial is one job (`python -P -m trainer.generate`) under a runner; its folder is named by its content, so that a study goes
on where it was stopped and a point is measured once. The measured points calibrate two numbers of the prediction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from scipy.optimize import nnls

from profiler.folder import JobFolder, prepare
from profiler.runner import Command, Life, Runner
from specs.engine import load_engine
from specs.errors import InputError
from specs.gpu import GpuSpec
from specs.job import Job
from specs.model import ModelSpec
from specs.numerics import Numerics, Workload
from specs.plan import TrainPlan
from specs.serve_plan import EnginePlan
from time_model.serving_calibration import EngineConstants
from time_model.serving_costs import ServingJob, constant_vector, iteration_features
from time_model.serving_tables import even_tables

GENERATION_FILE = "generation.json"
"""What trainer.generate writes."""
POLL_S = 0.2


class NothingMeasuredError(Exception):
    """A trial's job ended without a result; the study goes on with the next batch."""


@dataclass(frozen=True, kw_only=True)
class GenerationPoint:
    """One batch size as measured: seconds of the prompts' iteration, least seconds of a later one (others only add)."""

    batch: int
    prompt: int
    new: int
    prompt_s: float
    step_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of the whole batch over its time."""
        return self.batch * self.new / (self.prompt_s + (self.new - 1) * self.step_s)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a study measured. `frontier`: batches that no other beats in both throughput and time per token."""

    points: tuple[GenerationPoint, ...]
    frontier: tuple[int, ...]
    failed: tuple[str, ...]
    """Last words of trials that measured nothing."""


def generation_command(python: str, prompt: int, new: int) -> Command:
    """The command line of a job. `python`: the interpreter that has torch and megatron-core."""

    def command(folder: JobFolder, _: Job) -> list[str]:
        program = [python, "-P", "-m", "trainer.generate"]
        return [*program, "--job", str(folder.job_file), "--prompt", str(prompt), "--new", str(new)]

    return command


def measure(
    model: ModelSpec,
    folder: Path,
    runner: Runner,
    *,
    batches: Sequence[int],
    prompt: int,
    new: int,
    trials: int,
    device: str = "cpu",
    limit_s: float = 600.0,
    budget_s: float = float("inf"),
    seed: int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Profile:
    """Run or continue the study in `folder`. Raises InputError where a value cannot be used, FileError where it cannot be
    written."""
    if not batches or min(batches) < 1 or trials < 1 or prompt < 2 or new < 2:
        raise InputError("give batches of at least 1, one trial or more, prompts and outputs of at least 2 tokens")
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=f"{model.name} {prompt}/{new}",
        storage=f"sqlite:///{folder / 'study.db'}",
        sampler=optuna.samplers.GridSampler({"batch": sorted(set(batches))}, seed=seed),
        directions=["maximize", "minimize"],
        load_if_exists=True,
    )
    failed: list[str] = []

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        batch = trial.suggest_categorical("batch", sorted(set(batches)))
        point = _run(_job(model, batch, prompt, new, device), folder, runner, limit_s)
        if isinstance(point, str):
            failed.append(point)
            raise NothingMeasuredError(point)
        trial.set_user_attr("point", vars(point))
        return point.tokens_per_s, point.step_s

    end, before = clock() + budget_s, len(study.trials)
    for _ in range(max(min(trials, len(set(batches))) - before, 0)):
        if clock() >= end:
            break
        study.optimize(objective, n_trials=1, catch=(NothingMeasuredError,))
    points = {t.params["batch"]: GenerationPoint(**t.user_attrs["point"]) for t in study.trials if "point" in t.user_attrs}
    best = sorted({int(t.params["batch"]) for t in study.best_trials})
    return Profile(points=tuple(points[b] for b in sorted(points)), frontier=tuple(best), failed=tuple(failed))


def _job(model: ModelSpec, batch: int, prompt: int, new: int, device: str) -> Job:
    return Job(
        model=model,
        plan=TrainPlan(tp=1, pp=1, dp=1, mbs=batch),
        workload=Workload(seq_length=prompt + new, global_batch_size=batch),
        numerics=Numerics(precision="fp32" if device == "cpu" else "bf16"),
        device=device,
    )


def _run(job: Job, root: Path, runner: Runner, limit_s: float) -> GenerationPoint | str:
    """The measured point, from an earlier run where there was one; else why there is none."""
    folder = prepare(root, job)
    target = folder.path / GENERATION_FILE
    if not target.exists():
        runner.submit(folder, limit_s)
        while runner.poll(folder) in (Life.RUNNING, Life.WAITING):
            time.sleep(POLL_S)
    try:
        found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"batch {job.plan.mbs}: {(folder.last_lines(1) or ['it ended without a word'])[-1]}"
    return GenerationPoint(
        batch=found["batch"],
        prompt=found["prompt_tokens"],
        new=found["new_tokens"],
        prompt_s=found["prompt_seconds"],
        step_s=min(found["step_seconds"]),
    )


def serving_job(model: ModelSpec, device: GpuSpec) -> ServingJob:
    """The measured engine on a device whose operators nobody measured: rooflines alone, constants to be found."""
    plan = EnginePlan(weights="bf16", kv="bf16")
    return ServingJob(model=model, gpu=device, plan=plan, engine=load_engine("megatron"), measured=even_tables())


def calibrated(job: ServingJob, points: Sequence[GenerationPoint]) -> ServingJob:
    """The job with the factor of its operators and the host's seconds an iteration that the points give (relative errors)."""
    rows, targets = [], []
    for point in points:
        for seconds, features in (
            (point.step_s, iteration_features(job, point.batch, point.prompt + point.new / 2.0, 0.0, 1.0)),
            (point.prompt_s, iteration_features(job, 0.0, 1.0, point.batch, point.prompt)),
        ):
            rows.append(np.array([features[0], features[5]]) / seconds)
            targets.append(1.0)
    (factor, host), _ = nnls(np.array(rows), np.array(targets))
    return replace(job, constants=EngineConstants(factor=float(factor), host_s=float(host), sampler_bytes=0.0))


def predicted(job: ServingJob, point: GenerationPoint) -> GenerationPoint:
    """The same batch, priced."""
    constants = constant_vector(job.constants)
    step = iteration_features(job, point.batch, point.prompt + point.new / 2.0, 0.0, 1.0) @ constants
    first = iteration_features(job, 0.0, 1.0, point.batch, point.prompt) @ constants
    return replace(point, step_s=float(step), prompt_s=float(first))
