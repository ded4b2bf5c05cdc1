"""`autoconfig emulate`: one rank of a plan with real kernels on one device, and the step that the time model makes of it.

Measured are the rank's memory and the compute of its layers; collectives, sends, bubble and data parallelism stay the time
model's. The step is the predicted one with its compute exchanged:

    step = (m S' + bubble S' / S + the rest) with S' = S - predicted compute + measured compute of one micro-batch on the stage
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autoconfig.core.trace import core_stack, legal_plan
from autoconfig.specs.errors import AutoconfigError, InputError, option
from autoconfig.specs.import_path import with_import_path
from autoconfig.specs.job import Job, job_text, pipeline_stage
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.measurement import RESULT_FILE, ExitCode, Measurement, RankFigures, read_measurement
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import PlanReport, StageMemory, report_plan
from autoconfig.training.question import Question, Request, understand

COMPUTE_PARTS = (
    "gemm_seconds",
    "grouped_gemm_seconds",
    "flash_attention_seconds",
    "unfused_attention_seconds",
    "pointwise_seconds",
    "weight_gradient_seconds",
    "host_floor_seconds",
    "recompute_seconds",
)
"""Parts of the predicted step that an emulated rank measures."""
PASSES = ("forward", "backward", "recompute")


@dataclass(frozen=True, kw_only=True)
class EmulateAnswer:
    """The answer of one `emulate`."""

    question: Question
    plan: TrainPlan
    rank: int
    measurement: Measurement
    report: PlanReport
    stage: StageMemory
    measured_compute_seconds: float
    """Of one micro-batch on the rank's stage: forward, backward and recomputation of all its layers and ends."""
    predicted_compute_seconds: float
    """The same by the time model, of the stage that decides the step."""
    step_seconds: float
    """Composed."""

    @property
    def figures(self) -> RankFigures:
        """The emulated rank's."""
        return self.measurement.ranks[0]


def emulate_plan(request: Request, plan_text: str, rank: int, device: str, steps: int, python: str) -> EmulateAnswer:
    """Run rank `rank` of the plan on this machine's `device` (cpu or cuda). Raises InputError."""
    question = understand(request)
    scenario = question.scenario
    plan = legal_plan(scenario, plan_text)
    if not 0 <= rank < plan.world_size:
        raise InputError(f"{option('rank')} {rank}: the plan {plan} has the ranks 0 to {plan.world_size - 1}")
    job = Job(
        model=scenario.model,
        plan=plan,
        workload=scenario.workload,
        numerics=scenario.numerics,
        mode="emulate",
        rank=rank,
        device=device,
        software=core_stack(scenario.software),
        attention_kernel=scenario.software.memory.attention_kernel,
        steps=steps,
    )
    measurement = run_job(job, python)
    report = report_plan(scenario, plan)
    measured = micro_batch_seconds(scenario, plan, rank, measurement.ranks[0])
    m = job.num_microbatches
    predicted = compute_seconds(report, m)
    return EmulateAnswer(
        question=question,
        plan=plan,
        rank=rank,
        measurement=measurement,
        report=report,
        stage=report.stages[pipeline_stage(plan, rank)],
        measured_compute_seconds=measured,
        predicted_compute_seconds=predicted,
        step_seconds=composed_step(report, m, predicted, measured),
    )


def compute_seconds(report: PlanReport, num_microbatches: int) -> float:
    """Predicted compute of one micro-batch on the stage that decides the step: what an emulated rank measures."""
    return sum(report.time_parts.get(name, 0.0) for name in COMPUTE_PARTS) / num_microbatches


def composed_step(report: PlanReport, num_microbatches: int, predicted: float, measured: float) -> float:
    """The predicted step with the compute of one micro-batch exchanged; the bubble grows with the micro-batch."""
    step, bubble = report.step_seconds, report.time_parts.get("pipeline_bubble_seconds", 0.0)
    sent = ("tp_communication_seconds", "cp_communication_seconds", "expert_exchange_seconds")
    one = predicted + sum(report.time_parts.get(name, 0.0) for name in sent) / num_microbatches
    return step + num_microbatches * (measured - predicted) + bubble * (measured - predicted) / one


def micro_batch_seconds(scenario: Scenario, plan: TrainPlan, rank: int, figures: RankFigures) -> float:
    """Forward, backward and recomputation of one micro-batch on the rank's stage, from the seconds of each kind of layer."""
    stage = pipeline_stage(plan, rank)
    layers = stage_layers(scenario.model, plan)
    first = sum(layers[:stage])
    kinds = scenario.model.moe_pattern[first : first + layers[stage]]
    counts = {
        "moe": sum(kinds),
        "dense": len(kinds) - sum(kinds),
        "embedding": int(stage == 0),
        "head": int(stage == plan.pp - 1),
    }
    return sum(count * figures.layer_seconds.get(f"{kind}.{name}", 0.0) for kind, count in counts.items() for name in PASSES)


def run_job(job: Job, python: str) -> Measurement:
    """Run a job of one process with the interpreter `python`. Raises InputError with what the training core says."""
    with tempfile.TemporaryDirectory(prefix="autoconfig-emulate-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(job_text(job), encoding="utf-8")
        command = [python, "-P", "-m", "autoconfig.trainer", "--job", str(folder / "job.json")]
        try:
            ended = subprocess.run(command, env=with_import_path({**os.environ}), capture_output=True, text=True, check=False)
        except OSError as error:
            raise InputError(f"{option('python')} {python!r} cannot be started: {error.strerror or error}") from error
        said = ended.stderr.strip().removeprefix("trainer: ")
        if ended.returncode == ExitCode.OUT_OF_MEMORY:
            raise InputError(f"rank {job.rank} of {job.plan} does not fit on this device: {said[-500:]}")
        if ended.returncode != ExitCode.RAN:
            known = set(ExitCode) - {ExitCode.CRASHED}
            kind = InputError if ended.returncode in known else AutoconfigError
            raise kind(said.splitlines()[-1] if said and kind is InputError else f"the emulated rank failed: {said[-2000:]}")
        return read_measurement(folder / RESULT_FILE)
