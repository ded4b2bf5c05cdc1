"""Post-training: `rl` with `rl check` and `rl calibrate`, and `predict` and `validate` with `--rl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoconfig.cli.main import (
    EXIT_BAD_INPUT,
    EXIT_NOTHING_FITS,
    console,
    done_first,
    given_options,
    print_json,
    say_not_exported,
    say_predicted,
)
from autoconfig.cli.options import json_option, options, verbose_option
from autoconfig.cli.progress import clear_progress, progress
from autoconfig.cli.time_limit import time_limit
from autoconfig.planning.request_fields import POST_TRAINING, POST_TRAINING_FILE, POST_TRAINING_OUTPUT
from autoconfig.specs.errors import InputError, option_name

rl_flag = click.option("--rl", is_flag=True, help="Runs of post-training: GRPO, DAPO, PPO and others.")


@click.command("predict")
@rl_flag
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="OUT.csv", help="Where the predictions go.")
@options([field for field in POST_TRAINING if field.name == "calibration"])
def predict_rl(rl: bool, table: Path, output: Path, calibration: str | None) -> None:
    """Predict every post-training run of a CSV table: seconds of a step with its band and by phase, and whether it fits.

    TABLE has the columns of autoconfig/data/run_tables.toml (columns.post_training); measured columns, kind and notes are
    never read. What a row does not say is assumed, and pred_note says so. Exit code 2 where no row could be predicted.
    """
    from autoconfig.runs.predict_post_training import predict_file
    from autoconfig.runs.table import check_not_the_input
    from autoconfig.specs.files import check_output_path

    check_output_path(output, (".csv",))
    check_not_the_input(table, output)
    predictions, warning = predict_file(table, output, _constants({"calibration": calibration}), progress=progress())
    clear_progress()
    reasons = [p.note if p.failed else None for p in predictions]
    say_predicted(output, "post-training", reasons, warning)


@click.group("rl", invoke_without_command=True)
@options(POST_TRAINING, POST_TRAINING_OUTPUT)
@json_option
@verbose_option
@click.pass_context
def rl_command(ctx: click.Context, /, as_json: bool, verbose: bool, **given: Any) -> None:
    """Rank the placements of a step of post-training: training and engine plans, seconds by phase, memory.

    autoconfig rl --model qwen2.5-7b --gpus 8 --prompts 512 --group-size 16 --response-length 1600 --max-response-length 8192

    Exit code 3 where no placement fits: the nearest one and what would help.
    """
    if ctx.invoked_subcommand is not None:
        if said := sorted(given_options(ctx)):
            raise InputError(
                f"{option_name(said[0])} goes behind {ctx.invoked_subcommand}: rl {ctx.invoked_subcommand} FILE ..."
            )
        return
    from autoconfig.formats.post_training.export import check_export, not_written
    from autoconfig.post_training.answer import answer
    from autoconfig.post_training.answer_json import answer_json
    from autoconfig.post_training.question import request_of

    if given["export"] is not None:
        check_export(given["framework"], given["algorithm"], Path(given["export"]), force=given["force"])
    elif reason := not_written(given["framework"], given["algorithm"]):
        click.echo(f"Ranked only, {option_name('export')} writes nothing here: {InputError(reason)}.", err=True)
    found = answer(request_of(given))
    exported = None
    if given["export"] is not None and found.ranked:
        from autoconfig.formats.post_training.export import export_first

        exported = done_first(lambda: export_first(found.job, found.ranked, Path(given["export"]), force=given["force"]))
    if as_json:
        print_json(answer_json(found))
    else:
        from autoconfig.render.first.rl import show

        show(console(), found)
    if exported is not None:
        from autoconfig.formats.post_training.words import checkpoint_of

        one, written, reason = exported()
        if one is not found.ranked[0]:
            click.echo(f"The first placement is not written: {reason}.", err=True)
        click.echo(f"Wrote {', '.join(str(path) for path in written.files)}: {one.seconds:,.1f} s a step.", err=as_json)
        if not checkpoint_of(found.job):
            asked = "the files ask for it (MODEL, or the name in YAML)"
            click.echo(f"No checkpoint of {found.job.policy.name} is known: {asked}.", err=True)
        if written.replaced:
            click.echo(written.replaced, err=True)
    if not found.ranked:
        say_not_exported(given["export"], "no placement fits")
        ctx.exit(EXIT_NOTHING_FITS)


@rl_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@options(POST_TRAINING_FILE)
@json_option
@verbose_option
@click.pass_context
def check_command(ctx: click.Context, /, file: Path, as_json: bool, verbose: bool, **given: Any) -> None:
    """Check a verl, OpenRLHF, slime or `swift rlhf` script, a NeMo-RL YAML or a TRL configuration: unknown keys, what cannot
    run, what fits, the step, and the better placement.

    Nothing in FILE is run. Exit code 0: legal, and fits with --fit-chance; 2: not legal, or cannot be read; 3: does not fit
    with it.

    autoconfig rl check run_verl.sh --gpu h100 --response-length 1600
    """
    from autoconfig.formats.post_training.check import check_file
    from autoconfig.render.post_training import check_json, show_check

    known = _calibration(given)
    asked = {name: value for name, value in given.items() if value is not None}
    with time_limit(file):
        found = check_file(file, {**given, **known.lengths, **asked} if known else given, known.applied() if known else None)
    if as_json:
        print_json(check_json(found))
    else:
        show_check(console(), found)
    if not found.legal:
        ctx.exit(EXIT_BAD_INPUT)
    if not found.fit_chance_met:
        ctx.exit(EXIT_NOTHING_FITS)


@rl_command.command("calibrate")
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--run", required=True, type=click.Path(path_type=Path), metavar="FILE", help="What started the run (as rl check)."
)
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="OUT.json", help="Where the factors go.")
@options([field for field in POST_TRAINING_FILE if field.name not in ("calibration", "fit_chance")])
def calibrate_command(log: Path, run: Path, output: Path, **given: Any) -> None:
    """Factors on the seconds of each phase from a log of verl, NeMo-RL, OpenRLHF or TRL, for --calibration.

    The median of the printed steps counts, the first left out. Mean lengths that the log prints are used.
    """
    from autoconfig.formats.post_training.log import calibrate
    from autoconfig.post_training.calibration import write_calibration
    from autoconfig.specs.files import check_output_path

    check_output_path(output, (".json",))
    with time_limit(run):
        found, _, measured = calibrate(log, run, given)
    if found.doubts:
        doubts = "; ".join(found.doubts)
        click.echo(f"warning: {doubts}: check that the log is of the run that {run} starts, and its GPU", err=True)
    write_calibration(output, found)
    factors = f"generation {found.generation:.2f}, forward passes {found.forward:.2f}, training {found.training:.2f}"
    click.echo(
        f"{measured.steps} step{'s' * (measured.steps != 1)} of {found.model} on {found.gpu}: measured over predicted: "
        f"{factors}, rest {found.other:.2f}."
    )
    click.echo(f"Wrote {output}; use it with --calibration {output}.")


def _calibration(given: dict[str, Any]) -> Any:
    """The calibration that was given; None where none is."""
    if given.get("calibration") is None:
        return None
    from autoconfig.post_training.calibration import read_calibration

    return read_calibration(given["calibration"])


def _constants(given: dict[str, Any]) -> Any:
    """Constants with the calibration that was given; None: those that ship."""
    known = _calibration(given)
    return known.applied() if known else None
