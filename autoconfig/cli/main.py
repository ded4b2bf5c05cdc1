"""The command line: parse, call one function of `autoconfig.training.answer`, render.

Exit codes: 0 answered, 2 bad input, 3 nothing fits, 130 interrupted, 1 a bug of ours.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoconfig.cli import core as cli_trace
from autoconfig.cli import megatron as cli_megatron
from autoconfig.cli import runs as cli_truth
from autoconfig.cli import serving as cli_inference
from autoconfig.cli import studies as cli_studies
from autoconfig.cli import study as cli_study
from autoconfig.cli.options import question_options, request_of, search_options
from autoconfig.cli.scaling import scaling_command
from autoconfig.specs.errors import AutoconfigError, InputError
from autoconfig.specs.json_record import json_text

if TYPE_CHECKING:
    from autoconfig.megatron.export import Export
    from autoconfig.training.answer import SearchAnswer

EXIT_BAD_INPUT = 2
EXIT_NOTHING_FITS = 3
EXIT_INTERRUPTED = 130
WIDTH_WHEN_PIPED = 180

EXPORT_FORMATS = ("megatron", "plan", "deepspeed", "fsdp2")
_FORMAT_HELP = "megatron: torchrun and sbatch scripts for Megatron-LM, and plan.json; plan: plan.json only."

_json_option = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


PLUG_INS = {
    "serve": "autoconfig.api.cli:serve_command",
    "worker": "autoconfig.api.cli:worker_command",
    "keys": "autoconfig.api.cli:keys_group",
}
"""Commands of the packages above this one, by name: loaded when asked for, never imported here."""


class _Group(click.Group):
    """Turns our errors into one line and an exit code; finds the commands of PLUG_INS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name."""
        return sorted([*super().list_commands(ctx), *PLUG_INS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name. Raises InputError where its packages are not installed."""
        if cmd_name not in PLUG_INS:
            return super().get_command(ctx, cmd_name)
        module, _, name = PLUG_INS[cmd_name].partition(":")
        try:
            found: click.Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] == "autoconfig":
                raise
            missing = error.name
            return click.Command(
                cmd_name,
                callback=lambda: _not_installed(cmd_name, missing),
                help="Needs: pip install 'megatron-autoconfig[serve]'.",
                context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
            )
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; its serving form where --inference is among the arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, (cli_inference.command_for(name, rest) if name else None) or command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; InputError ends with exit code 2, other errors of ours with 1, Ctrl-C with 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:  # `autoconfig models | head`: the reader has what it wants
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except OSError as error:  # standard output is full or gone
            click.echo(f"error: the answer cannot be written: {error.strerror or error}", err=True)
            ctx.exit(EXIT_BAD_INPUT)
        except InputError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(EXIT_BAD_INPUT)
        except AutoconfigError as error:
            click.echo(f"internal error: {error}", err=True)
            ctx.exit(1)


def _not_installed(command: str, missing: str) -> None:
    raise InputError(f"autoconfig {command} needs {missing}: pip install 'megatron-autoconfig[serve]'")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="megatron-autoconfig")
def cli() -> None:
    """The best way to run a model on a cluster: parallelism, micro-batch, recomputation, memory and time, in about a second."""


@cli.command("search")
@question_options
@search_options
@cli_study.study_options
@_json_option
@click.pass_context
def search_command(
    ctx: click.Context,
    /,
    as_json: bool,
    output: str | None,
    export: str | None,
    report: str | None,
    force: bool,
    **options: Any,
) -> None:
    """Rank the plans that fit, fastest first; with --profile measure the most promising ones.

    To serve a model: `autoconfig search --inference --help`.

    autoconfig search --model 175b --gpus 1024
    """
    if cli_study.wants_profile(options):
        if given := [name for name, value in (("output", output), ("report", report), ("export", export)) if value is not None]:
            raise InputError(f"--{given[0]} is not for --profile: export what a study found with autoconfig export PLAN")
        kind = cli_study.training(options)
        cli_study.run_profile(ctx, options, kind, as_json=as_json, model_given=options["model"] is not None)
        return
    from autoconfig.training.answer import search

    if output is not None:
        from autoconfig.render.training import check_table_path, write_table

        check_table_path(Path(output))
    if report is not None:
        from autoconfig.render.html import check_report_path, write_report

        check_report_path(Path(report))
    if export is not None:
        from autoconfig.megatron.export import check_export_folder, export_plan

        check_export_folder(export, force=force)
    answer = search(request_of(options), _progress(options))
    if output is not None:
        write_table(answer.ranking, Path(output))
        click.echo(f"{len(answer.ranking.row):,} plans written to {output}", err=True)
    if report is not None:
        write_report(answer, Path(report), shlex.join(["autoconfig", *sys.argv[1:]]), _terminal_progress)
        click.echo(f"report written to {report}", err=True)
    if as_json:
        from autoconfig.render.training_json import search_json

        _print_json(search_json(answer))
    else:
        from autoconfig.render.training import show_search

        show_search(console(), answer, _explain_command(sys.argv[1:], answer.question.scenario.cluster.num_gpus))
    if not answer.plans:
        ctx.exit(EXIT_NOTHING_FITS)
    if export is not None:
        first = answer.plans[0].report
        _show_export(export_plan(answer.question.scenario, first.plan, first, export, force=force), err=as_json)
        _show_chance(answer, export, err=as_json)


@cli.command("export")
@click.argument("plan")
@question_options
@click.option("--output", required=True, metavar="DIR", help="Folder to write into; made if missing.")
@click.option("--format", "form", type=click.Choice(EXPORT_FORMATS), default="megatron", show_default=True, help=_FORMAT_HELP)
@click.option("--force", is_flag=True, help="Replace files that autoconfig did not write.")
@click.option("--even-if-too-large", "too_large", is_flag=True, help="Write a plan that is predicted not to fit, too.")
@click.pass_context
def export_command(
    ctx: click.Context, /, plan: str, output: str, form: str, force: bool, too_large: bool, **options: Any
) -> None:
    """Write launch scripts and plan.json for one PLAN.

    Exit code 0: written; 2: not legal, or cannot be written; 3: does not fit, nothing written.

    autoconfig export --model 175b --gpus 1024 --output run tp=8,pp=8,mbs=1,sp=1
    """
    from autoconfig.megatron.export import export_named

    export = export_named(request_of(options), plan, output, form, force=force, too_large=too_large)
    if not export.files:
        click.echo(f"error: {export.too_large}; nothing was written (--even-if-too-large writes it all the same)", err=True)
        ctx.exit(EXIT_NOTHING_FITS)
    _show_export(export)


@cli.command("explain")
@click.argument("plan")
@question_options
@click.option("--binds/--no-binds", default=True, help="Also say what more memory, bandwidth, compute or batch would buy.")
@_json_option
@click.pass_context
def explain_command(ctx: click.Context, /, plan: str, as_json: bool, binds: bool, **options: Any) -> None:
    """Memory per stage and part, time per part, of one PLAN.

    autoconfig explain --model 175b --gpus 1024 tp=8,pp=8,mbs=1,sp=1
    """
    from autoconfig.training.answer import explain

    explanation = explain(request_of(options), plan, binds=binds)
    included = explanation.included
    if as_json:
        from autoconfig.render.training_json import explain_json

        _print_json(explain_json(explanation))
    else:
        from autoconfig.render.training import show_explain

        show_explain(console(), explanation)
    if not included.legal:
        ctx.exit(EXIT_BAD_INPUT)
    if included.report is not None and not included.report.fits:
        ctx.exit(EXIT_NOTHING_FITS)


for _command in (*cli_trace.COMMANDS, *cli_truth.COMMANDS):
    cli.add_command(_command)


@cli.command("models")
@_json_option
def models_command(as_json: bool) -> None:
    """List the models of the catalogue."""
    from autoconfig.render.listings import model_rows

    show_rows("models", model_rows(), as_json)


@cli.command("gpus")
@_json_option
def gpus_command(as_json: bool) -> None:
    """List the GPU types of the catalogue."""
    from autoconfig.render.listings import gpu_rows

    show_rows("gpus", gpu_rows(), as_json)


@cli.command("software")
@_json_option
def software_command(as_json: bool) -> None:
    """List the software stacks: what each saves, fuses and overlaps."""
    from autoconfig.render.listings import software_rows

    show_rows("software", software_rows(), as_json)


@cli.command("engines")
@_json_option
def engines_command(as_json: bool) -> None:
    """List the generations of serving engines."""
    from autoconfig.render.listings import engine_rows

    show_rows("engines", engine_rows(), as_json)


SEARCH_ONLY = (
    *("--top", "--include", "--fix", "--max", "--exclude", "--gpus-at-most", "--sort-by"),
    *("--output", "--report", "--export"),
)


def _show_chance(answer: SearchAnswer, folder: str, *, err: bool) -> None:
    """The chance to fit of what was exported, and the command that exports the safe choice in its place."""
    first, safe = answer.plans[0].report, answer.safe
    click.echo(f"chance to fit {first.confidence.fit_probability:.0%}: {first.plan}", err=err)
    if safe is None or safe.confidence.fit_probability <= first.confidence.fit_probability or safe.plan == first.plan:
        return
    command = _same_question("export", sys.argv[1:], answer.question.scenario.cluster.num_gpus)
    longer = safe.step_seconds / first.step_seconds - 1
    click.echo(
        f"safe choice, chance to fit {safe.confidence.fit_probability:.0%}, step {longer:+.1%}: "
        f"{command} --output {shlex.quote(folder)} {safe.plan}",
        err=err,
    )


def _explain_command(arguments: list[str], gpus: int) -> str:
    return _same_question("explain", arguments, gpus)


def _same_question(command: str, arguments: list[str], gpus: int) -> str:
    """Another command on the same question: the search's own options are left out."""
    kept, skip = ["autoconfig", command], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in SEARCH_ONLY:
            skip = True
        elif argument not in ("search", "--force", "--json") and argument.split("=")[0] not in SEARCH_ONLY:
            kept.append(argument)
    if not any(argument.split("=")[0] in ("--gpus", "--cluster") for argument in kept):
        kept += ["--gpus", str(gpus)]
    return shlex.join(kept)


def _show_export(export: Export, *, err: bool = False) -> None:
    """What was written and the one command to run."""
    if export.too_large:
        click.echo(f"warning: {export.too_large}", err=True)
    click.echo(f"wrote {', '.join(map(str, export.files))}", err=err)
    click.echo(f"run: {export.command}", err=err)


def console() -> Any:
    """Where tables go; wide when piped."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeConsole(highlight=False, width=None if sys.stdout.isatty() else WIDTH_WHEN_PIPED)


def _print_json(body: object) -> None:
    click.echo(json_text(body))


def show_rows(name: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table of rows with the same keys, or JSON."""
    if as_json:
        _print_json({"schema_version": 1, name: rows})
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


def _progress(options: dict[str, Any]) -> Any:
    """Say on a terminal which cluster size is being tried; silent otherwise."""
    return None if options.get("gpus_at_most") is None else _terminal_progress


def _terminal_progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rtrying {text} ...   ", nl=False, err=True)


cli_megatron.register(cli)
cli_studies.register(cli)
cli.add_command(scaling_command)


def main() -> None:
    """Entry point of the `autoconfig` command."""
    cli(prog_name="autoconfig")
