"""The commands that list what there is: models, GPU types, software stacks, serving engines."""

from __future__ import annotations

import click

from autoconfig.cli.main import json_option, show_rows


@click.command("models")
@json_option
def models_command(as_json: bool) -> None:
    """List the models of the catalogue."""
    from autoconfig.render.listings import model_rows

    show_rows("models", model_rows(), as_json)


@click.command("gpus")
@json_option
def gpus_command(as_json: bool) -> None:
    """List the GPU types of the catalogue."""
    from autoconfig.render.listings import gpu_rows

    show_rows("gpus", gpu_rows(), as_json)


@click.command("software")
@json_option
def software_command(as_json: bool) -> None:
    """List the software stacks: what each saves, fuses and overlaps."""
    from autoconfig.render.listings import software_rows

    show_rows("software", software_rows(), as_json)


@click.command("engines")
@json_option
def engines_command(as_json: bool) -> None:
    """List the generations of serving engines."""
    from autoconfig.render.listings import engine_rows

    show_rows("engines", engine_rows(), as_json)
