"""A validation as tables, for the screen, the HTML page and docs/accuracy.md. No arithmetic beyond units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.accuracy.bands import POOLED, Coverage
from autoconfig.accuracy.groups import Bar, Decisions, ErrorGroup, Figures
from autoconfig.accuracy.memory import GpuRun, labelled_source
from autoconfig.accuracy.plans import PlacedPlan, plans_summary
from autoconfig.accuracy.serving import Figure, ServingValidation
from autoconfig.accuracy.validate import Validation, judged_lines
from autoconfig.runs.sources import sources
from autoconfig.training.price import band_of

TITLE = {None: "in-sample", "source": "leave one source out", "model": "leave one model out"}
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table with a title and a sentence below."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""


def _sheet(title: str, items: Iterable[Item], columns: Sequence[tuple[str, Callable[[Item], str]]], note: str = "") -> Sheet:
    """One line an item; `columns`: (name, text of an item)."""
    lines = tuple(tuple(text(item) for _, text in columns) for item in items)
    return Sheet(title=title, columns=tuple(name for name, _ in columns), lines=lines, note=note)


def share(value: float | None, digits: int = 1, sign: bool = False) -> str:
    """A percentage; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:{'+' if sign else ''}.{digits}f} %"


def _yes(holds: bool | None) -> str:
    return "not judged" if holds is None else "yes" if holds else "NO"


def sheets(found: Validation) -> list[Sheet]:
    """Every table that this validation can fill."""
    every = [error_sheet(found), bar_sheet(found), line_sheet(found), coverage_sheet(found), decision_sheet(found)]
    every += [reading_sheet(found), plan_sheet(found.placed), memory_sheet(found), verdict_sheet(found), headline_sheet(found)]
    every += [unseen_sheet(found), gpu_sheet(found.gpu_runs)]
    return [sheet for sheet in every if sheet.lines]


def _figures(of: Callable[[Any], Figures | None]) -> list[tuple[str, Callable[[Any], str]]]:
    """Mean, median, bias and worst error of an item's figures, a dash each where it has none."""

    def column(text: Callable[[Figures], str]) -> Callable[[Any], str]:
        return lambda item: "-" if (figures := of(item)) is None else text(figures)

    return [
        ("mean", column(lambda f: share(f.mean))),
        ("median", column(lambda f: share(f.median))),
        ("bias", column(lambda f: share(f.bias, sign=True))),
        ("worst", column(lambda f: f"{share(f.worst, sign=True)} {f.worst_id}")),
    ]


def error_sheet(found: Validation) -> Sheet:
    """By source and GPU: all rows, and dense ones above 1B parameters."""
    columns: list[tuple[str, Callable[[ErrorGroup], str]]] = [
        ("source", lambda g: g.source),
        ("GPU", lambda g: g.gpu),
        ("rows", lambda g: str(g.rows)),
        ("covered", lambda g: str(g.all.rows) if g.all else "0"),
        *_figures(lambda g: g.all),
        ("dense > 1B", lambda g: str(g.large.rows) if g.large else "-"),
        ("mean", lambda g: share(g.large.mean) if g.large else "-"),
        ("not covered", lambda g: "; ".join(f"{count} {reason}" for reason, count in g.uncovered.items())),
    ]
    note = f"Constants: {found.constants}. Errors are shares of the measured step; bias: median of predicted / measured - 1."
    return _sheet(f"Step time by source and GPU, {TITLE[found.leave_out]}", found.groups, columns, note)


def bar_sheet(found: Validation) -> Sheet:
    """The errors of step times that the project holds itself to."""
    columns: list[tuple[str, Callable[[Bar], str]]] = [
        ("group", lambda b: b.name),
        ("rule", lambda b: f"{'in-sample; asked for ' if b.in_sample else ''}without its {b.leave_out}"),
        ("rows", lambda b: str(b.reached.rows) if b.reached else "0"),
        *_figures(lambda b: b.reached),
        ("at most", lambda b: share(b.most)),
        ("holds", lambda b: _yes(b.holds)),
    ]
    return _sheet(f"Held to, {TITLE[found.leave_out]}", found.bars, columns)


def line_sheet(found: Validation) -> Sheet:
    """Bands, decisions, memory and published plans against what was asked for."""

    def asked(least: float | None, most: float | None) -> str:
        prefix = "at least " if most is None else "at most " if least is None else ""
        return prefix + " to ".join(share(end) for end in (least, most) if end is not None)

    return _sheet(
        "Also held to",
        judged_lines(found),
        [
            ("line", lambda line: line.name),
            ("asked for", lambda line: asked(line.least, line.most)),
            ("reached", lambda line: share(line.reached)),
            ("holds", lambda line: _yes(line.holds)),
        ],
    )


def reading_sheet(found: Validation) -> Sheet:
    """The same figures read in the way that is hardest on us."""
    return _sheet(
        "Harder readings of the same figures",
        found.readings,
        [
            ("figure", lambda r: r.name),
            ("rows", lambda r: str(r.rows)),
            ("as held to", lambda r: share(r.usual)),
            ("harder reading", lambda r: share(r.harder)),
            ("what is read differently", lambda r: r.why),
        ],
    )


def coverage_sheet(found: Validation) -> Sheet:
    """Bands from other sources, and how many left-out runs they hold."""

    def ends(line: Coverage) -> str:
        band = band_of(line.level, found.bands)
        return f"{band.p5:.3f} to {band.p95:.3f}"

    left = [f"{s.match} ({s.why})" for s in sources() if "bands" not in s.use and not s.publisher]
    return _sheet(
        "90 % bands: from the other sources only",
        found.coverage,
        [
            ("class", lambda line: line.level),
            ("rows", lambda line: str(line.rows)),
            ("sources", lambda line: str(line.sources)),
            ("inside, sources equal", lambda line: share(line.inside)),
            ("inside, by row", lambda line: share(line.inside_by_row)),
            ("median half-width, by row", lambda line: share(line.half_width)),
            ("sources equal", lambda line: share(line.half_width_by_source)),
            ("band", ends),
        ],
        f"`{POOLED}` is every run with the band of its class. Not counted: {'; '.join(left)}; fine-tuning on packed sequences.",
    )


def decision_sheet(found: Validation) -> Sheet:
    """Rankings of measured plans."""
    columns: list[tuple[str, Callable[[Decisions], str]]] = [
        ("source", lambda d: d.source),
        ("constants", lambda d: d.constants),
        ("groups", lambda d: str(d.groups)),
        ("rows", lambda d: str(d.rows)),
        ("Spearman (min)", lambda d: f"{d.spearman_median:.2f} ({d.spearman_min:.2f})"),
        ("regret mean / max", lambda d: f"{share(d.regret_mean)} / {share(d.regret_max)}"),
        ("best of three", lambda d: f"{share(d.regret_first_three_mean)} / {share(d.regret_first_three_max)}"),
        ("mean error", lambda d: share(d.mean_error)),
    ]
    title = "Decisions: groups of one architecture, GPUs, sequence and batch with at least 6 timed plans"
    note = "Regret: measured time of our first choice over the best measured, less 1."
    return _sheet(title, found.decisions, columns, note)


def plan_sheet(placed: Sequence[PlacedPlan]) -> Sheet:
    """NVIDIA's plans that are beyond the bars, with what separates them."""
    if not placed:
        return Sheet(title="", columns=(), lines=())
    summary = plans_summary(placed)

    def where(plan: PlacedPlan) -> str:
        return plan.verdict if plan.rank is None else f"{plan.rank:,} of {plan.layouts:,} ({plan.percentile:.1f} %)"

    return _sheet(
        "NVIDIA's published plans beyond the bars",
        [plan for plan in placed if not plan.holds],
        [
            ("question", lambda p: f"{p.model}, {p.gpus} x {p.gpu}, batch {p.batch}, {p.precision}"),
            ("published plan", lambda p: p.plan),
            ("our first", lambda p: p.first),
            ("ratio", lambda p: "-" if p.ratio is None else f"{p.ratio:.2f}"),
            ("rank", where),
            ("what separates them", lambda p: p.separates),
        ],
        f"{summary['rows']} rows are {summary['plans']} plans; {summary['hold']} are within 1.10 x our first and in the first "
        f"5 %; median percentile {summary['median_percentile']:.2f} %, median ratio {summary['median_ratio']:.3f}; "
        f"{summary['refused']} are not legal or do not fit for us (their ratio is printed all the same).",
    )


def memory_sheet(found: Validation) -> Sheet:
    """Peaks by source and stack."""
    return _sheet(
        "Peak memory by source and stack",
        found.memory,
        [
            ("source", lambda m: m.source),
            ("stack", lambda m: m.stack),
            ("what was measured", lambda m: m.rank),
            ("rows", lambda m: str(m.rows)),
            ("covered", lambda m: str(m.covered)),
            ("mean", lambda m: share(m.mean, 2)),
            ("median", lambda m: share(m.median, 2)),
            ("bias", lambda m: share(m.bias, 2, sign=True)),
            ("worst", lambda m: f"{share(m.worst, 2, sign=True)} {m.worst_id}"),
        ],
    )


def unseen_sheet(found: Validation) -> Sheet:
    """Runs that no constant has seen and that were added after the formulas."""
    return _sheet(
        "Runs added after the formulas",
        found.unseen,
        [
            ("row", lambda run: run.id),
            ("run", lambda run: run.what),
            ("GPUs as published", lambda run: run.remark),
            ("measured", lambda run: f"{run.measured_s:.3g} s"),
            ("predicted", lambda run: f"{run.predicted_s:.3g} s"),
            ("error", lambda run: share(run.error, sign=True)),
            ("inside the band", lambda run: _yes(run.inside)),
            ("GiB measured", lambda run: "-" if run.measured_gib is None else f"{run.measured_gib:.1f}"),
            ("GiB predicted", lambda run: "-" if run.predicted_gib is None else f"{run.predicted_gib:.1f}"),
        ],
        "torchtitan's own benchmarks (autoconfig/data/published/unseen_measurements.csv): in no fit, bar or band. Its "
        "H100s have slower memory and less power than the catalogue's 80 GB HBM3 at 700 W, which they are predicted as. Memory "
        "is what torch reserved.",
    )


def verdict_sheet(found: Validation) -> Sheet:
    """`fits` against what happened."""
    return _sheet(
        f"Fits or not: {labelled_source()}, the only source with out-of-memory labels",
        found.verdicts,
        [
            ("constants", lambda v: v.constants),
            ("out of memory, right", lambda v: f"{share(v.oom_right)} of {v.oom_rows}"),
            ("ran, right", lambda v: f"{share(v.ran_right)} of {v.ran_rows}"),
            ("Brier score", lambda v: f"{v.brier:.3f}"),
            ("offsets GiB by fold", lambda v: ", ".join(f"{offset:+.1f}" for offset in v.offsets_gib) or "-"),
            ("holds", lambda v: _yes(v.holds)),
        ],
        "Asked for, with its documented stack and cross-validated: each right for at least 95 %. Only four groups exist.",
    )


def headline_sheet(found: Validation) -> Sheet:
    """The field's headlines beside ours."""
    return _sheet(
        "Headline results of the field",
        found.headlines,
        [
            ("headline", lambda line: line.title),
            ("case", lambda line: line.label),
            ("published", lambda line: "-" if line.published is None else f"{line.published:g} {line.unit}"),
            ("ours", lambda line: "-" if line.ours is None else f"{line.ours:.4g}"),
            ("deviation", lambda line: share(line.deviation, sign=True)),
            ("cause, where beyond 10 %", lambda line: line.cause),
        ],
        "Shipped calibration, software of the time. Deviation: ours over published, of overheads and gains too.",
    )


def gpu_sheet(runs: Sequence[GpuRun]) -> Sheet:
    """Jobs of `make gpu`, measured and predicted."""

    def error(predicted: float | None, measured: float | None) -> str:
        return share(predicted / measured - 1, sign=True) if measured and predicted else "-"

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    return _sheet(
        "Jobs of make gpu",
        runs,
        [
            ("device", lambda run: run.device),
            ("job", lambda run: f"{run.model} {run.plan}"),
            ("of", lambda run: "run" if run.rank is None else f"rank {run.rank}"),
            ("GiB", lambda run: "out of memory" if run.measured_gib is None else f"{run.measured_gib:.3f}"),
            ("predicted", lambda run: f"{run.predicted_gib:.3f}"),
            ("error", lambda run: error(run.predicted_gib, run.measured_gib)),
            ("fits", lambda run: "right" if run.agrees else "wrong"),
            ("seconds", lambda run: seconds(run.measured_seconds)),
            ("predicted", lambda run: seconds(run.predicted_seconds)),
            ("error", lambda run: error(run.predicted_seconds, run.measured_seconds)),
        ],
        "Predicted without any of these results. Seconds: a step of a run, one micro-batch's compute of an emulated rank "
        "(last stage only). fits: whether the job was called rightly to fit or not to fit.",
    )


IN_SAMPLE = (
    "Constants: the shipped calibration, which has seen most of these runs. With constants that have not: "
    "--leave-one-source-out or --leave-one-model-out."
)


def show_validation(console: Console, found: Validation) -> None:
    """Every table on the screen; first which constants were used."""
    console.print(IN_SAMPLE if found.leave_out is None else f"Constants: {found.constants}.", highlight=False)
    console.print()
    for sheet in sheets(found):
        table = Table(title=sheet.title, box=None, padding=(0, 1), header_style="bold", title_justify="left")
        for number, column in enumerate(sheet.columns):
            table.add_column(column, overflow="fold", justify="left" if number == 0 else "default")
        for line in sheet.lines:
            table.add_row(*(escape(text) for text in line))
        console.print(table)
        if sheet.note:
            console.print(f"[dim]{escape(sheet.note)}[/dim]")


def show_serving_validation(console: Console, found: ServingValidation) -> None:
    """The figures of serving beside their bars, then every source."""
    how = "constants that have not seen the run's source" if found.held_out else "the shipped constants (seen runs)"
    console.print(f"Published serving runs, predicted with {how}", highlight=False)
    console.print(_serving_table(found.figures, with_bars=True))
    console.print(_serving_table(found.sources, with_bars=False))
    for reason, count in found.unpredicted:
        console.print(f"  [dim]{count:>4} {escape(reason)}[/dim]", highlight=False)
    console.print("Not judged: the NeMo launcher rows (T5, or GPU counts that contradict their own text).", highlight=False)


def _serving_table(figures: Sequence[Figure], *, with_bars: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("what", "runs", "error or share", "median error", *(("bar", "met") if with_bars else ())):
        table.add_column(name, justify="left" if name == "what" else "right")
    for one in figures:
        bar = "" if one.bar is None else f"{'>=' if one.at_least else '<='} {one.bar:g} %"
        met = "" if one.met is None else _yes(one.met)
        median = "" if one.median is None else f"{one.median:+.1f} %"
        table.add_row(escape(one.name), f"{one.rows:,}", f"{one.value:.1f} %", median, *((bar, met) if with_bars else ()))
    return table


def markdown(sheet: Sheet) -> str:
    """The table in Markdown."""
    rows = [sheet.columns, tuple("---" for _ in sheet.columns), *sheet.lines]
    text = "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)
    return f"### {sheet.title}\n\n{text}\n" + (f"\n{sheet.note}\n" if sheet.note else "")
