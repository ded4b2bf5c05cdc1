"""The answer of `audit` on the screen, as JSON and as a CSV file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from autoconfig.accuracy.audit import (
    BORDERLINE,
    DOES_NOT_FIT,
    FITS,
    ILLEGAL,
    NOT_COVERED,
    UNSURE,
    VERDICTS,
    Audit,
    AuditedRecipe,
    AuditRecord,
    audit_record,
)
from autoconfig.render.question_json import AnswerJson
from autoconfig.render.screen import table_of
from autoconfig.runs.table import cell
from autoconfig.runs.table import write_csv as write_table
from autoconfig.specs.errors import GIB, FileError, chance_text
from autoconfig.specs.json_record import Natural, Share
from autoconfig.training.rank import RESOLUTION

SHOWN = 15


@dataclass(frozen=True, kw_only=True)
class AuditCounts:
    """Recipes by verdict."""

    fits: Natural
    """Legal and fitting."""
    borderline: Natural
    """Legal, with a chance to fit from 0.25 to 0.75."""
    does_not_fit: Natural
    """Legal, and a stage needs more memory than there is."""
    illegal: Natural
    """Breaks a rule."""
    not_covered: Natural
    """No catalogue model, or a cell that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class AuditRows:
    """A table of recipes."""

    recipes: Natural
    """Rows."""


@dataclass(frozen=True, kw_only=True)
class AuditSummary(AuditCounts, AuditRows):
    """Counts by verdict, overall and by family, and the covered share of the named families."""

    could_be_faster: Natural
    """Fitting recipes that the best plan beats by more than the model's resolution."""
    families: dict[str, AuditCounts]
    in_families: Natural
    """Text decoders of the named families."""
    covered_share: Share
    """Of them."""
    named_violations: Natural
    """Recipes whose violations the table names."""
    named_violations_missed: tuple[str, ...]
    """Those that our rules do not reject."""
    accused: tuple[str, ...]
    """Recipes that our rules reject and the table does not."""


@dataclass(frozen=True, kw_only=True)
class AuditJson(AnswerJson):
    """Every recipe of a table: can it run, does it fit, could it be faster. Sizes are GiB, times seconds."""

    summary: AuditSummary
    recipes: tuple[AuditRecord, ...]
    """In the order of the table."""


def audit_json(audit: Audit) -> AuditJson:
    """The whole answer."""
    return AuditJson(summary=summary(audit), recipes=tuple(audit_record(recipe) for recipe in audit.recipes))


def summary(audit: Audit) -> AuditSummary:
    """Counts over the table."""
    families = sorted({r.family for r in audit.recipes if r.family})

    def counts(recipes: Iterable[AuditedRecipe]) -> dict[str, int]:
        found = Counter(recipe.verdict for recipe in recipes)
        return {verdict.replace(" ", "_"): found[verdict] for verdict in VERDICTS}

    return AuditSummary(
        recipes=len(audit.recipes),
        **counts(audit.recipes),
        could_be_faster=len(could_be_faster(audit)),
        families={family: AuditCounts(**counts(r for r in audit.recipes if r.family == family)) for family in families},
        in_families=len(audit.in_families()),
        covered_share=audit.covered_share(),
        named_violations=sum(bool(r.named) for r in audit.recipes),
        named_violations_missed=tuple(cell(r.row, "recipe") for r in audit.recipes if r.missed),
        accused=tuple(cell(r.row, "recipe") for r in audit.accused()),
    )


def could_be_faster(audit: Audit) -> list[AuditedRecipe]:
    """Recipes that run, by our prediction, and for which a search finds a plan faster by more than it can be wrong."""
    return [r for r in audit.recipes if r.verdict in (FITS, BORDERLINE) and (r.faster or 0) > RESOLUTION]


def check_csv_path(path: Path) -> None:
    """Fail before the work. Raises FileError when the table cannot be written there."""
    if path.suffix.lower() != ".csv" or path.is_dir() or not path.parent.is_dir():
        raise FileError(f"output {str(path)[:200]!r}: name a file ending in .csv in a folder that exists")


def write_csv(audit: Audit, path: Path) -> None:
    """One row a recipe. Raises FileError."""
    check_csv_path(path)
    records = [vars(audit_record(recipe)) for recipe in audit.recipes]
    write_table(path, list(records[0]) if records else ["recipe"], records, end="\n")


def show_audit(console: Console, audit: Audit) -> None:
    """Summary, accusations, what does not fit, what could be faster."""
    counts = summary(audit)
    console.print(
        f"{counts.recipes} recipes: {counts.fits} legal and fitting, {counts.borderline} borderline (chance to fit "
        f"{UNSURE[0]:.0%} to {UNSURE[1]:.0%}), {counts.does_not_fit} that do not fit, "
        f"{counts.illegal} that cannot run, {counts.not_covered} not covered"
    )
    if counts.in_families:
        console.print(
            f"Text decoders of {', '.join(counts.families)}: {counts.covered_share:.1%} of {counts.in_families} covered"
        )
    for recipe in audit.in_families():
        if recipe.verdict == NOT_COVERED:
            console.print(f"  [dim]not covered: {escape(cell(recipe.row, 'recipe'))}: {escape(recipe.reason)}[/dim]")
    _show_illegal(console, audit)
    _show_too_large(console, audit)
    _show_faster(console, audit)


def _show_illegal(console: Console, audit: Audit) -> None:
    for recipe in audit.recipes:
        if recipe.verdict != ILLEGAL:
            continue
        rules = "; ".join(f"{v.rule} {v.text}" for v in recipe.violations)
        known = "named in the table" if recipe.named and not recipe.missed else "[bold]not named in the table[/bold]"
        console.print(f"[red]cannot run[/red] {escape(cell(recipe.row, 'recipe'))} ({known}): {escape(rules)}")
        if not recipe.named and recipe.recipe is not None and recipe.recipe.assumed:
            console.print(f"  [dim]assumed: {escape('; '.join(recipe.recipe.assumed))}[/dim]")


def _show_too_large(console: Console, audit: Audit) -> None:
    for recipe in audit.recipes:
        if recipe.verdict not in (DOES_NOT_FIT, BORDERLINE) or recipe.report is None:
            continue
        report = recipe.report
        way = f"; fits as {recipe.best.plan}" if recipe.best else ""
        console.print(
            f"[yellow]{recipe.verdict}[/yellow] {escape(cell(recipe.row, 'recipe'))}: {report.peak_bytes / GIB:.1f} of "
            f"{report.limit_bytes / GIB:.1f} GiB, chance to fit {chance_text(report.confidence.fit_probability)}{escape(way)}"
        )


def _show_faster(console: Console, audit: Audit) -> None:
    found = could_be_faster(audit)
    if not found:
        return
    found.sort(key=lambda r: -(r.faster or 0))
    rows = []
    for r in found[:SHOWN]:
        assert r.recipe is not None and r.best is not None
        rows.append([cell(r.row, "recipe"), f"{r.faster or 0:.0%}", str(r.recipe.plan), str(r.best.plan)])
    columns = ("recipe", "faster", "plan", "best")
    title = f"Could be faster by more than {RESOLUTION:.0%}: {len(found)}; the first {min(SHOWN, len(found))}"
    console.print(
        table_of(
            columns,
            ([escape(text) for text in row] for row in rows),
            left=("recipe", "plan", "best"),
            fold=columns,
            title=title,
        )
    )
    console.print("[dim]Predicted; recipes also weigh other things. --output FILE.csv has every recipe.[/dim]")
