"""How sure a prediction is: a 90 % band around the step time by class, the chance to fit, and what both rest on.

The bands are prediction intervals of measured / predicted, from published runs whose source the constants had not seen, for a
run of one more source (formula: accuracy.bands.band_from); `data/bands.json` holds them by class and is written by
`make calibration`. Measured runs are more often slower than faster: bands are asymmetric.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from autoconfig.specs.json_record import NotNegative, Share
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.scenario import POOL, OwnRuns, Scenario
from autoconfig.time_model.job import entry_for

CALIBRATED = "calibrated generation"
RELATED = "related generation"
UNFAMILIAR = "unfamiliar software"
UNCALIBRATED = "uncalibrated GPU"
MOE = "mixture of experts"
LONG = "long context"
SMALL = "small model"
ONE_NODE = "one node"
NOT_LEGAL = "low: not a legal plan"
"""In place of a class where a plan breaks a rule."""
CLASSES = (CALIBRATED, RELATED, ONE_NODE, SMALL, UNFAMILIAR, LONG, MOE, UNCALIBRATED)
SMALL_PARAMETERS = 1e9
"""Below it a step is bound by the host and by launches, which no public measurement determines (findings, section 1)."""
MAX_GPUS_OF_ONE_NODE = 8
"""Few GPUs mean short steps and little work per launch: measured runs scatter twice as much."""
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
    fit_probability: Share
    """Chance that the plan fits, 0 to 1."""
    calibrated_on: str
    """What the constants rest on."""
    level: str
    """Class of runs that gave the band."""


def confidence_class(scenario: Scenario, cp: int = 1) -> str:
    """Which of CLASSES a question belongs to; `cp` is the plan's context parallelism."""
    if scenario.model.is_moe:
        return MOE
    entry = entry_for(scenario, moe=False)
    if entry is None or not entry.sources:
        return UNCALIBRATED
    if total_parameters(scenario.model) < SMALL_PARAMETERS:
        return SMALL
    if cp >= LONG_FROM_CP:
        return LONG
    if entry.generation == POOL and len(entry.sources) < FAMILIAR_SOURCES:
        return UNFAMILIAR
    if scenario.cluster.num_gpus <= MAX_GPUS_OF_ONE_NODE:
        return ONE_NODE
    return CALIBRATED if entry.generation == scenario.software.generation else RELATED


@cache
def shipped_bands() -> Mapping[str, Band]:
    """Class -> band, from data/bands.json; the key `pooled` holds all sources together."""
    text = (resources.files("autoconfig") / "data" / "bands.json").read_text(encoding="utf-8")
    return {
        name: Band(p5=item["p5"], p95=item["p95"], rows=item["rows"], sources=tuple(item["sources"]))
        for name, item in json.loads(text)["bands"].items()
    }


def band_of(level: str, bands: Mapping[str, Band]) -> Band:
    """The band of a class, the pooled one where the class has none."""
    return bands.get(level, bands["pooled"])


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
    bands = shipped_bands().values()
    return replace(
        confidence,
        step_seconds_p5=step_seconds * min(band.p5 for band in bands),
        step_seconds_p95=step_seconds * max(band.p95 for band in bands),
        level=NOT_LEGAL,
    )


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
