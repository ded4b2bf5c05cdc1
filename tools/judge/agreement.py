"""Our rules against the real megatron-core, both ways, on the same plans.

A plan is refused by us where a rule is broken. Where a broken rule is enforced before a GPU is needed (`JUDGED_RULES`), the
judge must refuse, too; where none is, it must accept. What it accepts it must run as asked: an argument whose value Megatron
changes without refusing is a disagreement, too, unless it stands in `CHANGED_BY` and the plan breaks the rule that is named
there. Anything else is listed with the judge's words.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autoconfig.training.price import violations
from autoconfig.training.rules import JUDGED_RULES, RULE_TEXT
from tools.judge.client import Judges
from tools.judge.sample import Case, draw, neighbours, settings

MOST_DRAWN = 5000
BATCH = 100
NEAR = 5
"""Plans wanted, per rule, that break this rule and no other."""
IMPLIED = {"NV026": {"NV024"}, "NV041": {"NV042"}}
"""Rules that are broken whenever the rule is."""

CHANGED_BY = {"sequence_parallel": ("NV046", "switched off at tp 1; a plan that says sp=1 there is not legal for us")}
"""Deliberate exceptions: argument -> the rule of ours that is broken where Megatron changes it silently, and what happens."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A plan with both answers."""

    case: Case
    broken: tuple[str, ...]
    """Our rules that it breaks."""
    answer: dict[str, Any]

    @property
    def enforced(self) -> bool:
        """We say that the judge refuses it."""
        return bool(set(self.broken) & JUDGED_RULES)

    @property
    def changed(self) -> dict[str, Any]:
        """What Megatron accepts and then runs otherwise, without a rule of ours that says so: argument -> [asked, used]."""
        found: dict[str, Any] = self.answer["changed"]
        return {name: values for name, values in found.items() if CHANGED_BY.get(name, ("",))[0] not in self.broken}

    @property
    def agrees(self) -> bool:
        return self.enforced != self.answer["accepted"] and not self.changed


def broken_rules(case: Case) -> tuple[str, ...]:
    """Ids of our rules that the plan breaks, AC005 left out: Megatron has no argument for dp."""
    return tuple(v.rule for v in violations(case.scenario, case.plan) if v.rule != "AC005")


def judged(judges: Judges, cases: Sequence[Case]) -> list[Judged]:
    """Both answers to each plan."""
    answers = judges.plans([(case.scenario, case.plan) for case in cases])
    return [Judged(case=case, broken=broken_rules(case), answer=answer) for case, answer in zip(cases, answers, strict=True)]


def from_grid(judges: Judges, seed: int, accepted: int, rejected: int) -> list[Judged]:
    """Draw from the unfiltered grid until the judge has accepted and rejected at least as many as asked."""
    rng, choices = random.Random(seed), settings()
    found: list[Judged] = []
    while len(found) < MOST_DRAWN:
        found += judged(judges, [draw(rng, choices) for _ in range(BATCH)])
        taken = sum(plan.answer["accepted"] for plan in found)
        if taken >= accepted and len(found) - taken >= rejected:
            break
    return found


def near_misses(judges: Judges, seed: int, legal: Iterable[Judged]) -> list[Judged]:
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
    return judged(judges, chosen)


def alone(rule: str, broken: Iterable[str]) -> bool:
    """No other broken rule can be the one that the judge refuses for."""
    return not (set(broken) - {rule, *IMPLIED.get(rule, ())}) & JUDGED_RULES


@dataclass
class RuleCount:
    """How one rule fared on all plans."""

    held_accepted: int = 0
    """Not broken, and the judge accepts the plan."""
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
