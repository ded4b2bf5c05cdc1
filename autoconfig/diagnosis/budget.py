"""The subtraction: expected against measured by phase. What no phase holds is "not explained", and never spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepPhase:
    """One phase of the step, expected and measured, seconds."""

    name: str
    expected_seconds: float | None
    """None where the plan has no price for it."""
    measured_seconds: float | None
    """None where nothing that the run left behind shows it."""
    source: str = ""
    """Where the measured seconds are from."""

    @property
    def gap_seconds(self) -> float | None:
        """Measured less expected; None where it was not measured."""
        return None if self.measured_seconds is None else self.measured_seconds - (self.expected_seconds or 0.0)


@dataclass(frozen=True, kw_only=True)
class SeenPart:
    """Seconds that evidence shows of one or several phases together."""

    names: tuple[str, ...]
    seconds: float
    source: str
    words: str = ""
    """For several phases together."""


@dataclass(frozen=True, kw_only=True)
class StepBudget:
    """Every phase, and what is left."""

    phases: tuple[StepPhase, ...] = ()
    unexplained_seconds: float = 0.0
    """Measured step less the phases, each as measured, or as expected where it was not; below 0 where phases overlap."""

    def measured(self) -> dict[str, float]:
        """Seconds of the phases that were measured each by itself."""
        return {one.name: one.measured_seconds for one in self.phases if one.measured_seconds is not None}

    @property
    def accounted_seconds(self) -> float:
        """The sum of the phases, each as measured, or as expected where it was not."""
        return sum(one.expected_seconds or 0.0 if one.measured_seconds is None else one.measured_seconds for one in self.phases)


def subtract(step_seconds: float, expected: Mapping[str, float], parts: Sequence[SeenPart]) -> StepBudget:
    """The budget of a measured step: `expected` seconds by phase (empty without a plan), `parts` that evidence shows. Of parts
    about the same phase the first counts: callers bring the finest evidence first."""
    rows: list[StepPhase] = []
    left = dict(expected)
    taken: set[str] = set()
    for part in parts:
        if taken & {*part.names}:
            continue
        taken |= {*part.names}
        known = [left.pop(name) for name in part.names if name in left]
        price = sum(known) if known else None
        name = part.words or part.names[0]
        rows.append(StepPhase(name=name, expected_seconds=price, measured_seconds=part.seconds, source=part.source))
    rows += [StepPhase(name=name, expected_seconds=seconds, measured_seconds=None) for name, seconds in left.items()]
    order = {name: place for place, name in enumerate(expected)}
    rows.sort(key=lambda one: order.get(one.name, -1 if one.expected_seconds is not None else len(order)))
    budget = StepBudget(phases=tuple(rows))
    return StepBudget(phases=budget.phases, unexplained_seconds=step_seconds - budget.accounted_seconds)
