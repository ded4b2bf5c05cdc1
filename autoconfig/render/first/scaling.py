"""The first screen of `scaling`."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from autoconfig.render.blocks import NO, START, Blocks, fit_text
from autoconfig.render.plan_table import cost_per_billion, precision_text
from autoconfig.render.screen import seconds_text, show_assumptions, without_empty
from autoconfig.render.sizing.budget import count_text
from autoconfig.render.sizing.scaling import MONEY, batches_text, days_text, deadline_text, point_cells, show_scaling
from autoconfig.sizing.sizing import ScalingAnswer, ScalingPoint, tokens_per_second
from autoconfig.training.rank import RESOLUTION

ROWS = 8
"""Counts and types that are shown."""


def show(console: Console, answer: ScalingAnswer) -> None:
    """How many of which GPUs to start on, or why none; the whole answer where the console is verbose."""
    if getattr(console, "verbose", False):
        show_scaling(console, answer)
        return
    shown, scenario = Blocks(rows=ROWS), answer.question.scenario
    tokens = answer.request.base.tokens
    asked = [f"{count_text(tokens)} tokens"] if tokens else []
    asked += [f"in {answer.request.days:g} days"] if answer.request.days is not None else []
    shown.head(
        f"[bold]{escape(scenario.model.name)}[/bold], {precision_text(scenario.numerics)}, sequence "
        f"{scenario.workload.seq_length:,}, batch {scenario.workload.global_batch_size:,}{', '.join(['', *asked])}"
    )
    priced = [point for point in answer.points if point.report is not None]
    if answer.request.days is not None and not answer.fewest_by_gpu:
        shown.say(NO, escape(deadline_text(answer)))
    elif not priced:
        shown.say(NO, escape("; ".join(dict.fromkeys(f"{p.num_gpus:,} x {p.gpu}: {p.why_not}" for p in answer.points))))
    else:
        _start(shown, answer, priced)
    _rows(shown, answer)
    for point in answer.points:
        if point.other_batch is not None:
            shown.say("batch", f"{point.num_gpus:,} x {point.gpu}: {escape(str(point.other_batch))}", spare=4)
    shown.say("batches", batches_text(answer), spare=3)
    shown.draw(lambda out: show_assumptions(out, answer.question.assumed))
    shown.say("next", "autoconfig search on the count chosen | --verbose: plans, batches, checkpoints, failures")
    shown.show(console)


def _start(shown: Blocks, answer: ScalingAnswer, priced: list[ScalingPoint]) -> None:
    """The fewest for the deadline, else the cheapest, else the most efficient; what is faster and what is slower."""
    costs = all(_cost_rate(point) is not None for point in priced)
    worth = _cost_rate if costs else _time_rate
    first = answer.fewest or next(iter(answer.fewest_by_gpu), None) or min(priced, key=lambda point: worth(point) or 0.0)
    assert first.report is not None
    shown.say(
        START,
        f"[bold]{first.num_gpus:,} x {escape(first.gpu)}[/bold], {_why(answer, costs)}: {_figures(first)}\n"
        f"{escape(str(first.report.plan))}",
    )
    for point in answer.fewest_by_gpu:
        if point is not first:
            ratio = f" ({point.cost / first.cost:.2f}x)" if point.cost and first.cost else ""
            shown.say("or", f"{point.num_gpus:,} x {escape(point.gpu)}: {_figures(point)}{ratio}")
    if not answer.fewest_by_gpu:
        _equal(shown, first, priced, worth, "cost" if costs else "tokens/s of a GPU")
    _faster_and_slower(shown, first, priced)


def _equal(
    shown: Blocks,
    first: ScalingPoint,
    priced: list[ScalingPoint],
    worth: Callable[[ScalingPoint], float | None],
    what: str,
) -> None:
    """Which other counts the predictions cannot tell from the first by `worth`."""
    near = [point for point in priced if point.num_gpus != first.num_gpus]
    alike = [point for point in near if abs((worth(point) or 0.0) / (worth(first) or 1.0) - 1.0) <= RESOLUTION]
    if alike:
        counts = ", ".join(f"{point.num_gpus:,} x {point.gpu}" for point in alike)
        shown.say("equal", escape(f"{counts}: {what} within {RESOLUTION:.0%}"))


def _why(answer: ScalingAnswer, costs: bool) -> str:
    """By what the first count is the first."""
    if not answer.fewest_by_gpu:
        return "cheapest" if costs else "most tokens/s of a GPU"
    among = "" if answer.every_count else " of the counts tried"
    of_types = "of the fewest of each type the cheapest" if answer.fewest else "of each type the fewest"
    return f"{of_types if len(answer.kept) > 1 else f'fewest{among}'} for {answer.request.days:g} days"


def _faster_and_slower(shown: Blocks, first: ScalingPoint, priced: list[ScalingPoint]) -> None:
    fastest = max(priced, key=lambda point: tokens_per_second(point) or 0.0)
    mine, rate = tokens_per_second(first) or 1.0, tokens_per_second(fastest) or 0.0
    if rate > mine:
        shown.say(
            "faster", f"{fastest.num_gpus:,} x {escape(fastest.gpu)}: {rate / mine:.2f} times the tokens/s, {_figures(fastest)}"
        )
    below = [point for point in priced if point.gpu == first.gpu and point.num_gpus < first.num_gpus]
    if below:
        slower = max(below, key=lambda point: point.num_gpus)
        shown.say("slower", f"{slower.num_gpus:,} x {escape(slower.gpu)}: {_figures(slower)}", spare=1)


def _time_rate(point: ScalingPoint) -> float:
    """What is least where most tokens a second and GPU are best."""
    return -(tokens_per_second(point) or 0.0) / point.num_gpus


def _cost_rate(point: ScalingPoint) -> float | None:
    """Money for all tokens, or for a billion of them."""
    if point.cost is not None or point.report is None:
        return point.cost
    return point.report.cost_per_billion_tokens


def _figures(point: ScalingPoint) -> str:
    assert point.report is not None
    said = [] if point.days is None else [f"{days_text(point.days)} days"]
    said += [] if point.cost is None else [f"cost {point.cost:,.0f}"]
    if point.cost is None and (rate := cost_per_billion(point.report)):
        said.append(f"cost {rate} a billion tokens")
    said += [f"{seconds_text(point.report.step_seconds)} a step", f"{tokens_per_second(point):,.0f} tokens/s"]
    return ", ".join([*said, f"fits {fit_text(point.report.confidence.fit_probability)}"])


def _rows(shown: Blocks, answer: ScalingAnswer) -> None:
    """A line for each type and count, with days and cost where they are known."""
    types = [] if len(answer.kept) == 1 else ["GPU"]
    columns = ["GPUs", *types, "step", "tokens/s", "efficiency", *MONEY, "fit", "why not"]
    cells = (point_cells(point, columns, fit_text) for point in answer.points)
    names, rows = without_empty(columns, cells, (*MONEY, "why not"))
    shown.table(names, rows, left=("GPU", "why not"), below=("why not",), spare=("efficiency",))
    left = len(rows)

    def say(out: Console) -> None:
        hidden = f"; {left - shown.rows} more (--verbose)" if left > shown.rows else ""
        out.print(f"sorted by type and count; efficiency beside the first of a type{hidden}", style="dim")

    shown.draw(say)
