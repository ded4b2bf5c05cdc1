"""The answer of `diagnose` on the screen."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from autoconfig.diagnosis.answer import HEALTHY, NOT_ENOUGH, Diagnosis, Missing
from autoconfig.diagnosis.budget import StepPhase
from autoconfig.diagnosis.finding import Cause
from autoconfig.megatron.check import FlagChange
from autoconfig.render.diagnosis.record import NAMES
from autoconfig.render.screen import seconds_text, show_table

SHOWN_PHASES, SHOWN_CAUSES, SHOWN_LINES = 8, 2, 1
"""On a screen of 24 lines; --verbose shows all."""
SHOWN_MISSING = 3


def show_diagnosis(console: Console, found: Diagnosis) -> None:
    """The answer on one screen: verdict, phases, causes, what is healthy or missing; everything with --verbose."""
    verbose = bool(getattr(console, "verbose", False))
    _show_head(console, found)
    if found.case.budget.measured() or (verbose and found.case.budget.phases):
        _show_phases(console, found, None if verbose else SHOWN_PHASES)
    shown = found.causes if verbose else found.causes[:SHOWN_CAUSES]
    for number, cause in enumerate(shown, 1):
        _show_cause(console, number, cause, found.case.step_seconds, None if verbose else SHOWN_LINES)
    if len(found.causes) > len(shown):
        more = ", ".join(f"{NAMES[one.rule]} ({one.rule})" for one in found.causes[len(shown) :])
        console.print(f"Also possible: {escape(more)}")
    _show_end(console, found, verbose=verbose)


def _show_head(console: Console, found: Diagnosis) -> None:
    e, measured = found.expectation, found.measured
    if e is not None and e.question is not None and e.plan is not None:
        s = e.question.scenario
        gpus = f"{s.cluster.num_gpus:,} x {s.cluster.gpu.id}"
        taken = " (taken: nothing says which GPU, --gpu)" if e.gpu_taken else ""
        console.print(escape(f"{s.model.name} on {gpus}{taken}, {e.plan}"))
    for one in found.case.evidence.files:
        formats = f", {', '.join(one.formats)}" if one.formats else ""
        said = [f"{one.lines_read:,} read"] if one.kind != "launch" else []
        said += [f"{one.lines_not_understood:,} not understood"] if one.lines_not_understood else []
        said += [one.window] if one.window else []
        said += one.remarks
        tail = f": {', '.join(said)}" if said else ""
        console.print(escape(f"{one.name} ({one.kind}{formats}){tail}"), style="dim")
    words = found.verdict.replace("_", " ").upper()
    text = ""
    if measured is not None and not measured.relative:
        text = f" {seconds_text(measured.step_seconds)} a step ({measured.source})"
        if e is not None:
            band = f"{seconds_text(e.p5)} to {seconds_text(e.p95)}, {e.level}; slow from {seconds_text(e.edge)}"
            text += f", expected {seconds_text(e.step_seconds)} ({band})"
    console.print(f"[bold]{words}[/bold]" + escape(f"{':' if text else ''}{text}"))
    console.print(escape(f"  {found.why}"))


def _show_phases(console: Console, found: Diagnosis, most: int | None) -> None:
    budget = found.case.budget
    phases = sorted(budget.phases, key=lambda one: -abs(one.gap_seconds or 0.0))[:most] if most else budget.phases
    kept = [one for one in budget.phases if one in phases]
    rows = [[one.name, _shown(one.expected_seconds), _shown(one.measured_seconds), _gap(one), one.source] for one in kept]
    rows.append(["not explained", "", "", f"{budget.unexplained_seconds:+.3f}", ""])
    show_table(console, ["phase", "expected s", "measured s", "gap", "from"], rows, left=("phase", "from"))


def _shown(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f}"


def _gap(one: StepPhase) -> str:
    return "" if one.gap_seconds is None else f"{one.gap_seconds:+.3f}"


def _show_cause(console: Console, number: int, cause: Cause, step: float | None, lines: int | None) -> None:
    console.print(f"[bold]Cause {number}[/bold], {cause.certainty}: {escape(cause.words)} ({cause.rule})")
    for origin in cause.evidence[:lines]:
        where = origin.file + (f":{origin.line}" if origin.line else "")
        console.print(escape(f"   {where}: {origin.text}"))
    if cause.figures and not any(cause.figures == origin.text for origin in cause.evidence):
        console.print(escape(f"   {cause.figures}"))
    gain = ""
    if cause.gain_seconds and step:
        whole = max(step, (cause.step_after or 0.0) + cause.gain_seconds)  # pauses lie beside the median step
        gain = f"; gain {seconds_text(cause.gain_seconds)} ({cause.gain_seconds / whole:.0%})"
    console.print(escape(f"   do: {cause.remedy}{gain}"))
    if cause.changes:
        console.print(escape(f"   in the file: {changes_text(cause.changes)}"))


def changes_text(changes: tuple[FlagChange, ...]) -> str:
    """Arguments to change, on a line."""
    said = []
    for one in changes:
        new = "" if one.new is None else " ".join(one.new)
        said.append(f"remove {one.flag}" if one.new is None else f"{one.flag} {new}".strip())
    return ", ".join(said)


def _show_end(console: Console, found: Diagnosis, *, verbose: bool) -> None:
    said = [f"{NAMES[rule]}{f' ({text})' if text and verbose else ''}" for rule, text in found.cleared]
    if said:
        console.print(escape(f"Ruled out: {', '.join(said)}"), style="dim")
    if found.verdict == NOT_ENOUGH or found.verdict != HEALTHY:
        cleared = {rule for rule, _ in found.cleared}
        missing = tuple(one for one in found.missing if not cleared.issuperset(one.rules))
        _show_missing(console, missing if verbose else missing[:SHOWN_MISSING])
    if len(found.causes) > 1 and found.step_after is not None:
        console.print(f"After all of these: about {seconds_text(found.step_after)}")
    better = found.better
    if better is not None and better.gain >= 0.01:
        console.print(escape(f"Then the plan: {better.report.plan} would be {better.gain:.0%} faster (autoconfig check)"))


def _show_missing(console: Console, missing: tuple[Missing, ...]) -> None:
    for one in missing:
        console.print(
            escape(f"Not looked at: {', '.join(NAMES[rule] for rule in one.rules)}; give {one.evidence}"), style="dim"
        )
