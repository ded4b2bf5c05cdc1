"""Tables of plans: their degrees in columns, as on the page, and what they reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape

from autoconfig.planning.money import money_text
from autoconfig.render.screen import amount_text, seconds_text, show_assumptions, show_table, without_empty
from autoconfig.specs.errors import GIB, chance_text
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import DEGREES, NONE, TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario
from autoconfig.training.answer import IncludedPlan, RankedPlan, SearchAnswer, reason_for
from autoconfig.training.price import PlanReport
from autoconfig.training.question import Question

SHOWN_DEGREES = tuple(key for key in DEGREES if key != "etp")
"""Keys of a plan with a column of their own."""
SPARE = ("TFLOPS", "MFU", "tokens/s/GPU")
"""What a narrow screen does without, first the first."""


def plan_table(console: Console, answer: SearchAnswer) -> None:
    """One row per plan, and one per plan that the caller named and that fits, marked by a +; on a narrow terminal what has no
    column stands under its row, so that nothing is cut. Then all of them in the short form."""
    degrees, rows = degree_cells(answer.plans, answer)
    names = [*degrees, *FIGURES, "days", "cost", "also"]
    cells = [[*line, *figures(one), days_cell(one), amount_text(one.cost), also(one.plan)] for line, one in rows]
    names, cells = without_empty(names, cells, ("days", "cost"))
    show_table(console, names, cells, left=("also",), below=("also",), spare=SPARE)
    for line, report in rows:
        console.print(f"{line[0]} {report.plan}", markup=False, soft_wrap=True)


def degree_cells(plans: Sequence[RankedPlan], answer: SearchAnswer) -> tuple[list[str], list[tuple[list[str], PlanReport]]]:
    """(heads, the cells of each row with its plan): places with a mark where the first are a tie, and degrees; behind the plans
    those that the caller named and that fit."""
    keys = [key for key in SHOWN_DEGREES if key != "ep" or answer.question.scenario.model.is_moe]
    rows = [(f"{one.rank}{'=' if one.tie_group == 1 and answer.ties > 1 else ''}", one.report) for one in plans]
    rows += [("+", one.report) for one in answer.included if one.report is not None and one.report.fits]
    cells = [([place, *(f"{getattr(one.plan, key)}" for key in keys)], one) for place, one in rows]
    return ["#", *map(str.upper, keys)], cells


def also(plan: TrainPlan) -> str:
    """What a plan says beside its degrees and is not as most plans: recomputation, uneven stages, sharding."""
    usual = {*(f"{key}={getattr(plan, key)}" for key in SHOWN_DEGREES), f"sp={int(plan.tp > 1)}", f"recompute={NONE}"}
    return ",".join(part for part in str(plan).split(",") if part not in usual)


FIGURES = ("step", "tokens/s/GPU", "TFLOPS", "MFU", "peak/limit", "fit")


def figures(report: PlanReport) -> list[str]:
    """The cells of FIGURES."""
    return [
        seconds_text(report.step_seconds),
        f"{report.tokens_per_second_per_gpu:,.0f}",
        f"{report.model_flops_per_second_per_gpu / 1e12:,.0f}",
        f"{report.mfu:.1%}",
        f"{report.peak_bytes / GIB:.1f}/{report.limit_bytes / GIB:.1f}",
        chance_text(report.confidence.fit_probability),
    ]


def _figure(place: int, report: PlanReport, _: Sequence[PlanReport]) -> str:
    return figures(report)[place]


def named_figures(report: PlanReport) -> str:
    """The same with what each is."""
    step, rate, flops, mfu, memory, chance = figures(report)
    return f"{step} a step, {rate} tokens/s/GPU, {flops} TFLOPS, MFU {mfu}, {memory} GiB, chance to fit {chance}"


def show_compared(console: Console, answers: Sequence[SearchAnswer]) -> None:
    """The best plan of each question, one line each: questions that differ in their GPU or precision."""
    scenario = answers[0].question.scenario
    stacks = ", ".join(dict.fromkeys(answer.question.scenario.software.name for answer in answers))
    console.print(
        f"[bold]{escape(scenario.model.name)}[/bold] ({total_parameters(scenario.model) / 1e9:,.1f} B parameters)"
        f"{adapters_text(scenario.numerics)}, {workload_text(scenario)}; software {stacks}; the best plan of each"
    )
    columns: dict[str, BesideCell] = {
        **{name: partial(_figure, place) for place, name in enumerate(FIGURES)},
        "ratio": lambda one, others: speed_ratio(one, others) if len(others) > 1 else "",
        "days": lambda one, _: days_cell(one),
        "cost": lambda one, _: cost_cell(one),
        "cost ratio": cost_ratio,
        "plan": lambda one, _: str(one.plan),
    }
    names, rows = compared_cells(answers, columns)
    show_table(console, names, rows, left=("GPUs", "plan"), below=("plan",), spare=SPARE)
    for answer in answers:
        if answer.question.varied and answer.plans:
            said = f"{named(answer)}: fastest with {answer.question.varied[0].words} (--vary)"
            console.print(said, markup=False, highlight=False)
    console.print("[dim]peak and limit in GiB of the worst stage, fit the chance not to run out of it.[/dim]")
    show_assumptions(console, (remark for answer in answers for remark in answer.question.assumed))


COST_PER_BILLION = "cost/B"
"""Money for a billion tokens, at --price without --tokens."""


def cost_per_billion(report: PlanReport) -> str:
    """Its cell."""
    cost = report.cost_per_billion_tokens
    return "" if cost is None else money_text(cost)


def days_cell(report: PlanReport) -> str:
    """Days to train the tokens."""
    return amount_text(report.days_to_train, 1)


def cost_cell(report: PlanReport) -> str:
    """Money for the tokens, or for a billion of them where nothing says how many."""
    return amount_text(report.cost) if report.cost is not None else cost_per_billion(report)


def speed_ratio(report: PlanReport, reports: Sequence[PlanReport]) -> str:
    """Tokens per second over those of the first."""
    return f"{report.tokens_per_second_per_gpu / reports[0].tokens_per_second_per_gpu:.2f}x"


def cost_ratio(report: PlanReport, reports: Sequence[PlanReport]) -> str:
    """Money for a token over that of the first that has a price."""
    rate = report.cost_per_billion_tokens
    return "" if rate is None else f"{rate / next(filter(None, (one.cost_per_billion_tokens for one in reports))):.2f}x"


MONEY = ("ratio", "days", "cost", COST_PER_BILLION, "cost ratio")
BesideCell = Callable[[PlanReport, Sequence[PlanReport]], str]
"""A cell of a plan beside those that it is compared with."""


def compared_cells(answers: Sequence[SearchAnswer], columns: Mapping[str, BesideCell]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a comparison: of each question its GPUs and what the columns say of its best plan beside the first that
    has what they compare, or why it has none; without columns of money that say nothing."""
    reports = [answer.plans[0].report for answer in answers if answer.plans]
    days = any(one.days_to_train is not None for one in reports)
    names = [COST_PER_BILLION if name == "cost" and not days else name for name in columns]
    rows = []
    for answer in answers:
        why = "nothing fits" if answer.nothing_legal is None else "no legal plan"
        best = answer.plans[0].report if answer.plans else None
        cells = [why, *[""] * (len(names) - 1)] if best is None else [cell(best, reports) for cell in columns.values()]
        rows.append([named(answer), *cells])
    return without_empty(["GPUs", *names], rows, MONEY)


def named(answer: SearchAnswer) -> str:
    """GPUs and precision of one question of a comparison."""
    scenario = answer.question.scenario
    return f"{scenario.cluster.num_gpus:,} x {scenario.cluster.gpu.id}, {scenario.numerics.precision}"


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
