"""One plan in full: legal or not and why, memory of every stage and part, time of every part, throughput, cost, confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from autoconfig.memory_model.predict import MOMENTS, MemoryEstimate, estimate_memory, nccl_bytes
from autoconfig.specs.errors import SECONDS_PER_DAY
from autoconfig.specs.json_record import Keywords
from autoconfig.specs.models.parameters import model_flops_per_token
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.predict import TimeEstimate, estimate_step_time
from autoconfig.training.confidence import Confidence, confidence_of
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.rules import RULE_TEXT

FLOPS_CONVENTION = "causal"
"""Model FLOPs count half of the attention matrix and no recomputation; said beside every TFLOPS and MFU."""


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """One pipeline stage at its largest moment; bytes."""

    stage: int
    peak_bytes: float
    moment: str
    parts: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """Everything predicted for one legal plan."""

    plan: TrainPlan
    step_seconds: float
    time_parts: dict[str, float]
    stages: tuple[StageMemory, ...]
    limit_bytes: float
    nccl_bytes: float
    tokens_per_second_per_gpu: float
    model_flops_per_second_per_gpu: float
    mfu: float
    days_to_train: float | None
    cost: float | None
    confidence: Confidence
    origin: str = "formula"

    @property
    def worst_stage(self) -> StageMemory:
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def peak_bytes(self) -> float:
        return self.worst_stage.peak_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.limit_bytes


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A rule that a plan breaks."""

    rule: Annotated[str, Keywords(pattern="^(NV|AC)[0-9]{3}$")]
    """Its id in docs/legality.md (AC: ours)."""
    text: str
    """What must hold."""


@dataclass(frozen=True, kw_only=True)
class Money:
    """What turns step time into days and cost."""

    tokens: float | None = None
    price_per_gpu_hour: float | None = None


def violations(scenario: Scenario, plan: TrainPlan) -> list[Violation]:
    """Every rule that the plan breaks, in the order of the rules; empty when legal."""
    return [Violation(rule=rule, text=RULE_TEXT[rule]) for rule in broken_rules(scenario, [plan])[0]]


PLANS_AT_ONCE = 64
"""Plans reported in one batch: bounds the memory of their parts."""


def report_plan(scenario: Scenario, plan: TrainPlan, money: Money | None = None, margin: float = 0.0) -> PlanReport:
    """Predict one legal plan in full. Raises PlanError when its stages or micro-batches are not whole numbers."""
    return report_plans(scenario, [plan], money, margin)[0]


def report_plans(
    scenario: Scenario, plans: Sequence[TrainPlan], money: Money | None = None, margin: float = 0.0
) -> list[PlanReport]:
    """Predict legal plans in full, together."""
    found: list[PlanReport] = []
    for start in range(0, len(plans), PLANS_AT_ONCE):
        part = plans[start : start + PLANS_AT_ONCE]
        recomputes = list(dict.fromkeys(plan.recompute for plan in part))
        layouts = scenario.layouts(part)
        memory = estimate_memory(scenario, layouts, recomputes, margin=margin, detail=True)
        time = estimate_step_time(scenario, layouts, recomputes, detail=True)
        for row, plan in enumerate(part):
            at = row, recomputes.index(plan.recompute)
            found.append(_report(scenario, plan, at, memory, time, money or Money()))
    return found


def _report(
    scenario: Scenario, plan: TrainPlan, at: tuple[int, int], memory: MemoryEstimate, time: TimeEstimate, money: Money
) -> PlanReport:
    """The report of the plan that the estimates hold at (row, recompute option)."""
    step = float(time.step_seconds[at])
    gpus, workload = scenario.cluster.num_gpus, scenario.workload
    tokens_rate = workload.tokens_per_step / step
    flops_rate = flops_per_step(scenario, FLOPS_CONVENTION) / step / gpus
    days = money.tokens / tokens_rate / SECONDS_PER_DAY if money.tokens else None
    cost = days * 24 * gpus * money.price_per_gpu_hour if days is not None and money.price_per_gpu_hour else None
    return PlanReport(
        plan=plan,
        step_seconds=step,
        time_parts={name: float(value[at]) for name, value in time.parts.items()},
        stages=tuple(_stage(memory, at, stage) for stage in range(plan.pp)),
        limit_bytes=float(memory.limit_bytes[at[0]]),
        tokens_per_second_per_gpu=tokens_rate / gpus,
        nccl_bytes=float(nccl_bytes(plan.tp, plan.pp, plan.cp, plan.ep, plan.dp)),
        model_flops_per_second_per_gpu=flops_rate,
        mfu=flops_rate / scenario.cluster.gpu.peak_flops_per_s(scenario.numerics.gemm_precision),
        days_to_train=days,
        cost=cost,
        confidence=confidence_of(scenario, step, float(memory.fit_probability[at]), plan.cp),
    )


def _stage(memory: MemoryEstimate, at: tuple[int, int], stage: int) -> StageMemory:
    assert memory.per_stage_bytes is not None and memory.moment is not None
    place = (*at, stage)
    return StageMemory(
        stage=stage,
        peak_bytes=float(memory.per_stage_bytes[place]),
        moment=MOMENTS[int(memory.moment[place])],
        parts={name: float(value[place]) for name, value in memory.parts.items() if value[place] != 0},
    )


CONVENTIONS = ("causal", "full", "full+recompute")


def flops_per_step(scenario: Scenario, convention: str = "causal", recompute: Recompute = NONE) -> float:
    """FLOPs of one step as a publication counts them; blank, or a word that is none of CONVENTIONS, means causal.

    `full+recompute` counts what is computed: where whole layers are recomputed (`recompute`, of the plan) their forward pass
    once more and the output layer once (Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh)), else the same as
    `full` (InternEvo counts so: "recompute counted when on").
    """
    model, seq = scenario.model, scenario.workload.seq_length
    tokens, frozen = scenario.workload.tokens_per_step, scenario.numerics.peft != "none"
    convention = convention.strip().lower()
    if convention == "full+recompute" and recompute.granularity == "full":
        head = 6.0 * model.vocab_size * model.hidden_size
        layers = model_flops_per_token(model, seq, "full") - head
        return tokens * (layers * 4 / 3 + head)
    counted = "full" if convention in ("full", "full+recompute") else "causal"
    return tokens * model_flops_per_token(model, seq, counted, frozen=frozen)
