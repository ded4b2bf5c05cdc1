"""Serving: `deployments`, and `predict` and `validate` with `--inference`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoconfig.cli.main import (
    EXIT_NOTHING_FITS,
    console,
    done_first,
    print_json,
    say_not_exported,
    say_predicted,
    slurm_options,
    wants_profile,
)
from autoconfig.cli.options import ManyOptions, json_option, options, verbose_option
from autoconfig.cli.progress import clear_progress, progress
from autoconfig.planning.commands import command_line
from autoconfig.planning.request_fields import SERVING, SERVING_OUTPUT, SERVING_PROFILE, SLURM
from autoconfig.planning.resolve import field_names
from autoconfig.specs.errors import option_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoconfig.planning.export_files import WrittenExport
    from autoconfig.serving.answer import ServeAnswer
    from autoconfig.serving.request import ServeRequest

inference_flag = click.option("--inference", is_flag=True, help="Serve the model instead of training it.")


@click.command("deployments", cls=ManyOptions)
@options(SERVING, SERVING_OUTPUT)
@json_option
@verbose_option
@options(SERVING_PROFILE)
@click.pass_context
def deployments_command(ctx: click.Context, /, as_json: bool, verbose: bool, **given: Any) -> None:
    """Rank deployments that fit and meet the limits (--ttft-p95, --tpot-p99, too).

    autoconfig deployments --model llama3-70b --gpus 8 --gpu h200-sxm-141gb --isl 1000 --osl 500 --ttft 2s --tpot 50ms

    With --profile: measure the frontier of throughput and time per token by jobs of a real engine on this machine or Slurm,
    megatron-core's (--engine megatron, the default) or vLLM's. --resume NAME goes on.

    autoconfig deployments --model llama3-8b --gpus 1 --isl 1000 --osl 256 --profile --budget 1h --study 8b
    """
    if wants_profile(ctx, field_names(SLURM) if given["export"] is not None else ()):
        from autoconfig.cli.studies import check_answer_options, run_profile, serving

        check_answer_options(given)
        if given["model"] is not None:
            _check_question(given)
        run_profile(ctx, given, serving(given), as_json=as_json)
        return
    _check_question(given)
    from autoconfig.serving.answer import answer

    export_folder, report, _ = (given[field.name] for field in SERVING_OUTPUT)
    if report is not None:
        from autoconfig.render.html import check_report_path

        check_report_path(Path(report))
    found = answer(_asked(given), None if as_json else progress())
    clear_progress()
    if report is not None:
        from autoconfig.render.html import write_serving_report

        write_serving_report(found, Path(report), command_line("deployments", SERVING, given))
        click.echo(f"report written to {report}", err=True)
    exported = done_first(lambda: _exported(found, given)) if export_folder is not None and found.reports else None
    if as_json:
        from autoconfig.serving.deployment_json import serve_json

        print_json(serve_json(found))
    else:
        from autoconfig.render.first.deployments import show

        show(console(), found)
    if not found.reports:
        say_not_exported(export_folder, "no deployment fits within the limits")
        ctx.exit(EXIT_NOTHING_FITS)
    if exported is not None:
        from autoconfig.engines.export import longest_text, not_written, run_command

        written, asked, first, folder = exported(), found.question, found.reports[0], Path(export_folder)
        click.echo(f"wrote {', '.join(map(str, written.files))}", err=as_json)
        if written.replaced:
            click.echo(written.replaced, err=True)
        if not_written(asked):
            click.echo(not_written(asked), err=True)
        click.echo(f"note: {longest_text(asked, first)}", err=as_json)
        click.echo(f"run: {run_command(asked, first, folder)}", err=as_json)


def _asked(given: Mapping[str, Any]) -> ServeRequest:
    """The request, with the plans of files that --include names."""
    from autoconfig.engines.include import request_with_starts

    request, notes = request_with_starts(given)
    for text in notes:
        click.echo(f"note: {text}", err=True)
    return request


def _exported(found: ServeAnswer, given: Mapping[str, Any]) -> WrittenExport:
    """The first deployment's files, written. Raises InputError."""
    from autoconfig.engines.export import export

    folder, slurm = Path(given["export"]), slurm_options(given)
    return export(found.question, found.reports[0], folder, force=given["force"], slurm=slurm)


def _check_question(given: dict[str, Any]) -> None:
    missing = [option_name(name) for name in ("model", "gpus") if given[name] is None]
    if missing and not any(Path(text).is_file() for text in given["include"] or ()):  # a start command says both
        raise click.UsageError(f"Missing option {' and '.join(missing)}.")


@click.command("predict")
@inference_flag
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="OUT.csv", help="Where the predictions go.")
def predict_inference(inference: bool, table: Path, output: Path) -> None:
    """Predict every serving run of a CSV table: throughput, TTFT, TPOT, latency, whether it fits, maximum concurrency.

    TABLE has the columns of autoconfig/data/run_tables.toml (columns.serving); measured columns and notes are never read.
    Exit code 2 where no row could be predicted.
    """
    from autoconfig.runs.predict_serving import predict_file
    from autoconfig.runs.table import check_not_the_input
    from autoconfig.specs.files import check_output_path

    check_output_path(output, (".csv",))
    check_not_the_input(table, output)
    predictions, calibration, warning = predict_file(table, output, progress())
    clear_progress()
    reasons = [p.note if p.failed else None for p in predictions]
    say_predicted(output, calibration, reasons, warning)
