"""Writes docs/legality.md: every rule, and what the real megatron-core says of plans that break it.

    .venv-judge/bin/python -m validation.judge.page

Ends with exit code 1 and a list where a rule and the judge disagree; the page is written in any case.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoconfig.megatron.flag_table import words
from autoconfig.megatron.read_plan import FOR_EMBEDDING, FOR_LOSS, LAYOUT
from autoconfig.megatron.write import mock_arguments
from autoconfig.runs.table import cell
from autoconfig.training.recompute_rules import JUDGED, PlanRule
from autoconfig.training.rules import ALL_RULES, JUDGED_RULES
from validation.judge.agreement import CHANGED_BY, Judged, RuleCount, by_rule, from_grid, near_misses
from validation.judge.audit import ILLEGAL, NOT_COVERED, Audit, AuditedRecipe, audit_file
from validation.judge.client import ROOT, Judge
from validation.judge.recipe_row import RecipeRun, sizes_of_recipe

TABLE = ROOT / "autoconfig" / "data" / "bridge_recipes.csv"


@dataclass(frozen=True, kw_only=True)
class JudgedRecipe:
    """A recipe with both answers."""

    audited: AuditedRecipe
    answer: dict[str, Any]

    @property
    def legal(self) -> bool:
        return self.audited.verdict != ILLEGAL

    @property
    def agrees(self) -> bool:
        return self.legal == self.answer["accepted"] and not self.answer["changed"]

    def __str__(self) -> str:
        return f"recipe {cell(self.audited.row, 'recipe')}: ours {self.audited.verdict}, judge {self.answer}"

    @property
    def words(self) -> str:
        return f"{self.answer['where']}: {self.answer['message']}" if not self.answer["accepted"] else ""


def judged_recipes(judge: Judge, audit: Audit) -> list[JudgedRecipe]:
    """Both answers to every recipe of a known model, and to every other one that we accuse."""
    covered = [recipe for recipe in audit.recipes if recipe.verdict != NOT_COVERED]
    return [JudgedRecipe(audited=recipe, answer=_answer(judge, recipe)) for recipe in covered]


def _answer(judge: Judge, audited: AuditedRecipe) -> dict[str, Any]:
    if audited.recipe is None:
        return judge.degrees(sizes_of_recipe(audited.row), sequence_parallel=cell(audited.row, "sp") == "True")
    scenario = audited.recipe.scenario
    return judge.run(scenario, audited.recipe.plan, recipe_arguments(audited.recipe))


def recipe_arguments(recipe: RecipeRun) -> list[str]:
    """A recipe as Megatron-LM's arguments; adapters, which these have none for, are left out (the plan is the same)."""
    scenario = replace(recipe.scenario, numerics=replace(recipe.scenario.numerics, peft="none"))
    split, plan = recipe.split, recipe.plan
    if split is None:
        return words(mock_arguments(scenario, plan))
    if not split.text:
        counted = max(split.layers)
        flags = [FOR_EMBEDDING] * (split.layers[0] < counted) + [FOR_LOSS] * (split.layers[-1] < counted)
        return [*words(mock_arguments(scenario, plan.replace(first=None, last=None))), *flags]
    even = plan.replace(first=None, last=None, vpp=1)
    return [*words(mock_arguments(scenario, even)), LAYOUT, split.text]


PAGE = ROOT / "docs" / "legality.md"
TEMPLATE = Path(__file__).with_name("legality.md")
SEED = 20260102
WANTED = 400
"""Plans of the grid that the judge accepts, and at least as many that it rejects."""
KINDS = ("dense GPT", "GQA", "MoE", "MLA")


def main() -> int:
    """Draw, judge, write, and say whether both agree."""
    with Judge(count=2) as judge:
        grid = from_grid(judge, SEED, WANTED, WANTED)
        near = near_misses(judge, SEED, (plan for plan in grid if not plan.broken))
        audit = audit_file(TABLE)
        recipes = judged_recipes(judge, audit)
    PAGE.write_text(page(grid, near, recipe_lines(audit, recipes)), encoding="utf-8")
    plans, accepted = [*grid, *near], sum(plan.answer["accepted"] for plan in grid)
    wrong = [str(plan) for plan in plans if not plan.agrees]
    odd = [str(recipe) for recipe in recipes if not recipe.agrees]
    complaints = [f"DISAGREE {text}" for text in (*wrong, *odd)]
    if unseen := sorted(rule for rule, count in by_rule(plans).items() if rule in JUDGED_RULES and not count.alone_refused):
        complaints.append(
            f"no plan shows these rules by themselves: {', '.join(unseen)}; add a question to validation/judge/agreement.py"
        )
    if min(accepted, len(grid) - accepted) < WANTED:
        complaints.append(f"fewer than {WANTED} plans that the judge accepts, or that it refuses, in {len(grid)} (MAX_DRAWN)")
    print(
        *complaints,
        f"grid: {len(grid)} plans, judge accepted {accepted}, rejected {len(grid) - accepted}; near misses: {len(near)}; "
        f"agreement {len(plans) - len(wrong)} of {len(plans)}; recipes: {audit.covered_share():.1%} of the text decoders "
        f"covered, agreement {len(recipes) - len(odd)} of {len(recipes)}; wrote {PAGE.relative_to(ROOT)}",
        sep="\n",
    )
    return int(bool(complaints))


def page(grid: list[Judged], near: list[Judged], recipes: list[str]) -> str:
    """The whole page."""
    plans = [*grid, *near]
    agreed = sum(plan.agrees for plan in plans)
    accepted = Counter(plan.case.kind for plan in grid if plan.answer["accepted"])
    rejected = Counter(plan.case.kind for plan in grid if not plan.answer["accepted"])
    changed = Counter(name for plan in plans for name in plan.answer["changed"])
    counts = by_rule(plans)
    enforced = (
        [*_counted(rule, counts), counts[rule.id].held_accepted, _short(counts[rule.id].words, 220)]
        for rule in ALL_RULES
        if rule.id in JUDGED_RULES
    )
    lax = ([*_counted(rule, counts), rule.reason] for rule in ALL_RULES if rule.id not in JUDGED_RULES)
    return TEMPLATE.read_text(encoding="utf-8").format(
        seed=SEED,
        drawn=len(grid),
        accepted=accepted.total(),
        rejected=rejected.total(),
        near=len(near),
        kinds=_rows([kind, accepted[kind], rejected[kind]] for kind in KINDS),
        agreed=agreed,
        plans=len(plans),
        share=agreed / len(plans),
        judged=", ".join(JUDGED),
        changed=_rows([f"`{name}`", rule, changed[name], reason] for name, (rule, reason) in CHANGED_BY.items()),
        enforced=_rows(enforced),
        lax=_rows(lax),
        recipes="\n".join(recipes),
    )


def _counted(rule: PlanRule, counts: dict[str, RuleCount]) -> list[object]:
    count = counts[rule.id]
    return [rule.id, rule.text, rule.enforced_in, count.broken, count.alone_refused, count.alone_accepted]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _rows(rows: Iterable[Iterable[object]]) -> str:
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


def recipe_lines(audit: Audit, recipes: list[JudgedRecipe]) -> list[str]:
    """NVIDIA's recipes: how many are covered, and those that cannot run with the judge's own refusal."""
    read = [recipe for recipe in recipes if recipe.audited.recipe is not None]
    legal = [recipe for recipe in read if recipe.legal]
    refused = [recipe for recipe in recipes if not recipe.legal]
    refused.sort(key=lambda recipe: (not recipe.audited.named, cell(recipe.audited.row, "recipe")))
    text = (
        f"`validation/judge/audit.py` reads {len(audit.recipes)} recipes of Megatron-Bridge and NeMo. "
        f"{len(audit.in_families())} are "
        "text decoders of llama, qwen2, qwen2.5, qwen3, mixtral, deepseek v2 / v3, gpt-oss, nemotron4 and gpt3; "
        f"**{audit.covered_share():.1%} of them are covered**. Of the {len(legal)} that we call legal the judge accepts "
        f"{sum(recipe.answer['accepted'] for recipe in legal)}; of the {len(refused)}, of any model, that we say cannot run at "
        f"their own GPU count it refuses {sum(not recipe.answer['accepted'] for recipe in refused)}. A recipe of a model that "
        "the catalogue lacks is judged on a stand-in model, by megatron-core as Megatron-Bridge calls it (config, groups, "
        "schedule, and **layers**: the check at the head of the experts' training forward). *named*: the table says so, too."
    )
    return [
        "## NVIDIA's published recipes",
        "",
        *textwrap.wrap(text, 126),
        "",
        "| recipe | our rules | named | refused in | the judge's words |",
        "|---|---|---|---|---|",
        _rows(map(_recipe_row, refused)),
    ]


def _recipe_row(recipe: JudgedRecipe) -> list[str]:
    audited = recipe.audited
    rules = " ".join(violation.rule for violation in audited.violations)
    return [
        cell(audited.row, "recipe"),
        rules,
        "yes" if audited.named else "",
        recipe.answer["stage"],
        _short(recipe.words, 200),
    ]


if __name__ == "__main__":
    sys.exit(main())
