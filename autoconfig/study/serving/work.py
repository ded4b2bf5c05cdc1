"""From a deployment to the job that measures it, and from the job's outcome to what Optuna is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from autoconfig.profiler.outcome import Kind, Outcome
from autoconfig.specs.job import Generation, Job
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.numerics import Numerics, Workload
from autoconfig.specs.plan import TrainPlan
from autoconfig.study import trials as names
from autoconfig.study.jobs import FULL, Stage
from autoconfig.study.serving.candidates import DeploymentChoices
from autoconfig.study.serving.proposal import TOKENS, TPOT, TTFT
from autoconfig.study.serving.settings import ServingSettings
from autoconfig.study.verdicts import Verdict

PREDICTED_TOKENS, PREDICTED_TPOT = "predicted_tokens_per_s_per_gpu", "predicted_tpot_seconds"
MEASURED_TOKENS = "measured_tokens_per_s_per_gpu"
START_S = 600.0
"""An engine may take so long to load before a round counts."""


@dataclass(frozen=True, kw_only=True)
class ServingWork:
    """`study.work.Work` of deployments."""

    model: ModelSpec
    choices: DeploymentChoices
    settings: ServingSettings

    fidelity: None = None
    keeps_steps: bool = False

    @property
    def gpus(self) -> int:
        """Of the largest instance."""
        return max(row.plan.tp for row in self.choices.rows)

    def notes(self, row: int) -> dict[str, Any]:
        """The plan and its prediction."""
        deployment, forecast = self.choices.rows[row], self.choices.forecast[row]
        return {
            names.PLAN: str(deployment.plan),
            PREDICTED_TOKENS: forecast.tokens_per_s / deployment.plan.tp,
            PREDICTED_TPOT: forecast.tpot_s,
        }

    def job(self, row: int) -> Job:
        """The job of a deployment. Raises InputError where the engine cannot run it."""
        deployment, settings = self.choices.rows[row], self.settings
        plan, asked = deployment.plan, deployment.asked
        return Job(
            model=self.model,
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
        asked, forecast = self.choices.rows[row].asked, self.choices.forecast[row]
        seconds = asked.batch * asked.new / forecast.tokens_per_s
        job = self.job(row)
        return [Stage(name=FULL, job=job.replace(seed=job.seed + repeat), predicted_s=seconds, least_limit_s=START_S)]

    def ruled_out(self, row: int, stage: Stage, steps: Sequence[float], number: int) -> Verdict | None:
        """Never: a round is over before it could be."""
        return None

    def verdict(self, outcome: Outcome, row: int, stage: Stage, planned: Sequence[Stage], jobs_folder: Path) -> Verdict:
        """Measured: complete, with both values. Out of memory: pruned, a constraint learned. Else failed, with the reason."""
        attributes: dict[str, Any] = {names.OUTCOME: str(outcome.kind)}
        if outcome.message:
            attributes[names.MESSAGE] = outcome.message[:1000]
        if outcome.kind is Kind.OUT_OF_MEMORY:
            return Verdict(state=TrialState.PRUNED, attributes=attributes)
        measurement = outcome.measurement
        if outcome.kind is not Kind.MEASURED or measurement is None or measurement.served is None:
            if outcome.kind is Kind.MEASURED:
                attributes |= {names.OUTCOME: str(Kind.GARBAGE), names.MESSAGE: "it ran and says nothing of what it served"}
            return Verdict(state=TrialState.FAIL, attributes=attributes)
        served = measurement.served
        speed = served.output_tokens_per_second / self.choices.rows[row].plan.tp
        attributes |= {
            names.OUTCOME: names.MEASURED,
            MEASURED_TOKENS: speed,
            TTFT: served.ttft_seconds,
            TPOT: served.tpot_seconds,
            TOKENS: served.output_tokens_per_second,
            names.SAMPLES: list(measurement.step_seconds_samples),
        }
        return Verdict(state=TrialState.COMPLETE, values=[speed, served.tpot_seconds], attributes=attributes)
