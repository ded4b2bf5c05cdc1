"""`validate --inference` on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.accuracy.serving import Figure, Validation


def show_validation(console: Console, found: Validation) -> None:
    """The figures beside their bars, then every source."""
    how = "constants that have not seen the run's source" if found.held_out else "the shipped constants (seen runs)"
    console.print(f"Published serving runs, predicted with {how}", highlight=False)
    console.print(_figures(found.figures, with_bars=True))
    console.print(_figures(found.sources, with_bars=False))
    for reason, count in found.unpredicted:
        console.print(f"  [dim]{count:>4} {escape(reason)}[/dim]", highlight=False)
    console.print("Not judged: the NeMo launcher rows (T5, or GPU counts that contradict their own text).", highlight=False)


def _figures(figures: Sequence[Figure], *, with_bars: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("what", "runs", "error or share", "median error", *(("bar", "met") if with_bars else ())):
        table.add_column(name, justify="left" if name == "what" else "right")
    for one in figures:
        bar = "" if one.bar is None else f"{'>=' if one.at_least else '<='} {one.bar:g} %"
        met = "" if one.met is None else "yes" if one.met else "NO"
        median = "" if one.median is None else f"{one.median:+.1f} %"
        table.add_row(escape(one.name), f"{one.rows:,}", f"{one.value:.1f} %", median, *((bar, met) if with_bars else ()))
    return table
