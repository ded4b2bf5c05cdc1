"""The first screen of `search`, for one question and for several that are compared."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from autoconfig.render.blocks import NO, ROWS, START, Blocks, capital, fit_text
from autoconfig.render.plan_table import (
    COST_PER_BILLION,
    BesideCell,
    adapters_text,
    asked_text,
    compared_cells,
    cost_cell,
    cost_per_billion,
    cost_ratio,
    days_cell,
    degree_cells,
    included_text,
    named,
    routing_text,
    samples_text,
    show_compared,
    show_varied,
    speed_ratio,
)
from autoconfig.render.screen import seconds_text, show_assumptions, without_empty
from autoconfig.render.training import show_search
from autoconfig.specs.errors import GIB
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.training.answer import RankedPlan, SearchAnswer
from autoconfig.training.price import SAFE_FIT, PlanReport
from autoconfig.training.rank import RESOLUTION
from autoconfig.training.remedies import Remedy
from autoconfig.training.vary import SwitchGain, with_fp8

SORTED = {"step": "step time", "memory": "peak memory", "cost": "cost"}
"""Of a request's `sort_by` the words."""
HELPING, FAILING = 4, 2
"""Remedies that are named where nothing fits."""
COUNTS = 3
"""GPU counts that are named of those that were tried."""


def show(console: Console, answer: SearchAnswer, command: str = "autoconfig explain ...") -> None:
    """What to start and what decides, or why nothing fits; the whole answer where the console is verbose. `command` explains a
    plan that is put behind it."""
    if getattr(console, "verbose", False):
        show_search(console, answer, command)
        return
    question = answer.question
    shown = Blocks()
    shown.head(asked_text(question))
    if answer.plans:
        _start(shown, answer)
        _beside(shown, answer)
        _switches(shown, answer)
    else:
        _nothing_fits(shown, answer)
    for included in answer.included:
        shown.say("yours", included_text(included, answer))
    if answer.plans:
        _table(shown, answer)
    _counts(shown, answer)
    shown.say("calibration", escape(question.scenario.calibration.version), spare=6)
    shown.say("routing", routing_text(question.scenario).removeprefix(", "), spare=3)
    shown.draw(lambda out: show_assumptions(out, question.assumed))
    _next(shown, answer, command)
    shown.show(console)


def _start(shown: Blocks, answer: SearchAnswer) -> None:
    first = answer.plans[0].report
    request = answer.question.request
    if not answer.ranking.fit_chance_met:
        helps = next((str(remedy) for remedy in answer.remedies if remedy.fits), "")
        shown.say(
            NO,
            f"No plan has a chance to fit of {request.fit_chance * 100:.6g}%: the likeliest, below, has "
            f"{fit_text(first.confidence.fit_probability)}" + (f"; what would reach it: {escape(helps)}" if helps else ""),
        )
    label = START if answer.ranking.fit_chance_met else "likeliest"
    band = first.confidence
    money = [] if first.days_to_train is None else [f"{first.days_to_train:,.1f} days"]
    money += [] if first.cost is None else [f"cost {first.cost:,.0f}"]
    if first.cost is None and first.cost_per_billion_tokens is not None:
        money.append(f"cost {cost_per_billion(first)} a billion tokens (--tokens: of all)")
    figures = [
        f"{seconds_text(first.step_seconds)} a step (90 %: {seconds_text(band.step_seconds_p5)} to "
        f"{seconds_text(band.step_seconds_p95)})",
        f"{first.tokens_per_second_per_gpu:,.0f} tokens/s/GPU",
        f"MFU {first.mfu:.1%}",
        f"{first.peak_bytes / GIB:.1f} of {first.limit_bytes / GIB:.1f} GiB",
        f"fits {fit_text(band.fit_probability)}",
        *money,
    ]
    shown.say(label, f"[bold]{escape(str(first.plan))}[/bold]\n{', '.join(figures)}")


def _degrees(plan: TrainPlan) -> tuple[int, ...]:
    return (plan.tp, plan.pp, plan.cp, plan.ep)


def _rows(answer: SearchAnswer) -> list[RankedPlan]:
    """The first plan of each tp x pp x cp x ep, and others where these are few, sorted by what was asked."""
    firsts: dict[tuple[int, ...], RankedPlan] = {}
    for one in answer.plans:
        firsts.setdefault(_degrees(one.report.plan), one)
    chosen = list(firsts.values())[:ROWS]
    chosen += [one for one in answer.plans if one not in chosen][: ROWS - len(chosen)]
    memory = answer.question.request.sort_by == "memory"
    return sorted(chosen, key=lambda one: one.report.peak_bytes if memory else one.report.step_seconds)


def _beside(shown: Blocks, answer: SearchAnswer) -> None:
    """What is equal, what is faster if it fits, what is slower and why, what is safer."""
    first, risky, safe = answer.plans[0].report, answer.riskier, answer.safe
    chance = f"{answer.question.request.fit_chance * 100:.6g}%"
    others = [one for one in answer.plans[1:] if _degrees(one.report.plan) != _degrees(first.plan)] or list(answer.plans[1:])
    equal = _equal(answer, others)
    if equal is not None:
        shown.say(
            "equal",
            f"{escape(str(equal.report.plan))}: {_against(equal.report, first)}; {answer.ties} plans are within "
            f"{RESOLUTION:.0%}, a tie",
        )
    if risky is not None and round(saved := 1 - risky.step_seconds / first.step_seconds, 3) > 0:
        shown.say(
            "faster",
            f"{escape(str(risky.plan))}: {saved:.1%} faster [bold]if it fits[/bold] (chance "
            f"{fit_text(risky.confidence.fit_probability)}, below --fit-chance {chance})",
        )
    if (told := _slower(answer, [one for one in others if one is not equal])) is not None:
        shown.say("slower", f"{escape(str(told.report.plan))}: {escape(told.why)}", spare=1)
    if safe is not None and first.confidence.fit_probability < SAFE_FIT and safe.plan != first.plan:
        shown.say(
            "safer",
            f"{escape(str(safe.plan))}: {seconds_text(safe.step_seconds)}, fits {fit_text(safe.confidence.fit_probability)}",
            spare=2,
        )


def _equal(answer: SearchAnswer, others: Sequence[RankedPlan]) -> RankedPlan | None:
    """A plan that the predictions cannot tell from the first, one of `others` before the rest; None without a tie."""
    if answer.plans[0].tie_group != 1 or answer.ties <= 1:
        return None
    near = [one for one in (*_rows(answer), *answer.plans[1:]) if one.tie_group == 1 and one is not answer.plans[0]]
    return next((one for one in near if one in others), next(iter(near), None))


def _slower(answer: SearchAnswer, others: Sequence[RankedPlan]) -> RankedPlan | None:
    """The first plan of `others` that is beyond the tie, else the slowest of the rows; None where none is slower."""
    slower = [one for one in others if one.report.step_seconds > answer.plans[0].report.step_seconds]
    beyond = next((one for one in slower if one.tie_group > 1), None)
    rows = [one for one in _rows(answer) if one in slower] or slower[-1:]
    return beyond or max(rows, key=lambda one: one.report.step_seconds, default=None)


def _against(report: PlanReport, first: PlanReport) -> str:
    """Step and memory beside the first."""
    ratio, memory = report.step_seconds / first.step_seconds - 1, (report.peak_bytes - first.peak_bytes) / GIB
    less = f", {abs(memory):.1f} GiB {'less' if memory < 0 else 'more'}" if abs(memory) >= 0.05 else ""
    return f"{ratio:+.1%}{less}"


def _switches(shown: Blocks, answer: SearchAnswer) -> None:
    """What other switches make of the step, fp8 among them; those that --vary tried."""
    question, first = answer.question, answer.plans[0].report
    gain = with_fp8(question, first)
    gains = [*([gain] if gain else []), *answer.switches]
    if gains:
        shown.say("switches", f"of START as it is: {escape('; '.join(map(_gain, gains)))}")
    if (other := answer.other_dispatcher) is not None:
        shown.say("or", escape(f"{_gain(other)} with a plan of its own"))
    if question.varied:
        shown.draw(lambda out: show_varied(out, question))
    if answer.other_batch is not None:
        shown.say("batch", f"--global-batch-size: {escape(str(answer.other_batch))}", spare=1)


def _gain(gain: SwitchGain) -> str:
    return f"{gain.change} {seconds_text(gain.step_seconds)} ({gain.ratio - 1:+.0%})"


def _table(shown: Blocks, answer: SearchAnswer) -> None:
    """A line for each plan, the first in bold, then those that the caller named."""
    plans = _rows(answer)
    degrees, rows = degree_cells(plans, answer)
    first, request = answer.plans[0].report, answer.question.request
    cost = "cost" if first.cost is not None else COST_PER_BILLION
    cells = []
    for line, one in rows:
        line.append(seconds_text(one.step_seconds))
        marked = [f"[bold]{cell}[/bold]" for cell in line] if one is first else line
        memory = [fit_text(one.confidence.fit_probability), f"{one.peak_bytes / GIB:.1f}"]
        cells.append([*marked, *memory, days_cell(one), cost_cell(one), _also(one.plan)])
    names, cells = without_empty([*degrees, "step", "fit", "peak", "days", cost, "also"], cells, ("days", cost))
    shown.table(names, cells[: len(plans)], cells[len(plans) :], left=("also",), below=("also",))
    marks = [f"= within {RESOLUTION:.0%} of the fastest"] * (answer.ties > 1) + ["+ yours"] * (len(cells) > len(plans))
    sorted_by = f"sorted by {SORTED[request.sort_by]}; best of {answer.ranking.funnel.fit:,} layouts"
    shown.draw(lambda out: out.print("; ".join([sorted_by, *marks]), style="dim"))


def _also(plan: TrainPlan) -> str:
    """What a plan says beside its degrees, in few letters: recomputation, layers of the first and last stage (`24..22`)."""
    words = [str(plan.recompute).removeprefix("selective:")] if plan.recompute != NONE else []
    words += [f"fsdp={plan.fsdp}"] if plan.fsdp else []
    words += [f"{plan.first}..{plan.last}"] if plan.first is not None or plan.last is not None else []
    words += [f"offload={plan.offload:g}"] if plan.offload else []
    return " ".join([*words, *["dist_opt=0"] * (not plan.dist_opt and not plan.fsdp)])


def _nothing_fits(shown: Blocks, answer: SearchAnswer) -> None:
    miss, none = answer.nearest_miss, answer.nothing_legal
    if none is not None:
        shown.say(NO, f"{escape(capital(str(none)))}.")
        shown.say("batch", "" if answer.other_batch is None else f"--global-batch-size: {escape(str(answer.other_batch))}")
        return
    if miss is None:
        shown.say(NO, "No plan can be said in that format.")
        return
    short = (miss.peak_bytes - miss.limit_bytes) / GIB
    shown.say(
        NO,
        f"Nothing fits. The nearest miss is {escape(str(miss.plan))}: stage {miss.worst_stage.stage} "
        f"needs {miss.peak_bytes / GIB:.1f} GiB of {miss.limit_bytes / GIB:.1f}, {short:.1f} GiB too much.",
    )
    fits = [one for one in answer.remedies if one.fits]
    for number, one in enumerate(fits[:HELPING]):
        shown.say("fits" if not number else "", escape(_remedy(one)), spare=number)
    failed = [str(one) for one in answer.remedies if not one.fits]
    shown.say("no", escape("; ".join(failed[:FAILING])), spare=5)


def _remedy(one: Remedy) -> str:
    return f"{one.change}: {seconds_text(one.step_seconds)} a step" if one.step_seconds is not None else str(one)


def _counts(shown: Blocks, answer: SearchAnswer) -> None:
    """Of --gpus-at-most: the counts that come nearest."""
    done = [(gpus, step) for gpus, step in answer.gpus_tried if step is not None]
    if not answer.gpus_tried:
        return
    cheapest = sorted(done, key=lambda item: item[0] * item[1])[:COUNTS]
    told = "; ".join(f"{gpus:,}: {seconds_text(step)}, {gpus * step / 3600:,.2f} GPU-hours a step" for gpus, step in cheapest)
    chosen = answer.question.scenario.cluster.num_gpus
    shown.say("counts", f"{len(answer.gpus_tried)} tried, {chosen:,} GPUs chosen; fewest GPU-hours {told}", spare=1)


def _next(shown: Blocks, answer: SearchAnswer, command: str) -> None:
    if answer.plans:
        shown.say("next", "--export run | --include PLAN | --verbose: rules, rows, records")
        shown.commands([f"{command} {answer.plans[0].report.plan}"], spare=2)
    else:
        helps = next((one.options for one in answer.remedies if one.fits and one.options), "")
        shown.say("next", f"{escape(helps)} | --verbose: rules, plans" if helps else "--verbose: rules")


def show_comparison(console: Console, answers: Sequence[SearchAnswer]) -> None:
    """Of questions that differ in GPU or precision: which does most, and each one's best plan with days, cost and ratio."""
    if getattr(console, "verbose", False):
        show_compared(console, answers)
        return
    scenario = answers[0].question.scenario
    shown = Blocks()
    shown.head(
        f"[bold]{escape(scenario.model.name)}[/bold] ({total_parameters(scenario.model) / 1e9:,.1f} B)"
        f"{adapters_text(scenario.numerics)}, {samples_text(scenario)}"
    )
    fitting = [one for one in answers if one.plans]
    priced = [one for one in fitting if one.plans[0].report.cost_per_billion_tokens is not None]
    if not fitting:
        shown.say(NO, "Nothing fits, or is legal, on any of these")
    else:
        best = min(priced or fitting, key=_worth)
        first = best.plans[0].report
        some = " of those with a price" if len(priced) < len(fitting) else ""
        cost = f"cheapest{some}" if priced else "most tokens/s of a GPU"
        ratio = first.tokens_per_second_per_gpu / fitting[0].plans[0].report.tokens_per_second_per_gpu
        beside = "" if best is fitting[0] else f", {ratio:.2f} times the tokens/s of {named(fitting[0])}"
        shown.say(START, f"[bold]{escape(named(best))}[/bold]: {cost}{escape(beside)}\n{escape(str(first.plan))}")
    names, rows = compared_rows(answers)
    shown.table(names, rows, left=("GPUs", "plan"), below=("plan",))
    order = "in the order asked for; ratio, and x behind costs: over the first"
    shown.draw(lambda out: out.print(order, style="dim"), spare=2)
    for answer in fitting:
        if answer.question.varied:
            shown.say("tried", escape(f"{named(answer)}: fastest with {answer.question.varied[0].words} (--vary)"), spare=3)
    shown.draw(lambda out: show_assumptions(out, (remark for one in answers for remark in one.question.assumed)), spare=1)
    shown.say("next", "one --gpu and one --precision: what is equal, risky, slower; --verbose: tokens/s/GPU, TFLOPS, MFU")
    shown.show(console)


def _worth(answer: SearchAnswer) -> float:
    """What is least of the better: cost where it is known, else the time of a token."""
    report = answer.plans[0].report
    rate = report.cost_per_billion_tokens
    return rate if rate is not None else 1.0 / report.tokens_per_second_per_gpu


def compared_rows(answers: Sequence[SearchAnswer]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a comparison: one line each."""
    columns: dict[str, BesideCell] = {
        "step": lambda one, _: seconds_text(one.step_seconds),
        "ratio": speed_ratio,
        "days": lambda one, _: days_cell(one),
        "cost": lambda one, others: f"{cost_cell(one)} ({ratio})" if (ratio := cost_ratio(one, others)) else "",
        "fit": lambda one, _: fit_text(one.confidence.fit_probability),
        "plan": lambda one, _: str(one.plan),
    }
    return compared_cells(answers, columns)
