"""From a candidate to the jobs that measure it: a short one first where the full one is long, the full one for what is left;
emulated ranks where the GPUs of the full one are not there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoconfig.specs.errors import InputError
from autoconfig.specs.job import SOFTWARE, Job
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.study.candidates import build
from autoconfig.study.settings import StudySettings

SHORT_PAYS_S = 120.0
"""A full job that is expected to take longer is preceded by a short one: starting processes and compiling take a minute or
two.
"""
SHORT_MICROBATCHES = 4
SHORT_STEPS = 2
LIMIT_TIMES = 5.0
"""A job's time limit: so many times what is expected, and LEAST_LIMIT_S at least."""
LEAST_LIMIT_S = 120.0
SHORT, FULL, EMULATED = "short job", "full", "emulated"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One job of a trial."""

    name: str
    job: Job
    predicted_s: float
    """Step seconds of this very job by the time model."""
    least_limit_s: float = LEAST_LIMIT_S

    @property
    def expected_s(self) -> float:
        """All steps together."""
        return self.predicted_s * (self.job.steps + self.job.warmup_steps)

    def limit_s(self, most: float) -> float:
        """After this time the job is ended."""
        return min(most, max(self.least_limit_s, LIMIT_TIMES * self.expected_s))


def full_job(scenario: Scenario, plan: TrainPlan, settings: StudySettings) -> Job:
    """The job that measures a plan. Raises InputError where the training core cannot build the software."""
    stack = scenario.software
    if stack.name not in SOFTWARE:
        raise InputError(f"software {stack.name} cannot be profiled; say --software {' or '.join(SOFTWARE)}")
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
    """One job of one process per emulated rank; the step is composed of them (`study.emulated`)."""
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
