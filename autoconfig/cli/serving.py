"""Serving under the same commands: `search`, `predict` and `validate` with `--inference`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from autoconfig.cli import study as cli_study
from autoconfig.cli.messages import clear_progress, progress, say_predicted
from autoconfig.specs.errors import InputError
from autoconfig.specs.json_record import json_text

EXIT_NOTHING_FITS = 3
GOALS = ("throughput", "ttft", "tpot", "gpus", "cost")
FLAG = "--inference"
inference_flag = click.option(FLAG, is_flag=True, help="Serve the model instead of training it.")


class Seconds(click.ParamType[float]):
    """A duration: 50ms, 2s, 0.05."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds. Fails with what is allowed."""
        from autoconfig.serving.request import seconds

        if isinstance(value, float):
            return value
        try:
            return seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _measured(command: Any) -> Any:
    """The options of training's --profile that serving has, under the same names."""
    return cli_study.study_options(command, without=cli_study.NOT_FOR_SERVING)


@click.command("search")
@inference_flag
@click.option("--model", help="Catalogue name (llama3-70b), a size, or a Hugging Face config.json.")
@click.option("--gpus", type=int, help="Number of GPUs; with --goal gpus the most there are.")
@click.option("--gpu", help="GPU type (see `autoconfig gpus`).  [default: h100-sxm-80gb]")
@click.option("--gpus-per-node", type=int, help="GPUs that reach each other over the link; the usual server's if not given.")
@click.option("--engine", help="Engine generation (see `autoconfig engines`).  [default: trtllm-1.2]")
@click.option("--isl", type=int, help="Input tokens of a request, on average.  [default: 1000]")
@click.option("--osl", type=int, help="Output tokens of a request, on average.  [default: 1000]")
@click.option("--isl-stddev", type=float, help="Standard deviation of the input tokens.  [default: 0]")
@click.option("--osl-stddev", type=float, help="Standard deviation of the output tokens.  [default: 0]")
@click.option(
    "--trace",
    metavar="FILE",
    help="Requests as recorded, in place of lengths and rate: CSV of the Azure or BurstGPT traces, JSON lines of Mooncake's.",
)
@click.option("--ttft", "ttft_s", type=Seconds(), help="Limit of the mean time to first token, like 2s.")
@click.option("--tpot", "tpot_s", type=Seconds(), help="Limit of the mean time per output token, like 50ms.")
@click.option(
    "--rate",
    type=float,
    default=0.0,
    help="Requests per second that arrive (Poisson; a trace's times are stretched); without it the queue is never empty.",
)
@click.option("--goal", type=click.Choice(GOALS), default="throughput", show_default=True, help="What is best.")
@click.option(
    "--fix", multiple=True, metavar="KEY=VALUE", help="Only deployments with this, e.g. tp=4; repeat to allow more values."
)
@click.option("--include", multiple=True, metavar="PLAN", help="Also report this plan, or why not.")
@click.option("--prefix-hit", type=float, default=0.0, help="Share of the input whose cache is there already.")
@click.option("--draft-tokens", type=int, default=0, help="Draft tokens checked per step (speculative decoding, MTP).")
@click.option("--acceptance", type=float, help="Chance that a draft token is accepted; goes with --draft-tokens.")
@click.option("--imbalance", type=float, help="Experts: rows of the busiest rank over the mean.  [default: 1.4]")
@click.option("--disaggregated/--aggregated-only", default=True, help="Also separate prefill and decode instances.")
@click.option(
    "--chunked-prefill/--whole-prompts", "chunked", default=None, help="Split prompts over iterations; the engine's default."
)
@click.option("--kv-memory-ratio", type=float, help="Share of free memory for the cache; the engine's default.")
@click.option("--price", type=float, help="Money per GPU and hour.")
@click.option("--calibration", metavar="FILE", help="Constants that a study learned (--save-calibration).")
@click.option("--top", type=int, default=10, show_default=True, help="Deployments to show.")
@click.option("--simulate", type=int, default=3, show_default=True, help="Finalists to simulate event by event.")
@click.option(
    "--export", "export_folder", metavar="DIR", help="Write start scripts and benchmark of the first deployment into DIR."
)
@click.option("--report", metavar="OUT.html", help="Write the answer as one HTML file that needs nothing else.")
@click.option("--force", is_flag=True, help="With --export: replace files that autoconfig did not write.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@_measured
@click.pass_context
def search_inference(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    """Rank the deployments that fit and meet the limits, best first.

    autoconfig search --inference --model llama3-70b --gpus 8 --gpu h200-sxm-141gb --isl 1000 --osl 500 --ttft 2s --tpot 50ms

    With --profile: measure the frontier of throughput and time per token by jobs of a real engine on this machine or Slurm,
    megatron-core's (--engine megatron, the default then) or vLLM's server (--engine vllm). --resume NAME goes on.

    autoconfig search --inference --model llama3-8b --gpus 1 --isl 1000 --osl 256 --profile --budget 1h --study 8b
    """
    if cli_study.wants_profile(options):
        from autoconfig.cli.serving_study import check_answer_options, serving

        check_answer_options(options)
        if options["model"] is not None:
            _check_question(options)
        cli_study.run_profile(ctx, options, serving(options), as_json=as_json, model_given=options["model"] is not None)
        return
    _check_question(options)
    _answer(ctx, options, as_json=as_json)


def _check_question(options: dict[str, Any]) -> None:
    missing = [f"--{name}" for name in ("model", "gpus") if options[name] is None]
    if missing:
        raise click.UsageError(f"Missing option {' and '.join(missing)}.")


def _answer(ctx: click.Context, options: dict[str, Any], *, as_json: bool) -> None:
    """A predicted answer, printed and written."""
    from autoconfig.serving.answer import answer
    from autoconfig.serving.request import ServeRequest

    export_folder, report, force = options["export_folder"], options["report"], options["force"]
    asked = {name: options[name] for name in ServeRequest.__dataclass_fields__ if name in options}
    if report is not None:
        from autoconfig.render.html import check_report_path

        check_report_path(Path(report))
    found = answer(ServeRequest(**asked), None if as_json else progress())
    clear_progress()
    if as_json:
        from autoconfig.serving.deployment_json import serve_json

        click.echo(json_text(serve_json(found)))
    else:
        from autoconfig.cli.main import console
        from autoconfig.render.serving import show_answer

        show_answer(console(), found)
    if report is not None:
        from autoconfig.render.serving_html import write_report

        write_report(found, Path(report), shlex.join(["autoconfig", *sys.argv[1:]]))
        click.echo(f"report written to {report}", err=True)
    if not found.reports:
        ctx.exit(EXIT_NOTHING_FITS)
    if export_folder is not None:
        from autoconfig.engines.export import export, not_written

        written = export(found.question, found.reports[0], Path(export_folder), force=force)
        click.echo(f"wrote {', '.join(map(str, written))}", err=as_json)
        if not_written(found.question):
            click.echo(not_written(found.question), err=True)


@click.command("predict")
@inference_flag
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="OUT.csv", help="Where the predictions go.")
def predict_inference(inference: bool, table: Path, output: Path) -> None:
    """Predict every serving run of a CSV table: throughput, TTFT, TPOT, latency, whether it fits, maximum concurrency.

    TABLE has the columns of autoconfig/data/published/inference_measurements.csv; measured columns and notes are never read.
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


@click.command("validate")
@inference_flag
@click.option("--seen", is_flag=True, help="With the shipped constants, which have seen the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def validate_inference_command(inference: bool, seen: bool, as_json: bool) -> None:
    """Predict the published serving runs with constants that have not seen their source; print the errors and the bars."""
    from autoconfig.accuracy.serving import validate_inference, validation_json

    found = validate_inference(held_out=not seen, progress=progress())
    clear_progress()
    if as_json:
        click.echo(json.dumps(validation_json(found), indent=2, allow_nan=False))
    else:
        from autoconfig.accuracy.sheets import show_serving_validation
        from autoconfig.cli.main import console

        show_serving_validation(console(), found)


COMMANDS = {"search": search_inference, "predict": predict_inference, "validate": validate_inference_command}


def command_for(name: str, arguments: list[str]) -> click.Command | None:
    """The serving form of a command where --inference is among its arguments; None otherwise. Raises InputError where there is
    none."""
    if FLAG not in arguments:
        return None
    if name not in COMMANDS:
        raise InputError(f"{name} has no {FLAG}; {', '.join(COMMANDS)} have")
    return COMMANDS[name]
