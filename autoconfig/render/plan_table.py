"""Tables of plans: their degrees in columns, as on the page, and what they reach."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from autoconfig.planning.money import money_text
from autoconfig.render.screen import seconds_text, show_assumptions, show_table
from autoconfig.specs.errors import GIB, chance_text
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario
from autoconfig.training.answer import IncludedPlan, SearchAnswer, reason_for
from autoconfig.training.price import PlanReport
from autoconfig.training.question import Question

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp", "mbs")
"""Keys of a plan with a column of their own."""
SPARE = ("TFLOPS", "MFU", "tokens/s/GPU")
"""What a narrow screen does without, first the first."""


def plan_table(console: Console, answer: SearchAnswer) -> None:
    """One row per plan, and one per plan that the caller named and that fits, marked by a +; on a narrow terminal what has no
    column stands under its row, so that nothing is cut. Then all of them in the short form."""
    ranked = [(f"{one.rank}{'=' if one.tie_group == 1 and answer.ties > 1 else ''}", one.report) for one in answer.plans]
    rows = [*ranked, *(("+", one.report) for one in answer.included if one.report is not None and one.report.fits)]
    degrees = [key for key in DEGREES if key != "ep" or answer.question.scenario.model.is_moe]
    names = ["#", *map(str.upper, degrees), "step", "tokens/s/GPU", "TFLOPS", "MFU", "peak/limit", "fit"]
    names += ["days"] if ranked[0][1].days_to_train is not None else []
    names += ["cost"] if ranked[0][1].cost is not None else []
    cells = []
    for rank, report in rows:
        sizes = [f"{getattr(report.plan, key)}" for key in degrees]
        line = [rank, *sizes, *figures(report), chance_text(report.confidence.fit_probability)]
        line += [f"{report.days_to_train:,.1f}"] if report.days_to_train is not None else []
        line += [f"{report.cost:,.0f}"] if report.cost is not None else []
        cells.append([*line, also(report.plan)])
    show_table(console, [*names, "also"], cells, left=("also",), below=("also",), spare=SPARE)
    for rank, report in rows:
        console.print(f"{rank} {report.plan}", markup=False, soft_wrap=True)


def also(plan: TrainPlan) -> str:
    """What a plan says beside its degrees and is not as most plans: recomputation, uneven stages, sharding."""
    usual = {*(f"{key}={getattr(plan, key)}" for key in DEGREES), f"sp={int(plan.tp > 1)}", f"recompute={NONE}"}
    return ",".join(part for part in str(plan).split(",") if part not in usual)


def figures(report: PlanReport) -> list[str]:
    """Step, tokens, TFLOPS, MFU, memory, in texts."""
    return [
        seconds_text(report.step_seconds),
        f"{report.tokens_per_second_per_gpu:,.0f}",
        f"{report.model_flops_per_second_per_gpu / 1e12:,.0f}",
        f"{report.mfu:.1%}",
        f"{report.peak_bytes / GIB:.1f}/{report.limit_bytes / GIB:.1f}",
    ]


def named_figures(report: PlanReport) -> str:
    """The same with what each is."""
    step, rate, flops, mfu, memory = figures(report)
    chance = chance_text(report.confidence.fit_probability)
    return f"{step} a step, {rate} tokens/s/GPU, {flops} TFLOPS, MFU {mfu}, {memory} GiB, chance to fit {chance}"


def show_compared(console: Console, answers: Sequence[SearchAnswer]) -> None:
    """The best plan of each question, one line each: questions that differ in their GPU or precision."""
    scenario = answers[0].question.scenario
    stacks = ", ".join(dict.fromkeys(answer.question.scenario.software.name for answer in answers))
    console.print(
        f"[bold]{escape(scenario.model.name)}[/bold] ({total_parameters(scenario.model) / 1e9:,.1f} B parameters)"
        f"{adapters_text(scenario.numerics)}, {workload_text(scenario)}; software {stacks}; the best plan of each"
    )
    rows, reports = [], [answer.plans[0].report for answer in answers if answer.plans]
    money = _money_columns(reports)
    for answer in answers:
        scenario = answer.question.scenario
        name = f"{scenario.cluster.num_gpus:,} x {scenario.cluster.gpu.id}, {scenario.numerics.precision}"
        best = answer.plans[0].report if answer.plans else None
        chance = "" if best is None else chance_text(best.confidence.fit_probability)
        shown = (
            ["nothing fits" if answer.nothing_legal is None else "no legal plan", *[""] * 5]
            if best is None
            else [*figures(best), chance]
        )
        shown += _money_cells(best, reports, money)
        rows.append([name, *shown, "" if best is None else str(best.plan)])
    names = ["GPUs", "step", "tokens/s/GPU", "TFLOPS", "MFU", "peak/limit", "fit", *money, "plan"]
    show_table(console, names, rows, left=("GPUs", "plan"), below=("plan",), spare=SPARE)
    for row, answer in zip(rows, answers, strict=True):
        if answer.question.varied and answer.plans:
            console.print(f"{row[0]}: fastest with {answer.question.varied[0].words} (--vary)", markup=False, highlight=False)
    console.print("[dim]peak and limit in GiB of the worst stage, fit the chance not to run out of it.[/dim]")
    show_assumptions(console, (remark for answer in answers for remark in answer.question.assumed))


COST_PER_BILLION = "cost/B"
"""Money for a billion tokens, at --price without --tokens."""


def cost_per_billion(report: PlanReport) -> str:
    """Its cell."""
    cost = report.cost_per_billion_tokens
    return "" if cost is None else money_text(cost)


def _money_columns(reports: Sequence[PlanReport]) -> list[str]:
    """Of a comparison: tokens per second of all GPUs over those of the first, and where they are known days and cost."""
    days = any(report.days_to_train is not None for report in reports)
    priced = any(report.cost_per_billion_tokens is not None for report in reports)
    return ["ratio"] * (len(reports) > 1) + ["days"] * days + ["cost" if days else COST_PER_BILLION, "cost ratio"] * priced


def _money_cells(report: PlanReport | None, reports: Sequence[PlanReport], columns: Sequence[str]) -> list[str]:
    if report is None:
        return [""] * len(columns)
    first = reports[0]
    rate, rates = report.cost_per_billion_tokens, [one.cost_per_billion_tokens for one in reports]
    first_rate = next(filter(None, rates), None)
    cells = {
        "ratio": f"{report.tokens_per_second_per_gpu / first.tokens_per_second_per_gpu:.2f}x",
        "days": "" if report.days_to_train is None else f"{report.days_to_train:,.1f}",
        "cost": "" if report.cost is None else f"{report.cost:,.0f}",
        COST_PER_BILLION: cost_per_billion(report),
        "cost ratio": "" if rate is None or first_rate is None else f"{rate / first_rate:.2f}x",
    }
    return [cells[name] for name in columns]


FASTEST_SHOWN, IMPOSSIBLE_SHOWN = 4, 2


def show_varied(console: Console, question: Question) -> None:
    """The settings of the switches that --vary tried, fastest first, then those without a plan, a few of them with each reason;
    all where the console is verbose."""
    if not question.varied:
        return
    possible = [one for one in question.varied if not one.reason]
    reasons = {one.reason: one for one in reversed(question.varied) if one.reason}
    shown = [*possible[:FASTEST_SHOWN], *list(reasons.values())[: -IMPOSSIBLE_SHOWN - 1 : -1]]
    shown = list(question.varied) if getattr(console, "verbose", False) else shown
    left = len(question.varied) - len(shown)
    console.print(f"Switches tried (--vary), step of the first plan{f'; {left} more (--verbose)' if left else ''}:")
    for one in shown:
        fastest = "  <- fastest" if one in possible[:1] else ""
        said = f"{one.words}: {one.reason}" if one.reason else f"{seconds_text(one.step_seconds)}  {one.words}{fastest}"
        console.print(f"  {said}", markup=False, highlight=False)


def show_included(console: Console, included: IncludedPlan, answer: SearchAnswer) -> None:
    """Rank and percentile of a plan that the caller named and why it is no better, or what speaks against it."""
    console.print(f"[bold]Included[/bold] {included_text(included, answer)}")


def included_text(included: IncludedPlan, answer: SearchAnswer) -> str:
    """The plan that was named, or the best with its keys, and its place, in the markup of rich."""
    name = f"{escape(str(included.plan))}{escape(_completed(included))}: "
    if not included.legal:
        return name + "not legal: " + escape("; ".join(f"{v.rule} {v.text}" for v in included.violations))
    assert included.report is not None
    said = escape(named_figures(included.report))
    first = answer.plans[0].report if answer.plans else None
    if not included.report.fits:
        return f"{name}does not fit, {included.shortfall_gib:.1f} GiB too much ({said})"
    if included.layout_rank is None:
        return f"{name}fits ({said})"
    return (
        f"{name}layout {included.layout_rank:,} of {answer.ranking.funnel.fit:,} "
        f"(first {included.layout_percentile:.1f} %), {escape(reason_for(included.report, first, answer.ranking, -1))}"
    )


def _completed(included: IncludedPlan) -> str:
    """Which keys of a completed plan were the caller's, and what these alone are."""
    if included.given is None:
        return ""
    alone = included.given_report
    beside = f"; {seconds_text(alone.step_seconds)} as written" if alone is not None else "; as written not legal"
    return f" (the best with {included.asked}{beside})"


def asked_text(question: Question) -> str:
    """Model, GPUs, precision and batch: the head of a first screen."""
    scenario = question.scenario
    cluster, numerics = scenario.cluster, scenario.numerics
    adapters = f", LoRA of rank {numerics.lora_rank}" if numerics.peft != "none" else ""
    return (
        f"[bold]{escape(scenario.model.name)}[/bold] ({total_parameters(scenario.model) / 1e9:,.1f} B) on "
        f"[bold]{cluster.num_gpus:,} x {escape(cluster.gpu.id)}[/bold], {precision_text(numerics)}{adapters}, "
        f"{samples_text(scenario)}"
    )


def workload_text(scenario: Scenario) -> str:
    """Sequence and batch, and how dropless experts are routed."""
    return f"{samples_text(scenario, 'global batch')}{routing_text(scenario)}"


def samples_text(scenario: Scenario, batch: str = "batch") -> str:
    """Length of a sample, and samples of a step."""
    work = scenario.workload
    packed = f" packed from sequences of {work.packed_length:,}" if work.packed_length else ""
    runs = f" in {work.schedule_calls:,} runs of the pipeline's schedule" if work.schedule_calls > 1 else ""
    return f"sequence {work.seq_length:,}{packed}, {batch} {work.global_batch_size:,}{runs}"


def routing_text(scenario: Scenario) -> str:
    """How many rows the busiest expert rank has; empty without experts and where tokens are dropped."""
    numerics = scenario.numerics
    if not scenario.model.is_moe or numerics.moe_capacity_factor is not None:
        return ""
    if numerics.moe_imbalance is not None:
        return f", busiest expert rank {numerics.moe_imbalance:g} times its share"
    return f", real routing (busiest expert rank {scenario.software.time.moe_imbalance:g} times its share)"


def precision_text(numerics: Numerics) -> str:
    """The precision, of fp8 with how it is scaled."""
    return f"fp8 ({numerics.fp8_recipe} scaling)" if numerics.precision == "fp8" else numerics.precision


def adapters_text(numerics: Numerics) -> str:
    """What of a model is trained, where it is not all of it."""
    if numerics.peft == "none":
        return ""
    frozen = f" beside weights in {numerics.frozen_dtype}" if numerics.frozen_dtype != "bf16" else ""
    return f", LoRA of rank {numerics.lora_rank} on {' '.join(numerics.lora_target_modules)}{frozen}"
