"""NVIDIA's published training plans in our own ranking of the same question."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from autoconfig.specs.errors import GIB, PlanError
from autoconfig.specs.plan import TrainPlan, parse_keys
from autoconfig.specs.scenario import Scenario

from autoconfig.planning.progress import Progress
from autoconfig.runs.table import Row, cell
from autoconfig.training.answer import IncludedPlan, include
from autoconfig.training.plan_rules import broken_as_published, broken_rules
from autoconfig.training.price import Money, PlanReport, Violation, report_plan
from autoconfig.training.question import Question, Request
from autoconfig.training.rank import Ranking, rank_plans
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Constraints
from validation.intake.recipes import DOUBT
from validation.published import published_runs
from validation.sheets.groups import Constants
from validation.sources import source_of

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
    first_at_memory: str = "nothing fits"
    separates_at_memory: str = ""
    """The largest parts of a step that the plan takes longer for than that first."""

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
        sure = not any(cell(row, "source").endswith(DOUBT) for row in rows)
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
    line = replace(line, ratio_at_memory=theirs.step_seconds / of_layout.min(), percentile_at_memory=100.0 * faster)
    if line.holds_at_memory:
        return line
    first = ranking.plan(int(small[ranking.step_seconds[small].argmin()]))
    longer = ", ".join(_longer(theirs, report_plan(scenario, first)))
    return replace(line, first_at_memory=str(first), separates_at_memory=longer)


def _longer(theirs: PlanReport, ours: PlanReport) -> list[str]:
    """The three parts of a step that cost theirs most beside ours, as shares of our step."""
    excess = {
        name: (theirs.time_parts.get(name, 0.0) - ours.time_parts.get(name, 0.0)) / ours.step_seconds
        for name in {*ours.time_parts, *theirs.time_parts}
    }
    largest = sorted(excess, key=lambda name: (-excess[name], name))[:3]
    return [f"{name} {excess[name]:+.0%}" for name in largest if excess[name] > 0.005]


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
    reasons += _longer(theirs, ours)
    return replace(line, ratio=theirs.step_seconds / ours.step_seconds, separates="; ".join(reasons))


@cache
def _recipe_settings() -> list[dict[str, Any]]:
    path = Path(__file__).parents[1].joinpath("nvidia_recipe_settings.json")
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
