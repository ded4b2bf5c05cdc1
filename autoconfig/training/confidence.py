"""How far a prediction may be off: the class of runs behind it, their band, and what first plans reached."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.json_record import AboveZero, NotNegative, Positive, Share
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.scenario import POOL, OwnRuns, Scenario
from autoconfig.time_model.hardware.efficiency import entry_for

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

    @classmethod
    def of(cls, scenario: Scenario, step_seconds: float, fit_probability: float, cp: int = 1) -> Confidence:
        """That of one prediction, for a plan with this context parallelism."""
        level, own = confidence_class(scenario, cp), own_runs(scenario)
        band = band_of(level, shipped_bands())
        band = band if own is None else narrowed(band, own)
        return cls(
            step_seconds_p5=step_seconds * band.p5,
            step_seconds_p95=step_seconds * band.p95,
            fit_probability=fit_probability,
            calibrated_on=_evidence(scenario),
            level=level,
        )


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


def record_for(scenario: Scenario, confidence: Confidence | None) -> FirstPlanRecord | None:
    """The record of first plans like the one of this confidence; None without a first plan, for long sequences, and where no
    run stands behind the GPU."""
    if confidence is None or confidence.level == UNCALIBRATED or scenario.workload.seq_length > LONG_SEQUENCE:
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
