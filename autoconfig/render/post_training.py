"""Placements of a step of post-training on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.formats.post_training.check import RlCheck
from autoconfig.post_training.answer import PricedPlacement, RlAnswer
from autoconfig.post_training.answer_json import kind_of, placement_json
from autoconfig.post_training.phases import PHASES
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
        helps = found.one_more_node < best.seconds
        said = "With one more node a step takes" if helps else "One more node does not help, a step would take"
        console.print(f"{said} {found.one_more_node:,.1f} s.", highlight=False)


def _table(title: str, rows: Sequence[PricedPlacement]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("placement", "training", "engines", "share", "offload", "step", "5 to 95 %", "binds", "GPU GiB", "host GiB"):
        table.add_column(name)
    for one in rows:
        p, memory = one.placement, one.memory
        table.add_row(
            kind_of(p),
            f"{p.train.world_size}: {p.train}",
            f"{p.engine.replicas} x tp={p.engine.tp}" if one.phases.generation else "none",
            f"{p.memory_share:g}" if one.phases.generation else "-",
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


def show_check(console: Console, found: RlCheck) -> None:
    """The whole answer of `rl check`."""
    run = found.run
    console.print(
        f"{run.framework} {found.version}, {run.back_end}: {escape(run.model)}, {run.algorithm} on "
        f"{run.train_gpus + run.rollout_gpus + run.critic_gpus} GPUs",
        highlight=False,
    )
    if run.notes:
        console.print(f"[dim]Assumed: {escape('; '.join(run.notes))}[/dim]", highlight=False)
    for text in found.unknown:
        console.print(f"[bold]Unknown key[/bold] {escape(text)}", highlight=False)
    for text in found.broken:
        console.print(f"[bold]Cannot run[/bold]: {escape(text)}", highlight=False)
    if found.priced is None:
        return
    console.print(_table("This run", [found.priced]))
    console.print(_phases(found.priced))
    if not found.fits:
        console.print(f"[bold]It does not fit[/bold]: {found.priced.memory.reason}", highlight=False)
    if found.better:
        console.print(_table("Better on the same GPUs", [found.better]))
        if found.fits:
            saved = 1.0 - found.better.seconds / found.priced.seconds
            console.print(
                f"A step takes {found.better.seconds:,.1f} s in place of {found.priced.seconds:,.1f} s: {saved:.0%} less."
            )


def check_json(found: RlCheck) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "framework": found.run.framework,
        "version": found.version,
        "back_end": found.run.back_end,
        "model": found.job.policy.name if found.job else found.run.model,
        "algorithm": found.run.algorithm,
        "assumed": list(found.run.notes),
        "unknown_keys": list(found.unknown),
        "cannot_run": list(found.broken),
        "legal": found.legal,
        "fits": found.fits if found.priced else None,
        "reason": (found.priced.memory.reason or None) if found.priced else None,
        "run": placement_json(found.priced) if found.priced else None,
        "better": placement_json(found.better) if found.better else None,
    }
