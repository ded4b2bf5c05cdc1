"""Commands about the real training code without the cluster: trace and emulate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from autoconfig.cli.main import console, json_option, options, print_json
from autoconfig.planning.request_fields import QUESTION

python_option = click.option(
    "--python",
    default=sys.executable,
    metavar="PATH",
    help="Interpreter with torch and megatron-core.  [default: the one that runs autoconfig]",
)


@click.command("trace")
@click.argument("plan")
@options(QUESTION)
@click.option("--rank", "ranks", type=int, multiple=True, help="Rank to trace; repeat for more.  [default: ends of each stage]")
@python_option
@json_option
def trace_command(plan: str, ranks: tuple[int, ...], python: str, as_json: bool, **given: Any) -> None:
    """Run the real megatron-core code of one PLAN on tensors without data: bytes per rank. No GPU.

    autoconfig trace --model 175b --gpus 1024 tp=8,pp=8,mbs=1,sp=1
    """
    from autoconfig.core.trace import trace_plan
    from autoconfig.training.question import request_of

    with _bar() as (started, done):
        answer = trace_plan(request_of(given), plan, ranks, done, started, python)
    if as_json:
        from autoconfig.render.core import trace_json

        print_json(trace_json(answer))
    else:
        from autoconfig.render.core import show_trace

        show_trace(console(), answer)


@click.command("emulate")
@click.argument("plan")
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
