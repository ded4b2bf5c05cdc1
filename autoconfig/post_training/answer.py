"""`autoconfig rl`: from what was asked to ranked placements of a step of post-training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autoconfig.post_training.job import PostTrainingJob, spread_prompts
from autoconfig.post_training.price import PricedPlacement
from autoconfig.post_training.question import Deadline, RlQuestion, RlRequest, understand
from autoconfig.post_training.questions.fewest import Tried, fewest
from autoconfig.post_training.questions.remedies import one_more_node, remedy
from autoconfig.post_training.questions.unknowns import Unknown, unknowns, widened
from autoconfig.post_training.rank import Prices
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.training.rank import RESOLUTION


@dataclass(frozen=True, kw_only=True)
class RlAnswer:
    """Placements that fit, quickest first: of those with a chance of `fit_chance` where any has it. Within RESOLUTION of the
    quickest those on-policy come first."""

    question: RlQuestion
    gpus: int
    """With a deadline the fewest that meet it, or where none do the nearest."""
    considered: int
    ranked: tuple[PricedPlacement, ...] = ()
    nearest: PricedPlacement | None = None
    """Where none fits: the one that lacks least; where there is no placement at all, the first with the remedy, which fits."""
    notes: tuple[Remark, ...] = ()
    """What is assumed of the placements that are named."""
    remedy: str = ""
    """Where none fits, or none with `fit_chance`: a change that was tried."""
    riskier: PricedPlacement | None = None
    """The quickest of those that fit with less than `fit_chance`, where it is quicker than the first."""
    one_more_node: float | None = None
    """Seconds of the best step of as many samples with one more node."""
    fewer: Tried | None = None
    """Of a deadline: the quickest on fewer GPUs, which misses it."""
    unknowns: tuple[Unknown, ...] = ()
    """What was not said and widens the band, the one that does most first."""

    @property
    def job(self) -> PostTrainingJob:
        return self.question.job

    @property
    def assumed(self) -> tuple[Remark, ...]:
        return self.question.assumed

    @property
    def fit_chance(self) -> float:
        """Return the least that was asked for."""
        return self.question.request.fit_chance

    @property
    def deadline(self) -> Deadline | None:
        """Return the deadline, where the fewest GPUs were asked for."""
        return self.question.deadline

    @property
    def price(self) -> float | None:
        """Return the money for one GPU and hour."""
        return self.question.price

    def cost_of(self, one: PricedPlacement) -> float | None:
        """Return the money for a step of a placement, which has all the GPUs; None without a price."""
        return None if self.price is None else self.price * self.gpus * one.seconds / 3600

    @property
    def fit_chance_met(self) -> bool:
        """Return whether any placement has the asked chance to fit."""
        return bool(self.ranked) and self.ranked[0].memory.chance >= self.fit_chance

    @property
    def ties(self) -> int:
        """Return how many of the ranked are within RESOLUTION of the first, as of plans of training."""
        quickest = min((one.seconds for one in self.ranked), default=0.0)
        return sum(one.seconds <= quickest * (1.0 + RESOLUTION) for one in self.ranked)


def answer(request: RlRequest) -> RlAnswer:
    """Return the answer to a question of `autoconfig rl`. Raises InputError naming what cannot be used and what is allowed."""
    question = understand(request)
    prices, gpus, fewer = Prices.of(question), question.gpus, None
    if question.deadline:
        enough, fewer = fewest(prices, gpus, question.deadline)
        if enough is None:
            return _missed(question, question.deadline, fewer)
        gpus = enough.gpus
    counted = RlAnswer(question=question, gpus=gpus, considered=prices.considered(gpus), fewer=fewer)
    if any(one.memory.fits for one in prices.bounds(gpus)):
        return _ranked(counted, prices)
    return _impossible(counted, prices)


def _ranked(counted: RlAnswer, prices: Prices) -> RlAnswer:
    """Return the answer where placements fit."""
    question, gpus = counted.question, counted.gpus
    likely = any(prices.likely(one) for one in prices.bounds(gpus))
    ordered = prices.ordered(gpus, prices.likely if likely else _fits)
    shown = on_policy_first(_first_ones(ordered, question.request.top))
    if deadline := question.deadline:
        shown = sorted(shown, key=lambda one: one.seconds > deadline.step_seconds)
    first = shown[0]
    missing = tuple(unknowns(prices, first, question.unsaid))
    risky = _riskier(prices, gpus, first.seconds) if likely else None
    return replace(
        counted,
        ranked=tuple(widened(one, missing) for one in shown[: question.request.top]),
        unknowns=missing,
        notes=(
            *spanning_engines(question.job, shown[: question.request.top]),
            *_off_policy(prices, gpus, first),
            *_few_sandboxes(prices, first),
        ),
        remedy="" if likely else remedy(prices, gpus, question.request.fit_chance)[0],
        riskier=widened(risky, missing) if risky else None,
        one_more_node=one_more_node(prices, gpus),
    )


def _impossible(counted: RlAnswer, prices: Prices) -> RlAnswer:
    """Return the answer where no placement fits."""
    words, changed = remedy(prices, counted.gpus)
    least = min(prices.bounds(counted.gpus), key=lambda one: one.memory.lacking, default=None)
    nearest = prices.price(least.placement) if least else changed
    notes = spanning_engines(counted.job, [nearest] if nearest else [])
    return replace(counted, nearest=nearest, remedy=words, notes=notes)


def _riskier(prices: Prices, gpus: int, seconds: float) -> PricedPlacement | None:
    """Return the quickest of those that fit with less than the asked chance, where it is below so many seconds."""
    risky = prices.first(gpus, lambda one: one.memory.fits and not prices.likely(one) and one.seconds < seconds)
    return risky if risky and risky.seconds < seconds else None


def _missed(question: RlQuestion, deadline: Deadline, nearest: Tried | None) -> RlAnswer:
    """Return the answer where no number of GPUs meets the deadline."""
    words = f"no number of GPUs up to {question.gpus:,} does {deadline.steps:,} steps in {deadline.hours:g} hours"
    if nearest is None:
        words += f"; none of them fits with a chance of {question.request.fit_chance * 100:.6g}%"
        return RlAnswer(question=question, gpus=question.gpus, considered=0, remedy=words)
    words += f"; {nearest.gpus:,} take {deadline.hours_of(nearest.seconds):.3g} hours (--hours {_up(deadline, nearest):g})"
    return RlAnswer(
        question=question,
        gpus=nearest.gpus,
        considered=nearest.considered,
        nearest=nearest.first,
        remedy=words,
        fewer=nearest,
    )


def _up(deadline: Deadline, one: Tried) -> float:
    """Return the hours that are enough, with three digits."""
    hours = deadline.hours_of(one.seconds)
    digits = 10.0 ** (math.floor(math.log10(hours)) - 2)
    return round(math.ceil(hours / digits) * digits, 9)


def spanning_engines(job: PostTrainingJob, shown: Iterable[PricedPlacement]) -> tuple[Remark, ...]:
    """Return what is assumed of engines that are larger than a link domain, which no published run was."""
    domain = job.gpu.link_domain_size
    sizes = sorted({one.placement.engine.tp for one in shown if one.phases.generation and one.placement.engine.tp > domain})
    if not sizes:
        return ()
    why = (
        f"engines of tp={', '.join(map(str, sizes))} are larger than a node: their all-reduces are priced as NCCL's over the "
        "network, and that the framework starts an engine over nodes is assumed; no run of such engines was measured"
    )
    return (note(why, Effect.TIME),)


def on_policy_first(placed: Sequence[PricedPlacement]) -> list[PricedPlacement]:
    """Order placements anew: of those within RESOLUTION of the first those of fewer steps off before the others, the quickest
    first of each."""
    if not placed:
        return []
    tied = [one for one in placed if one.seconds <= placed[0].seconds * (1.0 + RESOLUTION)]
    others = [one for one in placed if one not in tied]
    return [*sorted(tied, key=lambda one: one.placement.staleness), *others]


def _fits(one: PricedPlacement) -> bool:
    return one.memory.fits


def _first_ones(ordered: Iterable[PricedPlacement], top: int) -> list[PricedPlacement]:
    """Return the first `top`, and all within RESOLUTION of the first."""
    shown: list[PricedPlacement] = []
    for one in ordered:
        if len(shown) >= top and one.seconds > shown[0].seconds * (1.0 + RESOLUTION):
            break
        shown.append(one)
    return shown


def _off_policy(prices: Prices, gpus: int, first: PricedPlacement) -> tuple[Remark, ...]:
    """Note that the first trains on samples of older weights, and the quickest that does not, or why none does."""
    if not (steps := first.placement.staleness):
        return ()
    same = prices.first(gpus, lambda one: one.memory.fits and not one.placement.staleness)
    old = f"the first is off-policy: its samples are of weights up to {steps} step{'s'[: steps > 1]} old"
    if same is not None:
        return (note(f"{old}; on-policy a step takes {same.seconds:,.1f} s (--staleness 0)"),)
    job, even = prices.job, spread_prompts(prices.job.prompts, gpus)
    why = "no placement that fits is on-policy"
    if even != job.prompts and prices.changed(job.with_prompts(even), staleness=0).placements(gpus):
        samples = f"{job.samples:,} samples do not divide over all {gpus:,} GPUs"
        why = f"on-policy {samples}, those of {even:,} prompts do (--prompts {even})"
    return (note(f"{old}; {why}"),)


ENOUGH = 1.02
"""Of a step without a limit of sandboxes, within which a limit does not bind."""


def _few_sandboxes(prices: Prices, first: PricedPlacement) -> tuple[Remark, ...]:
    """Note where sandboxes bind: how many would not, to the next of twice as many, and the step with them."""
    job, boxes = prices.job, prices.job.agents.sandboxes
    if not boxes:
        return ()

    def step(sandboxes: int) -> float:
        freed = replace(job, agents=replace(job.agents, sandboxes=sandboxes))
        return prices.changed(freed).price(first.placement).seconds

    free = step(0)
    if first.seconds <= free * ENOUGH:
        return ()
    enough = boxes
    while enough < job.samples and step(enough) > free * ENOUGH:
        enough = min(2 * enough, job.samples)
    return (note(f"{boxes:,} sandboxes bind: with {enough:,} a step takes {step(enough):,.1f} s", Effect.TIME),)
