"""The command line: parse, call one function of the application, render. A command's module is loaded when it is asked for."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from autoconfig.cli.progress import clear_progress
from autoconfig.planning.request_fields import PROFILE, SLURM
from autoconfig.planning.resolve import field_names
from autoconfig.planning.usual_words import usual
from autoconfig.specs.errors import AutoconfigError, InputError, option_name
from autoconfig.specs.extras import missing_package
from autoconfig.specs.json_record import json_text

Written = TypeVar("Written")

EXIT_BAD_INPUT = 2
EXIT_NOTHING_FITS = 3
EXIT_INTERRUPTED = 130


def console() -> Any:
    """Where tables go; whole where the command was asked to be verbose."""
    from autoconfig.render.screen import terminal

    context = click.get_current_context(silent=True)
    return terminal(verbose=bool(context and context.params.get("verbose")))


def print_json(body: object) -> None:
    """One object on standard output."""
    click.echo(json_text(body))


def show_rows(name: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table of rows with the same keys, or JSON."""
    if as_json:
        print_json({"schema_version": 1, name: rows})
        return
    from autoconfig.render.screen import show_records

    show_records(console(), rows)


def done_first(write: Callable[[], Written]) -> Callable[[], Written]:
    """Writes files before a table is shown, whose reader may go away (`| head -3`). What comes of it, and the InputError where
    they cannot be written, comes behind the table, where the result is called."""
    try:
        written = write()
    except InputError as error:
        refused = error

        def refuse() -> Written:
            raise refused

        return refuse
    return lambda: written


def say_not_exported(folder: str | None, why: str) -> None:
    """On stderr, where files were asked for and there is nothing to write."""
    if folder is not None:
        click.echo(f"nothing was exported to {folder}: {why}", err=True)


def say_predicted(output: Path, calibration: str, reasons: Sequence[str | None], warning: str) -> None:
    """What became of a table: `reasons` has None for every row that was predicted and the reason for every other one.

    Raises InputError where no row could be predicted (the table with the reasons is written all the same).
    """
    if warning:
        click.echo(f"warning: {warning}", err=True)
    left = [reason for reason in reasons if reason is not None]
    if len(left) == len(reasons):
        raise InputError(
            f"none of the {len(left):,} rows could be predicted; the column pred_note of {output} says why, "
            f"the first: {left[0]}"
        )
    done = len(reasons) - len(left)
    said = f"{done:,} of {len(reasons):,} rows predicted with calibration {calibration}, written to {output}"
    click.echo(said + (f"; the column pred_note says why the other {len(left):,} have no figures" if left else ""))


def given_options(ctx: click.Context) -> set[str]:
    """The names of the parameters that stand on the command line."""
    return {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def wants_profile(ctx: click.Context, also: Collection[str] = ()) -> bool:
    """Whether a search is to measure. Raises InputError for options that only then mean something, but for those in `also`."""
    if ctx.params["profile"] or ctx.params["resume"]:
        return True
    if ctx.params["study"]:
        raise InputError("--study names a profiling study: say --profile too")
    given = given_options(ctx)
    alone = [name for name in field_names(PROFILE) if name in given and name not in also]
    if alone:
        other = ", or --export DIR for a batch script" if alone[0] in field_names(SLURM) and "export" in ctx.params else ""
        raise InputError(f"{option_name(alone[0])} is for a search that measures: say --profile --study NAME too{other}")
    return False


def slurm_options(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Further #SBATCH options of a script that is written."""
    named = [f"--{name}={given[name]}" for name in ("partition", "account") if given[name] is not None]
    return (*named, *given["slurm"])


FIRST_SENTENCE = 200
"""Characters of a command's line in the list, which is wrapped: nothing of a first sentence is cut."""
_WHAT_FOR = {
    "Training": ("search", "explain", "export", "scaling", "budget"),
    "Post-training": ("rl",),
    "What you have": ("check", "convert", "diagnose"),
    "Serving": ("deployments", "engines"),
    "Measuring": ("studies", "trace", "emulate", "calibrate", "predict", "validate"),
    "Lists": ("model", "models", "gpus", "software", "rules"),
    "Service": ("serve", "worker", "keys", "mcp"),
}
_MODULES = {
    "agents.servers": ("mcp",),
    "diagnosis": ("diagnose",),
    "megatron": ("check", "convert", "emulate", "trace"),
    "post_training": ("rl",),
    "runs": (
        *("budget", "calibrate", "engines", "gpus", "model", "models"),
        *("predict", "rules", "scaling", "software", "validate"),
    ),
    "service": ("keys", "serve", "worker"),
    "serving": ("deployments",),
    "studies": ("studies",),
    "training": ("explain", "export", "search"),
}
COMMANDS = {name: f"{module}:{name}_command" for module, names in _MODULES.items() for name in names}
"""Name -> module of this package and the command in it."""
FORMS = {
    "--inference": (
        "serving",
        {"search": "deployments_command", "predict": "predict_inference"},
    ),
    "--rl": ("post_training", {"predict": "predict_rl"}),
}
"""Flag -> module, and by name the command's form that the flag asks for: of serving and of post-training."""


OTHER_WORDS = {
    "completion": 'the shell completes after eval "$(_AUTOCONFIG_COMPLETE=bash_source autoconfig)", or zsh_source',
    **dict.fromkeys(("plan", "plans", "train", "optimize", "tune", "run"), "plans of training are autoconfig search"),
    **dict.fromkeys(("finetune", "fine-tune", "lora"), "fine-tuning is autoconfig search --peft lora"),
    **dict.fromkeys(("inference", "infer", "deploy", "vllm"), "serving is autoconfig deployments"),
    **dict.fromkeys(("cost", "money", "price"), "what money trains is autoconfig budget"),
    **dict.fromkeys(("post-training", "rlhf", "grpo", "ppo"), "post-training is autoconfig rl"),
    **dict.fromkeys(("why", "debug", "slow"), "why a run is slow is autoconfig diagnose"),
    "audit": "recipes of Megatron-Bridge are audited by `python -m validation.judge.audit` in a checkout",
}
"""What others call a command -> which one it is."""
_LEAVE_OUT = tuple(f"--leave-one-{what}-out" for what in ("source", "model", "pair", "release"))
_OF_VALIDATE = ("--inference", "--rl", "--seen", "--docs", "--html", "--decisions", "--memory", "--headlines", "--first-plans")
REMOVED = {
    "validate": (
        {*_OF_VALIDATE, *_LEAVE_OUT},
        "validate prints the summary that ships, and docs/accuracy.md every published run (`make accuracy` in a checkout)",
    ),
}
"""Command -> options that it had, and what does their work now."""


def load(module: str, name: str) -> click.Command:
    """A command of a module of this package."""
    found: click.Command = getattr(importlib.import_module(f"autoconfig.cli.{module}"), name)
    return found


class _Missing(click.Command):
    """A command whose packages are not installed."""

    def __init__(self, name: str, error: InputError) -> None:
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(name, context_settings=settings, help=f"{error}.")
        self.error = error

    def invoke(self, ctx: click.Context) -> None:
        """Raises InputError."""
        raise self.error


class _Commands(Mapping[str, click.Command]):
    """The commands by name, loaded when they are looked up; where a package is missing, one that says what to install."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = COMMANDS[name].partition(":")
        try:
            return load(module, attribute)
        except ModuleNotFoundError as error:
            return _Missing(name, missing_package(error, f"autoconfig {name}"))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(COMMANDS))

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(click.Group):
    """Turns our errors into one line and an exit code; loads the commands of COMMANDS."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing is ever added

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; its form of FORMS where a flag among the arguments asks for it. Raises InputError where there is
        none."""
        if (hint := OTHER_WORDS.get(args[0])) is not None:
            raise click.UsageError(f"No such command '{args[0]}'; {hint}.", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        gone, now = REMOVED.get(name or "", (set(), ""))
        if removed := {word.partition("=")[0] for word in rest} & gone:
            raise click.UsageError(f"{name} has no {min(removed)} any more: {now}.", ctx)
        for flag, (module, forms) in FORMS.items():
            if name and flag in rest:
                if name not in forms:
                    raise InputError(f"{name} has no {flag}; {', '.join(forms)} have")
                command = load(module, forms[name])
                if (name, flag) == ("search", "--inference"):
                    click.echo("search --inference is `autoconfig deployments` now, and stays for this release", err=True)
                    name, rest = "deployments", [word for word in rest if word != flag]
                return name, command, rest
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by what they are for."""
        named = {name for names in _WHAT_FOR.values() for name in names}
        sections = {**_WHAT_FOR, "More": tuple(name for name in COMMANDS if name not in named)}
        for title, names in sections.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(FIRST_SENTENCE)) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; InputError ends with exit code 2, other errors of ours with 1, Ctrl-C with 130."""
        try:
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                raise missing_package(error) from None
            finally:
                clear_progress()
        except KeyboardInterrupt:
            with contextlib.suppress(OSError):  # of a terminal that is closed
                click.echo("interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except click.NoSuchOption as error:
            raise no_such_option(error) from None
        except BrokenPipeError:  # `autoconfig models | head`: the reader has what it wants
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except OSError as error:  # standard output is full or gone
            if error.errno == errno.EIO:  # a terminal that is closed
                ctx.exit(EXIT_INTERRUPTED)
            click.echo(f"error: the answer cannot be written: {error.strerror or error}", err=True)
            ctx.exit(EXIT_BAD_INPUT)
        except InputError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(EXIT_BAD_INPUT)
        except AutoconfigError as error:
            click.echo(f"internal error: {error}", err=True)
            ctx.exit(1)


def no_such_option(error: click.NoSuchOption) -> click.UsageError:
    """The error with what the user's word means here, or else with the name that is most like it."""
    known = [] if error.ctx is None else [param.name for param in error.ctx.command.params if param.name]
    found, said = usual(error.option_name, known)
    if found is None and not said:
        alike = error.possibilities or []  # in order of likeness; two letters swapped are the likeliest slip
        swapped = [name for name in alike if sorted(name) == sorted(error.option_name)]
        return click.NoSuchOption(error.option_name, possibilities=[*swapped, *alike][:1], ctx=error.ctx)
    meant = f". Did you mean '{option_name(found)}'?" if found is not None else f": {said}"
    return click.UsageError(f"No such option '{error.option_name}'{meant}", ctx=error.ctx)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="megatron-autoconfig")
def cli() -> None:
    """The best way to run a model on a cluster: parallelism, micro-batch, recomputation, memory and time, in about a second.

    \b
    autoconfig search --model 175b --gpus 1024                   to train
    autoconfig search --model llama3-8b --gpus 8 --peft lora     to fine-tune
    autoconfig deployments --model llama3-70b --gpus 8           to serve
    autoconfig scaling --model 70b --gpus 64:1024 --tokens 1T    how many GPUs
    autoconfig budget --money 3M --days 60                       what money trains
    autoconfig check train.sh                                    a script that you have
    autoconfig diagnose train.sh run.log                         why a run is slow
    """


def main() -> None:
    """Entry point of the `autoconfig` command."""
    try:
        cli(prog_name="autoconfig")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
