"""The answers to questions about training, shared by the command line, the HTTP API and Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoconfig.planning.prices import price_of
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.hardware.cluster import DEFAULT_GPU
from autoconfig.specs.hardware.local_gpu import find_gpu
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.plan import DEGREES, SHARDING, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.operators.listing import OperatorRow, explain_operators
from autoconfig.training.nearest import NothingLegal, nearest_legal
from autoconfig.training.plan_rules import without_effect
from autoconfig.training.price import (
    Money,
    PlanReport,
    Violation,
    report_plan,
    report_plans,
    violations,
)
from autoconfig.training.question import Question, Request, plan_of, request_of, understand
from autoconfig.training.rank import (
    RESOLUTION,
    Ints,
    Ranking,
    in_order,
    pareto_positions,
    plainest_first,
    rank,
    safe_position,
    sayable_only,
    tie_groups,
)
from autoconfig.training.remedies import Gain, OtherBatch, Remedies, Remedy, memory_binds, what_binds
from autoconfig.training.vary import OtherSwitches, SwitchGain, Variation

Says = Callable[[Scenario, TrainPlan], bool]
"""Whether a format has words for a plan of a scenario."""
PARTS_NAMED = 2
PART_WORDS = {
    "gemm_seconds": "GEMMs",
    "grouped_gemm_seconds": "grouped GEMMs",
    "tp_communication_seconds": "TP communication",
    "cp_communication_seconds": "CP communication",
    "expert_exchange_seconds": "expert dispatch and combine",
    "p2p_seconds": "pipeline sends",
    "fsdp_seconds": "FSDP gathers",
    "host_floor_seconds": "waiting for the host",
    "step_launch_seconds": "the host once a step",
    "straggler_seconds": "stragglers",
}


def part_words(name: str) -> str:
    """A part of the step in words, beside which the table of `explain` has the name of its formula; JSON has the name."""
    return PART_WORDS.get(name, name.removesuffix("_seconds").replace("_", " "))


def largest_parts(report: PlanReport) -> str:
    """`GEMMs 74 %, TP communication 8 %, pointwise 4 %`: the largest parts of the step."""
    parts = sorted(report.time_parts.items(), key=lambda item: -item[1])[: PARTS_NAMED + 1]
    return ", ".join(f"{part_words(name)} {100 * s / report.step_seconds:.0f} %" for name, s in parts if s > 0)


def reason_for(report: PlanReport, first: PlanReport | None, ranking: Ranking, position: int) -> str:
    """Why the plan is at this place: for the first its largest parts and what it beat, for others what they trade."""
    if first is None or position == int(ranking.best[0]):
        return _why_first(report, ranking)
    ratio = report.step_seconds / first.step_seconds - 1
    compared = f"{abs(ratio):.1%} {'slower' if ratio > 0 else 'faster'} than the first"
    slower = "as fast as the first" if abs(ratio) <= 0.0005 else compared
    return f"{slower}{_trade(report, first)}"


def _why_first(report: PlanReport, ranking: Ranking) -> str:
    free = (report.limit_bytes - report.peak_bytes) / GIB
    behind = report.step_seconds / float(ranking.step_seconds[0]) - 1
    place = "fastest" if behind <= 0.0005 else f"{behind:.1%} behind the fastest, which no model tells apart, and plainer,"
    priced = ranking.funnel.priced
    chosen = f"{place} of {priced:,} plans that fit" if priced != 1 else "the only plan that fits"
    return f"{chosen} ({largest_parts(report)} of the step), {free:.1f} GiB below the limit on stage {report.worst_stage.stage}"


def _trade(report: PlanReport, first: PlanReport) -> str:
    """The parts in which a plan loses and gains most against the first, and the memory that it saves or takes."""
    names = set(report.time_parts) | set(first.time_parts)
    delta = sorted(
        ((report.time_parts.get(n, 0.0) - first.time_parts.get(n, 0.0), n) for n in names), key=lambda item: -item[0]
    )
    small = 0.002 * first.step_seconds
    losses = [f"{part_words(name)} {signed_seconds(seconds)}" for seconds, name in delta[:PARTS_NAMED] if seconds > small]
    gains = [f"{part_words(name)} {signed_seconds(seconds)}" for seconds, name in delta[::-1][:PARTS_NAMED] if seconds < -small]
    memory = (report.peak_bytes - first.peak_bytes) / GIB
    text = "; ".join(losses + gains)
    return (f": {text}" if text else "") + (f"; {memory:+.1f} GiB" if abs(memory) >= 0.05 else "")


def signed_seconds(seconds: float) -> str:
    """A difference with three digits and its unit."""
    return f"{seconds:+.2f} s" if abs(seconds) >= 1 else f"{seconds * 1e3:+.3g} ms"


@dataclass(frozen=True, kw_only=True)
class RankedPlan:
    """A row of the answer's table: the best plan of one layout."""

    rank: int
    tie_group: int
    report: PlanReport
    why: str


@dataclass(frozen=True, kw_only=True)
class IncludedPlan:
    """What became of a plan that the caller named."""

    plan: TrainPlan
    legal: bool
    violations: tuple[Violation, ...] = ()
    report: PlanReport | None = None
    layout_rank: int | None = None
    layout_percentile: float | None = None
    step_ratio_to_first: float | None = None
    shortfall_gib: float = 0.0
    asked: str = ""
    """The caller's text, of a plan that was completed."""
    given: TrainPlan | None = None
    """What that text alone says, every other key as plans have it where nothing is said; None for a whole plan."""
    given_report: PlanReport | None = None
    """Of `given`; None where it is not legal."""


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """The answer to one search."""

    question: Question
    ranking: Ranking
    plans: tuple[RankedPlan, ...]
    ties: int
    """Layouts within the model's resolution of the fastest, shown or not."""
    safe: PlanReport | None
    """The fastest plan whose chance to fit is at least SAFE_FIT."""
    pareto: tuple[PlanReport, ...]
    included: tuple[IncludedPlan, ...]
    nearest_miss: PlanReport | None
    nothing_legal: NothingLegal | None = None
    """Why not one plan is legal, and what is near that has one; None where some are."""
    riskier: PlanReport | None = None
    """The fastest plan that fits with less than the asked chance, where it is faster than the first."""
    remedies: tuple[Remedy, ...] = ()
    """Where nothing fits, or no plan has the asked chance to: changes that were tried, with their outcome."""
    other_batch: OtherBatch | None = None
    """A batch near the asked one that the GPUs divide better, where it is worth naming."""
    switches: tuple[SwitchGain, ...] = ()
    """What other switches make of the first plan, where they decide (`OtherSwitches.deciding`)."""
    other_dispatcher: SwitchGain | None = None
    """What the fastest plan with another dispatcher takes beside the first plan, where it is worth naming."""
    gpus_tried: tuple[tuple[int, float | None], ...] = ()
    """With gpus_at_most: GPU counts tried and the best step seconds of each."""


def answer(
    request: Request, progress: Callable[[str], None] | None = None, *, whole: bool = False, says: Says | None = None
) -> SearchAnswer:
    """Rank the plans for one question. Raises InputError; nothing that fits, or is legal, is an answer with no plans.

    The answer's ranking holds what the answer needs of it; with `whole` every plan that fits. `says`: which plans may be in the
    answer, where it is to be said in a format; others are left out before the answer is cut to its length."""
    question, ranking, tried = _best_question(understand(request), progress, whole, says)
    money = Money(tokens=request.tokens, price_per_gpu_hour=question.own_price)
    none = NothingLegal.of(question, ranking.space) if ranking.funnel.legal == 0 else None
    scenario = question.scenario

    order = list(map(int, in_order(ranking, request.sort_by)[: request.top]))
    groups = tie_groups(np.sort(ranking.step_seconds[ranking.best]))
    safe, pareto = safe_position(ranking), pareto_positions(ranking)
    best = int(ranking.best[0]) if len(ranking.best) else None
    shown = sorted({*order, *pareto, *(position for position in (safe, best) if position is not None)})
    reported = report_plans(scenario, list(map(ranking.plan, shown)), money, request.memory_margin)
    reports: dict[int | None, PlanReport] = dict(zip(shown, reported, strict=True))
    first = reports.get(best)
    plans = tuple(_row(ranking, groups, position, reports[position], first) for position in order)
    miss, riskier = (
        None if place is None else report_plan(scenario, ranking.plan_of(place), money, request.memory_margin)
        for place in (ranking.closest, ranking.riskier)
    )
    return SearchAnswer(
        question=question,
        ranking=ranking,
        plans=plans,
        ties=int((groups == 1).sum()),
        safe=reports.get(safe),
        nearest_miss=miss,
        nothing_legal=none,
        riskier=riskier,
        remedies=tuple(Remedies(question).all()) if miss is not None or not (none or ranking.fit_chance_met) else (),
        other_batch=OtherBatch.near(question, ranking),
        other_dispatcher=SwitchGain.of_dispatcher(question, plans[0].report) if plans else None,
        switches=() if first is None else OtherSwitches(scenario, first.plan).deciding(),
        gpus_tried=tried,
        pareto=tuple(reports[p] for p in pareto),
        included=tuple(include_text(text, question, ranking, money) for text in request.include),
    )


def _row(ranking: Ranking, groups: Ints, position: int, report: PlanReport, first: PlanReport | None) -> RankedPlan:
    """A row of the table: the plan at this position with the place of its layout, and its group of ties of `groups`."""
    layouts = ranking.space.layout_id[ranking.row]
    rank = int(np.flatnonzero(layouts[ranking.best] == layouts[position])[0])
    why = reason_for(report, first, ranking, position)
    return RankedPlan(rank=rank + 1, tie_group=int(groups[rank]), report=report, why=why)


def _best_question(
    question: Question, progress: Callable[[str], None] | None, whole: bool, says: Says | None
) -> tuple[Question, Ranking, tuple[tuple[int, float | None], ...]]:
    """The question with the GPUs and switches that are best, where these are open; its ranking; GPUs that were tried."""
    request = question.request

    def ranked(asked: Question) -> Ranking:
        return _ranked(asked, _first_layouts(request, whole), says, whole)

    if request.gpus_at_most is not None:
        return _search_at_most(question, progress, ranked)
    if request.vary:
        return (*Variation(question, ranked, progress).outcome(), ())
    return question, ranked(question), ()


def compare(questions: Iterable[Mapping[str, Any]]) -> tuple[list[SearchAnswer], list[InputError]]:
    """(The answers, why the others have none): what one GPU cannot run, others may. Raises InputError where there is none."""
    answers, refused = [], []
    for one in questions:
        try:
            answers.append(answer(_priced_alone(request_of(one))))
        except InputError as error:
            refused.append(error)
    if not answers:
        raise refused[0]
    return answers, refused


def _priced_alone(request: Request) -> Request:
    """One of several that are compared, with the price of its own GPU: a type that has none is compared without a cost."""
    if request.price is None or request.cluster is not None:
        return request
    return replace(request, price=price_of(request.price, find_gpu(request.gpu or DEFAULT_GPU).id))


def _ranked(question: Question, first: int | None, says: Says | None, whole: bool) -> Ranking:
    request, scenario = question.request, question.scenario
    asked = (scenario, question.constraints, request.memory_margin)
    if says is None:
        return plainest_first(rank(*asked, first, request.fit_chance))

    def shown(ranking: Ranking) -> Iterable[int]:
        if whole:
            return range(len(ranking.row))
        ranking = plainest_first(ranking)
        safe = safe_position(ranking)
        ends = (*ranking.best[:1], *range(min(1, len(ranking.row))), *(() if safe is None else (safe,)))
        return map(int, (*in_order(ranking, request.sort_by)[: request.top], *pareto_positions(ranking), *ends))

    def said(plan: TrainPlan) -> bool:
        return says(scenario, plan)

    for layouts in dict.fromkeys((first, None)):
        ranking = rank(*asked, layouts, request.fit_chance, likely=False)
        if (sayable := sayable_only(ranking, said, shown, request.fit_chance, layouts or 0)) is not None:
            return plainest_first(sayable)
    raise AssertionError("a whole ranking leaves nothing out")


def _first_layouts(request: Request, whole: bool) -> int | None:
    """How many layouts the answer needs in order; all (None) where it is asked by memory or for the place of a plan."""
    return None if whole or request.sort_by == "memory" or request.include else request.top


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One plan in full."""

    question: Question
    included: IncludedPlan
    operators: tuple[OperatorRow, ...] = ()
    """Every operator of a layer, the head and the embedding; empty where the plan is not legal."""
    nearest_legal: TrainPlan | None = None
    """Where the plan is not legal: the legal plan with the fewest changes."""
    gains: tuple[Gain, ...] = ()
    """What a little more of everything would buy; empty where it was not asked or nothing fits."""
    switches: tuple[SwitchGain, ...] = ()
    """What other switches would make of the step; empty for dense models, and where it was not asked."""
    gains_note: str = ""
    """Where the plan does not fit: that memory binds, and what `gains` are then; empty where they were not asked."""
    without_effect: tuple[str, ...] = ()
    """What a legal plan asks for to no effect."""


def explain(request: Request, plan_text: str, *, binds: bool = True) -> Explanation:
    """One plan in full. Raises InputError when the plan's text cannot be read. `binds` re-ranks the space a few times."""
    question = understand(request)
    return explain_plan(question, plan_of(question, plan_text), binds=binds)


def explain_plan(
    question: Question, plan: TrainPlan, *, binds: bool = False, broken: Sequence[Violation] | None = None
) -> Explanation:
    """One plan in full, of a question that is understood. `broken`: as of `include`, of a file's plan."""
    request, s = question.request, question.scenario
    money = Money(tokens=request.tokens, price_per_gpu_hour=question.own_price)
    included = include(plan, question, None, money, broken)
    if included.report is None:
        nearest = nearest_legal(s, plan) if violations(s, plan) else None  # else it is the file that breaks them, not the plan
        return Explanation(question=question, included=included, nearest_legal=nearest)
    operators = explain_operators(s, plan)
    gains = what_binds(s, plan, request.memory_margin, request.fit_chance) if binds else []
    note = memory_binds(included.report, gains) if binds else ""
    return Explanation(
        question=question,
        included=included,
        operators=tuple(operators),
        gains=tuple(gains),
        switches=tuple(OtherSwitches(s, plan).gains()) if binds else (),
        gains_note=note,
        without_effect=without_effect(s, plan),
    )


def include(
    plan: TrainPlan, question: Question, ranking: Ranking | None, money: Money, broken: Sequence[Violation] | None = None
) -> IncludedPlan:
    """What becomes of a plan under a question: legal or not, fits or not, its place in the ranking if one is given.

    `broken`: the rules that it breaks, where the caller knows more of its stages than a plan can say.
    """
    scenario = question.scenario
    broken = violations(scenario, plan) if broken is None else broken
    if broken:
        return IncludedPlan(plan=plan, legal=False, violations=tuple(broken))
    report = report_plan(scenario, plan, money, question.request.memory_margin)
    rank = percentile = ratio = None
    if ranking is not None and len(ranking.best) and report.fits:
        rank = _layout_rank(plan, report.step_seconds, ranking)
        percentile = 100.0 * rank / max(len(ranking.best), rank)
        ratio = report.step_seconds / float(ranking.step_seconds[0])
    return IncludedPlan(
        plan=plan,
        legal=True,
        report=report,
        layout_rank=rank,
        layout_percentile=percentile,
        step_ratio_to_first=ratio,
        shortfall_gib=max(0.0, (report.peak_bytes - report.limit_bytes) / GIB),
    )


def include_text(text: str, question: Question, ranking: Ranking, money: Money) -> IncludedPlan:
    """A plan that the caller wrote: a whole one as it is, of some keys the best plan that has them, as far as one fits."""
    given = plan_of(question, text)
    plan = _completed(question, text)
    if plan is None or plan == given:
        return include(given, question, ranking, money)
    alone = include(given, question, None, money)
    return replace(include(plan, question, ranking, money), asked=text, given=given, given_report=alone.report)


WHOLE = frozenset({"tp", "pp", "mbs", "recompute"})
"""Keys that every printed plan says (dp and sp follow from the GPUs and tp): a text that has them leaves nothing open."""


def _completed(question: Question, text: str) -> TrainPlan | None:
    """The first plan of a search among those with every key of `text`; None where `text` is a whole plan, or no plan with its
    keys fits. Raises PlanError for a text that is no plan."""
    keys = {part.partition("=")[0].strip() for part in text.split(",")}
    if keys >= WHOLE:
        return None
    plan = plan_of(question, text)
    held = {key: values for key, values in question.constraints.fixed.items() if key in SHARDING}  # --zero-stage, --fix
    fixed = {**held, **{key: frozenset({getattr(plan, key)}) for key in keys}}
    wish = replace(question.constraints, fixed=fixed, at_most={}, excluded={})
    request = question.request
    ranking = plainest_first(rank(question.scenario, wish, request.memory_margin, 1, request.fit_chance))
    return ranking.plan(int(ranking.best[0])) if len(ranking.best) else None


def _layout_rank(plan: TrainPlan, step_seconds: float, ranking: Ranking) -> int:
    """Rank of the plan's layout among the ranked layouts, or the rank that the plan would take if it was not searched."""
    rows = ranking.space.layouts
    mask = np.ones(len(rows), bool)
    for key in (*DEGREES, "sp"):
        mask &= getattr(rows, key) == getattr(plan, key)
    stages = stage_layers(ranking.scenario.model, plan)
    mask &= (rows.first == stages[0]) & (rows.last == stages[-1])
    ids = np.unique(ranking.space.layout_id[mask])
    best_ids = ranking.space.layout_id[ranking.row[ranking.best]]
    position = np.flatnonzero(np.isin(best_ids, ids))
    if len(position) and step_seconds >= ranking.step_seconds[ranking.best[position[0]]]:
        return int(position[0]) + 1
    return int(np.searchsorted(np.sort(ranking.step_seconds[ranking.best]), step_seconds)) + 1


def _search_at_most(
    question: Question, progress: Callable[[str], None] | None, ranked: Callable[[Question], Ranking]
) -> tuple[Question, Ranking, tuple[tuple[int, float | None], ...]]:
    """The fastest plan on at most the given GPUs (sorted by cost: that with the fewest GPU-seconds), in whole nodes or any part
    of a single one.

    Counts with many divisors come first: they show how few GPU-seconds a step can cost. Then from the most downwards, until a
    count could not win even at that cost, less the model's resolution.
    """
    cluster = question.scenario.cluster
    counts = _gpu_counts(cluster.num_gpus, cluster.gpus_per_node)
    by_cost = question.request.sort_by == "cost"
    counts = _thinned(counts) if by_cost else counts
    steps: dict[int, float] = {}
    winner: tuple[Question, Ranking] | None = None
    least, cheapest_gpu_seconds = math.inf, math.inf
    for gpus in [*_rich_in_divisors(counts), *counts]:
        if gpus in steps or (not by_cost and cheapest_gpu_seconds / (1 + RESOLUTION) / gpus > least):
            continue
        if progress is not None:
            progress(f"{gpus} GPUs")
        changed = replace(question, scenario=question.scenario.on(num_gpus=gpus))
        ranking = ranked(changed)
        step = steps[gpus] = float(ranking.step_seconds[0]) if len(ranking.best) else math.inf
        cheapest_gpu_seconds = min(cheapest_gpu_seconds, step * gpus)
        price = step * gpus if by_cost else step
        if winner is None or price < least or _lacks_less(ranking, winner[1]):
            winner, least = (changed, ranking), min(price, least)
    assert winner is not None
    return (*winner, tuple((gpus, None if math.isinf(step) else step) for gpus, step in sorted(steps.items(), reverse=True)))


def _gpu_counts(most: int, per_node: int) -> list[int]:
    """Whole nodes up to `most`, most first; within one node any number."""
    return list(range(most, 0, -1)) if most <= per_node else list(range(most // per_node * per_node, 0, -per_node))


def _thinned(counts: list[int]) -> list[int]:
    """Counts about a fifth apart, most first: enough to find where GPU-seconds are least."""
    kept: list[int] = []
    for count in counts:
        if not kept or count <= kept[-1] * 0.8:
            kept.append(count)
    return kept


def _rich_in_divisors(counts: list[int]) -> list[int]:
    """The largest counts that are 1, 3 or 5 times a power of two."""
    found = (max((n for n in counts if n % odd == 0 and (n // odd).bit_count() == 1), default=0) for odd in (1, 3, 5))
    return sorted((n for n in found if n), reverse=True)


def _lacks_less(ranking: Ranking, other: Ranking) -> bool:
    """Neither fits: this one comes nearer to fitting."""
    if len(ranking.best) or len(other.best) or ranking.closest is None:
        return False
    return other.closest is None or ranking.closest.excess_bytes < other.closest.excess_bytes
