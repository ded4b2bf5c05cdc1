"""Jobs that fail for a reason that they share: what a failed plan has and no plan that ran has is suspect.

A suspect is a set of features of one failed plan (modules that it recomputes, kinds of parallelism in use) less everything
that plans that ran have too. Candidates that hold a whole suspect set fail likely; each such failure counts once more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoconfig.specs.plan import TrainPlan
from autoconfig.study.candidates import Floats
from autoconfig.study.training.candidates import Candidates

CHANCE_OF_A_SUSPECT = 0.1
"""Chance to run that one failure for a like reason leaves."""


def features(plan: TrainPlan) -> frozenset[str]:
    """What may be why a plan does not run."""
    recompute = plan.recompute
    found = {f"recompute {recompute.granularity}", *(f"recompute {module}" for module in recompute.modules)}
    if recompute.granularity == "full":
        found.add(f"recompute {recompute.method}")
    found |= {f"{key} above 1" for key in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs") if getattr(plan, key) > 1}
    flags = {
        "sp": plan.sp, "uneven stages": plan.first is not None or plan.last is not None, "fsdp": bool(plan.fsdp),
        "no distributed optimizer": not plan.dist_opt, "offload": plan.offload > 0,
    }  # fmt: skip
    return frozenset(found | {name for name, there in flags.items() if there})


def suspects(candidates: Candidates, failed: Sequence[int], ran: Sequence[int]) -> list[frozenset[str]]:
    """One set per failed plan; failures that nothing sets apart from plans that ran say nothing."""
    innocent = frozenset().union(*(features(candidates.plans[row]) for row in ran)) if ran else frozenset[str]()
    found = [features(candidates.plans[row]) - innocent for row in failed]
    return [suspect for suspect in found if suspect]


def chance_to_run(candidates: Candidates, failed: Sequence[int], ran: Sequence[int]) -> Floats:
    """[n] chance that a job of the plan does not fail. 1 while nothing ran: then the reason is likely no plan's."""
    chance = np.ones(len(candidates))
    if not ran:
        return chance
    for suspect in suspects(candidates, failed, ran):
        held = np.array([suspect <= features(plan) for plan in candidates.plans])
        chance[held] *= CHANCE_OF_A_SUSPECT
    return chance
