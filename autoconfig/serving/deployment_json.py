"""Serving answers as JSON records. Sizes are GiB, times seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from autoconfig.memory_model.serving import ServingMemory
from autoconfig.planning.request_fields import GOALS
from autoconfig.serving.answer import ServeAnswer
from autoconfig.serving.deployment import BenchmarkJson, DeploymentReport, SimulatedJson, SummaryJson, summary
from autoconfig.serving.question import ServeQuestion
from autoconfig.specs.errors import GIB
from autoconfig.specs.json_record import AboveZero, Keywords, Natural, NotNegative, Positive, Share, record_of
from autoconfig.specs.remarks import AssumedJson, assumed_json
from autoconfig.specs.serve_plan import SHORT_TO_LONG, EnginePlan
from autoconfig.time_model.serving.workload import Trace


@dataclass(frozen=True, kw_only=True)
class TraceWindowJson:
    """The busiest part of a trace, by which it is sized."""

    start_seconds: NotNegative
    """After the first request."""
    end_seconds: AboveZero
    clock: str
    """From when to when by the trace's clock; hours after the first request where that has no date."""
    requests: Annotated[int, Keywords(minimum=2)]
    """That arrive in it."""


@dataclass(frozen=True, kw_only=True)
class TraceSummaryJson:
    """Recorded requests."""

    requests: Annotated[int, Keywords(minimum=2)]
    """Requests in the trace."""
    seconds: float
    """From the first arrival to the last; --rate stretches it."""
    sized_by: TraceWindowJson | None
    """The part whose requests are the load; null: all of them."""
    input_tokens: SummaryJson
    """Of the requests that are the load."""
    output_tokens: SummaryJson


@dataclass(frozen=True, kw_only=True)
class ServeQuestionJson(AssumedJson):
    """What was asked, with every default."""

    model: str
    gpu: str
    num_gpus: Positive
    """GPUs there are; a deployment may use fewer."""
    gpus_per_node: Positive
    """GPUs that reach each other over the link."""
    engine: str
    """Engine generation (`autoconfig engines`)."""
    isl: float
    """Input tokens of a request, mean."""
    osl: float
    """Output tokens of a request, mean."""
    isl_stddev: NotNegative
    """Standard deviation of the input tokens; 0: all alike."""
    osl_stddev: NotNegative
    longest_tokens: float
    """Input and output tokens of the longest request, which memory must hold."""
    trace: TraceSummaryJson | None
    """The trace that was asked about; null: lengths are drawn."""
    ttft_limit_seconds: float | None
    """Limit of the mean time to first token."""
    tpot_limit_seconds: float | None
    """Limit of the mean time per output token."""
    percentile_limits_seconds: dict[str, AboveZero]
    """Limits of percentiles in the simulation: ttft_p95, ttft_p99, tpot_p95, tpot_p99."""
    requests_per_second: float | None
    """Load of the whole deployment (of a trace, the mean of what it is sized by); null: a queue that is never empty."""
    goal: Annotated[str, Keywords(enum=GOALS)]
    chunked_prefill: bool
    """Prompts are split over iterations."""


@dataclass(frozen=True, kw_only=True)
class ServeFunnelJson:
    """How many deployments were looked at."""

    layouts: int
    """Legal engine layouts."""
    enumerated: int
    """Layouts times batch sizes times token budgets."""
    fit: int
    """Deployments that memory holds and, with a rate, that carry it; disaggregated ones included."""
    meet_limits: int
    """Of those, within the limits."""
    seconds: float
    """Time of the search."""


@dataclass(frozen=True, kw_only=True)
class EngineJson:
    """One kind of engine instance."""

    tensor_parallel_size: Positive
    """GPUs that share every layer."""
    pipeline_parallel_size: Positive
    """Pipeline stages."""
    expert_parallel_size: Positive
    """GPUs over which experts are spread."""
    attention_data_parallel_size: Positive
    """Groups whose attention takes requests of its own."""
    weight_format: str
    """Number format of the weights."""
    kv_cache_format: str
    """Number format of the cache."""
    max_batch_size: Positive
    """Sequences of an instance."""
    max_num_tokens: Positive
    """Of one iteration of an attention rank."""
    num_replicas: Positive
    """Instances of it."""


@dataclass(frozen=True, kw_only=True)
class PrefillMemoryJson:
    """A prompt on every rank and stage; device is the sum of weights, activations, runtime, kv_pool and kept_free."""

    device: float
    """What the driver reports."""
    weights: float
    """With scales."""
    activations: float
    """Of one iteration; of a prefill instance, of the longest prompt."""
    runtime: float
    """Context, libraries, workspaces."""
    kv_pool: float
    """For the cache of all sequences."""
    kept_free: float
    """What the engine leaves free."""
    kv_per_sequence: float
    """Of one whole sequence (where lengths differ, of what a running one holds on average); of a prefill instance, of one mean
    prompt."""


@dataclass(frozen=True, kw_only=True)
class DecodeMemoryJson(PrefillMemoryJson):
    """Of one GPU of a decode instance."""

    kv_longest_sequence: float
    """Of the longest request."""


@dataclass(frozen=True, kw_only=True)
class DeploymentJson:
    """One deployment."""

    plan: str
    """Short form."""
    decode: EngineJson
    prefill: EngineJson | None
    """Separate prefill instances; null where decode instances do both."""
    gpus: Positive
    """In use."""
    users: Positive
    """Sequences that run at once; under a load max_batch_size leaves room for more."""
    requests_per_second: float
    """Requests that all its engines finish."""
    tokens_per_second_per_gpu: float
    """Output tokens."""
    tokens_per_second_per_user: float | None
    """1 / TPOT; null where answers are one token."""
    ttft_seconds: float
    """Mean, closed form."""
    tpot_seconds: float | None
    """Mean, closed form; null where answers are one token."""
    max_concurrency: Natural
    """Sequences of average length that memory holds."""
    max_concurrency_longest: Natural
    """Sequences as long as the longest that memory holds."""
    cost_per_million_tokens: float | None
    """Money for a million output tokens, with --price."""
    joules_per_token: AboveZero | None
    """Of an output token: the GPUs at their power limit, which is more than they draw, without hosts, network and cooling; null
    where it is not known."""
    kwh_per_million_tokens: AboveZero | None
    """The same for a million output tokens."""
    memory_gib: DecodeMemoryJson
    prefill_memory_gib: PrefillMemoryJson | None
    """Of one GPU of a separate prefill instance; null where decode instances do both."""
    weights_gib: dict[str, float]
    """Weights by part."""
    decode_step_seconds: dict[str, NotNegative]
    """By part."""
    prompt_step_seconds: dict[str, NotNegative]
    """An iteration with as many prompts as it takes, by part; of a prefill instance, one prompt."""
    simulated: SimulatedJson | None
    """Finalists only."""
    benchmark: BenchmarkJson | None
    """Of a full queue of requests of one length; null of others, of separate prefill and on the frontier."""

    @property
    def short(self) -> str:
        """The plan, as entries of other answers call it."""
        return self.plan


@dataclass(frozen=True, kw_only=True)
class IncludedDeploymentJson:
    """A plan of --include."""

    plan: str
    """As asked."""
    deployment: DeploymentJson | None
    """Null where it cannot run."""
    why_not: str
    """Why it cannot run; empty where it can."""


@dataclass(frozen=True, kw_only=True)
class DraftsJson:
    """The first deployment's layouts with drafts of a layer that the checkpoint has (MTP; SGLang's EAGLE)."""

    draft_tokens: Positive
    """That a step checks: draft_tokens of a request."""
    acceptance: Share
    """Chance that one is accepted: acceptance of a request."""
    tokens_per_step: float
    """Tokens out of a step."""
    source: str
    """Who measured it."""
    deployment: DeploymentJson
    """In closed form, without the time of drafting."""
    text: str
    """What it gives against the same without drafts."""


@dataclass(frozen=True, kw_only=True)
class HourJson:
    """An hour of a trace, or two, four, ... of a long one: what of the first deployment carries it."""

    start_seconds: NotNegative
    """After the first request."""
    clock: str
    """When it starts, by the trace's clock; hours after the first request where that has no date."""
    seconds: AboveZero
    requests_per_second: NotNegative
    isl: NotNegative
    """Input tokens of a request, mean; 0 where there is none."""
    osl: NotNegative
    """Output tokens of a request, mean."""
    replicas: Natural
    """Instances, which carry its busiest quarter."""
    prefill_replicas: Natural | None
    """Separate prefill instances; null where there are none."""
    gpus: Natural
    gpu_hours: NotNegative
    """GPUs times hours."""


@dataclass(frozen=True, kw_only=True)
class ServeJson:
    """The ranked deployments of a model that is served. Sizes are GiB, times seconds; definitions in docs/inference.md."""

    schema_version: Literal[2] = 2
    """Raised when a name or meaning changes."""
    question: ServeQuestionJson
    funnel: ServeFunnelJson
    deployments: tuple[DeploymentJson, ...]
    """Best of each layout, best first."""
    pareto: tuple[DeploymentJson, ...]
    """Frontier of speed per user against throughput per GPU."""
    included: tuple[IncludedDeploymentJson, ...]
    """Plans of --include."""
    why: tuple[str, ...]
    """Why the first deployment is recommended; empty where there is none."""
    sensitivity: tuple[str, ...]
    """What limits a quarter wider change of the figure that the goal counts."""
    nearest: DeploymentJson | None
    """Where nothing meets the limits: what misses by least."""
    miss: str
    """By how much, or what does not fit; empty where deployments were found."""
    sustained_requests_per_second: AboveZero | None = None
    """Of a full queue: the load of random arrivals that the GPUs carry within the limits, as a rate finds it; null where a rate
    was asked or nothing was simulated."""
    alternative: DeploymentJson | None = None
    """The best without separate prefill instances where the first deployment has them, and with them where not."""
    alternative_text: str = ""
    """What it costs or saves against the first; why there is none; empty where separate instances were not looked at."""
    drafts: DraftsJson | None = None
    """What drafts would give; null where the checkpoint has no layer that drafts, or drafts were asked for."""
    hours: tuple[HourJson, ...] = ()
    """Of a trace that is sized by a part of it, the whole hour by hour."""


def serve_json(answer: ServeAnswer) -> ServeJson:
    """The whole answer."""
    q, d = answer.question, answer.deployments
    return ServeJson(
        question=ServeQuestionJson(
            model=q.model.name,
            gpu=q.gpu.id,
            num_gpus=q.num_gpus,
            gpus_per_node=q.gpus_per_node,
            engine=q.engine.name,
            isl=q.lengths.isl,
            osl=q.lengths.osl,
            isl_stddev=q.workload.isl_stddev,
            osl_stddev=q.workload.osl_stddev,
            longest_tokens=q.workload.longest_tokens,
            trace=_trace(q, q.workload) if isinstance(q.workload, Trace) else None,
            ttft_limit_seconds=q.ttft_s,
            tpot_limit_seconds=q.tpot_s,
            percentile_limits_seconds=dict(q.tails),
            requests_per_second=q.rate or None,
            goal=q.goal,
            chunked_prefill=q.chunked,
            **assumed_json(q.assumed),
        ),
        funnel=record_of(ServeFunnelJson, d, layouts=len(d.layouts), meet_limits=len(d.order), seconds=round(d.seconds, 4)),
        deployments=tuple(deployment_json(one) for one in answer.reports),
        pareto=tuple(deployment_json(one) for one in answer.pareto),
        included=tuple(
            IncludedDeploymentJson(plan=text, deployment=deployment_json(one) if one else None, why_not=why)
            for text, one, why in answer.included
        ),
        why=answer.why,
        sensitivity=answer.sensitivity,
        nearest=deployment_json(answer.nearest) if answer.nearest else None,
        miss=answer.infeasible,
        sustained_requests_per_second=answer.sustained,
        alternative=deployment_json(answer.alternative) if answer.alternative else None,
        alternative_text=answer.alternative_text,
        drafts=record_of(DraftsJson, answer.drafts, deployment=deployment_json(answer.drafts.report))
        if answer.drafts
        else None,
        hours=tuple(
            record_of(HourJson, one, start_seconds=one.start_s, requests_per_second=one.rate, gpu_hours=one.gpu_hours)
            for one in answer.hours
        ),
    )


def _trace(question: ServeQuestion, trace: Trace) -> TraceSummaryJson:
    requests, seconds, window = len(trace.arrival_s), float(trace.arrival_s[-1]), None
    if question.day is not None and question.day.window is not None:
        part = question.day.window
        window = TraceWindowJson(start_seconds=part.start_s, end_seconds=part.end_s, clock=part.clock, requests=requests)
        requests, seconds = question.day.requests, question.day.seconds / question.times
    return TraceSummaryJson(
        requests=requests,
        seconds=seconds,
        sized_by=window,
        input_tokens=summary(trace.input_tokens),
        output_tokens=summary(trace.output_tokens),
    )


def deployment_json(one: DeploymentReport) -> DeploymentJson:
    """One deployment."""
    return record_of(
        DeploymentJson,
        one,
        plan=str(one.plan),
        decode=_engine(one.plan.decode),
        prefill=_engine(one.plan.prefill) if one.plan.prefill else None,
        users=one.concurrency,
        requests_per_second=one.requests_per_s,
        tokens_per_second_per_gpu=one.tokens_per_s_per_gpu,
        tokens_per_second_per_user=one.tokens_per_s_per_user or None,
        ttft_seconds=one.ttft_s,
        tpot_seconds=one.tpot_s or None,
        memory_gib=DecodeMemoryJson(**_memory(one.memory), kv_longest_sequence=one.longest_bytes / GIB),
        prefill_memory_gib=PrefillMemoryJson(**_memory(one.prefill_memory)) if one.prefill_memory else None,
        weights_gib={name: size / GIB for name, size in one.weight_parts.items()},
        decode_step_seconds=one.step_parts,
        prompt_step_seconds=one.mixed_parts,
        simulated=one.latency,
    )


def _memory(m: ServingMemory) -> dict[str, float]:
    return {
        "device": float(m.device_bytes) / GIB,
        "weights": float(m.weights_bytes) / GIB,
        "activations": float(m.activation_bytes) / GIB,
        "runtime": float(m.runtime_bytes) / GIB,
        "kv_pool": float(m.kv_pool_bytes) / GIB,
        "kept_free": float(m.kept_free_bytes) / GIB,
        "kv_per_sequence": float(m.kv_bytes_per_sequence) / GIB,
    }


def _engine(plan: EnginePlan) -> EngineJson:
    return EngineJson(**{long: getattr(plan, short) for short, long in SHORT_TO_LONG.items()})
