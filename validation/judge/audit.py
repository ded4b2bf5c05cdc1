"""`python -m validation.judge.audit TABLE.csv`: can every recipe of a table run at its own GPU count, and does it fit."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from autoconfig.specs.errors import InputError

from autoconfig.megatron.check import plan_violations
from autoconfig.planning.calibration_file import shipped
from autoconfig.runs.table import Row, cell, read_csv
from autoconfig.training.price import PlanReport, Violation, report_plan
from autoconfig.training.rules import RULE_TEXT
from validation.judge.recipe_row import RecipeRun, family_of_recipe, named_rules, read_recipe, sizes_of_recipe

VERDICTS = ("fits", "borderline", "does not fit", "illegal", "not covered")
FITS, BORDERLINE, DOES_NOT_FIT, ILLEGAL, NOT_COVERED = VERDICTS
UNSURE = (0.25, 0.75)
"""Chances to fit between these are borderline: the error of the memory model decides, not the plan."""


@dataclass(frozen=True, kw_only=True)
class AuditedRecipe:
    """What became of one recipe."""

    row: Row
    family: str
    """Family of a text decoder that must be covered; empty for others."""
    named: tuple[str, ...]
    """Rules that the table itself says are broken."""
    verdict: str = ILLEGAL
    reason: str = ""
    violations: tuple[Violation, ...] = ()
    recipe: RecipeRun | None = None
    report: PlanReport | None = None

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(rule for rule in self.named if rule not in {v.rule for v in self.violations})


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A whole table."""

    recipes: tuple[AuditedRecipe, ...]

    def in_families(self) -> list[AuditedRecipe]:
        return [recipe for recipe in self.recipes if recipe.family]

    def covered_share(self) -> float:
        named = self.in_families()
        return sum(recipe.verdict != NOT_COVERED for recipe in named) / len(named) if named else 1.0

    def accused(self) -> list[AuditedRecipe]:
        return [recipe for recipe in self.recipes if recipe.verdict == ILLEGAL and not recipe.named]


def audit_file(path: Path) -> Audit:
    """Audit a CSV file. Raises FileError where it cannot be read."""
    return audit_rows(read_csv(path)[1])


def audit_rows(rows: Iterable[Row]) -> Audit:
    """Audit rows."""
    return Audit(recipes=tuple(_audit(row) for row in rows))


def _audit(row: Row) -> AuditedRecipe:
    named = AuditedRecipe(row=row, family=family_of_recipe(cell(row, "recipe")), named=named_rules(row))
    try:
        recipe = read_recipe(row)
    except InputError as error:
        broken = _without_model(row)
        return replace(named, verdict=ILLEGAL if broken else NOT_COVERED, reason=str(error), violations=broken)
    recipe = replace(recipe, scenario=replace(recipe.scenario, calibration=shipped()))
    broken = tuple(plan_violations(recipe.scenario, recipe.plan, recipe.split))
    if broken:
        return replace(named, recipe=recipe, violations=broken)
    report = report_plan(recipe.scenario, recipe.plan)
    return replace(named, recipe=recipe, report=report, verdict=fit_verdict(report))


def fit_verdict(report: PlanReport) -> str:
    """fits, does not fit, or borderline where the chance to fit lies inside UNSURE."""
    if UNSURE[0] <= report.confidence.fit_probability <= UNSURE[1]:
        return BORDERLINE
    return FITS if report.fits else DOES_NOT_FIT


def _without_model(row: Row) -> tuple[Violation, ...]:
    """The rules that need no model: divisibility of GPUs and batch, interleaving, sequence parallelism.

    Only what the table says is accused: blank cells break nothing, and experts are known by ep above 1.
    """
    try:
        sizes = sizes_of_recipe(row)
    except InputError:
        return ()
    tp, pp, gpus, batch, vpp = (sizes[name] for name in ("tp", "pp", "gpus", "gbs", "vpp"))
    size, sequence_parallel = tp * pp * sizes["cp"], cell(row, "sp")
    samples = sizes["mbs"] * max(1, gpus // size)
    broken = {
        "NV001": gpus % size != 0,
        "NV002": gpus % (sizes["etp"] * sizes["ep"] * pp) != 0,
        "NV007": batch % samples != 0,
    }
    if not any(broken.values()):
        broken |= {
            "NV046": sequence_parallel == "True" and tp == 1,
            "NV048": sequence_parallel == "False" and tp > 1 and sizes["ep"] > 1,
            "NV040": vpp > 1 and pp == 1,
            "NV041": vpp > 1 and batch // samples < pp,
            "NV042": vpp > 1 and batch // samples % pp != 0,
        }
    return tuple(Violation(rule=rule, text=RULE_TEXT[rule]) for rule, is_broken in broken.items() if is_broken)


if __name__ == "__main__":
    for one in audit_file(Path(sys.argv[1])).recipes:
        print(f"{one.row['recipe']}: {one.verdict}", one.reason or ", ".join(v.rule for v in one.violations))
