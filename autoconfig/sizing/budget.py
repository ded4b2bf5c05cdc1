"""`autoconfig budget`: what money and time train. The largest size, and for it the cheapest GPUs, count and plan.

Candidates are sizes, GPU types and counts: parts of one node that are powers of two, and whole nodes whose number is a power of
two or three times one. Each is a whole search (its plan is the first of `autoconfig search`) with days of wall time as
`scaling` has them. Exact, as an exhaustive search: a candidate is searched only where a lower bound of its days and cost leaves
it a chance to be the answer. The bound is that of ranking (MixedTimes.least_seconds), before it the GPU's peak FLOP/s.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.planning.money import Amount, parse_days, parse_money
from autoconfig.planning.prices import GpuPrice, offers_of
from autoconfig.planning.request_fields import RELIABILITY
from autoconfig.planning.resolve import field_values
from autoconfig.sizing.goodput import Goodput, Reliability, goodput_of
from autoconfig.sizing.sizes import DEFAULT_FAMILY, ModelSize, size_of, sizes_of
from autoconfig.specs.errors import SECONDS_PER_DAY, InputError, option
from autoconfig.specs.hardware.cluster import MAX_GPUS
from autoconfig.specs.layouts import middle_layers
from autoconfig.specs.units import whole_number
from autoconfig.time_model.predict import MixedTimes
from autoconfig.training.price import Money, PlanReport, energy_kwh, flops_per_step, report_plan
from autoconfig.training.question import Question, Request, request_of, understand
from autoconfig.training.rank import plainest_first, rank
from autoconfig.training.space import enumerate_space, recompute_options

MAX_OFFERS = 8
LEAST_MOST, MOST_OF_ALL = 64, 32_768
"""GPUs that are tried however little the money; and however much, where other budgets are."""
WIDER = 4
"""Of another budget: counts up to so many times the least that might do; days up to so many times those asked for."""
REFERENCE = 64
"""GPUs whose layouts hold every shape of a micro-batch that larger counts run dense models with."""
ROWS_AT_ONCE = 512
"""Layouts, least bound first, that are timed together."""


@dataclass(frozen=True, kw_only=True)
class BudgetRequest:
    """Money, days and what they may be spent on."""

    base: Request
    """Without its model, GPUs and their number; its tokens are those of every size, where given."""
    money: Amount
    days: float
    sizes: tuple[ModelSize, ...] = ()
    """Smallest first; empty: the model of `base`."""
    family: str | None = None
    offers: tuple[GpuPrice, ...]
    gpus: int | None = None
    """The most GPUs that there are; None: what the money rents for half of the days (`most_gpus`)."""
    reliability: Reliability = field(default_factory=Reliability)

    def most_gpus(self, offer: GpuPrice) -> int:
        """The most GPUs of a type that are tried: more than what the money rents for half of the days would stand idle for the
        rest of them."""
        if self.gpus is not None:
            return self.gpus
        return max(LEAST_MOST, int(2 * self.money.value / (self.days * 24 * offer.price_per_gpu_hour)))


def budget_request(given: Mapping[str, Any]) -> BudgetRequest:
    """A BudgetRequest from what any edge was given, by the names of the fields. Raises InputError."""
    for name, amount, example in (("money", "much money", "3M"), ("days", "many days", "60")):
        if given.get(name) is None:
            raise InputError(f"how {amount}? say {option(name)} {example}")
    money, days = parse_money(given["money"]), parse_days(given["days"])
    model, family = given.get("model"), given.get("family")
    if model is not None and family is not None:
        raise InputError(f"give either {option('model')} or {option('family')}, not both", field="family")
    base = request_of({**given, "gpus": None, "gpu": None, "price": None, "model": DEFAULT_FAMILY if model is None else model})
    if model is None and base.architecture:
        raise InputError(f"{option(next(iter(base.architecture)))} changes one model: name it with {option('model')}")
    offers = offers_of(given.get("gpu"), money.currency)
    if len(offers) > MAX_OFFERS:
        raise InputError(f"{len(offers)} GPU types are more than {MAX_OFFERS}; offer fewer at once", field="gpu")
    named = None if model is not None else str(family or DEFAULT_FAMILY)
    return BudgetRequest(
        base=base,
        money=money if money.currency else Amount(money.value, next((o.currency for o in offers if o.currency), "")),
        days=days,
        sizes=() if named is None else sizes_of(named),
        family=named,
        offers=offers,
        gpus=_most(given.get("gpus")),
        reliability=Reliability(**field_values(RELIABILITY, given)),
    )


def _most(gpus: Any) -> int | None:
    """The most GPUs that there are; None where nothing is said. Raises InputError."""
    if gpus is None:
        return None
    most = whole_number(gpus, "gpus")
    if not 1 <= most <= MAX_GPUS:
        raise InputError(f"{option('gpus')} {most}: give the most GPUs that there are, from 1 to {MAX_GPUS:,}", field="gpus")
    return most


@dataclass(frozen=True, kw_only=True)
class BudgetChoice:
    """One size on so many GPUs of a type."""

    size: ModelSize
    tokens: float
    offer: GpuPrice
    num_gpus: int
    question: Question
    report: PlanReport
    goodput: Goodput
    days: float
    """Wall time, failures included."""
    cost: float
    energy_kwh: float | None
    """Of the GPUs at their power limit in these days; None where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Possible:
    """What another budget would do for a size."""

    size: ModelSize
    least_money: BudgetChoice | None
    """The cheapest that is done in the days asked for; None where no count is."""
    least_days: BudgetChoice | None
    """The quickest that costs no more than the money; None where nothing does."""
    cheapest: BudgetChoice | None
    """With any number of days where nothing is possible with these; else as `least_money`."""


@dataclass(frozen=True, kw_only=True)
class BudgetAnswer:
    """What money and days train."""

    request: BudgetRequest
    best: BudgetChoice | None
    """None: not even the smallest size."""
    runner_up: BudgetChoice | None
    """The cheapest of the same size on another type of GPU, else of the next smaller size that is possible."""
    choices: tuple[BudgetChoice, ...]
    """Of the best size the cheapest of each GPU type that does it, cheapest first."""
    next_size: Possible | None
    """What the next larger size would take; None where there is none."""
    instead: Possible | None
    """Where nothing is possible: what would be, of the smallest size."""
    left_out: tuple[tuple[str, str], ...]
    """(GPU type, why it cannot run any of this)."""
    searched: int
    """Candidates that took a search."""

    @property
    def most_tokens(self) -> float | None:
        """Tokens that money and days would pay for with the best choice."""
        best, asked = self.best, self.request
        return None if best is None else best.tokens * min(asked.money.value / best.cost, asked.days / best.days)


def budget(request: BudgetRequest, progress: Callable[[str], None] | None = None) -> BudgetAnswer:
    """The largest size that money and days train, on the cheapest GPUs. Raises InputError where no offered GPU can run it."""
    types, left_out = _types(request)
    sizes = request.sizes or (size_of(types[0].question.scenario.model, request.base.model),)
    market = _Market(request, types, progress)
    by_size = ((place, market.of_each_type(sizes[place])) for place in reversed(range(len(sizes))))
    possible = ((place, found) for place, found in by_size if found)  # the largest first
    chosen, choices = next(possible, (len(sizes), []))
    best = choices[0] if choices else None
    runner_up = choices[1] if len(choices) > 1 else next((found[0] for _, found in possible), None)
    larger = next(iter(sizes[chosen + 1 :]), None)
    return BudgetAnswer(
        request=request,
        best=best,
        runner_up=runner_up,
        choices=tuple(choices),
        next_size=None if larger is None else market.possible(larger, WIDER * request.days),
        instead=market.possible(sizes[0], math.inf) if best is None else None,
        left_out=tuple(left_out),
        searched=market.searched,
    )


@dataclass(frozen=True, kw_only=True)
class _GpuType:
    """An offer that can run the question."""

    offer: GpuPrice
    question: Question
    """Of the smallest size on one node."""

    def counts(self, most: int) -> list[int]:
        """Numbers of GPUs that are tried."""
        cluster = self.question.scenario.cluster  # of one GPU, whose node is the usual one
        node = self.question.request.gpus_per_node or max(cluster.gpus_per_node, cluster.gpu.gpus_per_node)
        parts = [2**power for power in range(node.bit_length()) if 2**power < node]
        nodes = sorted({odd * 2**power for odd in (1, 3) for power in range(most.bit_length())})
        return [count for count in (*parts, *(node * number for number in nodes)) if count <= most]


def _types(request: BudgetRequest) -> tuple[list[_GpuType], list[tuple[str, str]]]:
    """The offers that can run the question, and why others cannot. Raises InputError where none can."""
    found, refused = [], []
    for offer in request.offers:
        asked = _asked(request, request.sizes[0] if request.sizes else None, offer.gpu, 1)
        try:
            found.append(_GpuType(offer=offer, question=understand(asked)))
        except InputError as error:
            refused.append((offer.gpu, error))
    if not found:
        raise refused[0][1]
    return found, [(gpu, error.text) for gpu, error in refused]


def _asked(request: BudgetRequest, size: ModelSize | None, gpu: str, count: int) -> Request:
    asked = replace(request.base, gpu=gpu, gpus=count)
    if size is None:
        return asked
    return replace(asked, model=size.model, architecture={**request.base.architecture, **size.architecture})


class _Candidate:
    """A size on so many GPUs of a type: bounds first, a search where it is asked for."""

    def __init__(self, request: BudgetRequest, size: ModelSize, kind: _GpuType, count: int) -> None:
        self.request, self.size, self.kind, self.count = request, size, kind, count
        self.layouts = 0
        self.tokens = request.base.tokens or size.optimal_tokens

    def days_of(self, tokens_per_second: float, goodput: float = 1.0) -> float:
        """Wall days at this rate of the whole job."""
        return self.tokens / tokens_per_second / SECONDS_PER_DAY / goodput if tokens_per_second > 0 < goodput else math.inf

    def cost_of(self, days: float) -> float:
        """Money for the GPUs in these days."""
        return days * 24 * self.count * self.kind.offer.price_per_gpu_hour

    @cached_property
    def question(self) -> Question | None:
        """As understood; None where the GPU or the stack refuses it."""
        try:
            return understand(_asked(self.request, self.size, self.kind.offer.gpu, self.count))
        except InputError:
            return None

    @cached_property
    def goodput(self) -> Goodput:
        """What failures cost it."""
        assert self.question is not None
        return goodput_of(self.question.scenario, self.request.reliability)

    @cached_property
    def _times(self) -> MixedTimes | None:
        """Of all legal layouts; None where nothing is legal."""
        if self.question is None:
            return None
        scenario, constraints = self.question.scenario, self.question.constraints
        try:
            layouts = enumerate_space(scenario, constraints).layouts
        except InputError:  # more layouts than can be held
            return None
        if not len(layouts):
            return None
        self.layouts = len(layouts)
        largest = np.maximum.reduce([layouts.first, layouts.last, middle_layers(scenario.model, layouts)])
        return MixedTimes.of(scenario, layouts, recompute_options(scenario, constraints, int(largest.max(initial=1))))

    @cached_property
    def _least_seconds(self) -> npt.NDArray[np.float64]:
        assert self._times is not None
        return self._times.least_seconds(np.arange(self.layouts))

    @cached_property
    def least_days(self) -> float:
        """No plan is quicker: the least bound of all legal layouts; infinite where nothing is legal."""
        return math.inf if self._times is None else self._days_of_step(float(self._least_seconds.min()))

    @property
    def most_rate(self) -> float:
        """Tokens per second of one GPU by the bound of ranking; 0 where nothing is legal."""
        if self._times is None or self.question is None:
            return 0.0
        return self.question.scenario.workload.tokens_per_step / float(self._least_seconds.min()) / self.count

    @cached_property
    def quickest_days(self) -> float:
        """Days of the quickest legal plan if memory were endless, which none that fits beats."""
        times = self._times
        if times is None:
            return math.inf
        order, found = np.argsort(self._least_seconds), math.inf
        for start in range(0, len(order), ROWS_AT_ONCE):
            rows = order[start : start + ROWS_AT_ONCE]
            if float(self._least_seconds[rows[0]]) >= found:
                break
            found = min(found, float(times.seconds(rows).min()))
        return self._days_of_step(found)

    @property
    def days(self) -> float:
        """Days of the first plan of a search; infinite where nothing fits."""
        return math.inf if self.choice is None else self.choice.days

    def _days_of_step(self, seconds: float) -> float:
        assert self.question is not None
        return self.days_of(self.question.scenario.workload.tokens_per_step / seconds, self.goodput.share)

    @cached_property
    def choice(self) -> BudgetChoice | None:
        """The first plan of a search, with its days and cost; None where nothing fits."""
        if self.question is None or math.isinf(self.least_days):
            return None
        scenario, request = self.question.scenario, self.question.request
        asked = (scenario, self.question.constraints, request.memory_margin, request.top, request.fit_chance)
        ranking = plainest_first(rank(*asked))
        if not len(ranking.best):
            return None
        price = self.kind.offer.price_per_gpu_hour
        money = Money(tokens=self.tokens, price_per_gpu_hour=price)
        report = report_plan(scenario, ranking.plan(int(ranking.best[0])), money, request.memory_margin)
        days = self.days_of(report.tokens_per_second_per_gpu * self.count, self.goodput.share)
        return BudgetChoice(
            size=self.size,
            tokens=self.tokens,
            offer=self.kind.offer,
            num_gpus=self.count,
            question=self.question,
            report=report,
            goodput=self.goodput,
            days=days,
            cost=self.cost_of(days),
            energy_kwh=energy_kwh(scenario.cluster, days),
        )


LEVELS = ("least_days", "quickest_days", "days")
"""Bounds of a candidate's days, cheap ones first; the last is what a search of its plans says."""
By = Callable[[float, float], float]
"""Cost and days -> what is to be least."""


def by_cost(cost: float, days: float) -> float:
    """The cost."""
    return cost


def by_days(cost: float, days: float) -> float:
    """The days."""
    return days


class _Market:
    """All candidates, each made once."""

    def __init__(
        self, request: BudgetRequest, types: Sequence[_GpuType], progress: Callable[[str], None] | None = None
    ) -> None:
        self.request, self.types, self.progress = request, types, progress
        self._made: dict[tuple[str, str, int], _Candidate] = {}
        self._rates: dict[tuple[str, str, bool], float] = {}

    @property
    def searched(self) -> int:
        """Candidates that took a search."""
        return sum("choice" in vars(one) for one in self._made.values())

    def of_each_type(self, size: ModelSize) -> list[BudgetChoice]:
        """The cheapest of each GPU type within money and days, cheapest first."""
        limits = self.request.days, self.request.money.value
        found = (self._least(size, [kind], by_cost, *limits) for kind in self.types)
        return sorted(filter(None, found), key=lambda one: (one.cost, one.num_gpus))

    def possible(self, size: ModelSize, most_days: float) -> Possible:
        """What another budget would do for a size; with the same money in at most so many days."""
        least_money = self._least(size, self.types, by_cost, self.request.days, math.inf)
        least_days = self._least(size, self.types, by_days, most_days, self.request.money.value)
        cheapest = least_money
        if least_money is None or (least_days is None and math.isinf(most_days)):
            cheapest = self._least(size, self.types, by_cost, math.inf, math.inf)
        return Possible(size=size, least_money=least_money, least_days=least_days, cheapest=cheapest)

    def _least(
        self, size: ModelSize, types: Iterable[_GpuType], by: By, most_days: float, most_money: float
    ) -> BudgetChoice | None:
        """The candidate within these limits that is least by cost or by days, then by GPUs: the first of all whose turn comes
        with what a search says, each having waited by ever nearer bounds."""
        waiting: list[tuple[float, int, int, int, _Candidate]] = []

        def wait(one: _Candidate, days: float, order: int, level: int) -> bool:
            """Whether it is within the limits, and waits for its turn."""
            if not (days <= most_days and one.cost_of(days) <= most_money):
                return False
            heapq.heappush(waiting, (by(one.cost_of(days), days), one.count, order, level, one))
            return True

        for kind in types:
            most = min(self.request.most_gpus(kind.offer) if math.isfinite(most_days + most_money) else MOST_OF_ALL, MAX_GPUS)
            for count in kind.counts(min(most, self.request.gpus or most)):
                if count > most:
                    break
                one = self._candidate(size, kind, count)
                promising = wait(one, one.days_of(count * self._most_rate(one)), len(waiting), 0)
                if promising and math.isfinite(most_days) and not math.isfinite(most_money):
                    most = min(most, WIDER * count)
        while waiting:
            _, _, order, level, one = heapq.heappop(waiting)
            if level < len(LEVELS):
                if LEVELS[level] == "days" and self.progress is not None:
                    self.progress(f"{size.name}, {one.count:,} x {one.kind.offer.gpu}")
                wait(one, getattr(one, LEVELS[level]), order, level + 1)
            elif one.choice is not None:
                return one.choice
        return None

    def _candidate(self, size: ModelSize, kind: _GpuType, count: int) -> _Candidate:
        return self._made.setdefault((size.name, kind.offer.gpu, count), _Candidate(self.request, size, kind, count))

    def _most_rate(self, one: _Candidate) -> float:
        """Tokens per second of one GPU that no plan on so many GPUs does more than.

        That of matrix units that never wait; of dense models on REFERENCE GPUs or more that of the quickest layout on REFERENCE
        GPUs by the bound of ranking. Its GPU-seconds for a token are at least A tp cp / (mbs s), A the time of one micro-batch
        on all stages, which no count changes but by slowing stragglers; beyond tp cp = REFERENCE it does not fall."""
        large = one.count >= REFERENCE
        key = (one.size.name, one.kind.offer.gpu, large)
        if key not in self._rates:
            try:
                question = understand(_asked(self.request, one.size, one.kind.offer.gpu, 1))
            except InputError:
                return self._rates.setdefault(key, 0.0)
            scenario = question.scenario
            peak = scenario.cluster.gpu.peak_flops_per_s(scenario.numerics.gemm_precision)
            rate = peak * scenario.workload.tokens_per_step / flops_per_step(scenario)
            if large and not scenario.model.is_moe:
                most = self._candidate(one.size, one.kind, REFERENCE).most_rate
                rate = min(rate, most) if most > 0 else rate
            self._rates[key] = rate
        return self._rates[key]
