"""Commands about measured runs: predict, calibrate, validate."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autoconfig.cli.main import EXIT_NOTHING_FITS, console, given_options, print_json, say_predicted, show_rows
from autoconfig.cli.options import ManyOptions, json_option, option, options, verbose_option
from autoconfig.cli.progress import clear_progress, progress
from autoconfig.cli.time_limit import time_limit
from autoconfig.planning.request_fields import BUDGET, CALIBRATION, DOWNLOAD, LIKE, PREDICT, SCALING
from autoconfig.planning.resolve import field_names
from autoconfig.specs.errors import FileError, InputError, option_name
from autoconfig.specs.scenario import Calibration


@click.command("predict")
@click.argument("file", type=click.Path(path_type=Path), metavar="TABLE|FILE")
@click.option("--output", type=click.Path(path_type=Path), metavar="OUT.csv", help="Where predictions go; a table needs it.")
@option(CALIBRATION)
@options(PREDICT)
@click.pass_context
def predict_command(ctx: click.Context, /, file: Path, output: Path | None, calibration: str | None, **given: Any) -> None:
    """Predict every run of a CSV table, or the run of a file that `check` reads: step time with its band, throughput, memory,
    chance to fit.

    TABLE has the columns of autoconfig/data/run_tables.toml (columns.training); measured columns and notes are never read.
    What a row says is priced as it says it, and an empty cell is what `explain` takes where nothing is said. The column
    pred_note says what was assumed, which rules a plan breaks, and why a row has no prediction. FILE is a launch script or
    a trainer's configuration; the other options say what it does not. Exit code 2 where no row could be predicted.

    autoconfig predict pretrain.sh --gpus 64
    """
    from autoconfig.planning.calibration_file import named_calibration
    from autoconfig.runs.predict import predict_file
    from autoconfig.runs.table import check_not_the_input, is_table
    from autoconfig.specs.files import check_output_path

    constants = named_calibration(calibration)
    if output is not None:
        check_output_path(output, (".csv",))
        check_not_the_input(file, output)
    if not is_table(file):
        _predict_plan(file, output, constants, given)
        return
    if output is None:
        if not file.exists():
            raise FileError(f"{file} cannot be read: No such file or directory; check the path")
        raise click.UsageError("a table's predictions need --output OUT.csv")
    if said := given_options(ctx) & set(field_names(PREDICT)):
        raise InputError(f"{option_name(min(said))} is for a launch script or a configuration: a table says it in a column")
    predictions, warning = predict_file(file, output, constants, progress())
    clear_progress()
    reasons = [None if p.step_seconds is not None else p.note for p in predictions]
    say_predicted(output, constants.version, reasons, warning)


def _predict_plan(file: Path, output: Path | None, constants: Calibration, given: dict[str, Any]) -> None:
    """The run of one file, on the screen or as a table of one row."""
    from autoconfig.formats.check import read_file
    from autoconfig.megatron.check_input import check_request
    from autoconfig.runs.predict import COLUMNS, predict_plan
    from autoconfig.runs.table import write_csv

    request = check_request(given)
    with time_limit(file):
        cells = predict_plan(read_file(file, request), file.name, constants).cells()
    if output is None:
        for name, value in cells.items():
            click.echo(f"{name}: {value}")
        return
    write_csv(output, COLUMNS, [cells])
    click.echo(f"predicted with calibration {constants.version}, written to {output}")


@click.command("calibrate")
@click.argument("measurements", type=click.Path(path_type=Path), required=False)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Where the result goes (.json).")
@option(CALIBRATION)
@click.option("--gpu", type=click.Choice(("local",)), help="Measure this machine for --gpu local (needs torch).")
@click.option("--gpu-table", type=click.Path(path_type=Path), metavar="FILE", help="Keep this table for --gpu local.")
@click.option("--budget", metavar="TIME", help="With --gpu local: most time to measure, like 8m.  [default: 8m]")
@click.option("--fresh", is_flag=True, help="With --gpu local: measure anew in place of going on with what is there.")
@click.pass_context
def calibrate_command(
    ctx: click.Context,
    measurements: Path | None,
    output: Path | None,
    calibration: str | None,
    gpu: str | None,
    gpu_table: Path | None,
    budget: str | None,
    fresh: bool,
) -> None:
    """Make a calibration from your own measured runs (three rows already help), or measure this machine.

    MEASUREMENTS has the columns of autoconfig/data/run_tables.toml (columns.training), with one of metric_step_s,
    metric_tokens_per_s_per_gpu, metric_tflops_per_gpu, metric_mfu. --calibration names the one to start from.
    `autoconfig calibrate --gpu local` measures the GPU (or CPU) here, in eight minutes or less.
    """
    kinds = {"MEASUREMENTS": measurements, "--gpu local": gpu, "--gpu-table": gpu_table}
    given = [name for name, value in kinds.items() if value]
    if len(given) != 1:
        said = "not " + " and ".join(given) if given else "nothing was given"
        raise InputError(f"calibrate takes one of MEASUREMENTS, --gpu local and --gpu-table FILE; {said}")
    if gpu is None and (budget is not None or fresh):
        raise InputError("--budget and --fresh belong to --gpu local")
    if measurements is None:
        if calibration is not None:
            raise InputError("--calibration belongs to MEASUREMENTS; operator tables are measured, not fitted")
        ctx.exit(_calibrate_machine(gpu_table, output, budget, fresh))
    if output is None:
        raise InputError("where shall the calibration go? say --output FILE.json")
    _calibrate_runs(measurements, output, calibration)


def _calibrate_runs(measurements: Path, output: Path, calibration: str | None) -> None:
    from autoconfig.calibration.calibrate import MAX_REASONS, calibrate_file, describe, duplicates, usable_runs
    from autoconfig.planning.calibration_file import named_calibration, write_calibration
    from autoconfig.runs.predict import unread
    from autoconfig.specs.files import check_output_path

    check_output_path(output, (".json",))
    if remark := unread(measurements):
        click.echo(f"warning: {remark}", err=True)
    found, count = calibrate_file(measurements, named_calibration(calibration))
    write_calibration(found, output)
    runs, left_out = usable_runs(measurements)
    for line in [f"not used, {line}" for line in left_out[:MAX_REASONS]] + duplicates(runs):
        click.echo(f"warning: {line}", err=True)
    if len(left_out) > MAX_REASONS:
        click.echo(f"warning: {len(left_out) - MAX_REASONS:,} more rows not used", err=True)
    click.echo(f"calibration {found.version} from {count:,} run{'s' * (count != 1)}, written to {output}")
    for line in describe(found, measurements):
        click.echo("  " + line)


def _calibrate_machine(gpu_table: Path | None, output: Path | None, budget: str | None, fresh: bool) -> int:
    from autoconfig.calibration.calibrate import install_table, run_benchmark

    if gpu_table is not None:
        if output is not None:
            raise InputError("--gpu-table FILE is kept for --gpu local, there is no --output")
        target, gpu = install_table(gpu_table)
        click.echo(f"{gpu.id}: kept in {target}; autoconfig search --gpu local prices with it on that machine")
        return 0
    options = [("--output", output), ("--budget", budget)]
    code = run_benchmark((*(text for name, value in options if value for text in (name, str(value))), *["--fresh"] * fresh))
    if code == 0:
        use = f"--gpu-table {output}" if output else "--gpu local"
        click.echo(f"measured; try: autoconfig search --model llama3-8b --gpus 8 {use}")
    return code


@click.command("validate")
@click.option(
    "--gpu-runs", type=click.Path(path_type=Path), metavar="DIR", help="Also the results of make gpu; default: benchmarks/gpu."
)
@json_option
def validate_command(gpu_runs: Path | None, as_json: bool) -> None:
    """Print how far off we are on published runs, by class of run, and beside the results of make gpu.

    Every published run and its error: docs/accuracy.md.
    """
    from autoconfig.calibration import gpu_runs as own
    from autoconfig.render.validation import LEGEND, class_rows, run_rows, validation, validation_json

    found = validation(own.gpu_runs(gpu_runs))
    if as_json:
        print_json(validation_json(found))
        return
    console().print(f"{found.about} Release {found.release}, {found.date}, calibration {found.calibration}.", markup=False)
    show_rows("classes", class_rows(found), as_json)
    console().print(LEGEND, markup=False, style="dim")
    if found.gpu_runs:
        console().print("Jobs of make gpu: GiB and seconds as measured, and by us.")
        show_rows("gpu_runs", run_rows(found.gpu_runs), as_json)


def _listing(name: str, rows: str, text: str, example: str) -> click.Command:
    @click.command(name, help=f"{text} With WORDs: those whose name has them all, like autoconfig {name} {example}.")
    @click.argument("words", nargs=-1, metavar="[WORD]...")
    @json_option
    def command(words: tuple[str, ...], as_json: bool) -> None:
        from autoconfig.render import listings

        show_rows(name, listings.named(name, getattr(listings, rows)(), words), as_json)

    return command


@click.command("model")
@click.argument("model", metavar="FILE_OR_NAME")
@option(LIKE)
@option(DOWNLOAD)
@json_option
def model_command(model: str, as_json: bool, like: str | None, download: bool) -> None:
    """One model: family, exact parameters, active ones, and what the count leaves out. Exit code 2, with the reason, where it
    cannot be planned.

    FILE_OR_NAME is a name of the catalogue, a size, or a Hugging Face config.json.
    """
    from autoconfig.render.listings import describe, model_text

    found = describe(model, like=like, download=download)
    if as_json:
        print_json(found)
    else:
        console().print(model_text(found), markup=False)


models_command = _listing("models", "model_rows", "List the models of the catalogue.", "llama")
gpus_command = _listing("gpus", "gpu_rows", "List the GPU types of the catalogue.", "h100")
software_command = _listing(
    "software", "software_rows", "List the software stacks: what each saves, fuses and overlaps.", "nemo"
)
engines_command = _listing("engines", "engine_rows", "List the generations of serving engines.", "vllm")


@click.command("rules")
@click.argument("code", required=False)
@json_option
def rules_command(code: str | None, as_json: bool) -> None:
    """The rules that reject plans, those about a topic, or one in full: what must hold, and where Megatron enforces it.

    autoconfig rules NV046; autoconfig rules sp
    """
    from autoconfig.render.listings import rule_record, rule_rows, rule_text, rules_about

    if code is None or (about := rules_about(code)):
        show_rows("rules", rule_rows() if code is None else about, as_json)
        return
    found = rule_record(code)
    if as_json:
        print_json({"schema_version": 1, **found})
    else:
        console().print(rule_text(found), markup=False)


PLOT_SUFFIXES = (".png", ".svg")


@click.command("budget", cls=ManyOptions)
@options(BUDGET)
@json_option
@verbose_option
@click.pass_context
def budget_command(ctx: click.Context, /, as_json: bool, verbose: bool, **given: Any) -> None:
    """What money and days train: size, tokens, GPUs, count, plan, cost.

    Exit code 0: something; 3: nothing, and what would be possible.

    autoconfig budget --money 3M --days 60 --gpu h100=2.2 --gpu b200=4.5
    """
    from autoconfig.sizing.budget import budget, budget_request

    answer = budget(budget_request(given), progress())
    clear_progress()
    if as_json:
        from autoconfig.render.sizing.budget import budget_json

        print_json(budget_json(answer))
    else:
        from autoconfig.render.sizing.budget import show_budget

        show_budget(console(), answer)
    if answer.best is None:
        ctx.exit(EXIT_NOTHING_FITS)


@click.command("scaling", cls=ManyOptions)
@options([replace(field, many=field.name == "gpu" or field.many) for field in SCALING])
@json_option
@verbose_option
@click.pass_context
def scaling_command(ctx: click.Context, /, as_json: bool, verbose: bool, **given: Any) -> None:
    """The best plan, throughput, days and cost over GPU counts and types, the same global batch throughout.

    autoconfig scaling --model 175b --gpus 256:4096 --gpu h100,a100-80gb --tokens 300B --days 20
    """
    from autoconfig.sizing.sizing import scale, scaling_request
    from autoconfig.specs.files import check_output_path

    plot = given["plot"]
    if plot is not None:
        check_output_path(Path(plot), PLOT_SUFFIXES)
        importlib.import_module("matplotlib")  # not in a plain install
    answer = scale(scaling_request(given), progress())
    clear_progress()
    if plot is not None:
        from autoconfig.render.sizing.scaling import draw

        draw(answer, Path(plot))
        click.echo(f"plot written to {plot}", err=True)
    if as_json:
        from autoconfig.render.sizing.scaling import scaling_json

        print_json(scaling_json(answer))
    else:
        from autoconfig.render.first.scaling import show

        show(console(), answer)
    if all(point.report is None for point in answer.points):
        ctx.exit(EXIT_NOTHING_FITS)
