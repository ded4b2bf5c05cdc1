"""A validation as tables, for the screen and for docs/accuracy.md. No arithmetic beyond units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.accuracy.bands import NOT_FOR_BANDS, POOLED
from autoconfig.accuracy.gpu_runs import GpuRun
from autoconfig.accuracy.groups import Figures
from autoconfig.accuracy.plans import PlacedPlan, plans_summary
from autoconfig.accuracy.validate import Validation, judged_lines
from autoconfig.training.confidence import band_of

TITLE = {None: "in-sample", "source": "leave one source out", "model": "leave one model out"}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table with a title and a sentence below."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""


def share(value: float | None, digits: int = 1, sign: bool = False) -> str:
    """A percentage; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:{'+' if sign else ''}.{digits}f} %"


def sheets(found: Validation) -> list[Sheet]:
    """Every table that this validation can fill."""
    every = [error_sheet(found), bar_sheet(found), line_sheet(found), coverage_sheet(found), decision_sheet(found)]
    every += [reading_sheet(found), plan_sheet(found.placed), memory_sheet(found), verdict_sheet(found), headline_sheet(found)]
    every += [unseen_sheet(found), gpu_sheet(found.gpu_runs)]
    return [sheet for sheet in every if sheet.lines]


def _figures(figures: Figures | None) -> tuple[str, ...]:
    if figures is None:
        return ("0", "-", "-", "-", "-")
    worst = f"{share(figures.worst, sign=True)} {figures.worst_id}"
    return (str(figures.rows), share(figures.mean), share(figures.median), share(figures.bias, sign=True), worst)


def error_sheet(found: Validation) -> Sheet:
    """By source and GPU: all rows, and dense ones above 1B parameters."""
    lines = []
    for group in found.groups:
        large = group.large
        reasons = "; ".join(f"{count} {reason}" for reason, count in group.uncovered.items())
        lines.append(
            (
                group.source,
                group.gpu,
                str(group.rows),
                *_figures(group.all),
                *(("-", "-") if large is None else (str(large.rows), share(large.mean))),
                reasons,
            )
        )
    columns = ("source", "GPU", "rows", "covered", "mean", "median", "bias", "worst", "dense > 1B", "mean", "not covered")
    return Sheet(
        title=f"Step time by source and GPU, {TITLE[found.leave_out]}",
        columns=columns,
        lines=tuple(lines),
        note=f"Constants: {found.constants}. Errors are shares of the measured step; bias: median of predicted / measured - 1.",
    )


def bar_sheet(found: Validation) -> Sheet:
    """The lines that the project holds itself to."""
    lines = [
        (
            bar.name,
            f"in-sample; asked for without its {bar.leave_out}" if bar.in_sample else f"without its {bar.leave_out}",
            *_figures(bar.reached)[:5],
            share(bar.most),
            "not judged" if bar.holds is None else "yes" if bar.holds else "NO",
        )
        for bar in found.bars
    ]
    return Sheet(
        title=f"Held to, {TITLE[found.leave_out]}",
        columns=("group", "rule", "rows", "mean", "median", "bias", "worst", "at most", "holds"),
        lines=tuple(lines),
    )


def line_sheet(found: Validation) -> Sheet:
    """Bands, decisions, memory and published plans against what was asked for."""
    lines = []
    for line in judged_lines(found):
        asked = " to ".join(share(end, 1) for end in (line.least, line.most) if end is not None)
        prefix = "at least " if line.most is None else "at most " if line.least is None else ""
        lines.append((line.name, prefix + asked, share(line.reached), "yes" if line.holds else "NO"))
    return Sheet(title="Also held to", columns=("line", "asked for", "reached", "holds"), lines=tuple(lines))


def reading_sheet(found: Validation) -> Sheet:
    """The same figures read in the way that is hardest on us."""
    lines = [(r.name, str(r.rows), share(r.usual), share(r.harder), r.why) for r in found.readings]
    columns = ("figure", "rows", "as held to", "harder reading", "what is read differently")
    return Sheet(title="Harder readings of the same figures", columns=columns, lines=tuple(lines))


def coverage_sheet(found: Validation) -> Sheet:
    """Bands from other sources, and how many left-out runs they hold."""
    lines = []
    for line in found.coverage:
        band = band_of(line.level, found.bands)
        lines.append(
            (
                line.level,
                str(line.rows),
                str(line.sources),
                share(line.inside),
                share(line.inside_by_row),
                share(line.half_width),
                share(line.half_width_by_source),
                f"{band.p5:.3f} to {band.p95:.3f}",
            )
        )
    left = "; ".join(f"{source} ({why})" for source, why in NOT_FOR_BANDS.items())
    return Sheet(
        title="90 % bands: from the other sources only",
        columns=(
            "class",
            "rows",
            "sources",
            "inside, sources equal",
            "inside, by row",
            "median half-width, by row",
            "sources equal",
            "band",
        ),
        lines=tuple(lines),
        note=f"`{POOLED}` is every run with the band of its class. Not counted: {left}; fine-tuning on packed sequences.",
    )


def decision_sheet(found: Validation) -> Sheet:
    """Rankings of measured plans."""
    lines = [
        (
            line.source,
            line.constants,
            str(line.groups),
            str(line.rows),
            f"{line.spearman_median:.2f} ({line.spearman_min:.2f})" if line.groups else "-",
            f"{share(line.regret_mean)} / {share(line.regret_max)}" if line.groups else "-",
            f"{share(line.regret_first_three_mean)} / {share(line.regret_first_three_max)}" if line.groups else "-",
            share(line.mean_error),
        )
        for line in found.decisions
    ]
    return Sheet(
        title="Decisions: groups of one architecture, GPUs, sequence and batch with at least 6 timed plans",
        columns=("source", "constants", "groups", "rows", "Spearman (min)", "regret mean / max", "best of three", "mean error"),
        lines=tuple(lines),
        note="Regret: measured time of our first choice over the best measured, less 1.",
    )


def plan_sheet(placed: Sequence[PlacedPlan]) -> Sheet:
    """NVIDIA's plans that are beyond the bars, with what separates them."""
    if not placed:
        return Sheet(title="", columns=(), lines=())
    summary = plans_summary(placed)
    lines = []
    for plan in placed:
        if not plan.holds:
            ratio = "-" if plan.ratio is None else f"{plan.ratio:.2f}"
            where = plan.verdict if plan.rank is None else f"{plan.rank:,} of {plan.layouts:,} ({plan.percentile:.1f} %)"
            what = f"{plan.model}, {plan.gpus} x {plan.gpu}, batch {plan.batch}, {plan.precision}"
            lines.append((what, plan.plan, plan.first, ratio, where, plan.separates))
    note = (
        f"{summary['rows']} rows are {summary['plans']} plans; {summary['hold']} are within 1.10 x our first and in the first "
        f"5 %; "
        f"median percentile {summary['median_percentile']:.2f} %, median ratio {summary['median_ratio']:.3f}; "
        f"{summary['refused']} are not legal or do not fit for us (their ratio is printed all the same)."
    )
    columns = ("question", "published plan", "our first", "ratio", "rank", "what separates them")
    return Sheet(title="NVIDIA's published plans beyond the bars", columns=columns, lines=tuple(lines), note=note)


def memory_sheet(found: Validation) -> Sheet:
    """Peaks by source and stack."""
    lines = [
        (
            line.source,
            line.stack,
            line.rank,
            str(line.rows),
            str(line.covered),
            share(line.mean, 2),
            share(line.median, 2),
            share(line.bias, 2, sign=True),
            f"{share(line.worst, 2, sign=True)} {line.worst_id}",
        )
        for line in found.memory
    ]
    columns = ("source", "stack", "what was measured", "rows", "covered", "mean", "median", "bias", "worst")
    return Sheet(title="Peak memory by source and stack", columns=columns, lines=tuple(lines))


def unseen_sheet(found: Validation) -> Sheet:
    """Runs that no constant has seen and that were added after the formulas."""
    lines = [
        (
            run.id,
            run.what,
            run.remark,
            f"{run.measured_s:.3g} s",
            f"{run.predicted_s:.3g} s",
            share(run.error, sign=True),
            "yes" if run.inside else "NO",
            "-" if run.measured_gib is None else f"{run.measured_gib:.1f}",
            "-" if run.predicted_gib is None else f"{run.predicted_gib:.1f}",
        )
        for run in found.unseen
    ]
    columns = (
        "row",
        "run",
        "GPUs as published",
        "measured",
        "predicted",
        "error",
        "inside the band",
        "GiB measured",
        "GiB predicted",
    )
    return Sheet(
        title="Runs added after the formulas",
        columns=columns,
        lines=tuple(lines),
        note="torchtitan's own benchmarks (autoconfig/data/published/unseen_measurements.csv): in no fit, bar or band. Its "
        "H100s have slower memory and less power than the catalogue's 80 GB HBM3 at 700 W, which they are predicted as. Memory "
        "is what torch reserved.",
    )


def verdict_sheet(found: Validation) -> Sheet:
    """`fits` against what happened."""
    lines = [
        (
            line.constants,
            f"{share(line.oom_right)} of {line.oom_rows}",
            f"{share(line.ran_right)} of {line.ran_rows}",
            f"{line.brier:.3f}",
            ", ".join(f"{offset:+.1f}" for offset in line.offsets_gib) or "-",
            "yes" if line.holds else "NO",
        )
        for line in found.verdicts
    ]
    return Sheet(
        title="Fits or not: Aleph Alpha 13B, the only source with out-of-memory labels",
        columns=("constants", "out of memory, right", "ran, right", "Brier score", "offsets GiB by fold", "holds"),
        lines=tuple(lines),
        note="Asked for, with its documented stack and cross-validated: each right for at least 95 %. Only four groups exist.",
    )


def headline_sheet(found: Validation) -> Sheet:
    """The field's headlines beside ours."""
    lines = []
    for line in found.headlines:
        published = "-" if line.published is None else f"{line.published:g} {line.unit}"
        ours = "-" if line.ours is None else f"{line.ours:.4g}"
        lines.append((line.title, line.label, published, ours, share(line.deviation, sign=True), line.cause))
    return Sheet(
        title="Headline results of the field",
        columns=("headline", "case", "published", "ours", "deviation", "cause, where beyond 10 %"),
        lines=tuple(lines),
        note="Shipped calibration, software of the time. Deviation: ours over published, of overheads and gains too.",
    )


def gpu_sheet(runs: Sequence[GpuRun]) -> Sheet:
    """Jobs of `make gpu`, measured and predicted."""
    lines = []
    for run in runs:
        rank = "run" if run.rank is None else f"rank {run.rank}"
        measured = "out of memory" if run.measured_gib is None else f"{run.measured_gib:.3f}"
        memory = share(run.predicted_gib / run.measured_gib - 1, sign=True) if run.measured_gib else "-"
        seconds = (run.measured_seconds, run.predicted_seconds)
        time = share(seconds[1] / seconds[0] - 1, sign=True) if seconds[0] and seconds[1] else "-"
        shown = ("-" if value is None else f"{value:.4g}" for value in seconds)
        verdict = "right" if run.agrees else "wrong"
        predicted = f"{run.predicted_gib:.3f}"
        lines.append((run.device, f"{run.model} {run.plan}", rank, measured, predicted, memory, verdict, *shown, time))
    return Sheet(
        title="Jobs of make gpu",
        columns=("device", "job", "of", "GiB", "predicted", "error", "fits", "seconds", "predicted", "error"),
        lines=tuple(lines),
        note="Predicted without any of these results. Seconds: a step of a run, one micro-batch's compute of an emulated rank "
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


def markdown(sheet: Sheet) -> str:
    """The table in Markdown."""
    rows = [sheet.columns, tuple("---" for _ in sheet.columns), *sheet.lines]
    text = "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)
    return f"### {sheet.title}\n\n{text}\n" + (f"\n{sheet.note}\n" if sheet.note else "")
