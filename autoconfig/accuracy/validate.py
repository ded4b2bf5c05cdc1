"""`autoconfig validate`: the published runs that ship with the project, predicted, and what that says about the predictions;
NVIDIA's published training plans in our own ranking of the same question."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from autoconfig.accuracy.bands import (
    Coverage,
    Reading,
    band_lines,
    banded,
    bands_of,
    by_publisher,
    coverage,
    readings,
)
from autoconfig.accuracy.encoders import EncoderFigure, encoder_figures
from autoconfig.accuracy.first_plans import FirstPlan, first_plan_lines, first_plans
from autoconfig.accuracy.groups import (
    Bar,
    Constants,
    Decisions,
    ErrorGroup,
    LeaveOut,
    Predicted,
    bars,
    decisions,
    error_groups,
    predictions,
    resisting,
)
from autoconfig.accuracy.headlines import Headline, headlines
from autoconfig.accuracy.memory import (
    VERDICTS_RIGHT,
    GpuRun,
    MemoryGroup,
    Verdicts,
    gpu_runs,
    labelled_source,
    memory_groups,
    verdicts,
)
from autoconfig.accuracy.unseen import MOST, SHORT, Unseen, mean_error_of_short, unseen_runs
from autoconfig.calibration.observe import published_runs
from autoconfig.planning.progress import Progress
from autoconfig.planning.resolve import shipped
from autoconfig.runs.sources import DOUBTFUL, source_of
from autoconfig.runs.table import Row, cell
from autoconfig.specs.errors import GIB, PlanError
from autoconfig.specs.plan import TrainPlan, parse_keys
from autoconfig.specs.scenario import Scenario
from autoconfig.training.answer import IncludedPlan, include
from autoconfig.training.plan_rules import broken_as_published, broken_rules
from autoconfig.training.price import Band, Money, Violation, report_plan
from autoconfig.training.question import Question, Request
from autoconfig.training.rank import Ranking, rank_plans
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Constraints

RATIO_BAR = 1.10
PERCENTILE_BAR = 5.0
MODEL_ZOO = "megatron-moe-modelzoo"


@dataclass(frozen=True, kw_only=True)
class PlacedPlan:
    """A published plan beside our first choice for its question."""

    model: str
    gpus: int
    gpu: str
    batch: int
    precision: str
    rows: int
    plan: str
    first: str
    ratio: float | None
    """Predicted step of the published plan over that of our first, whether it is ranked or not; None where nothing fits."""
    verdict: str
    rank: int | None
    layouts: int
    percentile: float | None
    separates: str
    """What stands between the plan and our first, for plans beyond the bars."""
    recent_mixture: bool = False
    """A mixture of experts of a dated release from 25.09 on or of the model zoo, whose plan is its recipe's."""
    ratio_at_memory: float | None = None
    """The same ratio over the first of the plans that need no more predicted memory than it."""
    percentile_at_memory: float | None = None

    @property
    def holds(self) -> bool:
        if self.ratio is None or self.percentile is None:
            return False
        return self.ratio <= RATIO_BAR and self.percentile <= PERCENTILE_BAR

    @property
    def holds_at_memory(self) -> bool:
        if self.ratio_at_memory is None or self.percentile_at_memory is None:
            return False
        return self.ratio_at_memory <= RATIO_BAR and self.percentile_at_memory <= PERCENTILE_BAR


def placed_plans(leave_out: str | None, progress: Progress | None = None) -> list[PlacedPlan]:
    """One line per (question, plan) of NVIDIA's rows with a whole plan; each question is searched once."""
    constants = Constants("model" if leave_out else None)
    questions: dict[tuple[Scenario, str], dict[TrainPlan, list[Row]]] = {}
    for run in published_runs().runs:
        if not source_of(run.case.source).publisher or cell(run.row, "full_plan") != "1":
            continue
        key = (constants.applied(run.case), cell(run.row, "precision"))
        questions.setdefault(key, {}).setdefault(run.case.plan, []).append(run.row)
    found: list[PlacedPlan] = []
    for number, (key, plans) in enumerate(questions.items(), 1):
        if progress is not None:
            progress(f"published plans: question {number} of {len(questions)}")
        found += _placed(key[0], plans)
    return found


def _placed(scenario: Scenario, plans: dict[TrainPlan, list[Row]]) -> list[PlacedPlan]:
    ranking = rank_plans(scenario)
    request = Request(model=scenario.model.name)
    question = Question(scenario=scenario, constraints=Constraints(), assumed=(), request=request)
    found = []
    for plan, rows in plans.items():
        rules = broken_as_published(scenario.model.num_layers, plan, broken_rules(scenario, [plan])[0])
        broken = [Violation(rule=rule, text=RULE_TEXT[rule]) for rule in rules]
        line = _line(scenario, ranking, plan, include(plan, question, ranking, Money(), broken), len(rows))
        recent = scenario.software.release or scenario.software.name == MODEL_ZOO
        sure = not any(cell(row, "source").endswith(DOUBTFUL) for row in rows)
        found.append(replace(line, recent_mixture=bool(recent) and sure and scenario.model.is_moe))
    return found


def _line(scenario: Scenario, ranking: Ranking, plan: TrainPlan, place: IncludedPlan, rows: int) -> PlacedPlan:
    first = ranking.plan(0) if len(ranking.best) else None
    verdict = "not legal" if not place.legal else "ranked" if place.layout_rank is not None else "does not fit"
    line = PlacedPlan(
        model=scenario.model.name,
        gpus=scenario.cluster.num_gpus,
        gpu=scenario.cluster.gpu.id,
        batch=scenario.workload.global_batch_size,
        precision=f"{scenario.numerics.precision}, {scenario.software.name}"
        + (", lora" if scenario.numerics.peft == "lora" else ""),
        rows=rows,
        plan=str(plan),
        first=str(first) if first is not None else "nothing fits",
        ratio=place.step_ratio_to_first,
        verdict=verdict,
        rank=place.layout_rank,
        layouts=len(ranking.best),
        percentile=place.layout_percentile,
        separates="",
    )
    line = _at_memory(line, scenario, ranking, plan)
    return line if line.holds else _explained(line, scenario, plan, place, first)


def _at_memory(line: PlacedPlan, scenario: Scenario, ranking: Ranking, plan: TrainPlan) -> PlacedPlan:
    """The plan among those that need no more predicted memory, buffers of collectives and dispatchers included: of each layout
    the fastest such plan."""
    try:
        theirs = report_plan(scenario, plan)
    except PlanError:
        return line
    more = (ranking.peak_bytes - ranking.limit_bytes) - (theirs.peak_bytes - theirs.limit_bytes)
    small = np.flatnonzero(more <= 1e-6 * theirs.peak_bytes)
    if not len(small):
        return line
    of_layout = ranking.step_seconds[small][np.unique(ranking.row[small], return_index=True)[1]]
    faster = float(np.mean(of_layout < theirs.step_seconds * (1.0 - 1e-6)))
    return replace(line, ratio_at_memory=theirs.step_seconds / of_layout.min(), percentile_at_memory=100.0 * faster)


def _explained(
    line: PlacedPlan, scenario: Scenario, plan: TrainPlan, place: IncludedPlan, first: TrainPlan | None
) -> PlacedPlan:
    reasons = [f"breaks {v.rule} ({v.text})" for v in place.violations]
    if place.report is not None and not place.report.fits:
        reasons.append(f"needs {place.shortfall_gib:.1f} GiB more than may be allocated")
    if line.verdict != "ranked" and (said := not_printed(scenario, plan)):
        reasons.append(said)
    if first is None:
        return replace(line, separates="; ".join(reasons))
    try:
        theirs = place.report or report_plan(scenario, plan)
    except PlanError:
        return replace(line, separates="; ".join(reasons))
    ours = report_plan(scenario, first)
    excess = {
        name: (theirs.time_parts.get(name, 0.0) - ours.time_parts.get(name, 0.0)) / ours.step_seconds
        for name in {*ours.time_parts, *theirs.time_parts}
    }
    largest = sorted(excess, key=lambda name: (-excess[name], name))[:3]
    reasons += [f"{name} {excess[name]:+.0%}" for name in largest if excess[name] > 0.005]
    return replace(line, ratio=theirs.step_seconds / ours.step_seconds, separates="; ".join(reasons))


@cache
def _recipe_settings() -> list[dict[str, Any]]:
    path = resources.files("autoconfig") / "data" / "nvidia_recipe_settings.json"
    settings: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["settings"]
    return settings


def not_printed(scenario: Scenario, plan: TrainPlan) -> str:
    """What NVIDIA's recipe sets beside the printed plan, and how much memory our formulas then see left; empty where we know
    of nothing. For readers only: no prediction uses it."""
    for item in _recipe_settings():
        mine = item["model"] == scenario.model.name.rstrip("*") and scenario.cluster.gpu.id.startswith(item["gpu"])
        if not mine or any(getattr(plan, key) != value for key, value in item["plan"].items()):
            continue
        said = f"NVIDIA's recipe also sets {item['sets']} ({item['source']})"
        if "change" not in item:
            return said
        report = report_plan(scenario, plan.replace(**parse_keys(item["change"])))
        free = (report.limit_bytes - report.peak_bytes) / GIB
        return f"{said}: " + (f"fits then, {free:.1f} GiB left" if report.fits else f"still {-free:.1f} GiB too large")
    return ""


def plans_summary(placed: Sequence[PlacedPlan]) -> dict[str, float]:
    """Counts and medians."""
    percentiles = [p.percentile for p in placed if p.percentile is not None]
    ratios = [p.ratio for p in placed if p.ratio is not None and p.rank is not None]
    return {
        "plans": len(placed),
        "rows": sum(p.rows for p in placed),
        "hold": sum(p.holds for p in placed),
        "median_percentile": float(np.median(percentiles)) if percentiles else float("nan"),
        "median_ratio": float(np.median(ratios)) if ratios else float("nan"),
        "refused": sum(p.verdict != "ranked" for p in placed),
    }


SCHEMA_VERSION = 1
FIRST_THREE_REGRET = 0.01


@dataclass(frozen=True, kw_only=True)
class Sections:
    """What to work out besides the errors of step times."""

    decisions: bool = False
    memory: bool = False
    headlines: bool = False
    first_plans: bool = False


EVERYTHING = Sections(decisions=True, memory=True, headlines=True, first_plans=True)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Everything that one way of leaving out says. Sections that were not asked for are empty."""

    leave_out: LeaveOut
    constants: str
    groups: tuple[ErrorGroup, ...]
    bars: tuple[Bar, ...]
    bands: dict[str, Band]
    coverage: tuple[Coverage, ...]
    resisting: tuple[Predicted, ...]
    decisions: tuple[Decisions, ...] = ()
    placed: tuple[PlacedPlan, ...] = ()
    memory: tuple[MemoryGroup, ...] = ()
    verdicts: tuple[Verdicts, ...] = ()
    headlines: tuple[Headline, ...] = ()
    first_plans: tuple[FirstPlan, ...] = ()
    readings: tuple[Reading, ...] = ()
    by_publisher: tuple[Coverage, ...] = ()
    """Bands of publishers that neither constants nor bands have seen."""
    unseen: tuple[Unseen, ...] = ()
    encoders: tuple[EncoderFigure, ...] = ()
    gpu_runs: tuple[GpuRun, ...] = ()


CONSTANTS = {
    None: "the shipped calibration, which has seen these runs (in-sample)",
    "source": "fitted without the run's source",
    "model": "fitted without the run's model in its source",
    "pair": "fitted without the run's model on its GPU",
    "release": "fitted without the run's release",
}


def validate(
    leave_out: LeaveOut = None,
    sections: Sections | None = None,
    progress: Progress | None = None,
    own_runs: Path | None = None,
) -> Validation:
    """Predict every published run with a whole plan and a time. Bands always rest on other sources, whatever is left out.

    `own_runs`: folder of `make gpu`; None: this checkout's. Raises InputError where its results cannot be read.
    """
    sections = sections or Sections()
    own = gpu_runs(own_runs)
    say: Progress = progress or (lambda text: None)
    say("published runs")
    predicted = predictions(leave_out)
    say("bands")
    unseen = banded()
    if sections.memory:
        say("memory")
    return Validation(
        leave_out=leave_out,
        constants=CONSTANTS[leave_out] + (f"; version {shipped().version}" if leave_out is None else ""),
        groups=tuple(error_groups(predicted, published_runs().dropped)),
        bars=tuple(bars(predicted, leave_out)),
        bands=bands_of(unseen),
        coverage=tuple(coverage(unseen)),
        resisting=tuple(resisting(predicted)),
        decisions=tuple(decisions(predicted, leave_out)) if sections.decisions else (),
        placed=tuple(placed_plans(leave_out, progress)) if sections.decisions else (),
        memory=tuple(memory_groups()) if sections.memory else (),
        verdicts=tuple(verdicts()) if sections.memory else (),
        headlines=tuple(headlines(progress)) if sections.headlines else (),
        first_plans=tuple(first_plans(progress)) if sections.first_plans else (),
        readings=tuple(readings(progress)) if leave_out is not None else (),
        by_publisher=by_publisher() if leave_out is not None else (),
        unseen=unseen_runs(),
        encoders=encoder_figures(),
        gpu_runs=own,
    )


@dataclass(frozen=True, kw_only=True)
class JudgedLine:
    """One line beside step times: what was asked, what was reached, both as shares."""

    name: str
    least: float | None = None
    most: float | None = None
    reached: float

    @property
    def holds(self) -> bool:
        return (self.least is None or self.reached >= self.least) and (self.most is None or self.reached <= self.most)


def judged_lines(found: Validation) -> list[JudgedLine]:
    """The lines that the sections of a validation can judge. In-sample rankings are not judged: their constants have seen the
    rows."""
    lines = [JudgedLine(**line) for line in band_lines(found.coverage, found.by_publisher)]
    if found.unseen:
        name = f"Mean error of torchtitan's runs up to {SHORT:,} tokens"
        lines.append(JudgedLine(name=name, most=MOST, reached=mean_error_of_short(found.unseen)))
    lines += [JudgedLine(**line) for line in first_plan_lines(found.first_plans)]
    if found.leave_out is not None:
        lines += _decision_lines(found.decisions)
    for line in found.verdicts:
        if line.offsets_gib:
            for what, right in (("out of memory", line.oom_right), ("ran", line.ran_right)):
                name = f"{labelled_source()}, cross-validated: {what}, right"
                lines.append(JudgedLine(name=name, least=VERDICTS_RIGHT, reached=right))
    if found.leave_out is not None and found.placed:
        near = sum(plan.holds for plan in found.placed) / len(found.placed)
        lines.append(JudgedLine(name="NVIDIA's published plans near our first", least=1.0, reached=near))
        mixtures = [plan.holds_at_memory for plan in found.placed if plan.recent_mixture]
        if mixtures:
            name = "Published mixtures of 2025 and 2026 near our first at their memory"
            lines.append(JudgedLine(name=name, least=0.8, reached=sum(mixtures) / len(mixtures)))
    return lines


def _decision_lines(found: Sequence[Decisions]) -> Iterator[JudgedLine]:
    for line in found:
        most = source_of(line.source).regret
        if most is not None:
            first, three = (f"Mean regret of the {which}, {line.source}" for which in ("first choice", "best of three"))
            yield JudgedLine(name=first, most=most, reached=line.regret_mean)
            yield JudgedLine(name=three, most=FIRST_THREE_REGRET, reached=line.regret_first_three_mean)


def validation_json(found: Validation) -> dict[str, Any]:
    """The whole answer; figures that do not exist are null. Errors are shares, times seconds."""
    body: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "leave_out": found.leave_out, "constants": found.constants}
    body["groups"] = [{k: v for k, v in asdict(group).items() if k != "points"} for group in found.groups]
    body["bars"] = [{**asdict(bar), "holds": bar.holds} for bar in found.bars]
    body["bands"] = {name: asdict(band) for name, band in found.bands.items()}
    body["lines"] = [{**asdict(line), "holds": line.holds} for line in judged_lines(found)]
    body["coverage"] = [asdict(line) for line in found.coverage]
    body["by_publisher"] = [asdict(line) for line in found.by_publisher]
    body["resisting"] = [{"id": p.run.case.id, "source": p.source, "error": p.ratio} for p in found.resisting]
    body["decisions"] = [asdict(line) for line in found.decisions]
    body["published_plans"] = [{**asdict(plan), "holds": plan.holds} for plan in found.placed]
    body["published_plans_summary"] = plans_summary(found.placed) if found.placed else None
    body["readings"] = [asdict(line) for line in found.readings]
    body["unseen"] = [{**asdict(run), "error": run.error} for run in found.unseen]
    body["encoders"] = [{**asdict(line), "holds": line.holds} for line in found.encoders]
    body["memory"] = [asdict(line) for line in found.memory]
    body["verdicts"] = [asdict(line) for line in found.verdicts]
    body["first_plans"] = [{**asdict(plan), "ratio": plan.ratio} for plan in found.first_plans]
    body["headlines"] = [{**asdict(line), "deviation": line.deviation} for line in found.headlines]
    body["gpu_runs"] = [{**asdict(run), "agrees": run.agrees} for run in found.gpu_runs]
    cleaned: dict[str, Any] = _finite(body)
    return cleaned


def _finite(value: Any) -> Any:
    """NaN is null in JSON."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
