"""The answer of `audit` on the screen, as JSON (schema: `autoconfig/schemas/audit.schema.json`) and as a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.accuracy.audit import (
    BORDERLINE,
    DOES_NOT_FIT,
    FITS,
    ILLEGAL,
    NOT_COVERED,
    UNSURE,
    Audit,
    AuditedRecipe,
    audit_record,
)
from autoconfig.render.training_json import SCHEMA_VERSION
from autoconfig.runs.cells import cell
from autoconfig.specs.errors import FileError
from autoconfig.specs.files import write_atomically
from autoconfig.specs.units import GIB
from autoconfig.training.reasons import RESOLUTION

SHOWN = 15


def audit_json(audit: Audit) -> dict[str, Any]:
    """The whole answer."""
    return {"schema_version": SCHEMA_VERSION, "summary": summary(audit), "recipes": [audit_record(r) for r in audit.recipes]}


def summary(audit: Audit) -> dict[str, Any]:
    """Counts by verdict, overall and by family, and the covered share of the named families."""
    families = sorted({r.family for r in audit.recipes if r.family})
    verdicts = (FITS, BORDERLINE, DOES_NOT_FIT, ILLEGAL, NOT_COVERED)

    def counts(recipes: list[AuditedRecipe]) -> dict[str, int]:
        return {verdict.replace(" ", "_"): sum(r.verdict == verdict for r in recipes) for verdict in verdicts}

    faster = could_be_faster(audit)
    return {
        "recipes": len(audit.recipes),
        **counts(list(audit.recipes)),
        "could_be_faster": len(faster),
        "families": {family: counts([r for r in audit.recipes if r.family == family]) for family in families},
        "in_families": len(audit.in_families()),
        "covered_share": audit.covered_share(),
        "named_violations": sum(bool(r.named) for r in audit.recipes),
        "named_violations_missed": [cell(r.row, "recipe") for r in audit.recipes if r.missed],
        "accused": [cell(r.row, "recipe") for r in audit.accused()],
    }


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
    records = [audit_record(recipe) for recipe in audit.recipes]

    def write(file: Path) -> None:
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(records[0]) if records else ["recipe"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)

    write_atomically(path, write)


def show_audit(console: Console, audit: Audit) -> None:
    """Summary, accusations, what does not fit, what could be faster."""
    counts = summary(audit)
    console.print(
        f"{counts['recipes']} recipes: {counts['fits']} legal and fitting, {counts['borderline']} borderline (chance to fit "
        f"{UNSURE[0]:.0%} to {UNSURE[1]:.0%}), {counts['does_not_fit']} that do not fit, "
        f"{counts['illegal']} that cannot run, {counts['not_covered']} not covered"
    )
    if counts["in_families"]:
        console.print(
            f"Text decoders of {', '.join(counts['families'])}: {counts['covered_share']:.1%} of "
            f"{counts['in_families']} covered"
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
            f"{report.limit_bytes / GIB:.1f} GiB, chance to fit {report.confidence.fit_probability:.0%}{escape(way)}"
        )


def _show_faster(console: Console, audit: Audit) -> None:
    found = could_be_faster(audit)
    if not found:
        return
    found.sort(key=lambda r: -(r.faster or 0))
    table = Table(
        title=f"Could be faster by more than {RESOLUTION:.0%}: {len(found)}; the first {min(SHOWN, len(found))}",
        box=None,
        padding=(0, 1),
        header_style="bold",
        title_justify="left",
    )
    for name in ("recipe", "faster", "plan", "best"):
        table.add_column(name, justify="right" if name == "faster" else "left", overflow="fold")
    for recipe in found[:SHOWN]:
        assert recipe.recipe is not None and recipe.best is not None
        table.add_row(
            escape(cell(recipe.row, "recipe")),
            f"{recipe.faster or 0:.0%}",
            escape(str(recipe.recipe.plan)),
            escape(str(recipe.best.plan)),
        )
    console.print(table)
    console.print("[dim]Predicted; recipes also weigh other things. --output FILE.csv has every recipe.[/dim]")
