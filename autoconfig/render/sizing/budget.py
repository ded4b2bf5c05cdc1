"""A BudgetAnswer as a screen and as JSON."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape

from autoconfig.planning.money import money_text
from autoconfig.planning.prices import GpuPrice
from autoconfig.render.blocks import NO, START, labelled
from autoconfig.render.plan_table import precision_text
from autoconfig.render.question_json import AnswerJson
from autoconfig.render.screen import show_assumptions, show_table
from autoconfig.render.training_json import PlanReportJson, report_json
from autoconfig.sizing.budget import BudgetAnswer, BudgetChoice, Possible
from autoconfig.sizing.sizes import TOKENS_PER_PARAMETER, ModelSize
from autoconfig.specs.errors import chance_text, option_name
from autoconfig.specs.json_record import AboveZero, Keywords, Natural, Positive, record_of
from autoconfig.specs.remarks import AssumedJson, Effect, Remark, assumed_json

OPTIMAL, GIVEN = "compute-optimal", "given"
DECIDERS = ("money", "days", "family", "model")


@dataclass(frozen=True, kw_only=True)
class ModelSizeJson:
    """A size of model."""

    name: str
    """The model's, or of a shape between two of the catalogue the family's and its size."""
    model: str
    """The model that a question names."""
    architecture: dict[str, Any]
    """What is changed of it; empty for a model as it is."""
    parameters: AboveZero
    active_parameters: AboveZero
    """Those that one token passes."""


@dataclass(frozen=True, kw_only=True)
class BudgetChoiceJson:
    """One size on so many GPUs of a type."""

    size: ModelSizeJson
    tokens: AboveZero
    """Tokens that it is trained on."""
    gpu: str
    num_gpus: Positive
    price: GpuPrice
    days: AboveZero
    """Wall time, failures included."""
    cost: AboveZero
    """Money for the GPUs in these days."""
    energy_kwh: AboveZero | None
    """Of the GPUs at their power limit in these days, an upper bound; null where the limit is not known."""
    goodput: AboveZero
    """Time that trains over all time, 0 to 1."""
    tokens_per_second: AboveZero
    """Of the whole job, undisturbed."""
    best: PlanReportJson
    """The plan: the first of a search."""
    command: str
    """The search that has this plan first."""


@dataclass(frozen=True, kw_only=True)
class PossibleJson:
    """What another budget would do for a size; null where no count does."""

    size: ModelSizeJson
    least_money: BudgetChoiceJson | None
    """The cheapest that is done in the days asked for."""
    least_days: BudgetChoiceJson | None
    """The quickest that costs no more than the money."""
    cheapest: BudgetChoiceJson | None
    """The cheapest that is done in these days, or in any number of days where none is."""


@dataclass(frozen=True, kw_only=True)
class LeftOutJson:
    """A GPU type that cannot run this."""

    gpu: str
    why: str


@dataclass(frozen=True, kw_only=True)
class BudgetJson(AssumedJson, AnswerJson):
    """The largest size that money and days train, on the cheapest GPUs."""

    money: AboveZero
    currency: str
    """ISO 4217; empty where none was said."""
    days: AboveZero
    """Days asked for."""
    family: str | None
    """Whose sizes were tried; null for one model."""
    tokens_from: Annotated[str, Keywords(enum=(OPTIMAL, GIVEN))]
    """compute-optimal: 20 for each parameter that a token passes (Hoffmann et al. 2022, arXiv:2203.15556)."""
    prices: tuple[GpuPrice, ...]
    """Of every type that was offered."""
    best: BudgetChoiceJson | None
    """Null: not even the smallest size is possible; `instead` says what would be."""
    runner_up: BudgetChoiceJson | None
    """The cheapest of the same size on another type of GPU, else of the next smaller size."""
    choices: tuple[BudgetChoiceJson, ...]
    """Of the best size the cheapest of each GPU type that does it, cheapest first."""
    decides: Annotated[str, Keywords(enum=DECIDERS)] | None
    """What keeps it from being larger: the money, the days, the end of the family, or the model that was named."""
    most_tokens: AboveZero | None
    """Tokens that money and days would pay for with `best`."""
    next_size: PossibleJson | None
    """What the next larger size would take."""
    instead: PossibleJson | None
    """Where nothing is possible: what would be, of the smallest size."""
    left_out: tuple[LeftOutJson, ...]
    """GPU types that cannot run this."""
    searched: Natural
    """Candidates that took a search."""


def budget_json(answer: BudgetAnswer) -> BudgetJson:
    """The whole answer."""
    request = answer.request
    return BudgetJson(
        money=request.money.value,
        currency=request.money.currency,
        days=request.days,
        family=request.family,
        tokens_from=OPTIMAL if request.base.tokens is None else GIVEN,
        prices=request.offers,
        best=_choice(answer.best, answer),
        runner_up=_choice(answer.runner_up, answer),
        choices=tuple(filter(None, (_choice(one, answer) for one in answer.choices))),
        decides=decides(answer),
        most_tokens=answer.most_tokens,
        next_size=_possible(answer.next_size, answer),
        instead=_possible(answer.instead, answer),
        left_out=tuple(LeftOutJson(gpu=gpu, why=why) for gpu, why in answer.left_out),
        searched=answer.searched,
        **assumed_json(_assumed(answer)),
    )


def decides(answer: BudgetAnswer) -> str | None:
    """What keeps the best size from being larger, of DECIDERS; None where nothing is possible."""
    if answer.best is None:
        return None
    if answer.next_size is None:
        return "model" if answer.request.family is None else "family"
    return "days" if answer.next_size.least_days is not None else "money"


def _choice(choice: BudgetChoice | None, answer: BudgetAnswer) -> BudgetChoiceJson | None:
    if choice is None:
        return None
    return record_of(
        BudgetChoiceJson,
        choice,
        size=_size(choice.size),
        gpu=choice.offer.gpu,
        price=choice.offer,
        goodput=choice.goodput.share,
        tokens_per_second=choice.report.tokens_per_second_per_gpu * choice.num_gpus,
        best=report_json(choice.report, choice.question),
        command=command_of(choice),
    )


def _size(size: ModelSize) -> ModelSizeJson:
    named = size.model if isinstance(size.model, str) else size.name
    return record_of(ModelSizeJson, size, model=named, architecture={**size.architecture})


def _possible(found: Possible | None, answer: BudgetAnswer) -> PossibleJson | None:
    if found is None:
        return None
    choices = {name: _choice(getattr(found, name), answer) for name in ("least_money", "least_days", "cheapest")}
    return PossibleJson(size=_size(found.size), **choices)


def command_of(choice: BudgetChoice) -> str:
    """The search that has the choice's plan first."""
    request = choice.question.request
    words = ["autoconfig", "search", "--model", choice.size.name if not isinstance(request.model, str) else request.model]
    given = {**request.architecture, **{key: value for key, value in request.numerics.items() if value is not None}}
    given |= {"seq_length": request.seq_length, "global_batch_size": request.global_batch_size, "software": request.software}
    for key, value in given.items():
        if isinstance(value, bool):
            words += [option_name(key if value else f"no_{key}")]
        elif value is not None:
            words += [option_name(key), str(value)]
    words += ["--gpu", choice.offer.gpu, "--gpus", str(choice.num_gpus)]
    for name in ("fix", "max", "exclude"):
        words += [word for text in getattr(request, name) for word in (option_name(name), text)]
    return shlex.join(words)


def _assumed(answer: BudgetAnswer) -> list[Remark]:
    """What was taken where nothing was said; list prices first."""
    request = answer.request
    listed = [offer for offer in request.offers if offer.source != GIVEN]
    said = [
        f"{offer.gpu} {money_text(offer.price_per_gpu_hour, offer.currency)} ({offer.source}, {offer.date})" for offer in listed
    ]
    found = [
        Remark("", None, f"list prices per GPU-hour: {', '.join(said)}; give yours as --gpu TYPE=PRICE", Effect.EVERYTHING)
    ]
    found = found if listed else []
    if request.family is not None and answer.best is not None and answer.best.size.architecture:
        why = f"{answer.best.size.name} is no published model: a shape between two of the catalogue"
        found.append(Remark("", None, why, Effect.EVERYTHING))
    if request.base.tokens is None:
        found.append(
            Remark("tokens", None, "20 for each parameter that a token passes (Hoffmann et al. 2022)", Effect.EVERYTHING)
        )
    shown = answer.best or (answer.instead and (answer.instead.cheapest or answer.instead.least_days))
    named = ("gpu", "model")
    return [*found, *(remark for remark in (shown.question.assumed if shown else ()) if remark.field not in named)]


def show_budget(console: Console, answer: BudgetAnswer) -> None:
    """What the money trains, the rows beside it, what decides, what was assumed."""
    request = answer.request
    asked = f"{request.money} and {_days(request.days)}"
    if answer.best is None:
        _show_impossible(console, answer, asked)
    else:
        best = answer.best
        labelled(
            console,
            START,
            f"[bold]{asked}[/bold] train [bold]{escape(best.size.name)}[/bold] on {count_text(best.tokens)} tokens with "
            f"[bold]{best.num_gpus:,} x {best.offer.gpu}[/bold], {precision_text(best.question.scenario.numerics)}: "
            f"{_days(best.days)}, {_money(best.cost, answer)}\nplan {escape(str(best.report.plan))}",
        )
        rows = list(answer.choices) + (
            [answer.runner_up] if answer.runner_up and answer.runner_up not in answer.choices else []
        )
        _table(console, rows, answer)
        console.print(_what_decides(answer))
    for gpu, why in answer.left_out:
        console.print(f"left out: {gpu}: {escape(why)}")
    show_assumptions(console, _assumed(answer))
    shown = answer.best or _nearest(answer)
    if shown is not None:
        labelled(console, "next", "--verbose: all that was assumed; the search that has this plan first:")
        console.print(command_of(shown), markup=False, soft_wrap=True)


def _table(console: Console, rows: list[BudgetChoice], answer: BudgetAnswer) -> None:
    first, with_energy = rows[0], any(one.energy_kwh is not None for one in rows)
    columns = ["size", "GPUs", "tokens", "days", "cost", "ratio", *["MWh"] * with_energy, "MFU", "fit"]
    cells = []
    for one in rows:
        energy = (
            ""
            if one.energy_kwh is None
            else f"{one.energy_kwh / 1000:,.3g}"
            if one.energy_kwh < 1e5
            else f"{one.energy_kwh / 1000:,.0f}"
        )
        cells.append(
            [
                one.size.name,
                f"{one.num_gpus:,} x {one.offer.gpu}",
                count_text(one.tokens),
                f"{one.days:,.1f}",
                _money(one.cost, answer),
                f"{one.cost / first.cost:.2f}x",
                *[energy] * with_energy,
                f"{one.report.mfu:.0%}",
                chance_text(one.report.confidence.fit_probability),
            ]
        )
    show_table(console, columns, cells, left=("size", "GPUs"), spare=("MFU",))


def _what_decides(answer: BudgetAnswer) -> str:
    best, request = answer.best, answer.request
    assert best is not None
    left = f"{_money(best.cost, answer)} of {request.money}, {best.days:.1f} of {request.days:g} days"
    more = answer.most_tokens or best.tokens
    could = f"; all of it would pay for {count_text(more)} tokens ({more / best.size.active_parameters:.0f} a parameter)"
    if answer.next_size is None:
        end = f"{escape(best.size.name)} is the largest of the family" if request.family else "one model was asked for"
        return f"Decides: {end}; used: {left}{could if more > 1.02 * best.tokens else ''}"
    larger, said = answer.next_size, []
    if larger.least_money is not None:
        said.append(_choice_text(larger.least_money, answer))
    if larger.least_days is not None:
        said.append(f"{_choice_text(larger.least_days, answer)}, for this money")
    if not said and larger.cheapest is not None:
        said.append(f"{_choice_text(larger.cheapest, answer)}, at any pace")
    name = escape(larger.size.name)
    takes = f"{name} takes at least {' or '.join(said)}" if said else f"{name} fits on no count of these GPUs"
    return f"Decides: {decides(answer)}; used: {left}{could if more > 1.02 * best.tokens else ''}. {takes}"


def _show_impossible(console: Console, answer: BudgetAnswer, asked: str) -> None:
    found = answer.instead
    assert found is not None
    even = "" if answer.request.family is None else ", the smallest of the family,"
    tokens = answer.request.base.tokens or found.size.optimal_tokens
    said = f"[bold]{asked}[/bold] do not train {escape(found.size.name)}{even} on {count_text(tokens)} tokens."
    labelled(console, NO, said)
    if found.least_money is not None:
        one = found.least_money
        console.print(f"Least money for {_days(answer.request.days)}: {_choice_text(one, answer)}")
    if found.least_days is not None:
        one = found.least_days
        console.print(f"Least days for {answer.request.money}: {_choice_text(one, answer)}")
    elif found.cheapest is not None:
        cheapest = _choice_text(found.cheapest, answer)
        console.print(f"No number of days makes it {answer.request.money}: the cheapest is {cheapest}")
    if found.least_money is None:
        most = f" up to {answer.request.gpus:,}" if answer.request.gpus else ""
        console.print(f"No count of these GPUs{most} is done in {_days(answer.request.days)}.")


def _nearest(answer: BudgetAnswer) -> BudgetChoice | None:
    found = answer.instead
    return None if found is None else found.least_money or found.least_days or found.cheapest


def _choice_text(choice: BudgetChoice, answer: BudgetAnswer) -> str:
    return f"{_money(choice.cost, answer)} in {_days(choice.days)} ({choice.num_gpus:,} x {choice.offer.gpu})"


def _money(value: float, answer: BudgetAnswer) -> str:
    return money_text(value, answer.request.money.currency)


def _days(days: float) -> str:
    text = f"{days:,.1f}".removesuffix(".0") if days >= 0.1 else f"{days:.2g}"
    return f"{text} day{'s' * (text != '1')}"


def count_text(tokens: float) -> str:
    """`2T`, `1.41T`, `26.5B`."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= factor:
            return f"{tokens / factor:,.3g}{suffix}"
    return f"{tokens:,.0f}"


assert TOKENS_PER_PARAMETER == 20.0  # the messages say so
