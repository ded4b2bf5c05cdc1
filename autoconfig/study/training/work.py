"""What a study of training measures: the jobs of a plan, what their outcomes mean, which plans early steps rule out.

A short job comes first where the full one is long. Where the GPUs of the full one are not there, ranks of it run one after the
other on one device, and the time model makes a step of them: measured are the layers' compute and the memory of the ranks;
collectives, sends, bubble and data parallelism stay the time model's (`autoconfig.core.emulate`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from autoconfig.core.emulate import composed_step, compute_seconds, micro_batch_seconds
from autoconfig.profiler.folder import prepare
from autoconfig.profiler.outcome import Kind, Outcome, outcome_of
from autoconfig.profiler.runner import Command, torchrun
from autoconfig.specs.errors import GIB, InputError, option
from autoconfig.specs.job import SOFTWARE, Job
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.measurement import Measurement
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.scenario import Scenario
from autoconfig.study import trials as names
from autoconfig.study.this_machine import check_python
from autoconfig.study.training.candidates import Candidates, build
from autoconfig.study.training.proposal import CONFIDENCE, TOLERANCE, Result, believe, propose, results_of
from autoconfig.study.training.settings import StudySettings
from autoconfig.study.training.surrogate import REPEAT_LOG_SD, SHORT_LOG_SD, prior_covariance, shipped_scatter
from autoconfig.study.trials import Floats
from autoconfig.study.work import FULL, Proposal, Stage, Verdict, compared, not_measured
from autoconfig.training.price import report_plan
from autoconfig.training.question import Question

SHORT_PAYS_S = 120.0
"""A full job that is expected to take longer is preceded by a short one: starting processes and compiling take a minute or
two.
"""
SHORT_MICROBATCHES = 4
SHORT_STEPS = 2
SHORT, EMULATED = "short job", "emulated"
EMULATED_LOG_SD = 0.05
"""Scatter of a composed step around the full job: as a short job's (`surrogate.SHORT_LOG_SD`). Not measured by us on GPUs."""
DRAWS = 4_000


@dataclass(frozen=True, kw_only=True)
class TrainingWork:
    """`study.work.StudyWork` of training plans."""

    settings: StudySettings
    question: Question
    """Its scenario is that of this machine's device, where jobs run on one."""
    candidates: Candidates
    assumed: tuple[Remark, ...]
    emulated: bool = False
    """Full jobs do not fit here: ranks are emulated, one at a time, on one device, and composed steps are the answer."""

    @property
    def scenario(self) -> Scenario:
        return self.question.scenario

    @property
    def fidelity(self) -> str | None:
        return names.EMULATED if self.emulated else None

    @property
    def gpu(self) -> str:
        return self.scenario.cluster.gpu.id

    @property
    def gpus(self) -> int:
        return 1 if self.emulated else self.scenario.cluster.num_gpus

    @property
    def gpus_per_node(self) -> int:
        return self.scenario.cluster.gpus_per_node

    @property
    def keeps_steps(self) -> bool:
        """Optuna keeps no steps of studies with two objectives."""
        return self.settings.objective != "headroom"

    def command(self, python: str, nodes: int) -> Command:
        return torchrun(python, nodes)

    def check_python(self, python: str) -> None:
        check_python(python, self.gpus if self.settings.device == "cuda" else 0)

    @cached_property
    def _covariance(self) -> Floats:
        return prior_covariance(self.candidates, shipped_scatter())

    def propose(self, name: str, trials: Sequence[FrozenTrial], number: int) -> Proposal:
        return propose(
            self.candidates,
            results_of(trials, self.candidates, emulated=self.emulated),
            name=name,
            seed=self.settings.seed,
            number=number,
            pending=names.running_rows(trials, self.candidates),
            given_up=names.tried_in_vain(trials, self.candidates),
            failed=names.ended_rows(trials, self.candidates, TrialState.FAIL),
            covariance=self._covariance,
            headroom=self.settings.objective == "headroom",
            repeats=not self.emulated,  # what a composed step misses, another run misses too
        )

    def notes(self, row: int) -> dict[str, Any]:
        return {names.PLAN: str(self.candidates.plans[row]), names.PREDICTED: float(self.candidates.predicted_s[row])}

    def stages(self, row: int, repeat: int, fidelity: str | None) -> list[Stage]:
        plan, seconds = self.candidates.plans[row], float(self.candidates.predicted_s[row])
        planned = stages if fidelity is None else emulated_stages
        return planned(self.scenario, plan, seconds, self.settings, repeat)

    def ruled_out(
        self, row: int, stage: Stage, steps: Sequence[float], number: int, trials: Sequence[FrozenTrial]
    ) -> Verdict | None:
        """By the steps so far of the stage, of a short job by all of it: a verdict where the plan can hardly win any more."""
        if stage.job.mode == "emulate":  # a rank's step is no step of the plan
            return None
        log_ratio = math.log(min(steps) / stage.predicted_s)
        now = Result(row=row, log_ratio=log_ratio, log_sd=SHORT_LOG_SD)
        results = [*results_of(trials, self.candidates, emulated=self.emulated), now]
        belief = believe(self.candidates, results, covariance=self._covariance)
        if belief.best is None:
            return None
        draws = belief.posterior.draws(np.array([row]), DRAWS, np.random.default_rng(number))[0]
        chance = float((draws < belief.posterior.mean[belief.best] + math.log(1 - TOLERANCE)).mean())
        if chance > 1 - CONFIDENCE:
            return None
        what = "its short job" if stage.name == SHORT else f"its first {len(steps)} steps"
        text = (
            f"{what} ran {math.exp(log_ratio):.2f} times the prediction: it beats the best in {chance:.1%} of what is possible"
        )
        attributes = {
            names.OUTCOME: names.PRUNED,
            names.LOG_RATIO: log_ratio,
            names.LOG_SD: SHORT_LOG_SD,
            names.MESSAGE: text,
        }
        return Verdict(state=TrialState.PRUNED, attributes=attributes)

    def verdict(self, outcome: Outcome, row: int, stage: Stage, planned: Sequence[Stage], jobs_folder: Path) -> Verdict:
        if outcome.kind is not Kind.MEASURED:
            return not_measured(outcome)
        assert outcome.measurement is not None
        limit, emulated = float(self.candidates.limit_bytes[row]), stage.job.mode == "emulate"
        measured = [outcome.measurement]
        if emulated:
            ended = [outcome_of(prepare(jobs_folder, one.job)) for one in planned]
            measured = [found.measurement for found in ended if found is not None and found.measurement is not None]
            if not all(one.ranks for one in measured):
                return not_measured(replace(outcome, kind=Kind.GARBAGE, message="it ran and says nothing of its rank"))
        for one in measured:
            peak, predicted = one.peak_allocated_bytes, float(self.candidates.peak_bytes[row])
            if (outcome := compared(outcome, "peak_allocated_bytes", peak, predicted)).kind is not Kind.MEASURED:
                return not_measured(outcome)
        if not emulated:
            return _complete(measured[0], stage, self.settings, limit)
        plan = self.candidates.plans[row]
        seconds = composed_seconds(self.scenario, plan, measured)
        if (outcome := compared(outcome, "composed step_seconds", seconds, stage.predicted_s)).kind is not Kind.MEASURED:
            return not_measured(outcome)
        return verdict_of_ranks(self.scenario, plan, measured, stage.predicted_s, self.settings, limit)


def full_job(scenario: Scenario, plan: TrainPlan, settings: StudySettings) -> Job:
    """The job that measures a plan. Raises InputError where the training core cannot build the software."""
    stack = scenario.software
    if stack.name not in SOFTWARE:
        raise InputError(f"software {stack.name} cannot be profiled; say {option('software')} {' or '.join(SOFTWARE)}")
    return Job(
        model=scenario.model,
        plan=plan,
        workload=scenario.workload,
        numerics=scenario.numerics,
        device=settings.device,
        software=stack.name,
        attention_kernel="unfused" if stack.memory.attention_kernel == "unfused" else "flash",
        steps=settings.steps,
        warmup_steps=settings.warmup_steps,
        device_memory_bytes=settings.device_memory_bytes,
    )


def emulated_ranks(scenario: Scenario, plan: TrainPlan) -> list[int]:
    """First ranks of the pipeline stages that can decide the step or the peak: the first (embedding, most micro-batches in
    flight), the last (head, logits), and a middle one where it has more layers. Rank order tp-cp-ep-dp-pp (Megatron-LM,
    parallel_state.py)."""
    layers, last = stage_layers(scenario.model, plan), plan.pp - 1
    chosen = {0, last}
    if plan.pp > 2 and layers[1] > min(layers[0], layers[last]):
        chosen.add(1)
    return [stage * plan.tp * plan.cp * plan.dp for stage in sorted(chosen)]


def emulated_stages(
    scenario: Scenario, plan: TrainPlan, predicted_s: float, settings: StudySettings, repeat: int = 0
) -> list[Stage]:
    """One job of one process per emulated rank; the step is composed of them."""
    job = full_job(scenario, plan, settings)
    return [
        Stage(
            name=f"{EMULATED} rank {rank}",
            job=job.replace(mode="emulate", rank=rank, seed=job.seed + repeat),
            predicted_s=predicted_s,
        )
        for rank in emulated_ranks(scenario, plan)
    ]


def stages(scenario: Scenario, plan: TrainPlan, predicted_s: float, settings: StudySettings, repeat: int = 0) -> list[Stage]:
    """The jobs of a trial, in order; every one is compared with its own prediction. `repeat`: the plan's earlier measurements;
    another seed makes it another job, and no short one comes first."""
    job = full_job(scenario, plan, settings)
    full = Stage(name=FULL, job=job.replace(seed=job.seed + repeat), predicted_s=predicted_s)
    if full.expected_s <= SHORT_PAYS_S or repeat:
        return [full]
    few = min(full.job.num_microbatches, max(plan.pp, SHORT_MICROBATCHES))
    few = few // plan.pp * plan.pp if plan.vpp > 1 else few  # interleaving wants whole rounds of the pipeline
    layers = max(1, math.ceil(full.job.model.num_layers / (plan.pp * plan.vpp) / 4))
    short = full.job.replace(steps=SHORT_STEPS, warmup_steps=1).shortened(layers_per_chunk=layers, num_microbatches=few)
    smaller = replace(scenario, model=short.model, workload=short.workload)
    return [Stage(name=SHORT, job=short, predicted_s=float(build([(smaller, short.plan)]).predicted_s[0])), full]


def _complete(measurement: Measurement, stage: Stage, settings: StudySettings, limit_bytes: float) -> Verdict:
    assert measurement.step_seconds is not None
    seconds, samples, peak = measurement.step_seconds, measurement.step_seconds_samples, measurement.peak_allocated_bytes
    attributes: dict[str, Any] = {
        names.OUTCOME: names.MEASURED,
        names.STEP_SECONDS: seconds,
        names.LOG_RATIO: math.log(seconds / stage.predicted_s),
        names.LOG_SD: noise_of(samples),
        names.SAMPLES: list(samples),
    }
    if measurement.step_seconds_spread is not None:
        attributes[names.SPREAD] = measurement.step_seconds_spread
    if peak is not None:
        attributes |= {names.PEAK_BYTES: peak, names.PEAK_GIB: peak / GIB}
    values = _values(seconds, peak or 0, settings, limit_bytes)
    if len(values) > 1:
        attributes[names.HEADROOM_GIB] = values[1]
    return Verdict(state=TrialState.COMPLETE, values=values, attributes=attributes)


def _values(seconds: float, peak_bytes: float, settings: StudySettings, limit_bytes: float) -> list[float]:
    return [seconds, (limit_bytes - peak_bytes) / GIB] if settings.objective == "headroom" else [seconds]


def noise_of(samples: tuple[float, ...]) -> float:
    """Standard deviation of the logarithm of the samples' median: 1.25 sd / sqrt(n) for normal errors; REPEAT_LOG_SD at least,
    because steps of one job are more alike than jobs."""
    if len(samples) < 2 or min(samples) <= 0:
        return REPEAT_LOG_SD
    return max(REPEAT_LOG_SD, 1.25 * statistics.stdev(math.log(value) for value in samples) / math.sqrt(len(samples)))


def composed_seconds(scenario: Scenario, plan: TrainPlan, measurements: Sequence[Measurement]) -> float:
    """The step composed of emulated ranks: the slowest stage's compute in the place of the predicted one."""
    report = report_plan(scenario, plan)
    m = scenario.workload.global_batch_size // (plan.mbs * plan.dp)
    slowest = max(micro_batch_seconds(scenario, plan, figures.rank, figures) for one in measurements for figures in one.ranks)
    return composed_step(report, m, compute_seconds(report, m), slowest)


def verdict_of_ranks(
    scenario: Scenario,
    plan: TrainPlan,
    measurements: Sequence[Measurement],
    predicted_s: float,
    settings: StudySettings,
    limit_bytes: float,
) -> Verdict:
    """All ranks ran: complete, with the composed step and the largest peak."""
    seconds = composed_seconds(scenario, plan, measurements)
    peak = max(figures.peak_allocated_bytes for one in measurements for figures in one.ranks)
    noise = max(noise_of(one.step_seconds_samples) for one in measurements)
    attributes = {
        names.OUTCOME: names.EMULATED,
        names.STEP_SECONDS: seconds,
        names.LOG_RATIO: math.log(seconds / predicted_s),
        names.LOG_SD: math.hypot(EMULATED_LOG_SD, noise),
        names.PEAK_BYTES: peak,
        names.PEAK_GIB: peak / GIB,
        names.MESSAGE: f"composed of {len(measurements)} emulated ranks",
    }
    return Verdict(state=TrialState.COMPLETE, values=_values(seconds, peak, settings, limit_bytes), attributes=attributes)
