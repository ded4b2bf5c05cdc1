"""The first screen of `rl`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from autoconfig.planning.money import money_text
from autoconfig.post_training.answer import RlAnswer
from autoconfig.post_training.answer_json import kind_of
from autoconfig.post_training.price import PricedPlacement
from autoconfig.post_training.questions.unknowns import band_where_said
from autoconfig.render.blocks import NO, START, Blocks, fit_text
from autoconfig.render.post_training import (
    COST,
    met_text,
    none_text,
    phases_text,
    placed_text,
    riskier_text,
    show_placements,
    unlikely_text,
)
from autoconfig.render.screen import show_assumptions
from autoconfig.specs.errors import GIB, option_name
from autoconfig.specs.remarks import sentences
from autoconfig.training.rank import RESOLUTION


def show(console: Console, found: RlAnswer) -> None:
    """What to start and how its step is spent, or what would help; the whole answer where the console is verbose."""
    if getattr(console, "verbose", False):
        show_placements(console, found)
        return
    shown, job = Blocks(), found.job
    shown.head(
        f"[bold]{escape(job.policy.name)}[/bold], {job.algorithm.name} with {job.framework.name} on "
        f"[bold]{found.gpus} x {job.gpu.id}[/bold], {job.samples:,} samples of {job.tokens:,.0f} tokens"
    )
    if found.ranked:
        _start(shown, found)
        _beside(shown, found)
        _rows(shown, found)
    else:
        _impossible(shown, found)
    for text in sentences(found.notes):
        shown.say("note", escape(text), spare=3)
    shown.draw(lambda out: show_assumptions(out, found.assumed))
    shown.say("next", "--export run | --verbose: every placement, host memory" if found.ranked else "--verbose: the nearest")
    shown.show(console)


def _impossible(shown: Blocks, found: RlAnswer) -> None:
    """Why nothing fits or meets the deadline, and what comes nearest."""
    shown.say(NO, escape(none_text(found)))
    near = found.nearest
    if near is not None:
        why = f"\nIt does not fit: {escape(near.memory.reason)}" if near.memory.reason and not found.deadline else ""
        changed = "" if found.considered else "with that change: "
        shown.say("nearest", f"{changed}{escape(placed_text(near))}\n{_figures(near)}{why}")


def _figures(one: PricedPlacement) -> str:
    low, high = one.band
    said = [
        f"{one.seconds:,.1f} s a step ({low:,.0f} to {high:,.0f})",
        f"{one.memory.peak_bytes / GIB:.1f} GiB of a GPU",
        f"fits {fit_text(one.memory.chance)}",
        f"{one.memory.host_bytes / GIB:,.0f} GiB of a host",
    ]
    said += [f"engines' share {one.placement.memory_share:g}"] if one.phases.generation else []
    return ", ".join([*said, f"{'with' if one.placement.offload else 'without'} offload"])


def _start(shown: Blocks, found: RlAnswer) -> None:
    best = found.ranked[0]
    shown.say(NO, unlikely_text(found))
    if found.deadline:
        shown.say("deadline", escape(met_text(found)))
    label = START if found.fit_chance_met else "first"
    each = found.cost_of(best)
    cost = "" if each is None else f", cost {money_text(each)} a step"
    shown.say(label, f"[bold]{escape(placed_text(best))}[/bold]\n{_figures(best)}{cost}")
    shown.say("seconds", escape(phases_text(best).removeprefix("Seconds by phase: ")))


def _beside(shown: Blocks, found: RlAnswer) -> None:
    """What is equal, faster if it fits, slower; what narrows the band."""
    best = found.ranked[0]
    tied, others = found.ranked[1 : found.ties], found.ranked[max(found.ties, 1) :]
    if tied:
        ratio = f"{tied[0].seconds / best.seconds - 1.0:+.1%}"
        shown.say(
            "equal", f"{escape(placement_text(tied[0]))}: {ratio}; {found.ties} placements are within {RESOLUTION:.0%}, a tie"
        )
    if found.riskier is not None and (faster := riskier_text(found)):
        shown.say("faster", f"{escape(placement_text(found.riskier))}: {faster}")
    if others:
        one = others[0]
        shown.say(
            "slower",
            f"{escape(placement_text(one))}: {one.seconds / best.seconds - 1.0:+.1%}, {one.binds.replace('_', ' ')} binds",
            spare=1,
        )
    if found.unknowns:
        low, high = band_where_said(best, found.unknowns[0])
        name = option_name(found.unknowns[0].field)
        shown.say("decides", f"[bold]{name}[/bold] narrows the band most: said, a step is {low:,.0f} to {high:,.0f} s")
    if found.one_more_node:
        helps = round(found.one_more_node, 1) < round(best.seconds, 1)
        said = f"with one more a step takes {found.one_more_node:,.1f} s" if helps else "one more does not help"
        shown.say("node", said, spare=2)


def placement_text(one: PricedPlacement) -> str:
    """Who runs where, in few letters: `colocated 8x tp1, train tp=2,dp=4`."""
    p = one.placement
    degrees = [f"{key}={getattr(p.train, key)}" for key in ("tp", "pp", "cp", "ep", "dp") if getattr(p.train, key) > 1]
    trained = f"train {','.join(degrees) or 'tp=1'}"
    engines = f" {p.engine.replicas}x tp{p.engine.tp}" if one.phases.generation else ""
    return f"{kind_of(p)}{engines}, {trained}"


def _rows(shown: Blocks, found: RlAnswer) -> None:
    """A line for each placement, with what a step costs in place of its memory where that is known."""
    priced = found.price is not None
    rows = [
        [
            f"{number}{'=' if found.ties > 1 and number <= found.ties else ''}",
            f"{one.seconds:,.1f} s",
            one.binds.replace("_", " "),
            *([] if priced else [f"{one.memory.peak_bytes / GIB:.1f}"]),
            fit_text(one.memory.chance),
            *([] if (each := found.cost_of(one)) is None else [money_text(each)]),
            placement_text(one),
        ]
        for number, one in enumerate(found.ranked, 1)
    ]
    names = ("#", "step", "binds", *(("fit", COST) if priced else ("GPU GiB", "fit")), "placement")
    shown.table(names, rows, left=("binds", "placement"), below=("placement",))
    tie = f"; = within {RESOLUTION:.0%}, those on-policy first" if found.ties > 1 else ""
    sorted_by = "sorted by step; those that miss the deadline last" if found.deadline else "sorted by step"
    shown.draw(lambda out: out.print(f"{sorted_by}; best of {found.considered:,} placements{tie}", style="dim"))
