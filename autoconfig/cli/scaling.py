"""`autoconfig scaling`: one job over GPU counts and types."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autoconfig.cli.main import EXIT_NOTHING_FITS, console, json_option, options, print_json
from autoconfig.planning.request_fields import SCALING

PLOT_SUFFIXES = (".png", ".svg")


@click.command("scaling")
@options(SCALING)
@json_option
@click.pass_context
def scaling_command(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """The best plan, throughput, days and cost over GPU counts and types, the same global batch throughout.

    autoconfig scaling --model 175b --gpus 256:4096 --gpu h100,a100-80gb --tokens 300B --days 20
    """
    from autoconfig.sizing.sizing import scale, scaling_request
    from autoconfig.specs.files import check_output_path

    plot = given["plot"]
    if plot is not None:
        check_output_path(Path(plot), PLOT_SUFFIXES)
    answer = scale(scaling_request(given), _progress if sys.stderr.isatty() else None)
    if plot is not None:
        from autoconfig.render.scaling import draw

        draw(answer, Path(plot))
        click.echo(f"plot written to {plot}", err=True)
    if as_json:
        from autoconfig.render.scaling import scaling_json

        print_json(scaling_json(answer))
    else:
        from autoconfig.render.scaling import show_scaling

        show_scaling(console(), answer)
    if all(point.report is None for point in answer.points):
        ctx.exit(EXIT_NOTHING_FITS)


def _progress(text: str) -> None:
    click.echo(f"\r{text} ...        ", nl=False, err=True)
