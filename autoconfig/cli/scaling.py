"""`autoconfig scaling`: one job over GPU counts and types."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autoconfig.cli.options import request_of, scaling_options
from autoconfig.sizing import goodput
from autoconfig.specs.json_record import json_text

EXIT_NOTHING_FITS = 3
PLOT_SUFFIXES = (".png", ".svg")


@click.command("scaling")
@scaling_options
@click.option("--fix", multiple=True, metavar="KEY=VALUE", help="Only plans with this, e.g. tp=8; repeat to allow more values.")
@click.option("--max", "at_most", multiple=True, metavar="KEY=VALUE", help="Only plans with at most this, e.g. tp=8.")
@click.option("--exclude", multiple=True, metavar="KEY=VALUE", help="No plans with this, e.g. pp=16.")
@click.option("--keep", multiple=True, metavar="KEY[=VALUE]", help="Hold a key over all counts: tp (of the first), or tp=8.")
@click.option("--days", type=float, help="Deadline, with --tokens: names the fewest GPUs that meet it.")
@click.option("--spares", type=int, help="GPUs kept idle to replace broken ones.  [default: replacements are at hand]")
@click.option("--mtbf", type=float, default=goodput.DEFAULT_MTBF_HOURS_PER_GPU, show_default=True, metavar="HOURS",
              help="Mean time between failures of one GPU with its share of the node.")  # fmt: skip
@click.option("--checkpoint-rate", type=float, default=goodput.DEFAULT_CHECKPOINT_GB_PER_S_PER_NODE, show_default=True,
              metavar="GB/S", help="Checkpoint bandwidth of one node.")  # fmt: skip
@click.option("--restart-seconds", type=float, default=goodput.DEFAULT_RESTART_SECONDS, show_default=True,
              help="From a failure until training goes on, loading excluded.")  # fmt: skip
@click.option("--repair-hours", type=float, default=goodput.DEFAULT_REPAIR_HOURS, show_default=True,
              help="Until a broken node is back; counts with --spares.")  # fmt: skip
@click.option("--plot", metavar="FILE", help="Draw throughput over GPUs to FILE.png or FILE.svg.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_context
def scaling_command(ctx: click.Context, /, gpus: str, gpu: str | None, plot: str | None, as_json: bool, **options: Any) -> None:
    """The best plan, throughput, days and cost over GPU counts and types, the same global batch throughout.

    autoconfig scaling --model 175b --gpus 256:4096 --gpu h100,a100-80gb --tokens 300B --days 20
    """
    from autoconfig.sizing.counts import parse_counts
    from autoconfig.sizing.sizing import ScalingRequest, scale
    from autoconfig.specs.files import check_output_path

    if plot is not None:
        check_output_path(Path(plot), PLOT_SUFFIXES)
    request = ScalingRequest(
        base=request_of({**options, "gpus": None, "gpu": None}),
        gpu_counts=parse_counts(gpus),
        gpu_types=tuple(name.strip() for name in gpu.split(",") if name.strip()) if gpu else (),
        keep=tuple(key.strip() for text in options["keep"] for key in text.split(",") if key.strip()),
        days=options["days"],
        reliability=goodput.Reliability(
            mtbf_hours_per_gpu=options["mtbf"],
            checkpoint_gb_per_s_per_node=options["checkpoint_rate"],
            restart_seconds=options["restart_seconds"],
            repair_hours=options["repair_hours"],
            spares=options["spares"],
        ),
    )
    answer = scale(request, _progress if sys.stderr.isatty() else None)
    if plot is not None:
        from autoconfig.render.scaling_plot import draw

        draw(answer, Path(plot))
        click.echo(f"plot written to {plot}", err=True)
    if as_json:
        from autoconfig.render.scaling import scaling_json

        click.echo(json_text(scaling_json(answer)))
    else:
        from autoconfig.cli.main import console
        from autoconfig.render.scaling import show_scaling

        show_scaling(console(), answer)
    if all(point.report is None for point in answer.points):
        ctx.exit(EXIT_NOTHING_FITS)


def _progress(text: str) -> None:
    click.echo(f"\r{text} ...        ", nl=False, err=True)
