"""Enumerate, prune by memory, price, rank. The engine below `service.search`; no printing, no files.

Every legal layout is combined with every legal recomputation. Memory decides which plans fit, the time model prices those that
do. A layout's rank is that of its best plan.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.predict import estimate_memory, fit_probability
from autoconfig.specs.errors import GIB, InputError, option
from autoconfig.specs.json_record import Keywords, Natural, NotNegative, Positive
from autoconfig.specs.layouts import Layouts, divisors, first_positions, middle_layers
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import PlanReport
from autoconfig.training.prune import ROWS_PER_BLOCK, PhaseClock, Priced, price_plans
from autoconfig.training.question import Question
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Constraints, Space, axes, enumerate_space, legal_mask, recompute_options

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Funnel:
    """What became of the space. Counts are layouts (tp, sp, pp, vpp, first, last, cp, ep, etp, dp, mbs), of `priced` plans."""

    enumerated: Natural
    """Combinations of the grid."""
    legal: Natural
    """Layouts that no rule, wish or search bound forbids."""
    legal_even: Natural
    """Of these, with even stages."""
    fit: Natural
    """Layouts with at least one plan within the memory limit."""
    fit_even: Natural
    priced: Natural
    """Plans that fit. Those that a bound of their step time rules out of the answer are counted, not priced in detail."""
    rejected_by_rule: dict[str, Positive]
    """Rule id, `wish` (--fix, --max, --exclude) or search bound -> layouts; with legal they sum to enumerated."""
    seconds: NotNegative
    """Wall time of the search."""
    seconds_by_phase: Annotated[dict[str, NotNegative], Keywords(propertyNames={"pattern": "^[a-z][a-z0-9_]*$"})]
    """Phase -> seconds, added up over threads."""


@dataclass(frozen=True, kw_only=True)
class ClosestInfeasible:
    """The legal plan that comes closest to fitting."""

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
    closest: ClosestInfeasible | None
    """Where nothing fits."""
    whole: bool
    """Every plan that fits is here; else those that are not slower than the last one here."""
    level: str
    """Whether the time model's constants for this GPU were measured on it (`calibrated`) or inherited (`default`)."""

    def plan(self, position: int) -> TrainPlan:
        """The plan at a position of the columns."""
        return self.space.layouts.plan(int(self.row[position]), self.options[int(self.option[position])], self.scenario.model)

    def plan_of(self, closest: ClosestInfeasible) -> TrainPlan:
        """The plan that comes closest to fitting."""
        return self.space.layouts.plan(closest.row, self.options[closest.option], self.scenario.model)

    def fit_chances(self) -> Floats:
        """Chance to fit of every plan."""
        return np.asarray(fit_probability(self.peak_bytes, self.limit_bytes, self.scenario.cluster.memory_bytes))


def rank_plans(
    scenario: Scenario, constraints: Constraints | None = None, margin: float = 0.0, first: int | None = None
) -> Ranking:
    """The ranking for one question. An empty ranking carries the plan closest to fitting.

    With `first` it may end early: it holds at least so many layouts, a safe plan and what a Pareto set is made of, as far as
    there are such, and is the beginning of the whole ranking. All counts are of the whole.
    """
    constraints, clock = constraints or Constraints(), PhaseClock()
    with clock.phase("enumeration"):
        space = enumerate_space(scenario, constraints)
        layouts = space.layouts
        largest = np.maximum.reduce([layouts.first, layouts.last, middle_layers(scenario.model, layouts)])
        options = recompute_options(scenario, constraints, int(largest.max(initial=1)))
    priced = price_plans(scenario, space, options, margin, first, clock)
    closest = None if priced.plans else _closest(scenario, layouts, options, margin)
    return _rank(scenario, space, options, priced, closest, clock)


def _closest(scenario: Scenario, layouts: Layouts, options: list[Recompute], margin: float) -> ClosestInfeasible | None:
    """The legal plan with the smallest excess over its limit; None where nothing is legal."""
    closest: ClosestInfeasible | None = None
    for start in range(0, len(layouts), ROWS_PER_BLOCK):
        part = layouts.take(slice(start, start + ROWS_PER_BLOCK))
        memory = estimate_memory(scenario, part, options, margin=margin)
        excess = np.where(legal_mask(options, part, scenario), memory.peak_bytes - memory.limit_bytes[:, None], np.inf)
        row, option = divmod(int(np.argmin(excess)), excess.shape[1])
        if excess[row, option] < (np.inf if closest is None else closest.excess_bytes):
            closest = ClosestInfeasible(row=start + row, option=option, excess_bytes=float(excess[row, option]))
    return closest


def _rank(
    scenario: Scenario,
    space: Space,
    options: list[Recompute],
    priced: Priced,
    closest: ClosestInfeasible | None,
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


RESOLUTION = 0.06
"""Plans closer than this in predicted step time are a tie: the spread within groups of measured runs that differ only in
their plan is 6 to 9 % (findings on public measurements, section 7)."""
PARTS_NAMED, SHOWN_VALUES, TRIES = 2, 12, 12
PART_WORDS = {
    "gemm_seconds": "GEMMs",
    "grouped_gemm_seconds": "grouped GEMMs",
    "tp_communication_seconds": "TP communication",
    "cp_communication_seconds": "CP communication",
    "expert_exchange_seconds": "expert dispatch and combine",
    "p2p_seconds": "pipeline sends",
    "fsdp_seconds": "FSDP gathers",
    "host_floor_seconds": "waiting for the host",
    "straggler_seconds": "stragglers",
}


def part_words(name: str) -> str:
    """A part of the step in a sentence; tables and JSON have the name of its formula."""
    return PART_WORDS.get(name, name.removesuffix("_seconds").replace("_", " "))


def largest_parts(report: PlanReport) -> str:
    """`GEMMs 74 %, TP communication 8 %, pointwise 4 %`: the largest parts of the step."""
    parts = sorted(report.time_parts.items(), key=lambda item: -item[1])[: PARTS_NAMED + 1]
    return ", ".join(f"{part_words(name)} {100 * s / report.step_seconds:.0f} %" for name, s in parts if s > 0)


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


def reason_for(report: PlanReport, first: PlanReport | None, ranking: Ranking, position: int) -> str:
    """Why the plan is at this place: for the first its largest parts and what it beat, for others what they trade."""
    if first is None or position == int(ranking.best[0]):
        return _why_first(report, ranking)
    ratio = report.step_seconds / first.step_seconds - 1
    slower = f"{ratio:.1%} slower than the first" if ratio > 0.0005 else "as fast as the first"
    return f"{slower}{_trade(report, first)}"


def _why_first(report: PlanReport, ranking: Ranking) -> str:
    free = (report.limit_bytes - report.peak_bytes) / GIB
    return (
        f"fastest of {ranking.funnel.priced:,} plans that fit ({largest_parts(report)} of the step), "
        f"{free:.1f} GiB below the limit on stage {report.worst_stage.stage}"
    )


def _trade(report: PlanReport, first: PlanReport) -> str:
    """The parts in which a plan loses and gains most against the first, and the memory that it saves or takes."""
    names = set(report.time_parts) | set(first.time_parts)
    delta = sorted(
        ((report.time_parts.get(n, 0.0) - first.time_parts.get(n, 0.0), n) for n in names), key=lambda item: -item[0]
    )
    small = 0.002 * first.step_seconds
    losses = [f"{part_words(name)} {_signed(seconds)}" for seconds, name in delta[:PARTS_NAMED] if seconds > small]
    gains = [f"{part_words(name)} {_signed(seconds)}" for seconds, name in delta[::-1][:PARTS_NAMED] if seconds < -small]
    memory = (report.peak_bytes - first.peak_bytes) / GIB
    text = "; ".join(losses + gains)
    return (f": {text}" if text else "") + (f"; {memory:+.1f} GiB" if abs(memory) >= 0.05 else "")


def _signed(seconds: float) -> str:
    """A difference with three digits and its unit."""
    return f"{seconds:+.2f} s" if abs(seconds) >= 1 else f"{seconds * 1e3:+.3g} ms"


def nothing_legal(question: Question, space: Space) -> InputError:
    """The error for an empty space: what stopped the most layouts, and what to change."""
    scenario, constraints = question.scenario, question.constraints
    asked = f"{scenario.model.name} on {scenario.cluster.num_gpus} GPUs with global batch {scenario.workload.global_batch_size}"
    if constraints != Constraints() and _legal(scenario):
        values = axes(scenario)
        for key, fixed in constraints.fixed.items():
            if key in values and not fixed & set(values[key]):
                allowed = ", ".join(str(int(v)) for v in values[key][:SHOWN_VALUES])
                more = ", ..." if len(values[key]) > SHOWN_VALUES else ""
                given = " or ".join(str(int(v)) for v in sorted(fixed))
                return InputError(f"no legal plan for {asked}: {key}={given} is not among {key} = {allowed}{more}")
        return InputError(
            f"no legal plan for {asked} is left by {option('fix')}, {option('max')} and {option('exclude')}; loosen one of them"
        )
    reasons = [f"{rule}, {RULE_TEXT[rule]}" for rule in space.rejected_by_rule if rule in RULE_TEXT and rule != "NV001"]
    reason = f"most are stopped by {'; or '.join(reasons[:PARTS_NAMED])}" if reasons else "nothing divides"
    return InputError(f"no legal plan for {asked}: {reason}; try {_what_would_be_legal(scenario)}")


def _legal(scenario: Scenario) -> bool:
    return enumerate_space(scenario).legal > 0


def _what_would_be_legal(scenario: Scenario) -> str:
    """The nearest global batch, else the nearest smaller number of whole nodes, that has a legal plan."""
    gpus, batch = scenario.cluster.num_gpus, scenario.workload.global_batch_size
    node = scenario.cluster.gpus_per_node
    batches = sorted({max(1, round(batch / part)) * part for part in divisors(gpus)}, key=lambda b: abs(b - batch))
    for wanted in batches[:TRIES]:
        with contextlib.suppress(InputError):  # a batch larger than any
            if _legal(scenario.with_batch(wanted)):
                return f"--global-batch-size {wanted}"
    sizes = {2**k // node * node for k in range(gpus.bit_length())} | {gpus // 2**k // node * node for k in range(1, TRIES)}
    for wanted in sorted((n for n in sizes if 0 < n < gpus), reverse=True):
        if _legal(scenario.on(num_gpus=wanted)):
            return f"--gpus {wanted}, or --gpus-at-most {gpus}"
    return "another sequence length, or a model whose heads and layers have more divisors"
