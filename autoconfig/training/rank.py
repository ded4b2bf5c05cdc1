"""Enumerate, prune by memory, price, rank, and put in order. The engine below `answer`; no printing, no files.

Every legal layout is combined with every legal recomputation. Memory decides which plans fit: every layout's plans are looked
at, so counts are exact. A step time is worked out where a lower bound of it says that the plan may be among those asked for:
the fastest layouts, and all plans up to a multiple of the fastest. A layout's rank is that of its best plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.predict import estimate_memory, fit_probability
from autoconfig.specs.json_record import Keywords, Natural, NotNegative, Positive
from autoconfig.specs.layouts import Layouts, first_positions, middle_layers, pareto_front
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import ROWS_PER_BLOCK, SAFE_FIT, SLOWEST, PhaseClock, Priced, price
from autoconfig.training.space import Constraints, Space, enumerate_space, legal_mask, recompute_options

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

Mask = npt.NDArray[np.bool_]
PARETO_POINTS = 12
PLAINER = 0.03
"""A plainer plan may come before the fastest when it is so much slower at most: half of a tie."""
RESOLUTION = 0.06
"""Plans closer than this in predicted step time are a tie: the spread within groups of measured runs that differ only in
their plan is 6 to 9 % (findings on public measurements, section 7)."""


@dataclass(frozen=True, kw_only=True)
class Funnel:
    """What became of the space. Counts are layouts (tp, sp, pp, vpp, first, last, cp, ep, etp, dp, mbs), of `priced` plans."""

    enumerated: Natural
    """Combinations of the grid."""
    legal: Natural
    """Layouts that no rule, constraint or search bound forbids."""
    legal_even: Natural
    """Of these, with even stages."""
    fit: Natural
    """Layouts with at least one plan within the memory limit."""
    fit_even: Natural
    """Of these, with even stages."""
    priced: Natural
    """Plans that fit. Those that a bound of their step time rules out of the answer are counted, not priced in detail."""
    rejected_by_rule: dict[str, Positive]
    """Rule id, `wish` (--fix, --max, --exclude) or search bound -> layouts; with legal they sum to enumerated."""
    seconds: NotNegative
    """Wall time of the search."""
    seconds_by_phase: Annotated[dict[str, NotNegative], Keywords(propertyNames={"pattern": "^[a-z][a-z0-9_]*$"})]
    """Phase -> seconds."""


@dataclass(frozen=True)
class PlaceOfPlan:
    """A plan that is not among the ranked ones."""

    row: int
    option: int
    excess_bytes: float
    """Peak above the limit."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Plans that fit, fastest first; parallel columns."""

    scenario: Scenario
    space: Space
    options: list[Recompute]
    row: Ints
    """Index into space.layouts."""
    option: Ints
    """Index into options."""
    step_seconds: Floats
    peak_bytes: Floats
    limit_bytes: Floats
    best: Ints
    """Positions of the best plan of each layout, fastest first: the layouts' ranking."""
    funnel: Funnel
    closest: PlaceOfPlan | None
    """Where nothing fits."""
    riskier: PlaceOfPlan | None = None
    """The fastest plan that fits with less than the asked chance, where it is faster than the first."""
    fit_chance_met: bool = True
    """The plans reach the asked chance to fit; where no plan does, these are all that fit."""
    whole: bool
    """Every plan that fits is here; else those that are not slower than the last one here."""
    level: str
    """Whether the time model's constants for this GPU were measured on it (`calibrated`) or inherited (`default`)."""

    def take(self, which: Mask) -> Ranking:
        """These plans of it."""
        row = self.row[which]
        columns = {name: getattr(self, name)[which] for name in ("option", "step_seconds", "peak_bytes", "limit_bytes")}
        return replace(self, row=row, **columns, best=first_positions(self.space.layout_id[row]))

    def ends_before(self, seconds: float) -> bool:
        """Plans of less than so many step seconds may not be here."""
        return not self.whole and (not len(self.row) or float(self.step_seconds[-1]) < seconds)

    def plan(self, position: int) -> TrainPlan:
        """The plan at a position of the columns."""
        return self.space.layouts.plan(int(self.row[position]), self.options[int(self.option[position])], self.scenario.model)

    def plan_of(self, place: PlaceOfPlan) -> TrainPlan:
        """The plan at a place of the space."""
        return self.space.layouts.plan(place.row, self.options[place.option], self.scenario.model)

    def fit_chances(self) -> Floats:
        """Chance to fit of every plan."""
        return np.asarray(fit_probability(self.peak_bytes, self.limit_bytes, self.scenario.cluster.memory_bytes))


def rank(
    scenario: Scenario,
    constraints: Constraints | None = None,
    margin: float = 0.0,
    first: int | None = None,
    fit_chance: float = 0.0,
    *,
    likely: bool = True,
) -> Ranking:
    """The ranking for one question. An empty ranking carries the plan closest to fitting.

    Plans with less than `fit_chance` to fit are left out where any plan has it; they are in the counts. With `first` it may end
    early: it holds at least so many layouts, a safe plan and what a Pareto set is made of, as far as there are such, and is the
    beginning of the whole ranking. All counts are of the whole. Without `likely` those with less are there, too.
    """
    constraints, clock = constraints or Constraints(), PhaseClock()
    with clock.phase("enumeration"):
        space = enumerate_space(scenario, constraints)
        layouts = space.layouts
        largest = np.maximum.reduce([layouts.first, layouts.last, middle_layers(scenario.model, layouts)])
        options = recompute_options(scenario, constraints, int(largest.max(initial=1)))
    priced = price(scenario, space, options, margin, first, clock, fit_chance)
    closest = None if priced.plans else _closest(scenario, layouts, options, margin)
    ranking = _rank(scenario, space, options, priced, closest, clock)
    return likely_only(ranking, fit_chance) if likely else ranking


def _closest(scenario: Scenario, layouts: Layouts, options: list[Recompute], margin: float) -> PlaceOfPlan | None:
    """The legal plan with the smallest excess over its limit; None where nothing is legal."""
    closest: PlaceOfPlan | None = None
    for start in range(0, len(layouts), ROWS_PER_BLOCK):
        part = layouts.take(slice(start, start + ROWS_PER_BLOCK))
        memory = estimate_memory(scenario, part, options, margin=margin)
        excess = np.where(legal_mask(options, part, scenario), memory.peak_bytes - memory.limit_bytes[:, None], np.inf)
        row, option = divmod(int(np.argmin(excess)), excess.shape[1])
        if excess[row, option] < (np.inf if closest is None else closest.excess_bytes):
            closest = PlaceOfPlan(start + row, option, float(excess[row, option]))
    return closest


def _rank(
    scenario: Scenario,
    space: Space,
    options: list[Recompute],
    priced: Priced,
    closest: PlaceOfPlan | None,
    clock: PhaseClock,
) -> Ranking:
    with clock.phase("ranking"):
        found = priced.take(_fastest_first(priced.step, priced.peak - priced.limit))
        best = first_positions(space.layout_id[found.row])
    layouts = space.layouts
    even = layouts.first * layouts.pp == scenario.model.num_layers
    even &= (layouts.pp == 1) | (layouts.last == layouts.first)
    funnel = Funnel(
        enumerated=space.enumerated,
        legal=space.legal,
        legal_even=space.legal_even,
        fit=len(priced.layouts),
        fit_even=int(even[priced.layouts].sum()),
        priced=priced.plans,
        rejected_by_rule=space.rejected_by_rule,
        seconds=time.perf_counter() - clock.start,
        seconds_by_phase=clock.phases,
    )
    return Ranking(
        scenario=scenario,
        space=space,
        options=options,
        row=found.row,
        option=found.option,
        step_seconds=found.step,
        peak_bytes=found.peak,
        limit_bytes=found.limit,
        best=best,
        funnel=funnel,
        level=found.level,
        whole=priced.whole,
        closest=closest,
    )


def likely_only(ranking: Ranking, fit_chance: float) -> Ranking:
    """Its plans with this chance to fit; where none has it, all of them."""
    likely = ranking.fit_chances() >= fit_chance
    if not likely.any():
        return replace(ranking, fit_chance_met=not len(ranking.row))
    excess = ranking.peak_bytes - ranking.limit_bytes
    riskier = None if likely[0] else PlaceOfPlan(int(ranking.row[0]), int(ranking.option[0]), float(excess[0]))
    return replace(ranking if likely.all() else ranking.take(likely), riskier=riskier, fit_chance_met=True)


def sayable_only(
    ranking: Ranking,
    says: Callable[[TrainPlan], bool],
    shown: Callable[[Ranking], Iterable[int]],
    fit_chance: float,
    first: int = 0,
) -> Ranking | None:
    """A ranking of all chances to fit with the plans alone that `says` takes and that have this chance, as far as `shown` reads
    it: it is asked of these and of the beginning, as there may be very many. None where a ranking that ended early (`first`
    layouts) may have left out one that belongs there."""
    keys = ranking.row.astype(np.int64) * len(ranking.options) + ranking.option
    place = dict(zip(keys.tolist(), range(len(keys)), strict=True))
    kept, tested, block = np.ones(len(keys), bool), np.zeros(len(keys), bool), FIRST_TOLD
    while True:
        found = likely_only(ranking if kept.all() else ranking.take(kept), fit_chance)
        now = found.row.astype(np.int64) * len(found.options) + found.option
        wanted = [place[int(now[position])] for position in shown(found)]
        if found.riskier is not None:
            wanted.append(place[found.riskier.row * len(found.options) + found.riskier.option])
        if all(tested[wanted]):
            short = len(found.best) < first or safe_position(found) is None or not found.fit_chance_met
            enough = ranking.whole or not (short or ranking.ends_before(SLOWEST * found.step_seconds[0]))
            return found if enough else None
        wanted += [place[int(key)] for key in now[:block]]
        asked = [at for at in dict.fromkeys(wanted) if not tested[at]]
        tested[asked] = True
        kept[asked] = [says(ranking.plan(at)) for at in asked]
        block *= 2


FIRST_TOLD = 64
"""Plans from the fastest on that are asked of a format first, whether or not the answer shows them; then twice as many."""


def _fastest_first(step: Floats, excess: Floats) -> Ints:
    """Order by step time, of plans as fast as each other by excess memory: as lexsort, which sorts millions of rows twice."""
    order = np.argsort(step)
    equal = step[order[1:]] == step[order[:-1]]
    tied = np.zeros(len(order), bool)
    tied[1:] |= equal
    tied[:-1] |= equal
    group = np.sort(order[tied])
    order[tied] = group[np.lexsort((excess[group], step[group]))]
    return order


def plainest_first(ranking: Ranking) -> Ranking:
    """The same with the layouts within PLAINER of the fastest in another order: fewest unusual settings first, of these the
    fastest. Unusual are chunks of one layer, uneven stages where even ones exist, context parallelism, FSDP, selective
    recomputation of several modules, and full recomputation of a part of the layers."""
    steps = ranking.step_seconds[ranking.best]
    count = int(np.searchsorted(steps, steps[0] * (1 + PLAINER), side="right")) if len(steps) else 0
    tied = ranking.best[:count]
    rows, num_layers = ranking.space.layouts.take(ranking.row[tied]), ranking.scenario.model.num_layers
    lists = np.array([len(option.modules) > 1 or option.method == "block" for option in ranking.options], bool)
    uneven = (num_layers % rows.pp == 0) & (rows.pp > 1) & (rows.first * rows.pp != num_layers)
    thin = (rows.vpp > 1) & (rows.pp * rows.vpp == num_layers)
    strange = np.sum([uneven, thin, rows.cp > 1, rows.fsdp > 0, lists[ranking.option[tied]]], axis=0)
    order = np.argsort(strange, kind="stable")
    return replace(ranking, best=np.concatenate([tied[order], ranking.best[count:]]))


def tie_groups(step_seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Group number (from 1) of every plan of a ranking: a group is all plans within RESOLUTION of its first."""
    groups = np.zeros(len(step_seconds), np.int64)
    start, group = 0, 0
    while start < len(step_seconds):
        group += 1
        end = int(np.searchsorted(step_seconds, step_seconds[start] * (1 + RESOLUTION), side="right"))
        groups[start:end] = group
        start = max(end, start + 1)
    return groups


def pareto_positions(ranking: Ranking) -> list[int]:
    """Positions of plans that no other plan beats in both step time and memory headroom; at most PARETO_POINTS, spread out,
    none slower than SLOWEST times the first."""
    if not len(ranking.row):
        return []
    within = int(np.searchsorted(ranking.step_seconds, SLOWEST * ranking.step_seconds[0], side="right"))
    free = (ranking.limit_bytes - ranking.peak_bytes)[:within]
    front = pareto_front(ranking.step_seconds[:within], free)
    if len(front) > PARETO_POINTS:
        wanted = np.geomspace(ranking.step_seconds[front[0]], ranking.step_seconds[front[-1]], PARETO_POINTS)
        nearest = np.abs(ranking.step_seconds[front][None, :] - wanted[:, None]).argmin(axis=1)
        front = front[sorted(set(nearest.tolist()))]
    return [int(position) for position in front]


def safe_position(ranking: Ranking) -> int | None:
    """Position of the fastest plan whose chance to fit is at least SAFE_FIT; None where there is none."""
    likely = np.flatnonzero(ranking.fit_chances() >= SAFE_FIT)
    return int(likely[0]) if len(likely) else None


def in_order(ranking: Ranking, sort_by: str) -> npt.NDArray[np.int64]:
    """One plan per layout: fastest first, or smallest, or likeliest where none has the asked chance to fit."""
    if sort_by != "memory" and ranking.fit_chance_met:
        return ranking.best
    size = ranking.peak_bytes - (0.0 if sort_by == "memory" else ranking.limit_bytes)
    smallest = np.lexsort((ranking.step_seconds, size))
    return smallest[first_positions(ranking.space.layout_id[ranking.row[smallest]])]
