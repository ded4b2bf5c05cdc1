"""Commands for those who come with a Megatron-LM config."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autoconfig.cli.main import EXIT_BAD_INPUT, EXIT_NOTHING_FITS, console, print_json
from autoconfig.cli.options import json_option, options, plan_argument, verbose_option
from autoconfig.cli.time_limit import time_limit
from autoconfig.planning.request_fields import CHECK, CHECK_OUTPUT, CHECK_SERVING, CONVERT, QUESTION
from autoconfig.planning.resolve import check_bounds, field_values
from autoconfig.specs.errors import InputError

EXIT_TOO_SLOW = 4
LONG_TABLE = 20
"""Recipes from which on progress is written where stderr is no terminal."""


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@options(CHECK, CHECK_SERVING, CHECK_OUTPUT)
@json_option
@verbose_option
@click.pass_context
def check_command(ctx: click.Context, /, file: Path, as_json: bool, verbose: bool, **given: Any) -> None:
    """Check a launch script, an argument list or a plan.json: legal, fits, how fast, and the better plan.

    Nothing in FILE is run. Exit code 0: legal and fits (a server: starts); 2: not legal (its engine refuses the plan or a
    flag), no verdict, or cannot be read; 3: does not fit; 4: slower than --fail-slower-than allows.

    autoconfig check pretrain.sh --gpu a100-80gb --gpus 64

    FILE may start a server of vLLM, SGLang or TensorRT-LLM: does it start, tokens of its KV cache, and what it does at a load.

    autoconfig check serve.sh --gpu h100 --isl 1000 --osl 500 --concurrency 32
    """
    output = check_output(given, as_json=as_json)
    try:
        with time_limit(file):
            _check(ctx, file, given, output)
    except InputError as error:
        if output.format == "github":
            from autoconfig.cli.agents.annotations import not_read

            click.echo(not_read(file, str(error)))
        raise


@dataclass(frozen=True, kw_only=True)
class CheckOutput:
    """How a verdict is shown, and the share by which a run may be slower than the better one; None: by any."""

    format: str
    """screen, json or github."""
    fail_slower_than: float | None


def check_output(given: Mapping[str, Any], *, as_json: bool) -> CheckOutput:
    """What the options say. Raises InputError."""
    if as_json and given["format"] is not None:
        raise InputError(f"--json and --format {given['format']}: give one of them")
    output = CheckOutput(format="json" if as_json else given["format"] or "screen", **field_values(CHECK_OUTPUT[1:], given))
    check_bounds(CHECK_OUTPUT[1:], output)
    return output


def _check(ctx: click.Context, file: Path, given: Mapping[str, Any], output: CheckOutput) -> None:
    """The answer to a training run, or to a server."""
    from autoconfig.engines.check import is_start, refuse_serving_fields
    from autoconfig.formats.check import WANTED, check_file
    from autoconfig.formats.edit import improved_text
    from autoconfig.megatron.check_input import check_request
    from autoconfig.megatron.edit import apply_to as write_improved
    from autoconfig.render.check import check_json, no_verdict, show_check
    from autoconfig.specs.files import read_text

    if is_start(text := read_text(file, WANTED)):
        _check_start(ctx, file, text, given, output)
        return
    refuse_serving_fields(given)
    request, apply_to = check_request(given), given["apply_to"]
    answer = check_file(file, request)
    if apply_to is not None:
        write_improved(answer, request, Path(apply_to), improve=improved_text, force=given["force"])
    if output.format == "json":
        print_json(check_json(answer))
    elif output.format == "github":
        from autoconfig.cli.agents.annotations import of_check

        _echo(of_check(file, answer, output.fail_slower_than))
    else:
        show_check(console(), answer)
        if apply_to is not None:
            click.echo(f"The improved file is in {apply_to}.")
    if answer.violations or no_verdict(answer):
        ctx.exit(EXIT_BAD_INPUT)
    if answer.report is not None and not answer.report.fits:
        ctx.exit(EXIT_NOTHING_FITS)
    _fail_slower(ctx, answer.speedup, output)


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _fail_slower(ctx: click.Context, speedup: float | None, output: CheckOutput) -> None:
    """End with its own exit code where the run is too slow."""
    most = output.fail_slower_than
    if most is not None and speedup is not None and speedup - 1.0 > most:
        click.echo(f"slower than the better one by {speedup - 1:.1%}, more than --fail-slower-than {most:.1%}", err=True)
        ctx.exit(EXIT_TOO_SLOW)


def _check_start(ctx: click.Context, file: Path, text: str, given: Mapping[str, Any], output: CheckOutput) -> None:
    """The answer to a serving start. Exit code 0: starts; 2: the engine refuses it, or nobody can say; 3: does not fit; 4: a
    better start does more at the load than is allowed."""
    from autoconfig.cli.agents.annotations import of_start, speedup_of
    from autoconfig.engines.check import check_start_file, start_request, write_better
    from autoconfig.render.serving import show_start
    from autoconfig.render.start_json import start_json

    answer, apply_to = check_start_file(file, start_request(given)), given["apply_to"]
    if output.fail_slower_than is not None and answer.starts == "yes" and answer.load is None:
        raise InputError("--fail-slower-than compares starts at a load: say --isl, --osl and --concurrency (or --rate), too")
    if apply_to is not None:
        write_better(answer, Path(apply_to), force=given["force"])
    if output.format == "json":
        print_json(start_json(answer))
    elif output.format == "github":
        _echo(of_start(file, text, answer, output.fail_slower_than))
    else:
        show_start(console(), answer)
        if apply_to is not None:
            click.echo(f"The better start is in {apply_to}.")
    if answer.starts != "yes":
        ctx.exit(EXIT_NOTHING_FITS if answer.too_large else EXIT_BAD_INPUT)
    _fail_slower(ctx, speedup_of(answer), output)


@click.command("convert")
@click.argument("file", type=click.Path(path_type=Path))
@options(CONVERT)
@json_option
def convert_command(file: Path, as_json: bool, **given: Any) -> None:
    """Write the plan of FILE as a file of another launcher, and say what that file cannot say.

    FILE is anything that `autoconfig check` reads. Exit code 0: written; 2: not readable, or no words for the plan.

    autoconfig convert pretrain.sh --format torchtitan --output train.toml
    """
    from autoconfig.engines.check import is_start
    from autoconfig.formats.check import WANTED
    from autoconfig.formats.convert import convert_file
    from autoconfig.megatron.check_input import check_request
    from autoconfig.render.check import converted_json
    from autoconfig.specs.files import read_text, write_new

    with time_limit(file):
        if is_start(read_text(file, WANTED)):
            _convert_start(file, given, as_json=as_json)
            return
        found = convert_file(file, check_request(given), given["format"])
    output = given["output"]
    if output is not None:
        write_new(Path(output), found.written.text, force=given["force"])
    if as_json:
        print_json(converted_json(found))
        return
    if output is None:
        click.echo(found.written.text, nl=False)
    else:
        click.echo(f"{found.source.plan} is in {output}.", err=True)
    for text in found.unsaid:
        click.echo(f"not in the file: {text}", err=True)


def _convert_start(file: Path, given: Mapping[str, Any], *, as_json: bool) -> None:
    """The start of a server as that of another engine."""
    from autoconfig.engines.check import WANTED, start_request
    from autoconfig.engines.convert import convert_start
    from autoconfig.specs.files import read_text, write_new

    found, output = convert_start(read_text(file, WANTED), start_request(given), given["format"], file), given["output"]
    if output is not None:
        write_new(Path(output), found.text, force=given["force"])
    if as_json:
        print_json(found)
        return
    click.echo(found.text if output is None else f"the start of {found.format} is in {output}.", nl=output is not None)
    for text in found.unsaid:
        click.echo(f"not in the file: {text}", err=True)


python_option = click.option(
    "--python",
    default=sys.executable,
    metavar="PATH",
    help="Interpreter with torch and megatron-core.  [default: the one that runs autoconfig]",
)


@click.command("trace")
@plan_argument
@options(QUESTION)
@click.option("--rank", "ranks", type=int, multiple=True, help="Rank to trace; repeat for more.")
@click.option(
    "--stages", metavar="STAGES", help="Pipeline stages to trace: all, or like 0,3.  [default: first, one middle, last]"
)
@python_option
@json_option
def trace_command(plan: str, ranks: tuple[int, ...], stages: str | None, python: str, as_json: bool, **given: Any) -> None:
    """Run the real megatron-core code of one PLAN on tensors without data: bytes per rank. No GPU.

    autoconfig trace --model 175b --gpus 1024 tp=8,pp=8,mbs=1,sp=1
    """
    from autoconfig.core.trace import trace_plan
    from autoconfig.training.question import request_of

    with _bar() as (started, done):
        answer = trace_plan(request_of(given), plan, ranks, done, started, python, stages)
    if as_json:
        from autoconfig.render.core import trace_json

        print_json(trace_json(answer))
    else:
        from autoconfig.render.core import show_trace

        show_trace(console(), answer)


@click.command("emulate")
@plan_argument
@options(QUESTION)
@click.option("--rank", type=int, default=0, show_default=True, help="Rank to run.")
@click.option("--device", type=click.Choice(("cuda", "cpu")), default="cuda", show_default=True, help="Where to run it.")
@click.option("--steps", type=click.IntRange(1, 1000), default=3, show_default=True, help="Timed steps, after two of warm-up.")
@python_option
@json_option
def emulate_command(plan: str, rank: int, device: str, steps: int, python: str, as_json: bool, **given: Any) -> None:
    """Run one rank of PLAN with real kernels on one device, its peers left out: memory, and seconds of each kind of layer.

    autoconfig emulate --model 175b --gpus 1024 tp=8,pp=8,mbs=1,sp=1 --rank 0
    """
    from autoconfig.core.emulate import emulate_plan
    from autoconfig.training.question import request_of

    answer = emulate_plan(request_of(given), plan, rank, device, steps, python)
    if as_json:
        from autoconfig.render.core import emulate_json

        print_json(emulate_json(answer))
    else:
        from autoconfig.render.core import show_emulate

        show_emulate(console(), answer)


@contextmanager
def _bar() -> Iterator[tuple[Any, Any]]:
    """(call with the number of ranks, call with each traced rank): a bar on a terminal, lines elsewhere; on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    out = Console(stderr=True)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("tracing", total=None)

        def started(count: int) -> None:
            progress.update(task, total=count)
            if not out.is_terminal:
                click.echo(f"tracing {count} {'rank' if count == 1 else 'ranks'}, some seconds each", err=True)

        def done(trace: Any) -> None:
            progress.advance(task)
            text = f"rank {trace.rank} (stage {trace.pipeline_stage}) traced in {trace.seconds:.1f} s"
            progress.update(task, description=text)
            if not out.is_terminal:
                click.echo(text, err=True)

        yield started, done
