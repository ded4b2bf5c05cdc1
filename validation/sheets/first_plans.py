"""What our search promises with its first plan, beside the best published run of the same question.

A question is (source, model, GPU, number of GPUs, precision); its row is the one with the highest published throughput. The
search is free: of the row it takes model, hardware, precision, sequence length, batch and software, never the plan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.scenario import Scenario

from autoconfig.calibration.observe import MIN_PARAMETERS
from autoconfig.planning.calibration_file import shipped
from autoconfig.planning.progress import Progress
from autoconfig.runs.table import Row, cell
from autoconfig.runs.training_row import measured_step_seconds, read_partial
from autoconfig.training.confidence import FIRST_PLAN_KINDS, LONG_SEQUENCE, first_plan_kind
from autoconfig.training.price import report_plan
from autoconfig.training.rank import rank
from validation.published import step_rows
from validation.sheets.bands import band_from
from validation.sheets.figures import Line, share_line
from validation.sheets.training import paper_of
from validation.sources import band_bars, source_of

MEDIAN = 0.93, 1.05
"""Published over promised throughput that the median is held to."""
MIN_RATIO = 0.80
"""No question may lie below it."""
FINE_TUNING = re.compile(r".* (SFT|LoRA)\b.*")


@dataclass(frozen=True, kw_only=True)
class FirstPlan:
    """One question. Throughputs are tokens a second and GPU."""

    id: str
    source: str
    question: str
    published: float
    promised: float
    plan: str
    kind: str
    """One of FIRST_PLAN_KINDS."""
    seq_length: int

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
    rate: float


def _best_rows() -> list[_Best]:
    """Return the best printed row of every question, in the tables' order: whole pre-training steps of models above 1B."""
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
        cluster = scenario.cluster
        rate = scenario.workload.tokens_per_step / measured / cluster.num_gpus
        key = (source, scenario.model.name, cluster.gpu.id, cluster.num_gpus, cell(row, "precision"))
        if key not in best or best[key].rate < rate:
            best[key] = _Best(row=row, scenario=scenario, rate=rate)
    return list(best.values())


def first_plans(progress: Progress | None = None) -> list[FirstPlan]:
    """Search every question, and return those that have a plan which fits."""
    plans = []
    for number, best in enumerate(_best_rows(), 1):
        if progress is not None and number % 20 == 0:
            progress(f"first plans: question {number}")
        scenario = best.scenario
        ranking = rank(scenario, first=1)
        if not len(ranking.step_seconds):
            continue
        report = report_plan(scenario, ranking.plan(0))
        precision = cell(best.row, "precision") or scenario.numerics.precision
        where = f"{scenario.cluster.num_gpus:,} x {scenario.cluster.gpu.id}"
        plans.append(
            FirstPlan(
                id=cell(best.row, "id"),
                source=cell(best.row, "source"),
                question=f"{scenario.model.name}, {where}, {precision}, {scenario.software.name}",
                published=best.rate,
                promised=report.tokens_per_second_per_gpu,
                plan=str(ranking.plan(0)),
                kind=first_plan_kind(moe=scenario.model.is_moe, precision=precision),
                seq_length=scenario.workload.seq_length,
            )
        )
    return plans


def record_of(plans: Sequence[FirstPlan]) -> dict[str, dict[str, Any]]:
    """Return by kind what the best published runs reached of our first plans: the middle over sources and the band for a run of
    one more source (bands.band_from), as measured over promised step time. Without long sequences."""
    record = {}
    for kind in FIRST_PLAN_KINDS:
        mine = [plan for plan in plans if plan.kind == kind and plan.seq_length <= LONG_SEQUENCE]
        if not mine:
            continue
        band = band_from(mine)
        middle = median(median(p.log_ratio for p in mine if p.source == source) for source in band.sources)
        numbers = {"middle": round(math.exp(middle), 4), "p5": round(band.p5, 4), "p95": round(band.p95, 4)}
        record[kind] = {**numbers, "rows": band.rows, "sources": len(band.sources)}
    return record


def inside_bands_of_first_plans(plans: Sequence[FirstPlan]) -> list[bool]:
    """Return of each question whether its best published run lies in the band that an answer prints for the first of many plans
    (`record_of`), made without any run of the question's paper; outside where nothing else is known of its kind."""
    papers = {paper_of(plan.source) for plan in plans}
    records = {paper: record_of([plan for plan in plans if paper_of(plan.source) != paper]) for paper in papers}
    bands = [(records[paper_of(plan.source)].get(plan.kind), 1 / plan.ratio) for plan in plans]
    return [band is not None and band["p5"] <= ratio <= band["p95"] for band, ratio in bands]


def first_plan_lines(plans: Sequence[FirstPlan]) -> Iterator[Line]:
    """Yield what first plans are held to."""
    low, high = MEDIAN
    ratios = [plan.ratio for plan in plans]
    name = "First plans: best published over promised throughput"
    yield Line(name=f"{name}, median", rows=len(plans), reached=median(ratios), least=low, most=high)
    yield share_line(f"{name}, questions below {MIN_RATIO:.0%}", [ratio < MIN_RATIO for ratio in ratios], most=0.0)
    name = "First plans: inside the band of first plans, made without their paper"
    yield share_line(name, inside_bands_of_first_plans(plans), *band_bars()["first_plans_inside"])
