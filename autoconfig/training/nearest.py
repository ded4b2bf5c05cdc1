"""What is near to something that is not legal: the plan with the fewest changes, the nearest batch or number of GPUs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from autoconfig.specs.errors import InputError, PlanError, option
from autoconfig.specs.hardware.cluster import MAX_GPUS
from autoconfig.specs.layouts import divisors, stage_layers
from autoconfig.specs.plan import DEGREES, ENDS, NONE, OP, SHARDING, SHORT_TO_LONG, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.plan_rules import is_idle
from autoconfig.training.price import violations
from autoconfig.training.question import Question, understand
from autoconfig.training.recompute_rules import recompute_rule
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import (
    Constraints,
    Space,
    axes,
    enumerate_space,
    layout_splits,
    recompute_options,
    stage_splits,
)

REASONS_NAMED, SHOWN_VALUES, TRIES = 2, 12, 12
BATCHES_NAMED, FARTHEST = 2, 64
NO_LEGAL = "no legal plan"
"""How what is said of an empty space begins."""
CHANGED = tuple(key for key in DEGREES if key != "dp")
"""Degrees that are changed; dp follows from the others."""
CANDIDATES = 300
"""Layouts that are tried with each recomputation, nearest first."""
ANY = Constraints()


def nearest_legal(scenario: Scenario, plan: TrainPlan, *, even_only: bool = False, wish: Constraints = ANY) -> TrainPlan | None:
    """The legal plan with the fewest changed keys, then the closest values; None where nothing is legal.

    `even_only`: no uneven stages, for software that has no arguments for them; `wish`: only plans that it keeps, likewise.
    """
    one = [candidate for candidate in _one_change(scenario, plan) if not violations(scenario, candidate)]
    one = [candidate for candidate in one if wish.keeps(candidate) and not (even_only and candidate.first)]
    if one:
        return min(one, key=lambda candidate: distance(candidate, plan))
    return _from_space(scenario, plan, even_only, wish)


def changed_keys(new: TrainPlan, old: TrainPlan) -> list[str]:
    """Keys that differ; dp does not count."""
    return [key for key in SHORT_TO_LONG if key != "dp" and getattr(new, key) != getattr(old, key)]


def distance(new: TrainPlan, old: TrainPlan) -> tuple[int, float]:
    """(changed keys, how far the numbers are apart): powers of two of the degrees, layers of the ends. Both ends said, or
    neither any more, is one change."""
    far = sum(abs(math.log2(getattr(new, key) / getattr(old, key))) for key in CHANGED)
    keys = changed_keys(new, old)
    ends = [(getattr(new, key), getattr(old, key)) for key in ENDS]
    if all(bool(a) != bool(b) for a, b in ends):
        keys.remove("last")
        far += 1.0
    else:
        far += sum(0.25 * abs(a - b) if a and b else 1.0 if a != b else 0.0 for a, b in ends)
    if "recompute" in keys:
        far += _recompute_distance(new.recompute, old.recompute)
    return len(keys), far


def _recompute_distance(new: Recompute, old: Recompute) -> float:
    if new.granularity != old.granularity:
        return 3.0
    if new.granularity == "full":
        return (new.method != old.method) + 0.01 * abs(new.num_layers - old.num_layers)
    return 0.1 * len(set(new.modules) ^ set(old.modules))


def _one_change(scenario: Scenario, plan: TrainPlan) -> Iterator[TrainPlan]:
    """Plans that differ in one key, or in both ends at once, the most even ones first; the data-parallel size follows."""
    gpus = scenario.cluster.num_gpus
    for ends in _uneven_ends(scenario, plan):
        yield from _with(scenario, plan, ends, gpus)
    values = axes(scenario)
    values["vpp"] = divisors(scenario.model.num_layers)
    for key in CHANGED:
        for value in values[key]:
            yield from _with(scenario, plan, {key: value}, gpus)
    others: tuple[dict[str, object], ...] = (
        {"sp": not plan.sp},
        {"dist_opt": not plan.dist_opt},
        {"fsdp": 0},
        {"offload": 0.0},
        {"first": None, "last": None},
    )
    for change in others:
        yield from _with(scenario, plan, change, gpus)
    for recompute in _recomputes(scenario, plan):
        yield from _with(scenario, plan, {"recompute": recompute}, gpus)


def _uneven_ends(scenario: Scenario, plan: TrainPlan) -> list[dict[str, object]]:
    """First and last stages of the plan's pp and vpp where the layers do not divide over it: ends alike, then the one with the
    loss the smaller."""
    model = scenario.model
    if model.num_layers % plan.pp == 0 or plan.pp > model.num_layers:
        return []
    splits = [*stage_splits(model.num_layers, plan.pp), *layout_splits(model, plan.pp)]
    ends = [(first, last) for vpp, first, last in splits if vpp == plan.vpp]
    ends.sort(key=lambda pair: (abs(pair[0] - pair[1]), pair[1]))
    return [{"first": first, "last": last} for first, last in ends]


def _with(scenario: Scenario, plan: TrainPlan, change: dict[str, object], gpus: int) -> Iterator[TrainPlan]:
    try:
        found = plan.replace(**change)
        size = found.tp * found.pp * found.cp
        if gpus % size == 0:
            found = found.replace(dp=gpus // size)
            stage_layers(scenario.model, found)
            yield found
    except PlanError:
        return


def _recomputes(scenario: Scenario, plan: TrainPlan) -> list[Recompute]:
    """Recomputations to try, the nearest to the plan's own first."""
    asked = plan.recompute
    found = [asked]
    if asked.granularity == "selective":
        alone = {m: Recompute("selective", (m,)) for m in asked.modules if not is_idle(scenario, m)}
        kept = tuple(m for m, one in alone.items() if recompute_rule(scenario, one) is None)
        if asked.by_operator != scenario.software.recomputes_by_operator:  # rule AC012: what `selective` alone means there
            kept = ("core_attn",) if asked.by_operator else (OP,)
        found += [Recompute("selective", kept)] if kept else []
    if asked.granularity == "full":
        most = -(-scenario.model.num_layers // plan.pp)
        found += [Recompute("full", (), asked.method, n) for n in range(min(most, asked.num_layers), 0, -1)]
    return list(dict.fromkeys([*found, NONE]))


def _from_space(scenario: Scenario, plan: TrainPlan, even_only: bool, wish: Constraints = ANY) -> TrainPlan | None:
    """The nearest of the whole legal space: kept sharding first, then any."""
    kept = {key: frozenset({getattr(plan, key)}) for key in SHARDING}
    for constraints in (replace(wish, fixed={**kept, **wish.fixed}), wish):
        try:
            space = enumerate_space(scenario, constraints)
        except InputError:  # too many layouts to hold
            continue
        if not space.legal:
            continue
        layouts = space.layouts
        changed = np.zeros(len(layouts))
        far = np.zeros(len(layouts))
        for key in CHANGED:
            column = getattr(layouts, key)
            changed += column != getattr(plan, key)
            far += np.abs(np.log2(column / getattr(plan, key)))
        for key in ("sp", "dist_opt", "fsdp"):
            changed += getattr(layouts, key) != getattr(plan, key)
        even = (layouts.first == layouts.last) & (layouts.first * layouts.pp == scenario.model.num_layers)
        if even_only:
            changed += np.where(even | (layouts.pp == 1), 0, len(CHANGED))
        changed += even != (plan.first is None and plan.last is None)
        order = np.lexsort((far, changed))[:CANDIDATES]
        options = [*_recomputes(scenario, plan), *recompute_options(scenario, Constraints(), 1)]
        for row in order:
            for recompute in options:
                found = layouts.plan(int(row), recompute, scenario.model)
                if wish.keeps(found) and not (even_only and found.first) and not violations(scenario, found):
                    return found
    return None


@dataclass(frozen=True, kw_only=True)
class NothingLegal:
    """Why a question has no legal plan, and what is near it that has one."""

    why: str
    """A sentence, with fields as `option` writes them."""
    global_batch_sizes: tuple[int, ...]
    """Nearest first, for the same GPUs."""
    num_gpus: tuple[int, ...]
    """The next smaller and the next larger number of whole nodes, for the same batch where it was given."""

    @classmethod
    def of(cls, question: Question, space: Space) -> NothingLegal:
        """What is said of an empty space: what stopped the most layouts, and what to change."""
        batches, counts = tuple(_batches_near(question)), tuple(_counts_near(question))
        return cls(why=_why(question, space), global_batch_sizes=batches, num_gpus=counts)

    @property
    def message(self) -> str:
        """What an InputError would say."""
        values = (("global_batch_size", self.global_batch_sizes), ("gpus", self.num_gpus))
        near = [f"{option(field)} {' or '.join(map(str, numbers))}" for field, numbers in values if numbers]
        return f"{self.why}; try {', or '.join(near)}" if near else self.why

    @property
    def text(self) -> str:
        """For Python and HTTP."""
        return InputError(self.message).text

    def __str__(self) -> str:
        return str(InputError(self.message))


def _why(question: Question, space: Space) -> str:
    scenario, constraints = question.scenario, question.constraints
    asked = f"{scenario.model.name} on {scenario.cluster.num_gpus} GPUs with global batch {scenario.workload.global_batch_size}"
    if constraints != Constraints() and _legal(scenario):
        values = axes(scenario)
        for key, fixed in constraints.fixed.items():
            if key in values and not fixed & set(values[key]):
                allowed = ", ".join(str(int(v)) for v in values[key][:SHOWN_VALUES])
                more = ", ..." if len(values[key]) > SHOWN_VALUES else ""
                given = " or ".join(str(int(v)) for v in sorted(fixed))
                return f"{NO_LEGAL} for {asked}: {key}={given} is not among {key} = {allowed}{more}"
        reasons = _of_the_plainest(scenario, constraints) or _reasons(space)
        stopped = f" (most are stopped by {reasons[0]})" if reasons else ""
        return (
            f"{NO_LEGAL} for {asked} is left by {option('fix')}, {option('max')} and {option('exclude')}{stopped}; loosen "
            "one of them"
        )
    reasons = _reasons(space)
    reason = f"most are stopped by {'; or '.join(reasons[:REASONS_NAMED])}" if reasons else "nothing divides"
    reason = odd_factor(scenario) or reason
    return f"{NO_LEGAL} for {asked}: {reason}"


def _of_the_plainest(scenario: Scenario, constraints: Constraints) -> list[str]:
    """What stops the plan that is fixed and nothing beside it, at the tp that breaks fewest rules."""
    said = {key: min(values) for key, values in constraints.fixed.items() if key in CHANGED and len(values) == 1}
    found = []
    for tp in [said["tp"]] if "tp" in said else axes(scenario)["tp"]:
        with contextlib.suppress(PlanError):
            plan = scenario.read_plan(",".join(f"{key}={value}" for key, value in {"mbs": 1, **said, "tp": tp}.items()))
            found.append([f"{broken.rule}, {broken.text}" for broken in violations(scenario, plan)])
    return min(found, key=len, default=[])


def odd_factor(scenario: Scenario) -> str:
    """The odd factor of the number of GPUs that neither batch, heads nor sequence divide over GPUs, so that stages alone would
    have to; empty where there is none."""
    gpus, work, model = scenario.cluster.num_gpus, scenario.workload, scenario.model
    shared, factor, left = work.global_batch_size * model.num_attention_heads * work.seq_length, 1, 1
    for prime in (p for p in divisors(gpus) if p > 2 and len(divisors(p)) == 2):
        wanted, had = _power(gpus, prime), _power(shared, prime)
        if wanted > had:
            factor, left = factor * prime**wanted, left * prime ** (wanted - had)
    if left == 1:
        return ""
    return (
        f"{gpus:,} GPUs have the factor {factor:,}, and global batch {work.global_batch_size:,} (dp), "
        f"{model.num_attention_heads} heads (tp) and sequence {work.seq_length:,} (cp) leave {left:,} of it to the stages (pp) "
        f"of {model.num_layers} layers"
    )


def _power(number: int, prime: int) -> int:
    """How often a prime divides a number."""
    found = 0
    while number % prime == 0:
        number, found = number // prime, found + 1
    return found


def _reasons(space: Space) -> list[str]:
    return [f"{rule}, {RULE_TEXT[rule]}" for rule in space.rejected_by_rule if rule in RULE_TEXT and rule != "NV001"]


def _legal(scenario: Scenario, constraints: Constraints = ANY) -> bool:
    try:
        return enumerate_space(scenario, constraints).legal > 0
    except InputError:  # a batch larger than any, more layouts than can be held
        return False


def _batches_near(question: Question) -> Iterator[int]:
    """The nearest global batches that leave a legal plan on the same GPUs."""
    scenario = question.scenario
    gpus, batch = scenario.cluster.num_gpus, scenario.workload.global_batch_size
    near = {max(1, round(batch / part)) * part for part in divisors(gpus)} - {batch}
    legal = (one for one in sorted(near, key=lambda b: abs(b - batch))[:TRIES] if _is_legal(question, batch=one))
    return islice(legal, BATCHES_NAMED)


def _counts_near(question: Question) -> Iterator[int]:
    """The next smaller and the next larger number of whole nodes (within one, of GPUs) that has a legal plan, among those near
    and powers of two."""
    cluster = question.scenario.cluster
    gpus, node = cluster.num_gpus, cluster.gpus_per_node
    step = node if gpus > node else 1
    near = [gpus + step * number for number in range(1, TRIES)]
    powers = {2**power // step * step for power in range((FARTHEST * gpus).bit_length())}
    below = sorted({one for one in (*(2 * gpus - n for n in near), *powers) if 0 < one < gpus}, reverse=True)
    above = sorted({one for one in (*near, *powers) if gpus < one <= MAX_GPUS})
    for sizes in (below, above):
        yield from islice((one for one in sizes if _is_legal(question, gpus=one)), 1)


def _is_legal(question: Question, *, batch: int | None = None, gpus: int | None = None) -> bool:
    """Whether the question has a legal plan with another batch or number of GPUs; a batch that is not given suits the GPUs."""
    request = question.request
    try:
        if batch is not None:
            scenario = question.scenario.with_batch(batch)
        elif request.global_batch_size is not None:
            scenario = question.scenario.on(num_gpus=gpus)
        else:
            scenario = understand(replace(request, gpus=gpus, gpus_at_most=None)).scenario
    except InputError:  # a batch larger than any, GPUs that are no whole domain
        return False
    return _legal(scenario, question.constraints)
