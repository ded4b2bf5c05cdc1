"""What our search promises with its first plan, beside the best published run of the same question.

A question is (source, model, GPU, number of GPUs, precision); its row is the one with the highest published throughput. The
search is free: of the row it takes model, hardware, precision, sequence length, batch and software, never the plan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

from autoconfig.specs.errors import GIB, AutoconfigError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario

from autoconfig.planning.calibration_file import shipped
from autoconfig.planning.progress import Progress
from autoconfig.runs.table import NO, Row, cell
from autoconfig.runs.training_row import measured_step_seconds, read_case, read_partial
from autoconfig.training.price import FIRST_PLAN_KINDS, LONG_SEQUENCE, UNCALIBRATED, PlanReport, first_plan_kind, report_plan
from autoconfig.training.rank import rank_plans
from validation.intake.recipes import DOUBT
from validation.published import step_rows
from validation.sheets.bands import band_from
from validation.sheets.groups import paper_of, publisher_of
from validation.sources import source_of, untuned

MIN_PARAMETERS = 1e9
MEDIAN = 0.93, 1.05
"""Published over promised throughput that the median is held to."""
MIN_RATIO = 0.80
"""No row may lie below it without a cause, or without a plan of its own that is predicted right."""
PREDICTED_RIGHT = 0.9
"""Published over predicted throughput of a row's own plan from which the gain of our first over it is a gain of plans."""
SURE_TO_FIT = 0.9
"""Chance to fit from which memory that is not modelled is no reason against a plan."""
INSIDE = 0.85, 0.95
"""Share of rows that the bands of first plans are held to."""
TUNED = "tuned"
FINE_TUNING = re.compile(r".* (SFT|LoRA)\b.*")


@dataclass(frozen=True, kw_only=True)
class FirstPlan:
    """One question. Throughputs are tokens a second and GPU."""

    id: str
    source: str
    model: str
    gpu: str
    gpus: int
    precision: str
    seq_length: int
    software: str
    published: float
    promised: float
    plan: str
    own: float | None
    """Published over predicted throughput of the published plan itself; None where it is not printed whole."""
    inside: bool
    """The published step lies inside the 90 % band of our first plan."""
    moe: bool
    cause: str
    """Why the best run of this source is not the best of its question, or why no promise is made; empty: it is held to."""

    separates: str = ""
    """Of rows below MIN_RATIO: that our first plan has no room for its CUDA graphs, or, where the row's own plan is predicted
    right, what ours is predicted to save of its step, or that the publisher changed its micro-batch later (retuned)."""

    @property
    def ratio(self) -> float:
        return self.published / self.promised

    @property
    def log_ratio(self) -> float:
        """log(measured / promised step time)."""
        return -math.log(self.ratio)


@dataclass(frozen=True, kw_only=True)
class _Best:
    row: Row
    scenario: Scenario
    measured_s: float

    @property
    def rate(self) -> float:
        return self.scenario.workload.tokens_per_step / self.measured_s / self.scenario.cluster.num_gpus


def best_rows() -> list[_Best]:
    """The best printed row of every question, in the tables' order: whole pre-training steps of models above 1B parameters."""
    best: dict[tuple[str, str, str, int, str], _Best] = {}
    for row in step_rows():
        source = cell(row, "source")
        if cell(row, "status") == "oom" or FINE_TUNING.fullmatch(source) or not source_of(source).whole_step:
            continue
        try:
            scenario = replace(read_partial(row).scenario, calibration=shipped())
            measured = measured_step_seconds(row, scenario)
        except AutoconfigError:
            continue
        if measured is None or total_parameters(scenario.model) < MIN_PARAMETERS:
            continue
        found = _Best(row=row, scenario=scenario, measured_s=measured)
        cluster = scenario.cluster
        key = (source.removesuffix(DOUBT), scenario.model.name, cluster.gpu.id, cluster.num_gpus, cell(row, "precision"))
        if key not in best or best[key].rate < found.rate:
            best[key] = found
    return list(best.values())


def first_plans(progress: Progress | None = None) -> list[FirstPlan]:
    """Every question that has a plan which fits."""
    found = []
    for number, best in enumerate(best_rows(), 1):
        if progress is not None and number % 20 == 0:
            progress(f"first plans: question {number}")
        ranking = rank_plans(best.scenario, first=1)
        if not len(ranking.step_seconds):
            continue
        scenario, plan = best.scenario, ranking.plan(0)
        report = report_plan(scenario, plan)
        band = report.confidence
        own = _own(best)
        found.append(
            FirstPlan(
                id=cell(best.row, "id"),
                source=cell(best.row, "source"),
                model=scenario.model.name,
                gpu=scenario.cluster.gpu.id,
                gpus=scenario.cluster.num_gpus,
                precision=cell(best.row, "precision") or scenario.numerics.precision,
                seq_length=scenario.workload.seq_length,
                software=scenario.software.name,
                published=best.rate,
                promised=report.tokens_per_second_per_gpu,
                plan=str(plan),
                own=None if own is None else own.step_seconds / best.measured_s,
                separates="" if own is None else _separates(best, own, report),
                inside=band.step_seconds_p5 <= best.measured_s <= band.step_seconds_p95,
                moe=scenario.model.is_moe,
                cause=_cause(best, band.level, plan),
            )
        )
    return found


def _cause(best: _Best, level: str, plan: TrainPlan) -> str:
    source, said = cell(best.row, "source"), cell(best.row, "recompute")
    if level == UNCALIBRATED:
        return "no calibration of this GPU: formula only"
    everything = said.startswith("full") or (not said and cell(best.row, "flops_convention") == "full+recompute")
    if everything and plan.recompute != Recompute.parse("full"):
        return "the run recomputes every layer, as all of its source; our first plan does not need to"
    return untuned(source) or ("the printed plan is in doubt" if source.endswith(DOUBT) else "")


def _own(best: _Best) -> PlanReport | None:
    """The published plan, where it is printed whole."""
    if cell(best.row, "full_plan").lower() in NO:
        return None
    try:
        case = read_case(best.row)
    except AutoconfigError:
        return None
    return report_plan(replace(case.scenario, calibration=shipped()), case.plan)


def _separates(best: _Best, own: PlanReport, first: PlanReport) -> str:
    if first.step_seconds / best.measured_s >= MIN_RATIO:
        return ""
    graphs, chances = best.scenario.settings().cuda_graphs, [plan.confidence.fit_probability for plan in (first, own)]
    if graphs and chances[0] < SURE_TO_FIT <= chances[1]:
        needed, limit = first.peak_bytes / GIB, first.limit_bytes / GIB
        return (
            f"our first plan needs {needed:.0f} of {limit:.0f} GiB before what CUDA graphs hold beside masks (gradients, pool, "
            "not modelled); the published one has room"
        )
    if own.step_seconds / best.measured_s < PREDICTED_RIGHT:
        cluster = best.scenario.cluster
        place = publisher_of(cell(best.row, "source")), best.scenario.model.name, cluster.gpu.id, cluster.num_gpus
        return retuned(place, own.plan, MIN_RATIO * best.measured_s / first.step_seconds, printed_runs())
    saved = {
        name: (own.time_parts.get(name, 0.0) - first.time_parts.get(name, 0.0)) / own.step_seconds
        for name in {*own.time_parts, *first.time_parts}
    }
    largest = sorted(saved, key=lambda name: (-saved[name], name))[:3]
    parts = ", ".join(f"{name} {saved[name]:.0%}" for name in largest if saved[name] > 0.01)
    return f"its own plan is predicted right; ours is predicted to save {parts} of that step, which nobody tried"


@dataclass(frozen=True, kw_only=True)
class PrintedRun:
    """A published run whose plan is printed whole; tokens a second and GPU."""

    publisher: str
    model: str
    gpu: str
    gpus: int
    numerics: Numerics
    software: str
    plan: TrainPlan
    rate: float

    def place(self) -> tuple[str, str, str, int]:
        return self.publisher, self.model, self.gpu, self.gpus


@cache
def printed_runs() -> tuple[PrintedRun, ...]:
    """All of them, without those that are excluded."""
    found = []
    for row in step_rows():
        try:
            case = read_case(row)
            measured = measured_step_seconds(row, case.scenario)
        except AutoconfigError:
            continue
        if not measured:
            continue
        scenario = case.scenario
        cluster = scenario.cluster
        found.append(
            PrintedRun(
                publisher=publisher_of(cell(row, "source")),
                model=scenario.model.name,
                gpu=cluster.gpu.id,
                gpus=cluster.num_gpus,
                numerics=scenario.numerics,
                software=scenario.software.name,
                plan=case.plan,
                rate=scenario.workload.tokens_per_step / measured / cluster.num_gpus,
            )
        )
    return tuple(found)


def retuned(place: tuple[str, str, str, int], plan: TrainPlan, least: float, runs: Iterable[PrintedRun]) -> str:
    """What says that this plan's micro-batch was not tuned, or "".

    Two releases of the publisher (`place`: publisher, model, GPU, GPUs) ran the plan, the later one with another micro-batch,
    and it was at least `least` times as fast beyond what the same two releases gained on any other GPU whose plan for this
    model stayed as it was; without such a GPU the release may be what gained.
    """
    runs = sorted(runs, key=lambda run: run.software)
    mine = [run for run in runs if run.place() == place]
    for old in reversed([run for run in mine if run.plan == plan]):  # releases next to each other first
        for new in mine:
            kept = new.plan.mbs != plan.mbs and replace(new.plan, mbs=plan.mbs) == plan and new.numerics == old.numerics
            if not kept or new.software <= old.software:
                continue
            others = _gains_elsewhere(old, new, runs)
            if others and new.rate / old.rate >= least * max(others.values()):
                said = ", ".join(f"{gpu} {gain:.2f}" for gpu, gain in sorted(others.items()))
                return (
                    f"its micro-batch of {plan.mbs} was not tuned: with {new.plan.mbs} the publisher's {new.software} ran this "
                    f"plan {new.rate / old.rate:.2f} times as fast as {old.software}; with unchanged plans: {said} times"
                )
    return ""


def _gains_elsewhere(old: PrintedRun, new: PrintedRun, runs: Iterable[PrintedRun]) -> dict[str, float]:
    """What the release of `new` gained over that of `old` on other GPUs, for the same model, format and an unchanged plan."""
    alike = [run for run in runs if run.place()[:2] == old.place()[:2] and run.gpu != old.gpu and run.numerics == old.numerics]
    return {
        after.gpu: after.rate / before.rate
        for before in alike
        for after in alike
        if (before.software, after.software) == (old.software, new.software)
        and before.place() == after.place()
        and before.plan == after.plan
    }


@dataclass(frozen=True, kw_only=True)
class FirstPlanSummary:
    """Of some questions: published over promised throughput."""

    name: str
    rows: int
    median: float
    least: float
    below: int
    """Below MIN_RATIO."""
    inside: float
    optimism: float | None
    """Median of own ratio over first plan's: how much faster our first is predicted than the published plan, less 1."""


def summaries(plans: Sequence[FirstPlan]) -> list[FirstPlanSummary]:
    """All questions, those of tuned runs, and the tuned ones by kind."""
    tuned = [plan for plan in plans if not plan.cause]
    groups = {"all": list(plans), TUNED: tuned, **{f"{TUNED}, {kind}": mine for kind, mine in by_kind(tuned).items()}}
    return [_summary(name, members) for name, members in groups.items() if members]


def by_kind(plans: Sequence[FirstPlan]) -> dict[str, list[FirstPlan]]:
    """The plans by FIRST_PLAN_KINDS."""
    return {kind: [p for p in plans if first_plan_kind(moe=p.moe, precision=p.precision) == kind] for kind in FIRST_PLAN_KINDS}


def record_of(plans: Sequence[FirstPlan]) -> dict[str, dict[str, Any]]:
    """Kind -> what the best published runs of tuned questions reached of our first plans: the middle over sources and the band
    for a run of one more source (bands.band_from), as measured over promised step time. Without long sequences."""
    found = {}
    tuned = [plan for plan in plans if not plan.cause and plan.seq_length <= LONG_SEQUENCE]
    for kind, mine in by_kind(tuned).items():
        if not mine:
            continue
        band = band_from(mine)
        middle = median(median(p.log_ratio for p in mine if p.source == source) for source in band.sources)
        numbers = {"middle": round(math.exp(middle), 4), "p5": round(band.p5, 4), "p95": round(band.p95, 4)}
        found[kind] = {**numbers, "rows": band.rows, "sources": len(band.sources)}
    return found


def inside_bands_of_first_plans(plans: Sequence[FirstPlan]) -> float:
    """Share of tuned questions whose best published run lies in the band that an answer prints for the first of many plans
    (`record_of`), made without any run of the question's paper; 0 where nothing else is known of its kind."""
    tuned = [plan for plan in plans if not plan.cause]
    inside = 0
    for paper in sorted({paper_of(plan.source) for plan in tuned}):
        known = record_of([plan for plan in plans if paper_of(plan.source) != paper])
        for plan in (plan for plan in tuned if paper_of(plan.source) == paper):
            band = known.get(first_plan_kind(moe=plan.moe, precision=plan.precision))
            inside += band is not None and band["p5"] <= 1 / plan.ratio <= band["p95"]
    return inside / len(tuned)


def _summary(name: str, plans: Sequence[FirstPlan]) -> FirstPlanSummary:
    both = [math.log(plan.own / plan.ratio) for plan in plans if plan.own is not None]
    return FirstPlanSummary(
        name=name,
        rows=len(plans),
        median=median(plan.ratio for plan in plans),
        least=min(plan.ratio for plan in plans),
        below=sum(plan.ratio < MIN_RATIO for plan in plans),
        inside=sum(plan.inside for plan in plans) / len(plans),
        optimism=math.expm1(median(both)) if both else None,
    )


def first_plan_lines(plans: Sequence[FirstPlan]) -> list[dict[str, Any]]:
    """What the table is held to, as fields of a JudgedLine; nothing without plans."""
    if not plans:
        return []
    unexplained = sum(plan.ratio < MIN_RATIO and not (plan.cause or plan.separates) for plan in plans)
    low, high = MEDIAN
    return [
        {"name": f"First plans: published over promised throughput, median of {len(plans)}", "least": low, "most": high,
         "reached": median(plan.ratio for plan in plans)},
        {"name": f"First plans below {MIN_RATIO:.0%} without a cause", "most": 0.0, "reached": unexplained / len(plans)},
        {"name": "First plans of tuned runs: inside the band of first plans, made without their paper", "least": INSIDE[0],
         "most": INSIDE[1], "reached": inside_bands_of_first_plans(plans)},
    ]  # fmt: skip
