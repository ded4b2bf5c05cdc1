"""One plan in full: legal or not and why, memory of every stage and part, time of every part, throughput, cost, confidence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.peaks import MOMENTS
from autoconfig.memory_model.predict import MemoryEstimate, dispatch_buffer_bytes, estimate_memory, nccl_bytes
from autoconfig.specs.errors import SECONDS_PER_DAY
from autoconfig.specs.hardware.cluster import ClusterSpec, GpuSpec
from autoconfig.specs.json_record import AboveZero, Keywords, NotNegative, Positive, Share
from autoconfig.specs.models.parameters import model_flops_per_token, total_parameters
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import POOL, OwnRuns, Scenario
from autoconfig.time_model.hardware.efficiency import entry_for
from autoconfig.time_model.predict import TimeEstimate, estimate_step_time
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.rules import RULE_TEXT

CALIBRATED = "calibrated generation"
RELATED = "related generation"
UNFAMILIAR = "unfamiliar software"
UNCALIBRATED = "formula only"
"""No run on a GPU of this generation is in the calibration: datasheet rates and defaults."""
MOE = "mixture of experts"
LONG = "long context"
SMALL = "small model"
ONE_NODE = "one node"
PART = "part of a node"
NOT_LEGAL = "low: not a legal plan"
"""In place of a class where a plan breaks a rule."""
CLASSES = (CALIBRATED, RELATED, ONE_NODE, PART, SMALL, UNFAMILIAR, LONG, MOE, UNCALIBRATED)
NO_RUN = "no run of this software"
NO_RUN_MOE = "no run of this software, mixture of experts"
NO_RUNS = (NO_RUN, NO_RUN_MOE)
"""In place of CLASSES where no constant was fitted on the stack: what runs scatter that nobody tuned to."""
WITHOUT_RUNS = (*NO_RUNS, UNCALIBRATED)
"""Classes of which the first line of an answer says that nothing was measured."""
LIKE_A_GPU_SEEN = 1.5
"""A GPU whose 16-bit peak is within this factor of one of its architecture that a run was on shares its constants: H100 PCIe
1.3, H200 and H800 1; a consumer Blackwell is ten times, an H20 seven times, an A30 1.9 times from the next."""
SMALL_PARAMETERS = 1e9
"""Below it a step is bound by the host and by launches, which no public measurement determines (findings, section 1)."""
MAX_GPUS_OF_ONE_NODE = 8
"""Few GPUs mean short steps and little work per launch: measured runs scatter twice as much. Of fewer than these hardly any
publisher that calibrates has runs, but strangers."""
LONG_FROM_CP = 4
"""Context parallelism over this many ranks and more: few measured runs, 17 to 34 % off either way."""
FAMILIAR_SOURCES = 6
"""Software without a calibrated ancestor takes what other software of the GPU's architecture has in common; with fewer sources
than these there is little of it."""
MIN_SOURCES = 5
"""A class with fewer sources takes the pooled band: they say too little of how sources differ."""
RELIABLE_ROWS = 2.0
"""A source of n rows weighs n / (n + RELIABLE_ROWS): the best weight, 1 / (between + within / n), where runs of one source vary
RELIABLE_ROWS times as much as sources do (measured, unweighted variances: 1.1 over all classes, 2.9 over large dense runs, 13
over all dense runs, where small models scatter most)."""
OWN_SCATTER_ROWS = 3.0
"""What the published scatter within a source is worth beside a user's own, in runs: the variances of published sources with
eight runs and more differ as chi-squared with so many degrees of freedom would make them (2.7 by their logarithms, dense and
moe apart)."""
STANDARD_90 = 1.645
"""Half a 90 % interval of a normal law, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """5 % and 95 % bound of measured over predicted step time, and what they were counted on."""

    p5: float
    p95: float
    rows: int
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """The band, the chance to fit, and what they rest on."""

    step_seconds_p5: NotNegative
    """Lower end of the 90 % band of the step time, seconds."""
    step_seconds_p95: NotNegative
    """Its upper end."""
    fit_probability: Share
    """Chance that the plan fits, 0 to 1."""
    calibrated_on: str
    """What the constants rest on."""
    level: str
    """Class of runs that gave the band."""


def confidence_class(scenario: Scenario, cp: int = 1) -> str:
    """Which of CLASSES and NO_RUNS a question belongs to; `cp` is the plan's context parallelism."""
    level, stack = class_of_seen(scenario, cp), scenario.software
    known, seen = (stack.priced_as or stack.name) in stacks_seen(), gpu_seen(scenario.cluster.gpu)
    if level == UNCALIBRATED or (known and seen) or own_runs(scenario) is not None:
        return level
    if not seen:
        return UNCALIBRATED
    return NO_RUN_MOE if scenario.model.is_moe else NO_RUN


def class_of_seen(scenario: Scenario, cp: int = 1) -> str:
    """Which of CLASSES a question belongs to, whatever the software."""
    entry = entry_for(scenario, moe=scenario.model.is_moe)
    if entry is None or not entry.sources:
        return UNCALIBRATED
    if scenario.model.is_moe:
        return MOE
    if total_parameters(scenario.model) < SMALL_PARAMETERS:
        return SMALL
    if cp >= LONG_FROM_CP:
        return LONG
    if entry.generation == POOL and len(entry.sources) < FAMILIAR_SOURCES:
        return UNFAMILIAR
    if scenario.cluster.num_gpus <= MAX_GPUS_OF_ONE_NODE:
        return ONE_NODE if scenario.cluster.num_gpus == MAX_GPUS_OF_ONE_NODE else PART
    return CALIBRATED if entry.generation == scenario.software.generation else RELATED


@cache
def _evidence_of_bands() -> dict[str, Any]:
    text = (resources.files("autoconfig") / "data" / "bands.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def shipped_bands() -> Mapping[str, Band]:
    """Class -> band, from data/bands.json; the key `pooled` holds all sources together."""
    return {
        name: Band(p5=item["p5"], p95=item["p95"], rows=item["rows"], sources=tuple(item["sources"]))
        for name, item in _evidence_of_bands()["bands"].items()
    }


@cache
def stacks_seen() -> frozenset[str]:
    """Software stacks of which a run is in the tables that the shipped constants and bands were made from."""
    return frozenset(_evidence_of_bands()["stacks"])


def gpu_seen(gpu: GpuSpec) -> bool:
    """Return whether a run that made constants or bands was on a GPU like this one."""
    peak, seen = tflops_of_16_bits(gpu), _evidence_of_bands()["peaks_tflops"].get(gpu.architecture, [])
    return any(other / LIKE_A_GPU_SEEN <= peak <= other * LIKE_A_GPU_SEEN for other in seen)


def tflops_of_16_bits(gpu: GpuSpec) -> float:
    """Return the peak of the matrix units in fp16 or bf16, whichever it has; 0 without either."""
    return max(gpu.flops_per_s.get("fp16", 0.0), gpu.flops_per_s.get("bf16", 0.0)) / 1e12


def evidence_text(confidence: Confidence) -> str:
    """Return the class of a prediction, and before it where no run is behind it."""
    said = "no run of this kind is behind this: " if confidence.level in WITHOUT_RUNS else ""
    return said + confidence.level


LONG_SEQUENCE = 32_768
"""Above it there are few published runs, and first plans have no record."""
FIRST_PLAN_KINDS = ("dense, 16 bits", "dense, FP8 and FP4", "mixtures of experts")


@dataclass(frozen=True, kw_only=True)
class FirstPlanRecord:
    """What the best published runs of questions of one kind reached of what our first plans promise: the first of many plans is
    also the luckiest. Measured over promised step time."""

    kind: str
    """One of FIRST_PLAN_KINDS."""
    middle: AboveZero
    """Median over the sources' medians: the promise is to be multiplied by it."""
    p5: AboveZero
    """Ends of the 90 % interval for a run of one more source."""
    p95: AboveZero
    """Its upper end."""
    rows: Positive
    """Questions."""
    sources: Positive
    """Publications."""


def first_plan_kind(*, moe: bool, precision: str) -> str:
    """Which of FIRST_PLAN_KINDS a question belongs to."""
    return FIRST_PLAN_KINDS[2 if moe else 0 if precision.startswith(("bf16", "fp16", "fp32")) else 1]


@cache
def first_plan_record(kind: str) -> FirstPlanRecord:
    """The record of data/first_plans.json (`make accuracy`)."""
    text = (resources.files("autoconfig") / "data" / "first_plans.json").read_text(encoding="utf-8")
    return FirstPlanRecord(kind=kind, **json.loads(text)["kinds"][kind])


def record_for(scenario: Scenario, first: PlanReport | None) -> FirstPlanRecord | None:
    """The record of first plans like this one; None without one, for long sequences, where no run stands behind the GPU."""
    if first is None or first.confidence.level == UNCALIBRATED or scenario.workload.seq_length > LONG_SEQUENCE:
        return None
    return first_plan_record(first_plan_kind(moe=scenario.model.is_moe, precision=scenario.numerics.precision))


def record_text(record: FirstPlanRecord, step: str) -> str:
    """A sentence; `step`: the promised step times the middle, as text."""
    return (
        f"The first of many plans is also the luckiest: the best published runs of {record.rows} questions ({record.kind}) "
        f"took a median of {record.middle:.2f} times the step of our first plan (90 %: {record.p5:.2f} to {record.p95:.2f}), "
        f"which makes {step} here."
    )


def band_of(level: str, bands: Mapping[str, Band]) -> Band:
    """The band of a class, the pooled one where the class has none; of UNCALIBRATED, which no run stands behind, the widest."""
    return bands.get(level) or (_widest(bands) if level == UNCALIBRATED else bands["pooled"])


def _widest(bands: Mapping[str, Band]) -> Band:
    """As far as any of these bands reaches on either side; counted on no run."""
    seen = [band for name, band in bands.items() if name not in NO_RUNS]
    low, high = min(band.p5 for band in seen), max(band.p95 for band in seen)
    return Band(p5=low, p95=high, rows=0, sources=())


def narrowed(band: Band, own: OwnRuns) -> Band:
    """The band of a cluster whose own n runs made the constants. They are one source that is no longer new: of the variance
    T = between + within, with within = r between and r = RELIABLE_ROWS, remains

        (within' + between r / (n + r)) / T,   within' = (q within + f s^2) / (q + f),   q = OWN_SCATTER_ROWS,

    the posterior variance of the source's offset and of its own scatter s with f degrees of freedom. The logarithms of both
    ends, and with them the bias common to all sources, shrink by the root.
    """
    low, high = math.log(band.p5), math.log(band.p95)
    total = ((high - low) / (2 * STANDARD_90)) ** 2
    between = total / (1 + RELIABLE_ROWS)
    prior, free = RELIABLE_ROWS * between, own.degrees_of_freedom
    within = (OWN_SCATTER_ROWS * prior + free * own.log_sd**2) / (OWN_SCATTER_ROWS + free)
    factor = math.sqrt((within + between * RELIABLE_ROWS / (own.runs + RELIABLE_ROWS)) / total)
    return replace(band, p5=math.exp(low * factor), p95=math.exp(high * factor))


def own_runs(scenario: Scenario) -> OwnRuns | None:
    """The user's runs of this very GPU architecture, software generation and kind of model; None where there are none."""
    entry = entry_for(scenario, moe=scenario.model.is_moe)
    if entry is None or (entry.generation, entry.kind == "moe") != (scenario.software.generation, scenario.model.is_moe):
        return None
    return entry.own


def confidence_of(scenario: Scenario, step_seconds: float, fit_probability: float, cp: int = 1) -> Confidence:
    """Band of one prediction, for a plan with this context parallelism."""
    level = confidence_class(scenario, cp)
    band = band_of(level, shipped_bands())
    own = own_runs(scenario)
    if own is not None:
        band = narrowed(band, own)
    return Confidence(
        step_seconds_p5=step_seconds * band.p5,
        step_seconds_p95=step_seconds * band.p95,
        fit_probability=fit_probability,
        calibrated_on=_evidence(scenario),
        level=level,
    )


def least_confident(confidence: Confidence, step_seconds: float) -> Confidence:
    """What is left of it for a plan that breaks a rule of legality: no run of such a plan was measured, so the band reaches as
    far as any shipped one on either side."""
    band = _widest(shipped_bands())
    low, high = step_seconds * band.p5, step_seconds * band.p95
    return replace(confidence, step_seconds_p5=low, step_seconds_p95=high, level=NOT_LEGAL)


def _evidence(scenario: Scenario) -> str:
    """The runs behind the constants, and which constants the runs do not determine."""
    start = f"calibration {scenario.calibration.version}, software {scenario.software.name}: "
    entry = entry_for(scenario, moe=scenario.model.is_moe)
    if entry is None or not entry.sources:
        return start + f"no measured runs on {scenario.cluster.gpu.architecture}, documented defaults"
    sources = len(entry.sources)
    if entry.generation == POOL:
        return start + f"what {sources} sources of other generations on {entry.architecture} have in common"
    text = f"{len(entry.rows)} runs of {sources} source{'s' * (sources > 1)} with {entry.generation} on {entry.architecture}"
    if entry.kind == "dense" and scenario.model.is_moe:
        text += ", dense models"
    kept = [name for name in entry.log_sd if name not in entry.determined and (name != "moe" or scenario.model.is_moe)]
    return start + text + (f"; not determined by them, kept near the default: {', '.join(kept)}" if kept else "")


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
    dispatch_buffer_bytes: float
    tokens_per_second_per_gpu: float
    model_flops_per_second_per_gpu: float
    mfu: float
    days_to_train: float | None
    cost: float | None
    cost_per_billion_tokens: float | None
    joules_per_token: float | None
    """Of all GPUs at their power limit; None where it is not known."""
    energy_kwh: float | None
    """The same for the tokens asked for."""
    confidence: Confidence
    origin: str = "formula"

    @property
    def steps_to_train(self) -> int | None:
        """Steps that see the tokens asked for, the last of them whole; None where none were."""
        if self.days_to_train is None:
            return None
        return math.ceil(self.days_to_train * SECONDS_PER_DAY / self.step_seconds * (1 - 1e-12))

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
        estimates = _Estimates(
            memory=memory,
            time=time,
            fit_probability=memory.fit_probability,
            dispatch_buffer_bytes=dispatch_buffer_bytes(scenario, layouts),
            flops=flops_per_step(scenario, FLOPS_CONVENTION),
        )
        for row, plan in enumerate(part):
            found.append(_report(scenario, plan, (row, recomputes.index(plan.recompute)), estimates, money or Money()))
    return found


@dataclass(frozen=True, kw_only=True)
class _Estimates:
    """Of plans that are reported together."""

    memory: MemoryEstimate
    time: TimeEstimate
    fit_probability: npt.NDArray[np.float64]
    dispatch_buffer_bytes: npt.NDArray[np.float64]
    flops: float
    """Of a step of any of them."""


def _report(scenario: Scenario, plan: TrainPlan, at: tuple[int, int], estimates: _Estimates, money: Money) -> PlanReport:
    """The report of the plan that the estimates hold at (row, recompute option)."""
    memory, time = estimates.memory, estimates.time
    step = float(time.step_seconds[at])
    gpus, workload = scenario.cluster.num_gpus, scenario.workload
    tokens_rate = workload.tokens_per_step / step
    flops_rate = estimates.flops / step / gpus
    days = money.tokens / tokens_rate / SECONDS_PER_DAY if money.tokens else None
    hourly = gpus * money.price_per_gpu_hour if money.price_per_gpu_hour else None
    cost = days * 24 * hourly if days is not None and hourly is not None else None
    return PlanReport(
        plan=plan,
        step_seconds=step,
        time_parts={name: float(value[at]) for name, value in time.parts.items()},
        stages=tuple(_stage(memory, at, stage) for stage in range(plan.pp)),
        limit_bytes=float(memory.limit_bytes[at[0]]),
        tokens_per_second_per_gpu=tokens_rate / gpus,
        nccl_bytes=float(nccl_bytes(plan.tp, plan.pp, plan.cp, plan.ep, plan.dp)),
        dispatch_buffer_bytes=float(estimates.dispatch_buffer_bytes[at[0]]),
        model_flops_per_second_per_gpu=flops_rate,
        mfu=flops_rate / scenario.cluster.gpu.peak_flops_per_s(scenario.numerics.gemm_precision),
        days_to_train=days,
        cost=cost,
        cost_per_billion_tokens=hourly and hourly / 3600 / tokens_rate * 1e9,
        joules_per_token=None if (watts := gpu_watts(scenario.cluster)) is None else watts * gpus / tokens_rate,
        energy_kwh=None if days is None else energy_kwh(scenario.cluster, days),
        confidence=confidence_of(scenario, step, float(estimates.fit_probability[at]), plan.cp),
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


def gpu_watts(cluster: ClusterSpec) -> float | None:
    """Power limit of one GPU (TDP, or the one set below it). None where no source says that of the GPU alone."""
    return cluster.power_limit_watts if cluster.power_limit_watts is not None else cluster.gpu.power_watts


def energy_kwh(cluster: ClusterSpec, days: float) -> float | None:
    """kWh of a cluster's GPUs at their power limit in so many days: more than they draw, and without hosts, network and
    cooling. None where the limit is not known."""
    watts = gpu_watts(cluster)
    return None if watts is None else watts * cluster.num_gpus * days * 24 / 1000


CONVENTIONS = ("causal", "full", "full+recompute")


def flops_per_step(scenario: Scenario, convention: str = "causal", recompute: Recompute = NONE) -> float:
    """FLOPs of one step as a publication counts them; blank, or a word that is none of CONVENTIONS, means causal.

    `full+recompute` counts what is computed: where whole layers are recomputed (`recompute`, of the plan) their forward pass
    once more and the output layer once (Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh)), else the same as
    `full` (InternEvo counts so: "recompute counted when on").
    """
    model, seq, behind = scenario.model, scenario.workload.attended_length, scenario.workload.decoder_seq_length
    tokens, frozen = scenario.workload.tokens_per_step, scenario.numerics.peft != "none"
    convention = convention.strip().lower()
    if convention == "full+recompute" and recompute.granularity == "full":
        head = 6.0 * model.vocab_size * model.hidden_size
        layers = model_flops_per_token(model, seq, "full", decoder_seq_length=behind) - head
        return tokens * (layers * 4 / 3 + head)
    counted = "full" if convention in ("full", "full+recompute") else "causal"
    return tokens * model_flops_per_token(model, seq, counted, frozen=frozen, decoder_seq_length=behind)
