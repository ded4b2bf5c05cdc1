"""The screen of `explain` for two plans: which is faster, and in which parts of the step and of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rich.console import Console
from rich.markup import escape

from autoconfig.render.blocks import NO, START, fit_text, labelled
from autoconfig.render.plan_table import asked_text
from autoconfig.render.screen import seconds_text, show_assumptions, show_table
from autoconfig.render.training import memory_words
from autoconfig.specs.errors import GIB
from autoconfig.training.answer import Explanation, part_words
from autoconfig.training.price import PlanReport

SMALLEST = 0.0005
"""Share of the step, or of the memory, below which a difference is not shown."""


def show_two(console: Console, first: Explanation, second: Explanation) -> None:
    """Both plans beside each other; of one that is not legal the rules that it breaks."""
    console.print(asked_text(first.question))
    reports = [one.included.report for one in (first, second)]
    a, b = reports
    if a is None or b is None:
        for one in (first, second):
            _show_refused(console, one)
        show_assumptions(console, first.question.assumed)
        return
    _show_faster(console, a, b)
    for name, report in (("A", a), ("B", b)):
        labelled(console, name, escape(str(report.plan)))
    figures = [
        ["step", *(seconds_text(one.step_seconds) for one in (a, b)), f"{b.step_seconds / a.step_seconds - 1:+.1%}"],
        ["tokens/s/GPU", *(f"{one.tokens_per_second_per_gpu:,.0f}" for one in (a, b)), ""],
        ["MFU", *(f"{one.mfu:.1%}" for one in (a, b)), ""],
        ["GiB, worst stage", *(f"{one.peak_bytes / GIB:.1f}/{one.limit_bytes / GIB:.1f}" for one in (a, b)), ""],
        ["fits", *(fit_text(one.confidence.fit_probability) for one in (a, b)), ""],
    ]
    for name, digits, sizes in (("days", 1, (a.days_to_train, b.days_to_train)), ("cost", 0, (a.cost, b.cost))):
        if sizes[0] is not None and sizes[1] is not None:
            cells = (f"{size:,.{digits}f}" for size in sizes)
            figures.append([name, *cells, f"{sizes[1] - sizes[0]:+,.{digits}f}"])
    show_table(console, ("", "A", "B", "B over A"), figures, left=("",))
    seconds = list(_differences(a.time_parts, b.time_parts, 1.0, a.step_seconds, part_words))
    title = "Seconds of the step by part, the largest differences first"
    show_table(console, ("part", "A", "B", "B less A"), seconds, left=("part",), title=title)
    memory = list(_differences(a.worst_stage.parts, b.worst_stage.parts, GIB, a.peak_bytes, memory_words))
    title = f"GiB of the worst stages, {a.worst_stage.stage} and {b.worst_stage.stage}, likewise"
    show_table(console, ("part", "A", "B", "B less A"), memory, left=("part",), title=title)
    show_assumptions(console, first.question.assumed)


def _show_faster(console: Console, a: PlanReport, b: PlanReport) -> None:
    """START with the faster of those that fit, NO where none does."""
    fitting = [(name, one) for name, one in (("A", a), ("B", b)) if one.fits]
    if not fitting:
        labelled(console, NO, "neither fits")
        return
    name, best = min(fitting, key=lambda item: item[1].step_seconds)
    other = b if best is a else a
    if not other.fits:
        short = (other.peak_bytes - other.limit_bytes) / GIB
        labelled(console, START, f"{name}: the other does not fit, {short:.1f} GiB too much")
        return
    labelled(console, START, f"{name}: {1 - best.step_seconds / other.step_seconds:.1%} less time a step")


def _show_refused(console: Console, one: Explanation) -> None:
    if one.included.legal:
        labelled(console, START, f"{escape(str(one.included.plan))}: legal")
        return
    rules = "; ".join(f"{violation.rule} {violation.text}" for violation in one.included.violations)
    near = f"; the nearest legal plan is {one.nearest_legal}" if one.nearest_legal is not None else ""
    labelled(console, NO, escape(f"{one.included.plan} is not legal: {rules}{near}"))


def _differences(
    a: Mapping[str, float], b: Mapping[str, float], unit: float, whole: float, words: Callable[[str], str]
) -> Iterable[list[str]]:
    """Rows of the parts that differ, the largest difference first, and how many are alike."""
    names = sorted({**a, **b}, key=lambda name: -abs(b.get(name, 0.0) - a.get(name, 0.0)))
    apart = [name for name in names if abs(b.get(name, 0.0) - a.get(name, 0.0)) >= SMALLEST * whole]
    for name in apart:
        sizes = (a.get(name, 0.0) / unit, b.get(name, 0.0) / unit)
        yield [words(name), *(f"{size:.3f}" for size in sizes), f"{sizes[1] - sizes[0]:+.3f}"]
    alike = [name for name in names if name not in apart]
    if alike:
        sizes = (sum(a.get(name, 0.0) for name in alike) / unit, sum(b.get(name, 0.0) for name in alike) / unit)
        yield [f"{len(alike)} others", *(f"{size:.3f}" for size in sizes), f"{sizes[1] - sizes[0]:+.3f}"]
