"""Commands about the real training code without the cluster: trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from autoconfig.cli_options import question_options, request_of

python_option = click.option(
    "--python",
    default=sys.executable,
    metavar="PATH",
    help="Interpreter with torch and megatron-core.  [default: the one that runs autoconfig]",
)


@click.command("trace")
@click.argument("plan")
@question_options
@click.option("--rank", "ranks", type=int, multiple=True, help="Rank to trace; repeat for more.  [default: ends of each stage]")
@python_option
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def trace_command(plan: str, ranks: tuple[int, ...], python: str, as_json: bool, **options: Any) -> None:
    """Run the real megatron-core code of one PLAN on tensors without data: bytes per rank. No GPU.

    autoconfig trace --model 175b --gpus 1024 tp=8,pp=8,mbs=1,sp=1
    """
    from autoconfig.trace import trace_plan

    with _bar() as (started, done):
        answer = trace_plan(request_of(options), plan, ranks, done, started, python)
    if as_json:
        from autoconfig.trace_report import trace_json

        click.echo(json.dumps(trace_json(answer), indent=2, allow_nan=False))
    else:
        from autoconfig.cli import console
        from autoconfig.trace_report import show_trace

        show_trace(console(), answer)


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

        def done(trace: Any) -> None:
            progress.advance(task)
            text = f"rank {trace.rank} (stage {trace.pipeline_stage}) traced in {trace.seconds:.1f} s"
            progress.update(task, description=text)
            if not out.is_terminal:
                click.echo(text, err=True)

        yield started, done
