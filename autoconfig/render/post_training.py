"""Placements of a step of post-training on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.post_training.answer import PricedPlacement, RlAnswer, kind_of
from autoconfig.post_training.step import PHASES
from autoconfig.specs.errors import GIB


def show_placements(console: Console, found: RlAnswer) -> None:
    """The whole answer of `rl`."""
    job = found.job
    console.print(
        f"{job.policy.name}, {job.algorithm.name} with {job.framework.name} on {found.gpus} {job.gpu.name}: "
        f"{job.samples:,} samples a step of {job.tokens:,.0f} tokens",
        highlight=False,
    )
    if found.assumed:
        console.print(f"[dim]Assumed: {escape('; '.join(found.assumed))}[/dim]", highlight=False)
    if not found.ranked:
        console.print(f"[bold]None of {found.considered:,} placements fits; {escape(found.remedy)}[/bold]", highlight=False)
        if found.nearest:
            console.print(_table("Nearest", [found.nearest]))
            console.print(f"It does not fit: {found.nearest.memory.reason}", highlight=False)
        return
    console.print(_table(f"Placements that fit, of {found.considered:,}", found.ranked))
    best = found.ranked[0]
    console.print(_phases(best))
    if found.one_more_node:
        console.print(f"With one more node a step takes {found.one_more_node:,.1f} s.", highlight=False)


def _table(title: str, rows: Sequence[PricedPlacement]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("placement", "training", "engines", "share", "offload", "step", "5 to 95 %", "binds", "GPU GiB", "host GiB"):
        table.add_column(name)
    for one in rows:
        p, memory = one.placement, one.memory
        table.add_row(
            kind_of(p),
            f"{p.train.world_size}: {p.train}",
            f"{p.engine.replicas} x tp={p.engine.tp}",
            f"{p.memory_share:g}",
            "yes" if p.offload else "no",
            f"{one.seconds:,.1f} s",
            f"{one.band[0]:,.0f} to {one.band[1]:,.0f}",
            one.binds.replace("_", " "),
            f"{max(memory.generation_bytes, memory.training_bytes) / GIB:.1f}",
            f"{memory.host_bytes / GIB:.0f}",
        )
    return table


def _phases(one: PricedPlacement) -> Table:
    table = Table(title="Seconds of the first by phase", title_justify="left")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    for name in PHASES:
        if (seconds := float(getattr(one.phases, name))) > 0:
            table.add_row(name.replace("_", " "), f"{seconds:,.1f}")
    if one.phases.beside:
        table.add_row("of these hidden beside others", f"{one.phases.beside:,.1f}")
    return table
