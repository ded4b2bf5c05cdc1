"""`autoconfig trace`: what the real megatron-core code holds on chosen ranks, beside what the formula predicts.

Direction of calls: `trace_plan` -> rules and formula (evaluate) -> the training core in its own processes (trace_process) ->
`compare`, which puts the formula's parts into the trace's categories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoconfig.core.trace_process import Traces, run_traces
from autoconfig.memory_model.activations import Shape, flash_package_runs
from autoconfig.memory_model.state import logits_per_rank
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.job import CATEGORIES, Job, RankTrace, TraceRequest, default_ranks
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.specs.plan import TrainPlan, parse_plan
from autoconfig.specs.scenario import Scenario, endless_recomputation
from autoconfig.specs.software.software import SoftwareStack
from autoconfig.training.price import StageMemory, report_plan, violations
from autoconfig.training.question import Question, Request, understand

LOCAL, ENGINE = "megatron-local", "transformer-engine"
ENGINE_GENERATIONS = ("megatron-core", "nemo")
CATEGORY_OF_PART = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "loss": "logits",
    "dummy_weight_gradients": "temporary",
    "workspace_bytes": "temporary",
    "fsdp_unit_bytes": "temporary",
    "gather_buffer": "temporary",
    "mlp_backward": "temporary",
    "attention_backward": "temporary",
    "output_layer_backward": "temporary",
    "embedding_backward": "temporary",
    "tied_weight_gradient": "temporary",
    "optimizer_step_bytes": "temporary",
    "recomputed_activations": "temporary",
}
"""Parts of the formula -> categories of the trace; every part that is not named here is an activation."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One category of one rank; bytes."""

    term: str
    traced: float
    formula: float
    parts: dict[str, float]
    """The formula's parts in it."""


@dataclass(frozen=True, kw_only=True)
class RankComparison:
    """One traced rank and its stage in the formula."""

    trace: RankTrace
    stage: StageMemory
    differences: tuple[Difference, ...]

    @property
    def ratio(self) -> float:
        """Formula over trace."""
        return self.stage.peak_bytes / self.trace.peak_bytes


@dataclass(frozen=True, kw_only=True)
class TraceAnswer:
    """The answer of one `trace`."""

    question: Question
    plan: TrainPlan
    stack: str
    versions: dict[str, str]
    ranks: tuple[RankComparison, ...]


def trace_plan(
    request: Request,
    plan_text: str,
    ranks: tuple[int, ...],
    done: Callable[[RankTrace], None],
    started: Callable[[int], None],
    python: str,
) -> TraceAnswer:
    """Trace ranks of one plan (none named: the default ones); `started` is told how many. Raises InputError."""
    question = understand(request)
    scenario = question.scenario
    plan = legal_plan(scenario, plan_text)
    wanted = trace_request(scenario, plan, ranks or default_ranks(plan))
    started(len(wanted.ranks))
    found = run_traces(wanted, done, python)
    return TraceAnswer(
        question=question,
        plan=plan,
        stack=wanted.job.software,
        versions=found.versions,
        ranks=compare(scenario, plan, found),
    )


def legal_plan(scenario: Scenario, plan_text: str) -> TrainPlan:
    """The plan. Raises InputError with the rules that it breaks, UnsupportedError for a plan that never ends."""
    plan = parse_plan(plan_text, scenario.cluster.num_gpus, dist_opt=scenario.software.supports_distributed_optimizer)
    broken = violations(scenario, plan)
    if broken:
        raise InputError(f"{plan} is not legal: " + "; ".join(f"{v.rule} {v.text}" for v in broken[:3]))
    if (endless := endless_recomputation(scenario.model, plan.recompute.modules)) is not None:
        raise UnsupportedError(f"{plan}: {endless}")
    return plan


def trace_request(scenario: Scenario, plan: TrainPlan, ranks: tuple[int, ...]) -> TraceRequest:
    """What the training core is asked. Raises UnsupportedError for what it cannot build."""
    job = Job(
        model=scenario.model,
        plan=plan,
        workload=scenario.workload,
        numerics=scenario.numerics,
        software=core_stack(scenario.software),
        attention_kernel=scenario.software.memory.attention_kernel,
    )
    memory = scenario.software.memory
    copies = memory.flash_copies_output and flash_package_runs(scenario.cluster.gpu, scenario.numerics)
    return TraceRequest(job=job, ranks=ranks, memory=memory, copies_attention_output=copies)


def core_stack(stack: SoftwareStack) -> str:
    """The training core's name for a stack of the catalogue. Raises UnsupportedError."""
    if stack.name.startswith(LOCAL):
        return LOCAL
    if stack.generation in ENGINE_GENERATIONS and stack.memory.attention_kernel == "flash":
        return ENGINE
    raise UnsupportedError(
        f"software {stack.name}: the training core builds megatron-core with or without Transformer Engine; "
        f"say --software {ENGINE} or --software {LOCAL}"
    )


def compare(scenario: Scenario, plan: TrainPlan, found: Traces) -> tuple[RankComparison, ...]:
    """Each traced rank beside its stage in the formula."""
    stages = report_plan(scenario, plan).stages
    pairs = [(trace, stages[trace.pipeline_stage]) for trace in found.ranks]
    return tuple(
        RankComparison(trace=trace, stage=stage, differences=_differences(scenario, plan, trace, stage))
        for trace, stage in pairs
    )


def _differences(scenario: Scenario, plan: TrainPlan, trace: RankTrace, stage: StageMemory) -> tuple[Difference, ...]:
    parts: dict[str, dict[str, float]] = {category: {} for category in CATEGORIES}
    for name, size in stage.parts.items():
        category = CATEGORY_OF_PART.get(name, "activations")
        if name == "output_layer_backward":  # the logits' own gradient is as wide as the vocabulary
            logits = min(size, _logit_gradient(scenario, plan))
            parts["logits"]["logit_gradient"] = logits
            size -= logits
        parts[category][name] = size
    return tuple(
        Difference(term=c, traced=float(trace.by_category[c]), formula=sum(parts[c].values()), parts=parts[c])
        for c in CATEGORIES
    )


def _logit_gradient(scenario: Scenario, plan: TrainPlan) -> float:
    shape = Shape.of(
        seq_length=scenario.workload.seq_length, tp=plan.tp, sp=plan.sp, cp=plan.cp, ep=plan.ep, etp=plan.etp, mbs=plan.mbs
    )
    memory = scenario.software.memory
    wide = memory.logit_gradient_bytes * scenario.numerics.activation_bytes / 2
    return float(wide * logits_per_rank(memory, padded_vocab_size(scenario.model, plan.tp), shape))
