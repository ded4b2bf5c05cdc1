"""A calibration from one healthy run, shrunk by how far the study believes runs to scatter."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from functools import cache
from importlib import resources

from autoconfig.diagnosis.answer import Diagnosis
from autoconfig.diagnosis.expectation import expected_seconds
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import MOST, Calibration, Entry, Factors, OwnRuns, Scenario
from autoconfig.time_model.hardware.efficiency import entry_for

EXPERTS_SHARE, EXPERTS_SCATTER = 0.08, 0.16
"""Of log(measured / predicted) of published groups of runs with experts (one source, GPU and software;
docs/accuracy/diagnosis.md): standard deviation of what a group has in common, and of its runs around that."""


@cache
def one_run_weight(*, moe: bool) -> float:
    """How much of log(measured / predicted) of one run holds for the other runs of its cluster: the variance that all plans
    share over that and what a plan shares with those of its shape or has for itself (data/study_scatter.json, fitted on
    recorded sweeps; for experts, whose sweeps were not recorded, published groups)."""
    if moe:
        return EXPERTS_SHARE**2 / (EXPERTS_SHARE**2 + EXPERTS_SCATTER**2)
    text = (resources.files("autoconfig") / "data" / "study_scatter.json").read_text(encoding="utf-8")
    scatter = json.loads(text)["scatter"]
    common = scatter["step"] ** 2
    return float(common / (common + scatter["shape"] ** 2 + scatter["plan"] ** 2))


def calibration_of(found: Diagnosis, base: Calibration) -> Calibration:
    """`base` with the entry of this run's GPU and software moved towards it. Raises InputError where the run may not
    calibrate."""
    if found.why_not_calibrate:
        raise InputError(f"this run calibrates nothing: {found.why_not_calibrate}; mend it, and give a healthy run")
    e, step = found.expectation, found.case.step_seconds
    assert e is not None and e.scenario is not None and e.plan is not None and step is not None
    return from_one_run(base, e.scenario, e.plan, step)


def from_one_run(base: Calibration, scenario: Scenario, plan: TrainPlan, step_seconds: float) -> Calibration:
    """`base` whose factor of the whole step, for this GPU architecture, software generation and kind of model, is multiplied by
    (measured / predicted) ** one_run_weight(moe)."""
    scenario = replace(scenario, calibration=base)
    moe, generation = scenario.model.is_moe, scenario.software.generation
    weight = one_run_weight(moe=moe)
    start = entry_for(scenario, moe=moe)
    factor = (step_seconds / expected_seconds(scenario, plan)) ** weight
    architecture = scenario.cluster.gpu.architecture
    name = f"run-{hashlib.sha256(f'{plan} {step_seconds:.6g}'.encode()).hexdigest()[:8]}"
    first = start or Entry(architecture=architecture, generation=generation, factors=Factors())
    step = min(max(first.factors.step * factor, 1 / MOST), MOST)
    made = replace(
        first,
        architecture=architecture,
        generation=generation,
        kind="moe" if moe else "dense",
        factors=replace(first.factors, step=step),
        rows=(name,),
        sources=(*dict.fromkeys((*first.sources, name)),),
        own=OwnRuns(runs=1, log_sd=abs(math.log(factor)) * (1 / weight - 1), degrees_of_freedom=0.0),
    )
    key = (made.architecture, made.generation, made.kind)
    others = tuple(one for one in base.entries if (one.architecture, one.generation, one.kind) != key)
    return Calibration(version=f"{base.version}+{name}", entries=(*others, made))
