"""A validation as tables, and on the screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.calibration.gpu_runs import GpuRun
from autoconfig.training.price import band_of
from validation.sheets.bands import POOLED, Coverage
from validation.sheets.blind import BlindBar
from validation.sheets.first_plans import summaries
from validation.sheets.groups import Bar, Figures
from validation.sheets.memory import labelled_source
from validation.sheets.published_plans import PlacedPlan, plans_summary
from validation.sheets.serving import Figure, ServingValidation
from validation.sheets.validate import Validation, judged_lines
from validation.sources import sources

TITLE = {
    None: "in-sample",
    "source": "leave one source out",
    "model": "leave one model out",
    "pair": "leave one (model, GPU) out",
    "release": "leave one release out",
}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table with a title and a sentence below."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""


class _Cell(Formatter):
    """Texts of an item: `{all.rows}` an attribute (None is a dash), `{mean:.1%}` a share in percent, `{holds!y}` yes or NO."""

    def get_field(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        value = args[0]
        for part in name.split("."):
            value = None if value is None else getattr(value, part)
        return value, name

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return _yes(value) if conversion == "y" else super().convert_field(value, conversion)

    def format_field(self, value: Any, spec: str) -> str:
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return "-"
        text = format(value, spec)
        return text.replace("%", " %") if spec.endswith("%") else text


def _sheet(
    title: str, items: Iterable[Any], columns: str, note: str = "", texts: Mapping[str, Callable[[Any], str]] | None = None
) -> Sheet:
    """One line an item; `columns`: `name: text of an item | name: ...`; `texts`: column -> what no format says."""
    named = [column.split(": ", 1) for column in columns.split(" | ")]
    of, cell = texts or {}, _Cell()
    lines = tuple(
        tuple(of[form](item) if form in of else cell.vformat(form, (item,), {}) for _, form in named) for item in items
    )
    return Sheet(title=title, columns=tuple(name for name, _ in named), lines=lines, note=note)


def share(value: float | None, spec: str = ".1%") -> str:
    """A percentage; a dash where there is none."""
    return _Cell().format_field(value, spec)


def _yes(holds: bool | None) -> str:
    return "not judged" if holds is None else "yes" if holds else "NO"


def sheets(found: Validation) -> list[Sheet]:
    """Every table that this validation can fill: first the groups that are held to a bar."""
    every = [bar_sheet(found), error_sheet(found), line_sheet(found), coverage_sheet(found), decision_sheet(found)]
    every += [publisher_sheet(found), reading_sheet(found), plan_sheet(found.placed), memory_sheet(found)]
    every += [verdict_sheet(found), headline_sheet(found), first_plan_summary_sheet(found), unseen_sheet(found)]
    every += [encoder_sheet(found), gpu_sheet(found.gpu_runs)]
    return [sheet for sheet in every if sheet.lines]


def error_sheet(found: Validation) -> Sheet:
    """By source and GPU: all rows, and dense ones above 1B parameters."""
    return _sheet(
        f"Step time by source and GPU, {TITLE[found.leave_out]}",
        found.groups,
        "source: {source} | GPU: {gpu} | rows: {rows} | covered: covered | mean: {all.mean:.1%} | median: {all.median:.1%} | "
        "bias: {all.bias:+.1%} | worst: worst | dense > 1B: {large.rows} | mean: {large.mean:.1%} | not covered: uncovered",
        f"Constants: {found.constants}. Errors are shares of the measured step; bias: median of predicted / measured - 1.",
        {
            "covered": lambda g: str(g.all.rows) if g.all else "0",
            "worst": lambda g: _worst(g.all),
            "uncovered": lambda g: "; ".join(f"{count} {reason}" for reason, count in g.uncovered.items()),
        },
    )


def _worst(figures: Figures | None) -> str:
    return "-" if figures is None else f"{share(figures.worst, '+.1%')} {figures.worst_id}"


def bar_sheet(found: Validation) -> Sheet:
    """The errors of step times that the project holds itself to."""
    return _sheet(
        f"Held to, {TITLE[found.leave_out]}",
        found.bars,
        "group: {name} | rule: rule | rows: rows | mean: {reached.mean:.1%} | median: {reached.median:.1%} | "
        "bias: {reached.bias:+.1%} | worst: worst | at most: most | holds: {holds!y}",
        texts={
            "most": _asked,
            "rule": lambda b: f"{'in-sample; asked for ' if b.in_sample else ''}without its {b.leave_out}",
            "rows": lambda b: str(b.reached.rows) if b.reached else "0",
            "worst": lambda b: _worst(b.reached),
        },
    )


def _asked(bar: Bar) -> str:
    return ", ".join((share(bar.most), *(f"{name} {share(most)}" for name, most in bar.asked.items())))


def blind_sheet(found: Sequence[BlindBar]) -> Sheet:
    """Every bar, the worst first: the blind reading of its rows, and what it is judged by."""
    return _sheet(
        "Step times of models above 1B parameters, the worst first",
        sorted(found, key=lambda b: (b.holds and b.bar.holds, -b.blind.mean)),
        "group: {bar.name} | rows: {bar.reached.rows} | blind, mean: {blind.mean:.1%} | bias: {blind.bias:+.1%} | "
        "worst: worst | at most: {most:.1%} | holds: {holds!y} | with its own stack: {bar.reached.mean:.1%} | "
        "without its: {bar.leave_out} | median: {bar.reached.median:.1%} | bias: {bar.reached.bias:+.1%} | at most: asked | "
        "holds: {bar.holds!y}",
        "Bias: median of predicted / measured - 1; above 0 we say too slow. At most: of the mean, and where they are named of "
        "the median and of the bias, either way.",
        {"worst": lambda b: _worst(b.blind), "asked": lambda b: _asked(b.bar)},
    )


def line_sheet(found: Validation) -> Sheet:
    """Bands, decisions, memory and published plans against what was asked for."""

    def asked(line: Any) -> str:
        prefix = "at least " if line.most is None else "at most " if line.least is None else ""
        return prefix + " to ".join(share(end) for end in (line.least, line.most) if end is not None)

    columns = "line: {name} | asked for: asked | reached: {reached:.1%} | holds: {holds!y}"
    lines = sorted(judged_lines(found), key=lambda line: line.holds)
    return _sheet("Also held to, what is missed first", lines, columns, texts={"asked": asked})


def reading_sheet(found: Validation) -> Sheet:
    """The same figures read in the way that is hardest on us."""
    columns = "figure: {name} | rows: {rows} | as held to: {usual:.1%} | harder reading: {harder:.1%} | "
    columns += "what is read differently: {why}"
    return _sheet("Harder readings of the same figures", found.readings, columns)


def coverage_sheet(found: Validation) -> Sheet:
    """Bands from other sources, and how many left-out runs they hold."""

    def ends(line: Coverage) -> str:
        band = band_of(line.level, found.bands)
        return f"{band.p5:.3f} to {band.p95:.3f}"

    left = [f"{s.match} ({s.why})" for s in sources() if "bands" not in s.use and not s.publisher]
    return _sheet(
        "90 % bands: from the other sources only",
        found.coverage,
        "class: {level} | rows: {rows} | sources: {sources} | inside, sources equal: {inside:.1%} | "
        "inside, by row: {inside_by_row:.1%} | median half-width, by row: {half_width:.1%} | "
        "sources equal: {half_width_by_source:.1%} | band: ends",
        f"`{POOLED}` is every run with the band of its class. Not counted: {'; '.join(left)}.",
        {"ends": ends},
    )


def publisher_sheet(found: Validation) -> Sheet:
    """Bands of publishers that nothing has seen."""
    return _sheet(
        "90 % bands by publisher: neither constants nor bands know the run's publisher",
        found.by_publisher,
        "class: {level} | rows: {rows} | publishers: {sources} | inside, weight n / (n + 2): {inside_by_weight:.1%} | "
        "publishers equal: {inside:.1%} | by row: {inside_by_row:.1%} | median half-width: {half_width:.1%}",
        "The class is what a planner without that publisher would say. Of mixtures, all tables but one run are NVIDIA's: "
        "without them nothing was known of experts.",
    )


def decision_sheet(found: Validation) -> Sheet:
    """Rankings of measured plans."""
    return _sheet(
        "Decisions: groups of one architecture, GPUs, sequence and batch with at least 6 timed plans",
        found.decisions,
        "source: {source} | constants: {constants} | groups: {groups} | rows: {rows} | "
        "Spearman (min): {spearman_median:.2f} ({spearman_min:.2f}) | "
        "regret mean / max: {regret_mean:.1%} / {regret_max:.1%} | "
        "best of three: {regret_first_three_mean:.1%} / {regret_first_three_max:.1%} | mean error: {mean_error:.1%}",
        "Regret: measured time of our first choice over the best measured, less 1.",
    )


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
        "question: {model}, {gpus} x {gpu}, batch {batch}, {precision} | published plan: {plan} | our first: {first} | "
        "ratio: {ratio:.2f} | rank: where | what separates them: {separates}",
        f"{summary['rows']} rows are {summary['plans']} plans; {summary['hold']} are within 1.10 x our first and in the first "
        f"5 %; median percentile {summary['median_percentile']:.2f} %, median ratio {summary['median_ratio']:.3f}; "
        f"{summary['refused']} are not legal or do not fit for us (their ratio is printed all the same).",
        {"where": where},
    )


def mixture_sheet(placed: Sequence[PlacedPlan]) -> Sheet:
    """Mixtures of recent releases that are beyond the bars among the plans that need no more memory."""
    mine = [plan for plan in placed if plan.recent_mixture]
    return _sheet(
        "Published mixtures of 2025 and 2026 beyond the bars at their memory",
        [plan for plan in mine if not plan.holds_at_memory],
        "question: {model}, {gpus} x {gpu}, batch {batch}, {precision} | published plan: {plan} | "
        "our first at its memory: {first_at_memory} | ratio: {ratio_at_memory:.2f} | "
        "faster layouts: {percentile_at_memory:.1f} % | what separates them, predicted: {separates_at_memory}",
        f"{sum(plan.holds_at_memory for plan in mine)} of {len(mine)} plans are within 1.10 x the first of the plans that need "
        "no more predicted memory, and in the first 5 % of their layouts. Parts are shares of our first's step.",
    )


def memory_sheet(found: Validation) -> Sheet:
    """Peaks by source and stack."""
    return _sheet(
        "Peak memory by source and stack",
        found.memory,
        "source: {source} | stack: {stack} | what was measured: {rank} | rows: {rows} | covered: {covered} | "
        "mean: {mean:.2%} | median: {median:.2%} | bias: {bias:+.2%} | worst: {worst:+.2%} {worst_id}",
    )


def first_plan_summary_sheet(found: Validation) -> Sheet:
    """What first plans promise, by kind of question."""
    return _sheet(
        "First plans: the best published run of a question over what our first plan promises",
        summaries(found.first_plans) if found.first_plans else (),
        "questions: {name} | rows: {rows} | median: {median:.2f} | least: {least:.2f} | below 0.80: {below} | "
        "inside the plan's own band: {inside:.1%} | our first over their plan, predicted: {optimism:+.1%}",
        "Tokens a second. A question is a model on a number of GPUs in a precision; our search is free, its first plan "
        "never measured. The last column is what our search believes to gain over the published plan: luck among many "
        "plans, or a plan that nobody tried. Tuned: without rows that have a cause beside them in the list.",
    )


def first_plan_sheet(found: Validation) -> Sheet:
    """Every question, the worst promise first."""
    return _sheet(
        "First plans, question by question",
        sorted(found.first_plans, key=lambda plan: plan.ratio),
        "row: {id} | source: {source} | model: {model} | GPUs: where | precision: {precision} | software: {software} | "
        "published tokens/s/GPU: {published:,.0f} | promised: {promised:,.0f} | published / promised: {ratio:.2f} | "
        "of the published plan: {own:.2f} | our first plan: {plan} | cause: why",
        texts={"where": lambda plan: f"{plan.gpus:,} x {plan.gpu}", "why": lambda plan: plan.cause or plan.separates},
    )


def unseen_sheet(found: Validation) -> Sheet:
    """Runs that no constant has seen and that were added after the formulas."""
    return _sheet(
        "Runs added after the formulas",
        found.unseen,
        "row: {id} | source: {source} | run: {what} | remark: {remark} | measured: {measured_s:.3g} s | "
        "predicted: {predicted_s:.3g} s | error: {error:+.1%} | inside the band: {inside!y} | "
        "GiB measured: {measured_gib:.1f} | GiB predicted: {predicted_gib:.1f}",
        "validation/tables/unseen_measurements.csv: in no fit or band, torchtitan's up to 8,192 tokens in a bar. Its "
        "H100s have HBM2e and a limit of 500 W, given by the columns memory_bandwidth and power_limit; its memory is what "
        "torch reserved. The others (UN) were written down and predicted first; the figures here are those after what "
        "`looked at` names was mended. DeepSeek-V3 in NeMo 25.04 on GB200 took more than twice our step: why is not known. "
        "Megatron-Bridge's cards of August 2026 are not looked at: tuned recipes, and recipes as they come on real data, whose "
        "experts are not balanced and whose packed samples have a loop of the host for every sequence, neither of them priced.",
    )


def encoder_sheet(found: Validation) -> Sheet:
    """T5, mT5 and BERT."""
    return _sheet(
        "T5, mT5 and BERT",
        found.encoders,
        "figure: {name} | rows: {rows} | reached: {reached:.1%} | at most: {most:.0%} | holds: {holds!y}",
        "Megatron-LM's CI (A100, H100, GB200) and the README of NeMo-Framework-Launcher (A100), "
        "validation/tables/t5_bert.csv: in no fit. A rate counts the encoder's tokens.",
    )


def verdict_sheet(found: Validation) -> Sheet:
    """`fits` against what happened."""
    return _sheet(
        f"Fits or not: {labelled_source()}, the only source with out-of-memory labels",
        found.verdicts,
        "constants: {constants} | out of memory, right: {oom_right:.1%} of {oom_rows} | "
        "ran, right: {ran_right:.1%} of {ran_rows} | Brier score: {brier:.3f} | offsets GiB by fold: offsets | "
        "holds: {holds!y}",
        "Asked for, with its documented stack and cross-validated: each right for at least 95 %. Only four groups exist.",
        {"offsets": lambda v: ", ".join(f"{offset:+.1f}" for offset in v.offsets_gib) or "-"},
    )


def headline_sheet(found: Validation) -> Sheet:
    """The field's headlines beside ours."""
    return _sheet(
        "Headline results of the field",
        found.headlines,
        "headline: {title} | case: {label} | published: published | ours: {ours:.4g} | deviation: {deviation:+.1%} | "
        "cause, where beyond 10 %: {cause}",
        "Shipped calibration, software of the time. Deviation: ours over published, of overheads and gains too.",
        {"published": lambda line: "-" if line.published is None else f"{line.published:g} {line.unit}"},
    )


def gpu_sheet(runs: Sequence[GpuRun]) -> Sheet:
    """Jobs of `make gpu`, measured and predicted."""

    def error(predicted: float | None, measured: float | None) -> str:
        return share(predicted / measured - 1, "+.1%") if measured and predicted else "-"

    return _sheet(
        "Jobs of make gpu",
        runs,
        "device: {device} | job: {model} {plan} | of: of | GiB: peak | predicted: {predicted_gib:.3f} | error: peak_error | "
        "fits: fits | seconds: {measured_seconds:.4g} | predicted: {predicted_seconds:.4g} | error: seconds_error",
        "Predicted without any of these results. Seconds: a step of a run, one micro-batch's compute of an emulated rank "
        "(last stage only). fits: whether the job was called rightly to fit or not to fit.",
        {
            "of": lambda run: "run" if run.rank is None else f"rank {run.rank}",
            "peak": lambda run: "out of memory" if run.measured_gib is None else f"{run.measured_gib:.3f}",
            "peak_error": lambda run: error(run.predicted_gib, run.measured_gib),
            "fits": lambda run: "right" if run.agrees else "wrong",
            "seconds_error": lambda run: error(run.predicted_seconds, run.measured_seconds),
        },
    )


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
