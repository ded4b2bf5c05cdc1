"""What commands print: tables, JSON, progress, and the exit codes.

0 answered, 2 bad input, 3 nothing fits, 130 interrupted, 1 a bug of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from autoconfig.specs.errors import InputError
from autoconfig.specs.json_record import json_text

EXIT_BAD_INPUT = 2
EXIT_NOTHING_FITS = 3
EXIT_INTERRUPTED = 130
WIDTH_WHEN_PIPED = 180
WIDTH = 79


def console() -> Any:
    """Where tables go; wide when piped."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeConsole(highlight=False, width=None if sys.stdout.isatty() else WIDTH_WHEN_PIPED)


def print_json(body: object) -> None:
    """One object on standard output."""
    click.echo(json_text(body))


def show_rows(name: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table of rows with the same keys, or JSON."""
    if as_json:
        print_json({"schema_version": 1, name: rows})
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    for column, value in rows[0].items():
        table.add_column(
            column.replace("_", " "), justify="right" if isinstance(value, int | float) else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int | float) and not isinstance(v, bool) else str(v) for v in row.values()))
    console().print(table)


def progress() -> Callable[[str], None] | None:
    """Says on a terminal what is being worked on; None where standard error is none."""
    if not sys.stderr.isatty():
        return None
    return lambda text: click.echo(f"\r{text[: WIDTH - 3]:<{WIDTH - 1}}", nl=False, err=True)


def clear_progress() -> None:
    """Clears the line of the progress."""
    if sys.stderr.isatty():
        click.echo("\r" + " " * WIDTH + "\r", nl=False, err=True)


def say_predicted(output: Path, calibration: str, reasons: Sequence[str | None], warning: str) -> None:
    """What became of a table: `reasons` has None for every row that was predicted and the reason for every other one.

    Raises InputError where no row could be predicted (the table with the reasons is written all the same).
    """
    if warning:
        click.echo(f"warning: {warning}", err=True)
    left = [reason for reason in reasons if reason is not None]
    if len(left) == len(reasons):
        raise InputError(
            f"none of the {len(left):,} rows could be predicted; the column pred_note of {output} says why, "
            f"the first: {left[0]}"
        )
    done = len(reasons) - len(left)
    said = f"{done:,} of {len(reasons):,} rows predicted with calibration {calibration}, written to {output}"
    click.echo(said + (f"; the column pred_note says why the other {len(left):,} are empty" if left else ""))
