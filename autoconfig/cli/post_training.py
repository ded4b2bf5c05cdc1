"""Post-training: `rl`, and `predict` and `validate` with `--rl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoconfig.cli.main import (
    EXIT_NOTHING_FITS,
    clear_progress,
    console,
    json_option,
    options,
    print_json,
    progress,
    say_predicted,
)
from autoconfig.planning.request_fields import POST_TRAINING

rl_flag = click.option("--rl", is_flag=True, help="Runs of post-training: GRPO, DAPO, PPO and others.")


@click.command("predict")
@rl_flag
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="OUT.csv", help="Where the predictions go.")
def predict_rl(rl: bool, table: Path, output: Path) -> None:
    """Predict every post-training run of a CSV table: seconds of a step with its band and by phase, and whether it fits.

    TABLE has the columns of autoconfig/data/published/post_training_measurements.csv; measured columns, kind and notes are
    never read. What a row does not say is assumed, and pred_note says so. Exit code 2 where no row could be predicted.
    """
    from autoconfig.runs.predict_post_training import predict_file
    from autoconfig.runs.table import check_not_the_input
    from autoconfig.specs.files import check_output_path

    check_output_path(output, (".csv",))
    check_not_the_input(table, output)
    predictions, warning = predict_file(table, output, progress=progress())
    clear_progress()
    reasons = [p.note if p.failed else None for p in predictions]
    say_predicted(output, "post-training", reasons, warning)


@click.command("validate")
@rl_flag
@click.option("--docs", type=click.Path(path_type=Path), metavar="PAGE.md", help="Also write the tables into this page.")
@json_option
def validate_rl_command(rl: bool, docs: Path | None, as_json: bool) -> None:
    """Predict the published runs of post-training with constants that have not seen their model, and after one measured step;
    print the errors, the bars and what is called wrong."""
    from autoconfig.accuracy.post_training import report, validate_rl, validation_json, write_page

    found = validate_rl()
    if docs is not None:
        write_page(docs, found)
    if as_json:
        print_json(validation_json(found))
    else:
        console().print(report(found), markup=False, highlight=False, soft_wrap=True)


@click.command("rl")
@options(POST_TRAINING)
@json_option
@click.pass_context
def rl_command(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """Rank the placements of a step of post-training: training and engine plans, seconds by phase, memory.

    autoconfig rl --model qwen2.5-7b --gpus 8 --prompts 512 --group-size 16 --response-length 1600 --max-response-length 8192

    Exit code 3 where no placement fits: the nearest one and what would help.
    """
    from autoconfig.post_training.answer import answer, answer_json

    found = answer(given)
    if as_json:
        print_json(answer_json(found))
    else:
        from autoconfig.render.post_training import show_placements

        show_placements(console(), found)
    if not found.ranked:
        ctx.exit(EXIT_NOTHING_FITS)
