"""A ScalingAnswer as a table with bars in the terminal, as JSON, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.render.plan_table import COST_PER_BILLION, cost_per_billion, precision_text
from autoconfig.render.question_json import AnswerJson, QuestionJson, question_json
from autoconfig.render.screen import amount_text, seconds_text, show_assumptions, show_table, without_empty
from autoconfig.render.training_json import PlanReportJson, report_json
from autoconfig.sizing.goodput import Reliability
from autoconfig.sizing.sizing import MAX_TRIED, ScalingAnswer, ScalingPoint, tokens_per_second
from autoconfig.specs.errors import GIB, chance_text
from autoconfig.specs.files import write_atomically
from autoconfig.specs.json_record import Natural, NotNegative, Positive, record_of
from autoconfig.training.price import energy_kwh
from autoconfig.training.remedies import OtherBatch

BAR_WIDTH = 50
MIN_POINTS = 2


@dataclass(frozen=True, kw_only=True)
class ScalingPointJson:
    """One GPU type and count; null figures where there is no plan."""

    gpu: str
    num_gpus: Positive
    """GPUs paid for, spares included."""
    training_gpus: Natural
    """GPUs of the plan: whole nodes of what the spares leave."""
    global_batch_size: Positive | None
    """Samples of a step; of a question that gives none it suits the count. Null where there is no plan."""
    why_not: str | None
    """Where there is no plan: the reason."""
    best: PlanReportJson | None
    """The fastest plan that fits."""
    tokens_per_second: NotNegative | None
    """Of the whole job, undisturbed."""
    speedup: NotNegative | None
    """Tokens per second over those of the type's first point that fits."""
    efficiency: NotNegative | None
    """Speedup over the ratio of training GPUs; 1 is perfect scaling."""
    days: NotNegative | None
    """Wall time to train `tokens`, failures included."""
    cost: NotNegative | None
    """Money for all GPUs over these days."""
    energy_kwh: NotNegative | None
    """Of the GPUs that train, at their power limit in these days: more than they draw; null where the limit is not known."""
    checkpoint_gib: NotNegative | None
    """Weights and optimizer state."""
    checkpoint_seconds: NotNegative | None
    """Time to write one checkpoint."""
    checkpoint_interval_seconds: NotNegative | None
    """Young's interval, sqrt(2 x checkpoint_seconds x job_mtbf_seconds)."""
    job_mtbf_seconds: NotNegative | None
    """Mean time between failures of the whole job."""
    goodput: NotNegative | None
    """Time that trains over all time, 0 to 1."""
    other_batch: OtherBatch | None
    """A batch near the asked one with which these GPUs do more; null where there is none, and of `fewest`."""


@dataclass(frozen=True, kw_only=True)
class ScalingJson(QuestionJson, AnswerJson):
    """The best plan over GPU counts and types; `cluster` is that of the first point. Sizes are GiB, times seconds."""

    kept: dict[str, dict[str, Any]]
    """GPU type -> plan keys that were held, with their values."""
    reliability: Reliability
    points: tuple[ScalingPointJson, ...]
    deadline_days: NotNegative | None
    """The deadline asked for."""
    fewest: ScalingPointJson | None
    """The fewest GPUs that meet the deadline; of several types, where each has a cost, the cheapest of `fewest_by_gpu`, else
    null."""
    fewest_by_gpu: tuple[ScalingPointJson, ...]
    """The fewest GPUs of each type that meet the deadline."""
    every_count: bool
    """Whether every count of whole nodes that could be the fewest was tried."""


def scaling_json(answer: ScalingAnswer) -> ScalingJson:
    """The whole answer."""
    return ScalingJson(
        **vars(question_json(answer.question)),
        kept={gpu: {key: _plain(value) for key, value in kept.items()} for gpu, kept in answer.kept.items()},
        reliability=answer.request.reliability,
        points=tuple(_point_json(point) for point in answer.points),
        deadline_days=answer.request.days,
        fewest=None if answer.fewest is None else _point_json(answer.fewest),
        fewest_by_gpu=tuple(_point_json(point) for point in answer.fewest_by_gpu),
        every_count=answer.every_count,
    )


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) else str(value)


def _point_json(point: ScalingPoint) -> ScalingPointJson:
    goodput = point.goodput
    return record_of(
        ScalingPointJson,
        point,
        best=None if point.report is None or point.question is None else report_json(point.report, point.question),
        tokens_per_second=tokens_per_second(point),
        checkpoint_gib=None if goodput is None else goodput.checkpoint_bytes / GIB,
        checkpoint_seconds=None if goodput is None else goodput.checkpoint_seconds,
        checkpoint_interval_seconds=None if goodput is None else goodput.checkpoint_interval_seconds,
        job_mtbf_seconds=None if goodput is None else goodput.job_mtbf_seconds,
        goodput=None if goodput is None else goodput.share,
        global_batch_size=None if point.question is None else point.question.scenario.workload.global_batch_size,
        energy_kwh=_energy(point),
    )


def _energy(point: ScalingPoint) -> float | None:
    if point.days is None or point.question is None:
        return None
    return energy_kwh(point.question.scenario.cluster, point.days)


def show_scaling(console: Console, answer: ScalingAnswer) -> None:
    """What was asked, the table, in a terminal the bars, the deadline."""
    scenario = answer.question.scenario
    workload = scenario.workload
    console.print(
        f"[bold]{escape(scenario.model.name)}[/bold], sequence {workload.seq_length:,}, global batch "
        f"{workload.global_batch_size:,}, {precision_text(scenario.numerics)}, {_software_text(answer)}"
    )
    for gpu, plan_keys in answer.kept.items():
        if plan_keys:
            values = escape(", ".join(f"{key}={_plain(value)}" for key, value in plan_keys.items()))
            console.print(f"  kept on {gpu}: {values}", style="dim")
    _table(console, answer)
    rates = {gpu: _curve(answer, gpu) for gpu in answer.kept}
    if console.is_terminal and max(len(curve) for curve in rates.values()) >= MIN_POINTS:
        _bars(console, rates)
    for point in answer.points:
        if point.other_batch is not None:
            console.print(f"{point.num_gpus:,} x {point.gpu}, another batch: {escape(str(point.other_batch))}")
    if said := batches_text(answer):
        console.print(f"Global batches that suit their counts: {said}.")
    _show_failures(console, answer)
    if answer.request.days is not None:
        console.print(deadline_text(answer))
    show_assumptions(console, answer.question.assumed)


def _software_text(answer: ScalingAnswer) -> str:
    """The software, with the first GPU of each where it is not the same on all."""
    questions = [point.question for point in answer.points if point.question is not None] or [answer.question]
    software = {q.scenario.software.name: q.scenario.cluster.gpu.id for q in reversed(questions)}
    return ", ".join(name if len(software) == 1 else f"{name} ({gpu})" for name, gpu in reversed(software.items()))


def batches_text(answer: ScalingAnswer) -> str:
    """Global batches that were taken for single counts, none having been given; empty where all have the same."""
    asked = answer.question.scenario.workload.global_batch_size
    batches = {(p.num_gpus, p.question.scenario.workload.global_batch_size) for p in answer.points if p.question is not None}
    return ", ".join(f"{batch:,} on {count:,} GPUs" for count, batch in sorted(batches) if batch != asked)


def _table(console: Console, answer: ScalingAnswer) -> None:
    names = ("GPU", "GPUs", "step s", "tokens/s", "speedup", "efficiency", "goodput", *MONEY, "fit", "best plan")
    columns, rows = without_empty(names, (point_cells(point, names, chance_text) for point in answer.points), MONEY)
    show_table(console, columns, rows, left=("GPU", "best plan"), below=("best plan",), spare=SPARE)


MONEY = ("days", "cost", COST_PER_BILLION)
SPARE = ("speedup", "goodput", "efficiency", "tokens/s")


def point_cells(point: ScalingPoint, columns: Sequence[str], fit: Callable[[float], str]) -> list[str]:
    """Cells of a row of a table; without a plan those of its count, and why."""
    cells = {"GPU": escape(point.gpu), "GPUs": f"{point.num_gpus:,}", "why not": escape(point.why_not or "")}
    if point.report is None or point.goodput is None:
        cells["best plan"] = cells["why not"]
    else:
        cells |= {
            "step s": f"{point.report.step_seconds:,.2f}",
            "step": seconds_text(point.report.step_seconds),
            "tokens/s": f"{tokens_per_second(point):,.0f}",
            "speedup": f"{point.speedup:.2f}x",
            "efficiency": f"{point.efficiency:.0%}",
            "goodput": f"{point.goodput.share:.1%}",
            "days": days_text(point.days),
            "cost": amount_text(point.cost),
            COST_PER_BILLION: cost_per_billion(point.report) if point.report.days_to_train is None else "",
            "fit": fit(point.report.confidence.fit_probability),
            "best plan": str(point.report.plan),
        }
    return [cells.get(name, "") for name in columns]


def _days_asked(answer: ScalingAnswer) -> str:
    days = answer.request.days
    return f"{days:g} day{'s' * (days != 1)}"


def days_text(days: float | None) -> str:
    """Days with two digits behind the point below ten, else with one; nothing where they are not known."""
    return "" if days is None else f"{days:,.2f}" if days < 10 else f"{days:,.1f}"


def _show_failures(console: Console, answer: ScalingAnswer) -> None:
    known = [point.goodput for point in answer.points if point.goodput is not None]
    if not known:
        return
    r, first, last = answer.request.reliability, known[0], known[-1]
    spares = "replacements at hand" if r.spares is None else f"{r.spares} spare GPUs, repair in {r.repair_hours:g} h"
    console.print(
        f"Checkpoint {first.checkpoint_bytes / GIB:,.0f} GiB, written in {first.checkpoint_seconds:,.1f} s every "
        f"{first.checkpoint_interval_seconds / 60:,.0f} min at the first point, {last.checkpoint_seconds:,.1f} s every "
        f"{last.checkpoint_interval_seconds / 60:,.0f} min at the last ({r.checkpoint_gb_per_s_per_node:g} GB/s a node); a GPU "
        f"fails every {r.mtbf_hours_per_gpu:,.0f} h, restart {r.restart_seconds:g} s, {spares}.",
        style="dim",
    )


def deadline_text(answer: ScalingAnswer) -> str:
    """The fewest GPUs of a deadline, of each type, or that none is enough and which comes nearest."""
    if not answer.fewest_by_gpu:
        best = min((p for p in answer.points if p.days is not None), key=lambda p: p.days or 0.0, default=None)
        nearest = "" if best is None else f"; the nearest is {best.num_gpus:,} x {best.gpu} with {days_text(best.days)} days"
        return f"No count up to the largest of these trains within {_days_asked(answer)}{nearest}."
    among = "" if answer.every_count else f" of the counts tried ({MAX_TRIED:,} beside those above)"
    costs = [point.cost for point in answer.fewest_by_gpu if point.cost is not None]
    told = []
    for point in answer.fewest_by_gpu:
        ratio = "" if point.cost is None or len(costs) < 2 else f", {point.cost / min(costs):.2f}x"
        cost = "" if point.cost is None else f", cost {point.cost:,.0f}{ratio}"
        plan = escape(str(point.report.plan if point.report else ""))
        told.append(f"[bold]{point.num_gpus:,} x {point.gpu}[/bold], {days_text(point.days)} days{cost}, {plan}")
    head = f"The fewest GPUs{among} for {_days_asked(answer)}"
    return f"{head}: {told[0]}" if len(told) == 1 else "\n  ".join([f"{head}, of each type:", *told])


def _curve(answer: ScalingAnswer, gpu: str) -> list[tuple[int, float]]:
    return [(p.num_gpus, tokens_per_second(p) or 0.0) for p in answer.points if p.gpu == gpu and p.report is not None]


def _bars(console: Console, rates: dict[str, list[tuple[int, float]]]) -> None:
    """Print the tokens per second of every count of GPUs as a bar."""
    most = max(rate for curve in rates.values() for _, rate in curve)
    table = Table("GPUs", "", "tokens/s", box=None)
    for gpu, curve in rates.items():
        for count, rate in curve:
            table.add_row(f"{count:,} x {gpu}", Bar(most, 0, rate, width=BAR_WIDTH), f"{rate:,.0f}")
    console.print(table)


def draw(answer: ScalingAnswer, target: Path) -> None:
    """`--plot FILE`: throughput over GPUs with perfect scaling beside it, as PNG or SVG. Raises FileError."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for gpu in answer.kept:
        curve = _curve(answer, gpu)
        if not curve:
            continue
        counts, rates = zip(*curve, strict=True)
        (line,) = axes.plot(counts, rates, marker="o", label=gpu)
        perfect = [rates[0] * count / counts[0] for count in counts]
        axes.plot(counts, perfect, linestyle=":", color=line.get_color(), label=f"{gpu}, perfect scaling")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("tokens per second")
    axes.set_title(
        f"{answer.question.scenario.model.name}, global batch {answer.question.scenario.workload.global_batch_size:,}"
    )
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()

    def write(file: Path) -> None:
        kind = target.suffix[1:].lower()
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else {})

    write_atomically(target, write)
