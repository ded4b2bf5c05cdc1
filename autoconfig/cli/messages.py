"""What commands say while they work and when a table is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from autoconfig.specs.errors import InputError

WIDTH = 79


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
