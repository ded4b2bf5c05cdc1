"""The command line: parse, call one function of the application, render. A command's module is loaded when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from autoconfig.cli.console import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from autoconfig.specs.errors import AutoconfigError, InputError

COMMANDS = {
    "audit": "megatron:audit_command",
    "calibrate": "runs:calibrate_command",
    "check": "megatron:check_command",
    "emulate": "core:emulate_command",
    "engines": "lists:engines_command",
    "explain": "training:explain_command",
    "export": "training:export_command",
    "gpus": "lists:gpus_command",
    "keys": "service:keys_group",
    "models": "lists:models_command",
    "predict": "runs:predict_command",
    "scaling": "scaling:scaling_command",
    "search": "training:search_command",
    "serve": "service:serve_command",
    "software": "lists:software_command",
    "studies": "studies:studies_group",
    "trace": "core:trace_command",
    "validate": "runs:validate_command",
    "worker": "service:worker_command",
}
"""Name -> module of this package and the command in it."""
INFERENCE = "--inference"
SERVING = {"search": "search_inference", "predict": "predict_inference", "validate": "validate_inference_command"}
"""Name -> the command's serving form, in the module `serving`."""


def load(module: str, name: str) -> click.Command:
    """A command of a module of this package."""
    found: click.Command = getattr(importlib.import_module(f"autoconfig.cli.{module}"), name)
    return found


class _Missing(click.Command):
    """A command whose packages are not installed."""

    def __init__(self, name: str, package: str) -> None:
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(name, context_settings=settings, help="Needs: pip install 'megatron-autoconfig[serve]'.")
        self.package = package

    def invoke(self, ctx: click.Context) -> None:
        """Raises InputError."""
        raise InputError(f"autoconfig {self.name} needs {self.package}: pip install 'megatron-autoconfig[serve]'")


class _Commands(Mapping[str, click.Command]):
    """The commands by name, loaded when they are looked up; where a package is missing, one that says what to install."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = COMMANDS[name].partition(":")
        try:
            return load(module, attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] == "autoconfig":
                raise
            return _Missing(name, error.name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(click.Group):
    """Turns our errors into one line and an exit code; loads the commands of COMMANDS."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing is ever added

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; its serving form where --inference is among the arguments. Raises InputError where there is none."""
        name, command, rest = super().resolve_command(ctx, args)
        if name and INFERENCE in rest:
            if name not in SERVING:
                raise InputError(f"{name} has no {INFERENCE}; {', '.join(SERVING)} have")
            command = load("serving", SERVING[name])
        return name, command, rest

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


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="megatron-autoconfig")
def cli() -> None:
    """The best way to run a model on a cluster: parallelism, micro-batch, recomputation, memory and time, in about a second."""


def main() -> None:
    """Entry point of the `autoconfig` command."""
    cli(prog_name="autoconfig")
