"""Our rules against the real megatron-core, both ways, on plans from the UNfiltered grid, seeded.

A plan is refused by us where a rule is broken. Where a broken rule is enforced before a GPU is needed (`JUDGED_RULES`), the
judge must refuse, too; where none is, it must accept. What it accepts it must run as asked: an argument whose value Megatron
changes without refusing is a disagreement, too, unless it stands in `CHANGED_BY` and the plan breaks the rule that is named
there. Sizes are drawn as 1 (or off) more often than not: a uniform draw breaks several rules at once in nearly every plan.
"""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoconfig.specs.plan import MODULES, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario

from autoconfig.training.price import violations
from autoconfig.training.question import Request, understand
from autoconfig.training.rules import JUDGED_RULES, RULE_TEXT
from validation.judge.client import Judge

PLAIN = 0.5
QUESTIONS = tomllib.loads(Path(__file__).with_name("questions.toml").read_text(encoding="utf-8"))
SIZES = (2, 3, 4, 5, 6, 7, 8, 12, 16)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A question of one kind of model, and a plan for it."""

    kind: str
    scenario: Scenario
    plan: TrainPlan


def settings() -> list[tuple[str, Scenario]]:
    """The questions that plans are drawn for."""
    requests = ((row["kind"], {key: value for key, value in row.items() if key != "kind"}) for row in QUESTIONS["request"])
    return [(kind, understand(Request(gpu="h100-sxm-80gb", **request)).scenario) for kind, request in requests]


def draw(rng: random.Random, choices: list[tuple[str, Scenario]]) -> Case:
    """One plan from the grid."""
    kind, scenario = rng.choice(choices)
    gpus = scenario.cluster.num_gpus
    size = {key: 1 if rng.random() < PLAIN else rng.choice(SIZES) for key in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs")}
    if not scenario.model.is_moe and rng.random() < 0.8:
        size |= {"ep": 1, "etp": 1}
    if size["pp"] == 1 and rng.random() < 0.8:
        size["vpp"] = 1
    plan = TrainPlan(
        **size,
        dp=max(1, gpus // (size["tp"] * size["pp"] * size["cp"])),
        sp=rng.random() < 0.5,
        recompute=_recompute(rng, scenario.model.num_layers),
        dist_opt=rng.random() < 0.8,
        fsdp=rng.choice((2, 3)) if rng.random() < 0.15 else 0,
        offload=0.5 if rng.random() < 0.15 else 0.0,
    )
    return Case(kind=kind, scenario=scenario, plan=_stages(rng, scenario, plan))


def _stages(rng: random.Random, scenario: Scenario, plan: TrainPlan) -> TrainPlan:
    if plan.pp == 1 or rng.random() < 0.4:
        return plan
    around = max(1, scenario.model.num_layers // plan.pp)
    first, last = (max(1, around + rng.choice((-2, -1, 0, 1, 2))) for _ in range(2))
    return replace(plan, first=first if rng.random() < 0.7 else None, last=last if rng.random() < 0.7 else None)


def _recompute(rng: random.Random, layers: int) -> Recompute:
    form = rng.choice(("none", "none", "selective", "uniform", "block"))
    if form == "none":
        return Recompute()
    if form == "selective":
        return Recompute("selective", tuple(rng.sample(MODULES, rng.choice((1, 1, 2)))))
    return Recompute("full", (), form, rng.choice((1, 1, 2, 3, 8, layers + 1)))


def neighbours(rng: random.Random, case: Case) -> Iterator[Case]:
    """The case with one key drawn anew: what stands next to a plan in the grid."""
    plan, layers = case.plan, case.scenario.model.num_layers
    changes: list[dict[str, Any]] = [{key: value} for key in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs") for value in SIZES]
    changes += [{"sp": not plan.sp}, {"dist_opt": not plan.dist_opt}, {"fsdp": 3}, {"fsdp": 2}, {"offload": 1.0}]
    changes += [{"fsdp": 3, "dist_opt": False}, {"first": 1}, {"last": 1}, {"first": 3, "last": 2}]
    changes += [{"recompute": Recompute("selective", (module,))} for module in MODULES]
    changes += [
        {"recompute": Recompute("full", (), method, count)} for method in ("uniform", "block") for count in (2, layers + 1)
    ]
    rng.shuffle(changes)
    for change in changes:
        new = replace(plan, **change)
        gpus = case.scenario.cluster.num_gpus
        yield replace(case, plan=replace(new, dp=max(1, gpus // (new.tp * new.pp * new.cp))))


MAX_DRAWN = 9000
BATCH = 100
NEAR = 5
"""Plans wanted, per rule, that break this rule and no other."""
IMPLIED = {"NV026": {"NV024"}, "NV041": {"NV042"}}
CHANGED_BY = {"sequence_parallel": ("NV046", "switched off at tp 1; a plan that says sp=1 there is not legal for us")}
"""Deliberate exceptions: argument -> the rule of ours that is broken where Megatron changes it silently, and what happens."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A plan with both answers."""

    case: Case
    broken: tuple[str, ...]
    answer: dict[str, Any]

    def __str__(self) -> str:
        scenario, plan = self.case.scenario, self.case.plan
        return f"{scenario.model.name} {plan}: ours {self.broken or 'legal'}, judge {self.answer}"

    @property
    def enforced(self) -> bool:
        return bool(set(self.broken) & JUDGED_RULES)

    @property
    def changed(self) -> dict[str, Any]:
        """What Megatron accepts and then runs otherwise, without a rule of ours that says so: argument -> [asked, used]."""
        changes: dict[str, Any] = self.answer["changed"]
        return {name: values for name, values in changes.items() if CHANGED_BY.get(name, ("",))[0] not in self.broken}

    @property
    def agrees(self) -> bool:
        return self.enforced != self.answer["accepted"] and not self.changed


def broken_rules(case: Case) -> tuple[str, ...]:
    """Ids of our rules that the plan breaks, AC005 left out: Megatron has no argument for dp."""
    return tuple(v.rule for v in violations(case.scenario, case.plan) if v.rule != "AC005")


def judged(judge: Judge, cases: Sequence[Case]) -> list[Judged]:
    """Both answers to each plan."""
    answers = judge.plans([(case.scenario, case.plan) for case in cases])
    return [Judged(case=case, broken=broken_rules(case), answer=answer) for case, answer in zip(cases, answers, strict=True)]


def from_grid(judge: Judge, seed: int, accepted: int, rejected: int) -> list[Judged]:
    """Draw from the unfiltered grid until the judge has accepted and rejected at least as many as asked."""
    rng, choices = random.Random(seed), settings()
    plans: list[Judged] = []
    while len(plans) < MAX_DRAWN:
        plans += judged(judge, [draw(rng, choices) for _ in range(BATCH)])
        taken = sum(plan.answer["accepted"] for plan in plans)
        if taken >= accepted and len(plans) - taken >= rejected:
            break
    return plans


def near_misses(judge: Judge, seed: int, legal: Iterable[Judged]) -> list[Judged]:
    """Plans beside legal ones that break one rule only: what shows a rule by itself."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    chosen: list[Case] = []
    for start in legal:
        for case in neighbours(rng, start.case):
            broken = broken_rules(case)
            shown = [rule for rule in broken if alone(rule, broken) and seen[rule] < NEAR]
            if shown:
                seen.update(shown)
                chosen.append(case)
    return judged(judge, chosen)


def alone(rule: str, broken: Iterable[str]) -> bool:
    """No other broken rule can be the one that the judge refuses for."""
    return not (set(broken) - {rule, *IMPLIED.get(rule, ())}) & JUDGED_RULES


@dataclass
class RuleCount:
    """How one rule fared on all plans."""

    held_accepted: int = 0
    broken: int = 0
    alone_refused: int = 0
    alone_accepted: int = 0
    words: str = ""
    """The judge's, at its first refusal."""


def by_rule(plans: Iterable[Judged]) -> dict[str, RuleCount]:
    """Rule id -> counts; every rule has a row."""
    counts = {rule: RuleCount() for rule in RULE_TEXT}
    for plan in plans:
        for rule, count in counts.items():
            if rule not in plan.broken:
                count.held_accepted += plan.answer["accepted"]
                continue
            count.broken += 1
            if not alone(rule, plan.broken):
                continue
            if plan.answer["accepted"]:
                count.alone_accepted += 1
            else:
                count.alone_refused += 1
                count.words = count.words or f"{plan.answer['where']}: {plan.answer['message']}"
    return counts
