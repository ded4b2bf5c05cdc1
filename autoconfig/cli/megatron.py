"""Commands for those who come with a Megatron-LM config: `check` and `audit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autoconfig.specs.json_record import json_text

EXIT_ILLEGAL = 2
EXIT_DOES_NOT_FIT = 3
WIDTH_WHEN_PIPED = 160
LONG_TABLE = 20
"""Recipes from which on progress is written where stderr is no terminal."""


def register(group: click.Group) -> None:
    """Add the commands of this module to the command line."""
    group.add_command(check_command)
    group.add_command(audit_command)


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", help="Catalogue name or config.json, instead of the file's model.")
@click.option("--gpus", type=int, help="Number of GPUs, where the file does not say it.")
@click.option("--gpu", help="GPU type (see `autoconfig gpus`), or `local`.")
@click.option("--cluster", help="JSON or TOML file that describes other hardware.")
@click.option("--gpus-per-node", type=int, help="GPUs in one node, where it is not the usual server.")
@click.option("--software", help="Software stack (see `autoconfig software`); default: what the arguments show.")
@click.option("--seq-length", type=int, help="Tokens of one sample, instead of the file's.")
@click.option("--global-batch-size", type=int, help="Samples of one optimizer step, instead of the file's.")
@click.option("--memory-margin", type=float, default=0.0, show_default=True, help="Share of GPU memory to keep free.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A variable that the script does not set; repeat.")
@click.option("--apply-to", metavar="FILE", help="Write the improved file here; only changed arguments are edited.")
@click.option("--force", is_flag=True, help="Let --apply-to replace a file that exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_context
def check_command(
    ctx: click.Context,
    /,
    file: Path,
    settings: tuple[str, ...],
    apply_to: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Check a launch script, an argument list or a plan.json: legal, fits, how fast, and the better plan.

    Nothing in FILE is run. Exit code 0: legal and fits; 2: not legal, or cannot be read; 3: does not fit.

    autoconfig check pretrain.sh --gpu a100-80gb --gpus 64
    """
    from autoconfig.megatron.check import check_file
    from autoconfig.megatron.check_input import CheckRequest, read_settings
    from autoconfig.megatron.edit import apply_to as write_improved
    from autoconfig.render.check import check_json, show_check

    request = CheckRequest(settings=read_settings(settings), **options)
    answer = check_file(file, request)
    if apply_to is not None:
        write_improved(answer, request, Path(apply_to), force=force)
    if as_json:
        click.echo(json_text(check_json(answer)))
    else:
        from autoconfig.cli.main import console

        show_check(console(), answer)
        if apply_to is not None:
            click.echo(f"The improved file is in {apply_to}.")
    if answer.violations:
        ctx.exit(EXIT_ILLEGAL)
    if answer.report is not None and not answer.report.fits:
        ctx.exit(EXIT_DOES_NOT_FIT)


@click.command("audit")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Leave out whether a recipe could be faster.")
@click.option("--output", metavar="FILE.csv", help="Write one row a recipe to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def audit_command(file: Path, quick: bool, output: str | None, as_json: bool) -> None:
    """Check every recipe of a CSV table: can it run at its own GPU count, does it fit, could it be faster.

    The columns are those of NVIDIA's recipes (docs/check.md). Exit code 0: audited; 2: the table cannot be read.

    autoconfig audit nvidia_recipes.csv --output audited.csv
    """
    from autoconfig.accuracy.audit import audit_file
    from autoconfig.render.audit import audit_json, check_csv_path, show_audit, write_csv

    if output is not None:
        check_csv_path(Path(output))
    audit = audit_file(file, quick=quick, progress=_progress)
    if output is not None:
        write_csv(audit, Path(output))
    if as_json:
        click.echo(json_text(audit_json(audit)))
    else:
        from autoconfig.cli.main import console

        show_audit(console(), audit)


def _progress(done: int, total: int) -> None:
    """One line that counts on a terminal; elsewhere a line for each tenth of a table that takes a while."""
    if sys.stderr.isatty():
        click.echo(f"\r{done} of {total} recipes", nl=done + 1 == total, err=True)
    elif total >= LONG_TABLE and done % -(-total // 10) == 0:
        click.echo(f"{done} of {total} recipes", err=True)
