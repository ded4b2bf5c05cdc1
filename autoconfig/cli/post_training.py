"""Post-training: `predict` and `validate` with `--rl`."""

from __future__ import annotations

from pathlib import Path

import click

from autoconfig.cli.main import clear_progress, console, json_option, print_json, progress, say_predicted

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
