"""`autoconfig audit`: every recipe of a table: can it run at its own GPU count, does it fit, could it be faster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.json_record import Keywords
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

from autoconfig.megatron.check import plan_violations
from autoconfig.megatron.check_input import read_text
from autoconfig.planning.calibration_file import shipped
from autoconfig.runs.table import Row, cell, check_columns, read_csv, whole
from autoconfig.training.price import PlanReport, Violation, report_plan
from autoconfig.training.rank import rank_plans
from autoconfig.training.rules import RULE_TEXT
from validation.judge.recipe_row import RecipeRun, degrees_of_recipe, family_of_recipe, named_rules, read_recipe

COLUMNS = ("recipe", "gpus", "tp", "pp", "seq", "gbs", "mbs")
"""Columns that a table must have."""
MAX_ROWS = 20_000
VERDICTS = ("fits", "borderline", "does not fit", "illegal", "not covered")
FITS, BORDERLINE, DOES_NOT_FIT, ILLEGAL, NOT_COVERED = VERDICTS
UNSURE = (0.25, 0.75)
"""Chances to fit between these are borderline: the error of the memory model decides, not the plan."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The fastest plan for a scenario."""

    plan: TrainPlan
    step_seconds: float


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
    best: Best | None = None

    @property
    def faster(self) -> float | None:
        """How much more the best plan does in the same time: 0.2 is 20 %. None where one of them is not known."""
        if self.report is None or self.best is None:
            return None
        return self.report.step_seconds / self.best.step_seconds - 1

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(rule for rule in self.named if rule not in {v.rule for v in self.violations})


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A whole table."""

    recipes: tuple[AuditedRecipe, ...]
    questions: int

    def in_families(self) -> list[AuditedRecipe]:
        return [recipe for recipe in self.recipes if recipe.family]

    def covered_share(self) -> float:
        named = self.in_families()
        return sum(recipe.verdict != NOT_COVERED for recipe in named) / len(named) if named else 1.0

    def accused(self) -> list[AuditedRecipe]:
        return [recipe for recipe in self.recipes if recipe.verdict == ILLEGAL and not recipe.named]


def audit_file(path: Path, *, quick: bool = False, progress: Progress | None = None) -> Audit:
    """Audit a CSV file. Raises FileError where it cannot be read, InputError where it is no table of recipes."""
    read_text(path, "a CSV table of recipes")  # refuses what is no text at all
    columns, rows = read_csv(path)
    check_columns(path, columns, COLUMNS, f"the table needs {', '.join(COLUMNS)} (docs/check.md)")
    if len(rows) > MAX_ROWS:
        raise InputError(f"{len(rows):,} recipes are more than {MAX_ROWS:,}; split the table")
    return audit_rows(rows, quick=quick, progress=progress)


def audit_rows(rows: Iterable[Row], *, quick: bool = False, progress: Progress | None = None) -> Audit:
    """Audit rows; `quick` leaves out whether a recipe could be faster."""
    rows = list(rows)
    cache: dict[object, Best | None] = {}
    found = []
    for number, row in enumerate(rows):
        if progress is not None:
            progress(number, len(rows))
        found.append(_audit(row, cache, quick))
    return Audit(recipes=tuple(found), questions=len(cache))


def _audit(row: Row, cache: dict[object, Best | None], quick: bool) -> AuditedRecipe:
    named = AuditedRecipe(row=row, family=family_of_recipe(cell(row, "recipe")), named=named_rules(row))
    try:
        recipe = read_recipe(row)
    except InputError as error:
        broken = _without_model(row)
        return replace(named, verdict=ILLEGAL if broken else NOT_COVERED, reason=str(error), violations=broken)
    recipe = replace(recipe, scenario=replace(recipe.scenario, calibration=shipped()))
    broken = tuple(plan_violations(recipe.scenario, recipe.plan, recipe.split))
    best = None if quick else _best(recipe.scenario, cache)
    if broken:
        return replace(named, recipe=recipe, best=best, violations=broken)
    report = report_plan(recipe.scenario, recipe.plan)
    return replace(named, recipe=recipe, report=report, best=best, verdict=fit_verdict(report))


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
        degrees, gpus, batch, vpp = degrees_of_recipe(row), whole(row, "gpus"), whole(row, "gbs"), whole(row, "vp", 1) or 1
        degrees["etp"] = whole(row, "etp", 1) or 1
    except InputError:
        return ()
    tp, pp, said = degrees["tp"], degrees["pp"], cell(row, "sp")
    size = tp * pp * degrees["cp"]
    samples = degrees["mbs"] * max(1, gpus // size)
    broken = {
        "NV001": gpus % size != 0,
        "NV002": gpus % (degrees["etp"] * degrees["ep"] * pp) != 0,
        "NV007": batch % samples != 0,
    }
    if not any(broken.values()):
        broken |= {
            "NV046": said == "True" and tp == 1,
            "NV048": said == "False" and tp > 1 and degrees["ep"] > 1,
            "NV040": vpp > 1 and pp == 1,
            "NV041": vpp > 1 and batch // samples < pp,
            "NV042": vpp > 1 and batch // samples % pp != 0,
        }
    return tuple(Violation(rule=rule, text=RULE_TEXT[rule]) for rule, is_broken in broken.items() if is_broken)


def _best(scenario: Scenario, cache: dict[object, Best | None]) -> Best | None:
    cluster = scenario.cluster
    key = (scenario.model, cluster.gpu.id, cluster.num_gpus, scenario.numerics, scenario.software.name, scenario.workload)
    if key not in cache:
        try:
            ranking = rank_plans(scenario)
            first = int(np.argmin(ranking.step_seconds)) if len(ranking.row) else -1
        except InputError:  # too many layouts to hold
            first = -1
        cache[key] = None if first < 0 else Best(plan=ranking.plan(first), step_seconds=float(ranking.step_seconds[first]))
    return cache[key]


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """One recipe as a flat record, for JSON and CSV; texts are empty where there is nothing to say."""

    recipe: str
    kind: str
    """Where it comes from."""
    task: str
    """pretrain, sft, peft, ..."""
    gpus: str
    """As in the table."""
    gpu: str
    """GPU type, as in the table."""
    precision: str
    """As in the table."""
    family: str
    """Family of a text decoder."""
    model: str
    """Catalogue model."""
    plan: str
    """Short form."""
    verdict: Annotated[str, Keywords(enum=VERDICTS)]
    rules: str
    """Ids of the broken rules."""
    named_rules: str
    """Ids of the rules that the table itself names."""
    reason: str
    """Why it is not covered, or the broken rules in words."""
    peak_gib: float | None
    """Predicted peak of the worst stage."""
    limit_gib: float | None
    """What a stage may hold."""
    fit_probability: float | None
    step_seconds: float | None
    best_plan: str
    """The fastest plan of our search."""
    best_step_seconds: float | None
    faster: float | None
    """How much more the best plan does in the same time: 0.2 is 20 %."""
    assumed: str
    """What the table leaves out."""
    source: str
    """As in the table."""


def audit_record(audited: AuditedRecipe) -> AuditRecord:
    """One recipe as a record."""
    report, best, recipe = audited.report, audited.best, audited.recipe
    return AuditRecord(
        **{name: cell(audited.row, name) for name in ("recipe", "kind", "task", "gpus", "precision", "source")},
        gpu=cell(audited.row, "hw"),
        family=audited.family,
        model=recipe.scenario.model.name if recipe else "",
        plan=str(recipe.plan) if recipe else "",
        verdict=audited.verdict,
        rules=" ".join(v.rule for v in audited.violations),
        named_rules=" ".join(audited.named),
        reason=audited.reason or "; ".join(f"{v.rule}: {v.text}" for v in audited.violations),
        peak_gib=report.peak_bytes / GIB if report else None,
        limit_gib=report.limit_bytes / GIB if report else None,
        fit_probability=report.confidence.fit_probability if report else None,
        step_seconds=report.step_seconds if report else None,
        best_plan=str(best.plan) if best else "",
        best_step_seconds=best.step_seconds if best else None,
        faster=audited.faster,
        assumed="; ".join(recipe.assumed) if recipe else "",
    )


if __name__ == "__main__":
    print("\n".join(f"{one.row['recipe']}: {one.verdict}" for one in audit_file(Path(sys.argv[1]), quick=True).recipes))
