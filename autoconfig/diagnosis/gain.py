"""What a cure buys: the planner's price before and after it, with every part that was measured as it was measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from autoconfig.diagnosis.expectation import HOST, expected_parts, phases_of
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Scenario


def step_after(
    step_seconds: float,
    before: Mapping[str, float],
    after: Mapping[str, float],
    measured: Mapping[str, float],
    kept: Collection[str] = (HOST,),
) -> float:
    """Seconds of a measured step after a change that the planner prices, phase by phase, from `before` to `after`.

    A phase that was measured is scaled by after / before, so that what made it longer than its price does so still; one that
    was not moves by the difference. Phases of `kept` stay as they are where they were measured: a switch that the planner
    prices with more work of the host does not bring back a wait that the run does not have. With nothing measured the whole
    step is scaled.
    """
    if not measured:
        return step_seconds * sum(after.values()) / sum(before.values())
    change = 0.0
    for name in {*before, *after}:
        old, new = before.get(name, 0.0), after.get(name, 0.0)
        if name not in measured:
            change += new - old
        elif name not in kept:
            change += measured[name] * (new / old - 1.0) if old > 0 else new
    return max(step_seconds + change, 0.0)


def cured_step(
    step_seconds: float,
    before: tuple[Scenario, TrainPlan],
    after: tuple[Scenario, TrainPlan],
    measured: Mapping[str, float],
    kept: Collection[str] = (HOST,),
) -> float | None:
    """Seconds of a step of one scenario and plan that are turned into another; None where the other cannot be priced."""
    try:
        old, new = phases_of(expected_parts(*before)), phases_of(expected_parts(*after))
    except InputError:
        return None
    return step_after(step_seconds, old, new, measured, kept)


def with_switches(scenario: Scenario, **switches: object) -> Scenario:
    """The scenario with switches of the run (`cuda_graphs`, `ep_overlap`, ...) set."""
    given = replace(scenario.given, **switches)  # type: ignore[arg-type]
    assert isinstance(given, GivenSettings)
    return replace(scenario, given=given)
