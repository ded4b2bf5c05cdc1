"""Placements of a step of post-training on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from autoconfig.planning.money import money_text
from autoconfig.post_training.answer import RlAnswer, spanning_engines
from autoconfig.post_training.answer_json import kind_of, placement_json
from autoconfig.post_training.job import PostTrainingJob
from autoconfig.post_training.phases import PHASES
from autoconfig.post_training.price import PricedPlacement
from autoconfig.post_training.questions.unknowns import Unknown, band_where_said
from autoconfig.render.blocks import NO, START, Blocks, capital, fit_text
from autoconfig.render.screen import show_assumptions, show_table
from autoconfig.specs.errors import GIB, chance_text, option_name
from autoconfig.specs.remarks import Remark, assumed_json, sentence, sentences
from autoconfig.training.rank import RESOLUTION

SHOWN = 8
"""Keys that are not read, on the screen."""

if TYPE_CHECKING:
    from autoconfig.formats.post_training.check import RlCheck


def show_placements(console: Console, found: RlAnswer) -> None:
    """The whole answer of `rl`."""
    job = found.job
    console.print(
        f"{job.policy.name}, {job.algorithm.name} with {job.framework.name} on {found.gpus} {job.gpu.name}: "
        f"{job.samples:,} samples a step of {job.tokens:,.0f} tokens"
    )
    if found.ranked:
        _show_ranked(console, found, found.ranked[0])
    elif found.deadline:
        console.print(f"[bold]{escape(none_text(found))}[/bold]")
        if found.nearest:
            _show_placed(console, f"Nearest, {found.gpus:,} GPUs", [found.nearest], money=found)
    else:
        _show_nearest(console, found)
    show_assumptions(console, found.assumed)


def _show_nearest(console: Console, found: RlAnswer) -> None:
    """That nothing fits, and what is nearest to it."""
    console.print(f"[bold]{escape(none_text(found))}[/bold]")
    if found.nearest:
        _show_placed(console, "Nearest" if found.considered else "Nearest, with that change", [found.nearest], money=found)
        if found.nearest.memory.reason:
            console.print(f"It does not fit: {found.nearest.memory.reason}")
        _show_notes(console, found.notes)


def none_text(found: RlAnswer) -> str:
    """That nothing fits or meets the deadline, and what would help."""
    if found.deadline:
        return capital(found.remedy)
    few = {0: "There is no placement", 1: "The only placement does not fit"}
    return f"{few.get(found.considered, f'None of {found.considered:,} placements fits')}; {found.remedy}"


def unlikely_text(found: RlAnswer) -> str:
    """That no placement has the asked chance to fit, and what would help; empty where one has."""
    if found.fit_chance_met:
        return ""
    likeliest = max(one.memory.chance for one in found.ranked)
    return (
        f"No placement has a chance to fit of {found.fit_chance * 100:.6g}% (of these at most {fit_text(likeliest)}); "
        f"with it {escape(found.remedy)}"
    )


def riskier_text(found: RlAnswer) -> str:
    """How much faster than the first a placement is that fits with less than the asked chance; empty without one."""
    risky = found.riskier
    saved = 0.0 if risky is None else 1.0 - risky.seconds / found.ranked[0].seconds
    if risky is None or round(saved, 3) <= 0:
        return ""
    chances = f"chance {chance_text(risky.memory.chance)}, below --fit-chance {found.fit_chance * 100:.6g}%"
    return f"{saved:.1%} faster [bold]if it fits[/bold] ({chances})"


def _show_ranked(console: Console, found: RlAnswer, best: PricedPlacement) -> None:
    if found.deadline:
        console.print(f"[bold]{met_text(found)}[/bold]")
    if unlikely := unlikely_text(found):
        console.print(f"[bold]{unlikely}[/bold]")
    _show_placed(console, f"Placements that fit, of {found.considered:,}", found.ranked, found.ties, found)
    if found.riskier is not None and (faster := riskier_text(found)):
        console.print(f"[bold]{faster}[/bold]: {escape(placed_text(found.riskier))}")
    console.print(phases_text(best))
    if found.ties > 1:
        console.print(
            f"= marks a tie: {found.ties} placements are within {RESOLUTION:.0%} of the fastest, closer than the model can "
            "tell apart; fit: the chance not to run out of GPU memory",
        )
    _show_notes(console, found.notes)
    _show_unknowns(console, best, found.unknowns)
    if found.one_more_node:
        helps = f"With one more node a step takes {found.one_more_node:,.1f} s."
        console.print(helps if round(found.one_more_node, 1) < round(best.seconds, 1) else "One more node does not help.")


def _show_unknowns(console: Console, one: PricedPlacement, unknowns: Sequence[Unknown]) -> None:
    """Which option narrows the band most."""
    if unknowns:
        name, (low, high) = option_name(unknowns[0].field), band_where_said(one, unknowns[0])
        console.print(f"[bold]{name}[/bold] narrows the band most: said, a step is {low:,.0f} to {high:,.0f} s.")


def met_text(found: RlAnswer) -> str:
    """The fewest GPUs of a deadline, and what fewer take."""
    deadline, fewer = found.deadline, found.fewer
    if deadline is None:
        return ""
    takes = deadline.hours_of(found.ranked[0].seconds)
    others = f"; {fewer.gpus:,} take {deadline.hours_of(fewer.seconds):.3g}" if fewer else "; fewer do not fit"
    chance = f" (chance to be in time: {found.ranked[0].chance_within(deadline.step_seconds):.0%})"
    each = found.cost_of(found.ranked[0])
    cost = "" if each is None else f" for {money_text(each * deadline.steps)}"
    return f"{found.gpus:,} GPUs do {deadline.steps:,} steps in {takes:.3g} of {deadline.hours:g} hours{cost}{chance}{others}"


def _show_notes(console: Console, notes: Sequence[Remark]) -> None:
    for text in sentences(notes):
        console.print(f"Note: {text}", markup=False)


def _show_placed(
    console: Console, title: str, rows: Sequence[PricedPlacement], ties: int = 0, money: RlAnswer | None = None
) -> None:
    """The table; the first `ties` rows are marked where they are several; what a step costs where `money` has a price."""
    priced = money is not None and money.price is not None
    cost = (COST,) * priced
    names = ("#", "step", "5 to 95 %", *cost, "binds", "GPU GiB", "fit", "host GiB", "share", "offload", "placement")
    cells = [
        [
            f"{number}{'=' if ties > 1 and number <= ties else ''}",
            f"{one.seconds:,.1f} s",
            f"{one.band[0]:,.0f} to {one.band[1]:,.0f}",
            *([money_text(money.cost_of(one) or 0.0)] if money is not None and priced else []),
            one.binds.replace("_", " "),
            f"{one.memory.peak_bytes / GIB:.1f}",
            chance_text(one.memory.chance),
            f"{one.memory.host_bytes / GIB:.0f}",
            f"{one.placement.memory_share:g}" if one.phases.generation else "-",
            "yes" if one.placement.offload else "no",
            placed_text(one),
        ]
        for number, one in enumerate(rows, 1)
    ]
    show_table(console, names, cells, left=("binds", "placement"), below=("placement",), title=title)


COST = "cost/step"
"""Money for a step of all GPUs, at --price."""


def placed_text(one: PricedPlacement) -> str:
    """Who runs where: placement, engines, the plan of training."""
    p = one.placement
    engines = f"{p.engine.replicas} {'engine' if p.engine.replicas == 1 else 'engines'} of tp={p.engine.tp}"
    trained = f"training on {p.train.world_size}: {p.train}"
    return f"{kind_of(p)}; {engines}; {trained}" if one.phases.generation else f"{kind_of(p)}; {trained}"


def phases_text(one: PricedPlacement) -> str:
    """The seconds of every phase in a line."""
    phases = [f"{name.replace('_', ' ')} {seconds:,.1f}" for name in PHASES if (seconds := one.phases.of((name,))) > 0]
    hidden = f"; of these {one.phases.beside:,.1f} hidden beside others" if one.phases.beside else ""
    return f"Seconds by phase: {', '.join(phases)}{hidden}{_balance(one)}"


def _balance(one: PricedPlacement) -> str:
    """Who waits, and how old samples are, where generation runs ahead."""
    if not one.placement.staleness:
        return ""
    steps = one.placement.staleness
    stale = f"{one.stale_share:.0%} of the samples began under older weights"
    stale += f", by {one.mean_age:.2g} of at most {steps} steps on average" if steps > 1 else ""
    if not one.starved:
        return f"; both sides are even; {stale}"
    return f"; {one.starved} starved, waiting {one.idle_share:.0%} of the step; {stale}"


def _unread(keys: Sequence[str], most: int) -> str:
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return f"{escape(', '.join(keys[:most]))}{more}"


def show_check(console: Console, found: RlCheck) -> None:
    """START or NO, what cannot run, what fits, the better placement; of the rest as much as a first screen holds, or all of it
    where the console is verbose."""
    run, shown = found.run, Blocks()
    whole = bool(getattr(console, "verbose", False))
    shown.head(f"{run.framework} {found.version}, {run.back_end}: {escape(run.model)}, {run.algorithm_said} on {run.gpus} GPUs")
    _say_verdict(shown, found)
    if found.unread:
        shown.print(f"Not read: {_unread(found.unread, len(found.unread) if whole else SHOWN)}", spare=2)
    if found.priced is not None and found.job is not None:
        _show_run(shown, found, found.priced, found.job)
    shown.draw(lambda out: show_assumptions(out, run.notes))
    shown.show(console)


def _say_verdict(shown: Blocks, found: RlCheck) -> None:
    """START or NO, with what cannot run, what nothing knows, and whether it fits."""
    reasons = [f"[bold]Cannot run[/bold]: {escape(text)}" for text in found.broken]
    reasons += [f"[bold]Unknown key[/bold] {escape(sentence(one))}" for one in found.unknown]
    for number, text in enumerate(reasons):
        shown.say("" if number or found.legal else NO, text)
    starts = START if found.legal and found.fit_chance_met else NO
    if found.priced is not None and found.job is not None:
        why = f": {found.priced.memory.reason}" if found.priced.memory.reason else ""
        shown.say(starts if found.legal or not reasons else "", f"[bold]{found.headline}[/bold]{why}.")
    elif not found.broken:
        shown.say(starts, "nothing of it can be priced")


def _show_run(shown: Blocks, found: RlCheck, priced: PricedPlacement, job: PostTrainingJob) -> None:
    """The run as it is, what to do first, what is better."""
    shown.draw(lambda out: _show_placed(out, "This run", [priced]))
    named = spanning_engines(job, [priced, *([found.better] if found.better else [])])
    shown.draw(lambda out: _show_notes(out, named), spare=3 if named else 0)
    shown.print(phases_text(priced))
    if found.unknowns:
        shown.draw(lambda out: _show_unknowns(out, priced, found.unknowns), spare=1)
    for verdict in (*([found.verdict] if found.verdict else []), *found.passes):
        shown.print(f"{verdict.said}.")
    if found.filled:
        size = f"filled up to {found.filled.placement.tokens_per_gpu:,} tokens of a GPU"
        if found.fewer:
            size = f"of {found.fewer:,} {'sample' if found.fewer == 1 else 'samples'}"
        what = f"{size}: chance to fit {chance_text(found.filled.memory.chance)}, {found.filled.seconds:,.1f} s a step"
        shown.print(f"[bold]First[/bold], micro-batches {what}: {escape(found.filled_words)}")
    if (better := found.better) is not None:
        shown.draw(lambda out: _show_placed(out, "Better on the same GPUs", [better]))
        if found.fits:
            shown.print(_what_it_buys(priced, better))
        if better.memory.chance < found.fit_chance:
            shown.print(f"It is the likeliest to fit: no placement has --fit-chance {found.fit_chance * 100:.6g}%.")


def _what_it_buys(own: PricedPlacement, better: PricedPlacement) -> str:
    """Seconds, and the chance to fit where that is what it is better in."""
    saved = 1.0 - better.seconds / own.seconds
    less = f"{saved:.0%} less" if saved > 0 else f"{-saved:.0%} more"
    sure = f"; its chance to fit is {chance_text(better.memory.chance)} in place of {chance_text(own.memory.chance)}"
    surer = (
        sure
        if chance_text(better.memory.chance) != chance_text(own.memory.chance) and better.memory.chance > own.memory.chance
        else ""
    )
    return f"A step takes {better.seconds:,.1f} s in place of {own.seconds:,.1f} s: {less}{surer}."


def check_json(found: RlCheck) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "framework": found.run.framework,
        "version": found.version,
        "back_end": found.run.back_end,
        "model": found.job.policy.name if found.job else found.run.model,
        "algorithm": found.run.algorithm_said,
        **assumed_json(found.run.notes),
        "unknown_keys": list(map(sentence, found.unknown)),
        "unread_keys": list(found.unread),
        "cannot_run": list(found.broken),
        "legal": found.legal,
        "fits": found.fits if found.priced else None,
        "fit_chance_met": found.fit_chance_met if found.priced else None,
        "chance": found.chance if found.priced else None,
        "headline": found.headline or None,
        "narrows_most": found.unknowns[0].field if found.unknowns else None,
        "reason": (found.priced.memory.reason or None) if found.priced else None,
        "run": placement_json(found.priced) if found.priced else None,
        "micro_batches": asdict(found.verdict) if found.verdict else None,
        "micro_batches_of_passes": [asdict(one) for one in found.passes],
        "filled_up": placement_json(found.filled) if found.filled else None,
        "filled_up_by": found.filled_words or None,
        "better": placement_json(found.better) if found.better else None,
        "fit_chance": found.fit_chance,
    }
