"""Overlaps that the software stack has and a file's arguments leave out: what each of them would save."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoconfig.megatron.read_software import OVERLAPS, is_modern
from autoconfig.megatron.write_run import overlap_arguments
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import load_stack
from autoconfig.training.price import report_plan

WORTH_NAMING = 0.0005
"""Share of a step below which a missing overlap is not named."""


@dataclass(frozen=True, kw_only=True)
class MissingOverlap:
    """An argument that is legal for the file's plan and not given."""

    flag: str
    saved_seconds: float
    """A step, beside the missing ones named before it: weights are gathered beside the forward only where gradients are reduced
    beside the backward."""


def with_overlaps(scenario: Scenario) -> Scenario:
    """The scenario with every overlap that its stack has; itself for software of other years, whose arguments know none."""
    if not is_modern(scenario.software.name):
        return scenario
    time, usual = scenario.software.time, load_stack(scenario.software.name).time
    on = {field: max(getattr(time, field), getattr(usual, field)) for _, field in OVERLAPS}
    return replace(scenario, software=replace(scenario.software, time=replace(time, **on)))


def missing_overlaps(scenario: Scenario, plan: TrainPlan) -> tuple[MissingOverlap, ...]:
    """What is legal for a legal plan and left out, in Megatron's order, with what it saves."""
    wanted = with_overlaps(scenario)
    given = {argument.flag for argument in overlap_arguments(scenario, plan)}
    missing = [argument.flag for argument in overlap_arguments(wanted, plan) if argument.flag not in given]
    found, before, now = [], report_plan(scenario, plan).step_seconds if missing else 0.0, scenario
    for flag in missing:
        field = dict(OVERLAPS)[flag]
        time = replace(now.software.time, **{field: getattr(wanted.software.time, field)})
        now = replace(now, software=replace(now.software, time=time))
        seconds = report_plan(now, plan).step_seconds
        if before - seconds > WORTH_NAMING * before:
            found.append(MissingOverlap(flag=flag, saved_seconds=before - seconds))
        before = seconds
    return tuple(found)
