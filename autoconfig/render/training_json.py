"""Answers about training as JSON records. Sizes are GiB, times seconds, names Megatron's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from autoconfig.core.timeline import Timeline, timeline
from autoconfig.memory_model.peaks import MOMENTS
from autoconfig.memory_model.predict import allocator_bytes, cuda_context_bytes
from autoconfig.render.question_json import AnswerJson, QuestionJson, question_json
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.json_record import AboveZero, Keywords, Natural, NotNegative, Parts, Positive, record_of
from autoconfig.specs.plan_names import NamedPlan, named_plan
from autoconfig.time_model.operators.listing import OperatorRow
from autoconfig.training.answer import Explanation, IncludedPlan, SearchAnswer
from autoconfig.training.confidence import Confidence, FirstPlanRecord, record_for
from autoconfig.training.price import FLOPS_CONVENTION, PlanReport, Violation
from autoconfig.training.question import Question
from autoconfig.training.rank import Funnel
from autoconfig.training.remedies import Gain, OtherBatch
from autoconfig.training.vary import SwitchGain

Moment = Annotated[str, Keywords(enum=MOMENTS)]


@dataclass(frozen=True, kw_only=True)
class OutsideTensorsJson:
    """Device memory that tensors do not get, GiB."""

    cuda_context_bytes: NotNegative
    """Driver context and libraries, GiB."""
    nccl_bytes: NotNegative
    """Buffers of the communicators, GiB."""
    dispatch_buffer_bytes: NotNegative
    """HybridEP's registered buffers, GiB."""
    allocator_bytes: NotNegative
    """Reserved by the allocator, not in use, GiB."""


@dataclass(frozen=True, kw_only=True)
class PlanMemoryJson:
    """Memory of one GPU at the plan's worst moment."""

    peak_gib: NotNegative
    """Peak that torch allocates on the worst stage."""
    limit_gib: float
    """The most that torch may allocate; below 0 where the margin leaves nothing."""
    worst_stage: Natural
    """Pipeline stage with the largest peak, from 0."""
    moment: Moment
    """Moment of a step at which the worst stage peaks."""
    per_stage_gib: Annotated[tuple[NotNegative, ...], Keywords(minItems=1)]
    """Peak of each pipeline stage."""
    breakdown_gib: Parts
    """Part of the worst stage's peak -> GiB; they sum to peak_gib."""
    outside_tensors_gib: OutsideTensorsJson
    device_gib: AboveZero
    """Memory of the GPU as the driver reports it."""


@dataclass(frozen=True, kw_only=True)
class StepTimeJson:
    """Time of one optimizer step."""

    breakdown_seconds: Parts
    """Part of the step -> seconds; they sum to step_seconds."""


@dataclass(frozen=True, kw_only=True)
class PlanJson:
    """A plan."""

    plan: NamedPlan
    short: str
    """The plan in its short form; every command reads it back."""


@dataclass(frozen=True, kw_only=True)
class PlanReportJson(PlanJson):
    """Everything predicted for one plan."""

    step_seconds: AboveZero
    """Time of an optimizer step."""
    tokens_per_second_per_gpu: AboveZero
    """Tokens trained on, by one GPU."""
    model_tflops_per_gpu: AboveZero
    """Model FLOPs (convention: flops_convention), 10^12 per second and GPU."""
    mfu: AboveZero
    """model_tflops_per_gpu over the GPU's dense peak at this precision, a share."""
    flops_convention: Annotated[str, Keywords(enum=(FLOPS_CONVENTION,))]
    """What model FLOPs count: causal attention, no recomputation."""
    memory: PlanMemoryJson
    time: StepTimeJson
    days_to_train: NotNegative | None
    """Days for --tokens; null without."""
    cost: NotNegative | None
    """Money for --tokens at --price; null without."""
    cost_per_billion_tokens: AboveZero | None
    """Money for 10^9 tokens at --price; null without."""
    joules_per_token: AboveZero | None
    """Of all GPUs at their power limit, which is more than they draw, without hosts, network and cooling; null where it is not
    known."""
    energy_kwh: NotNegative | None
    """The same for --tokens; null without."""
    origin: Annotated[str, Keywords(enum=("formula", "traced", "emulated", "measured"))]
    """Where the figures are from: formulas, or runs of this plan."""
    confidence: Confidence


@dataclass(frozen=True, kw_only=True)
class PlaceJson:
    """A place in the ranking."""

    rank: Positive
    """Rank of the layout by step time, from 1."""
    tie_group: Positive
    """Plans of one group are within the model's resolution of each other; from 1."""


@dataclass(frozen=True, kw_only=True)
class RankedPlanJson(PlanReportJson, PlaceJson):
    """The best plan of one layout."""

    why: str
    """Why the plan is at this place."""


@dataclass(frozen=True, kw_only=True)
class LegalPlanJson(PlanReportJson):
    """A legal plan that the caller named: as a ranked plan, and what became of it."""

    legal: Literal[True] = True
    """It breaks no rule."""
    fits: bool
    """Its peak is within the limit."""
    rejected_by: Annotated[tuple[Violation, ...], Keywords(maxItems=0)] = ()
    shortfall_gib: NotNegative
    """Memory that the worst stage lacks; 0 when it fits."""
    layout_rank: Positive | None
    """Rank of the plan's layout among the layouts that fit, from 1; null when it does not fit or nothing was searched."""
    layout_percentile: Annotated[float, Keywords(exclusiveMinimum=0, maximum=100)] | None
    """100 x layout_rank over the layouts that fit."""
    step_ratio_to_first: AboveZero | None
    """Step time over that of the first plan."""


@dataclass(frozen=True, kw_only=True)
class IllegalPlanJson(PlanJson):
    """A plan that the caller named and that Megatron does not run on this cluster with this batch: no numbers."""

    legal: Literal[False] = False
    """It breaks a rule."""
    fits: Literal[False] = False
    """Not asked of such a plan."""
    rejected_by: Annotated[tuple[Violation, ...], Keywords(minItems=1)]
    """Every rule that the plan breaks."""
    shortfall_gib: Annotated[float, Keywords(const=0)] = 0.0
    """0: not known."""
    layout_rank: None = None
    """Null: it has no place."""
    layout_percentile: None = None
    """Null, likewise."""
    step_ratio_to_first: None = None
    """Null, likewise."""


@dataclass(frozen=True, kw_only=True)
class AsGivenJson(PlanJson):
    """What the text of --include says where it names some keys only: every other key as plans have it where nothing is said."""

    legal: bool
    fits: bool
    """False where it is not legal, too."""
    step_seconds: AboveZero | None
    """Null where it is not legal."""
    peak_gib: AboveZero | None
    """Likewise, of the worst stage."""


@dataclass(frozen=True, kw_only=True)
class CompletedJson:
    """What the caller wrote of an included plan."""

    as_given: AsGivenJson | None
    """Where the text named some keys only, and the plan is the best that has them; null for a whole plan."""


@dataclass(frozen=True, kw_only=True)
class IncludedLegalJson(LegalPlanJson, CompletedJson):
    """A plan of --include that is legal."""


@dataclass(frozen=True, kw_only=True)
class IncludedIllegalJson(IllegalPlanJson, CompletedJson):
    """A plan of --include that is not legal."""


@dataclass(frozen=True, kw_only=True)
class NearestMissJson(PlanReportJson):
    """The plan that comes closest to fitting when nothing fits."""

    shortfall_gib: AboveZero
    """Memory that its worst stage lacks."""
    try_: Annotated[tuple[str, ...], Keywords(minItems=1)]
    """What was tried to make it fit, a sentence each."""
    try_fits: tuple[bool, ...]
    """Of each of these, whether it fits."""
    try_options: tuple[str, ...]
    """Of each of these, the options that ask for it."""


@dataclass(frozen=True, kw_only=True)
class GpuCountJson:
    """One GPU count of --gpus-at-most."""

    num_gpus: Positive
    """GPUs of this count."""
    step_seconds: AboveZero | None
    """Best step time; null when nothing fits."""


@dataclass(frozen=True, kw_only=True)
class NothingLegalJson:
    """Why a question has no legal plan, and what is near it that has one."""

    why: str
    """What stops the most layouts, and what to try."""
    global_batch_sizes: tuple[Positive, ...]
    """With the same GPUs: the nearest batches that have a legal plan, nearest first."""
    num_gpus: tuple[Positive, ...]
    """The next smaller and the next larger number of GPUs, in whole nodes, that has one."""


@dataclass(frozen=True, kw_only=True)
class SearchJson(QuestionJson, AnswerJson):
    """The ranked plans for a model on a cluster. Sizes are GiB, times seconds, names Megatron's."""

    funnel: Funnel
    plans: tuple[RankedPlanJson, ...]
    """The top plans, one per layout, in the order asked for."""
    fit_chance: NotNegative
    """The least chance to fit that was asked for."""
    fit_chance_met: bool
    """The plans reach it. False: none does, the likeliest comes first, and `remedies` says what would help."""
    riskier: PlanReportJson | None
    """A plan that is faster than the first if it fits, with less than the asked chance; null where there is none."""
    remedies: tuple[str, ...]
    """Where no plan reaches the asked chance: changes that were tried, with their outcome."""
    what_switches_buy: tuple[SwitchGain, ...]
    """Of the first plan: of each switch the best other value, where it moves the step by more than 5 %."""
    other_dispatcher: SwitchGain | None
    """What the fastest plan under a dispatcher that nobody named takes beside the first plan, where it is more than 5 % faster:
    another plan; else null."""
    other_batch: OtherBatch | None
    """A batch near the asked one with which these GPUs do more; null where the batch divides well, or none gains 3 %."""
    pareto: tuple[PlanReportJson, ...]
    """Plans that no other beats in both step time and peak memory, fastest first."""
    included: tuple[IncludedLegalJson | IncludedIllegalJson, ...]
    """The plans of --include, in their order."""
    nearest_miss: NearestMissJson | None
    """Null when something fits, or nothing is legal."""
    nothing_legal: NothingLegalJson | None
    """Null when some plan is legal."""
    gpus_tried: tuple[GpuCountJson, ...]
    """With --gpus-at-most: the GPU counts tried."""
    first_plan_record: FirstPlanRecord | None
    """How far published runs fell short of first plans of this kind; null where no such run stands behind the GPU."""


@dataclass(frozen=True, kw_only=True)
class StageJson:
    """Memory of one pipeline stage."""

    stage: Natural
    """From 0."""
    peak_gib: NotNegative
    """Peak that torch allocates."""
    moment: Moment
    """Moment of a step at which the stage peaks."""
    breakdown_gib: Parts
    """Part -> GiB; they sum to peak_gib."""


@dataclass(frozen=True, kw_only=True)
class DetailsJson:
    """What `explain` says beyond a search; lists are empty where the plan is not legal."""

    stages: tuple[StageJson, ...]
    nearest_legal: str | None
    """Where the plan is not legal: the legal plan with the fewest changes, in its short form; else null."""
    operators: tuple[OperatorRow, ...]
    """Every operator of a layer, the head and the embedding."""
    what_binds_note: str
    """Where the plan does not fit: what it lacks, and what the gains mean then; else empty."""
    what_binds: tuple[Gain, ...]
    """What a little more of everything would buy; empty with --no-binds."""
    what_switches_buy: tuple[SwitchGain, ...]
    """What other switches would make of the step; empty for dense models and with --no-binds."""
    without_effect: tuple[str, ...]
    """What the plan asks for to no effect."""


@dataclass(frozen=True, kw_only=True)
class LegalExplanationJson(DetailsJson, LegalPlanJson, QuestionJson, AnswerJson):
    """Everything predicted for one plan, stage by stage. Sizes are GiB, times seconds, names Megatron's."""


@dataclass(frozen=True, kw_only=True)
class IllegalExplanationJson(DetailsJson, IllegalPlanJson, QuestionJson, AnswerJson):
    """Why a plan is not legal."""


ExplanationJson = LegalExplanationJson | IllegalExplanationJson


@dataclass(frozen=True, kw_only=True)
class TimelineJson(Timeline, AnswerJson):
    """When every stage of a plan works on which micro-batch. Times are seconds."""


def report_json(report: PlanReport, question: Question) -> PlanReportJson:
    """Everything predicted for a plan."""
    worst = report.worst_stage
    return record_of(
        PlanReportJson,
        report,
        plan=named_plan(report.plan, question.scenario.workload.global_batch_size),
        short=str(report.plan),
        model_tflops_per_gpu=report.model_flops_per_second_per_gpu / 1e12,
        flops_convention=FLOPS_CONVENTION,
        memory=PlanMemoryJson(
            peak_gib=report.peak_bytes / GIB,
            limit_gib=report.limit_bytes / GIB,
            worst_stage=worst.stage,
            moment=worst.moment,
            per_stage_gib=tuple(stage.peak_bytes / GIB for stage in report.stages),
            breakdown_gib=in_gib(worst.parts),
            outside_tensors_gib=OutsideTensorsJson(
                cuda_context_bytes=cuda_context_bytes() / GIB,
                nccl_bytes=report.nccl_bytes / GIB,
                dispatch_buffer_bytes=report.dispatch_buffer_bytes / GIB,
                allocator_bytes=allocator_bytes(report.peak_bytes) / GIB,
            ),
            device_gib=question.scenario.cluster.memory_bytes / GIB,
        ),
        time=StepTimeJson(breakdown_seconds=report.time_parts),
    )


def in_gib(parts: dict[str, Any]) -> dict[str, float]:
    """Amounts in bytes as GiB."""
    return {name: size / GIB for name, size in parts.items()}


def included_json(included: IncludedPlan, question: Question) -> LegalPlanJson | IllegalPlanJson:
    """A plan that the caller named: as a ranked plan, plus what became of it."""
    report = included.report
    if report is None:
        plan = named_plan(included.plan, question.scenario.workload.global_batch_size)
        return IllegalPlanJson(plan=plan, short=str(included.plan), rejected_by=included.violations)
    return record_of(LegalPlanJson, included, **vars(report_json(report, question)), fits=report.fits, rejected_by=())


def _with_given(included: IncludedPlan, question: Question) -> IncludedLegalJson | IncludedIllegalJson:
    """A plan of --include, with what the caller wrote."""
    kind = IncludedIllegalJson if included.report is None else IncludedLegalJson
    alone, plan = included.given_report, included.given
    as_given = None
    if plan is not None:
        as_given = AsGivenJson(
            plan=named_plan(plan, question.scenario.workload.global_batch_size),
            short=str(plan),
            legal=alone is not None,
            fits=alone is not None and alone.fits,
            step_seconds=None if alone is None else alone.step_seconds,
            peak_gib=None if alone is None else alone.peak_bytes / GIB,
        )
    return kind(**vars(included_json(included, question)), as_given=as_given)


def search_json(answer: SearchAnswer) -> SearchJson:
    """The whole answer of `search`."""
    question, miss, none = answer.question, answer.nearest_miss, answer.nothing_legal
    return SearchJson(
        **vars(question_json(question)),
        funnel=answer.ranking.funnel,
        plans=tuple(
            RankedPlanJson(rank=p.rank, tie_group=p.tie_group, **vars(report_json(p.report, question)), why=p.why)
            for p in answer.plans
        ),
        fit_chance=question.request.fit_chance,
        fit_chance_met=answer.ranking.fit_chance_met and bool(answer.plans),
        riskier=None if answer.riskier is None else report_json(answer.riskier, question),
        remedies=tuple(str(remedy) for remedy in answer.remedies) if answer.plans else (),
        what_switches_buy=answer.switches,
        other_dispatcher=answer.other_dispatcher,
        other_batch=answer.other_batch,
        pareto=tuple(report_json(report, question) for report in answer.pareto),
        included=tuple(_with_given(included, question) for included in answer.included),
        nearest_miss=None
        if miss is None
        else NearestMissJson(
            **vars(report_json(miss, question)),
            shortfall_gib=(miss.peak_bytes - miss.limit_bytes) / GIB,
            try_=tuple(str(remedy) for remedy in answer.remedies),
            try_fits=tuple(remedy.fits for remedy in answer.remedies),
            try_options=tuple(remedy.options for remedy in answer.remedies),
        ),
        nothing_legal=None if none is None else record_of(NothingLegalJson, none, why=none.text),
        first_plan_record=record_for(answer.question.scenario, answer.plans[0].report.confidence if answer.plans else None),
        gpus_tried=tuple(GpuCountJson(num_gpus=gpus, step_seconds=step) for gpus, step in answer.gpus_tried),
    )


def explain_json(explanation: Explanation) -> ExplanationJson:
    """The whole answer of `explain`: every stage with its parts, every operator, what binds."""
    question, included = explanation.question, explanation.included
    kind = LegalExplanationJson if included.report else IllegalExplanationJson
    return kind(
        **vars(question_json(question)),
        **vars(included_json(included, question)),
        stages=tuple(
            record_of(StageJson, stage, peak_gib=stage.peak_bytes / GIB, breakdown_gib=in_gib(stage.parts))
            for stage in (included.report.stages if included.report else ())
        ),
        nearest_legal=None if explanation.nearest_legal is None else str(explanation.nearest_legal),
        operators=explanation.operators,
        what_binds_note=explanation.gains_note,
        what_binds=explanation.gains,
        what_switches_buy=explanation.switches,
        without_effect=explanation.without_effect,
    )


def timeline_json(explanation: Explanation) -> TimelineJson:
    """The pipeline timeline of an explained plan. Raises InputError where the plan is not legal."""
    included, question = explanation.included, explanation.question
    if included.report is None:
        raise not_legal(explanation)
    drawn = timeline(question.scenario, included.plan, explanation.operators)
    return TimelineJson(**vars(drawn))


def not_legal(explanation: Explanation) -> InputError:
    """Why a plan is not legal, and the nearest that is."""
    rules = "; ".join(f"{violation.rule} {violation.text}" for violation in explanation.included.violations)
    near = f"; the nearest legal plan is {explanation.nearest_legal}" if explanation.nearest_legal else ""
    return InputError(f"{explanation.included.plan} is not legal: {rules}{near}")
