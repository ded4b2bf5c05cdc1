"""What binds a plan: what a little more memory, link, network, compute or batch would buy, from re-ranking the space.

Each change is answered twice: for the plan as it is, and for the best plan under the change. Mixtures of experts are re-ranked
among plans with the same cp, ep and etp, so that the answer stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.json_record import NotNegative
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.price import PlanReport
from autoconfig.training.rank import Ranking, rank_plans
from autoconfig.training.space import Constraints

MORE = 1.1
"""Links, network and compute are raised by 10 %."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What one change buys in tokens per second: ratios over today's, 1 = nothing."""

    change: str
    same_plan_ratio: NotNegative | None
    """This plan under the change over this plan today; None where the plan is not possible then."""
    best_plan_ratio: NotNegative | None
    """The best plan under the change over the best plan today; None where nothing fits."""
    best_plan: str | None
    """That best plan, in its short form."""


def _more_compute(s: Scenario) -> Scenario:
    gpu = s.cluster.gpu
    return s.on(gpu=replace(gpu, flops_per_s={name: rate * MORE for name, rate in gpu.flops_per_s.items()}))


CHANGES: tuple[tuple[str, Callable[[Scenario], Scenario]], ...] = (
    ("+1 GiB of memory", lambda s: s.on(memory_bytes=s.cluster.memory_bytes + GIB)),
    ("+10 % link bandwidth", lambda s: s.on(link_bytes_per_s=s.cluster.link_bytes_per_s * MORE)),
    ("+10 % network bandwidth", lambda s: s.on(nic_bytes_per_s=s.cluster.nic_bytes_per_s * MORE)),
    ("+10 % compute", _more_compute),
    ("twice the global batch", lambda s: s.with_batch(2 * s.workload.global_batch_size)),
)


def what_binds(scenario: Scenario, plan: TrainPlan, margin: float = 0.0) -> list[Gain]:
    """The gains of all CHANGES for a legal plan. Empty where nothing fits today."""
    constraints = Constraints()
    if scenario.model.is_moe:
        constraints = Constraints(fixed={key: frozenset({getattr(plan, key)}) for key in ("cp", "ep", "etp")})
    today = rank_plans(scenario, constraints, margin)
    if not len(today.best):
        return []
    mine = _tokens_per_second(scenario, plan)
    gains = []
    for name, change in CHANGES:
        try:
            changed = change(scenario)
            same: float | None = _tokens_per_second(changed, plan) / mine
        except InputError:
            same = None
        ranking = rank_plans(changed, constraints, margin)
        gains.append(
            Gain(
                change=name,
                same_plan_ratio=same,
                best_plan_ratio=_ratio(ranking, today),
                best_plan=str(ranking.plan(int(ranking.best[0]))) if len(ranking.best) else None,
            )
        )
    return gains


def memory_binds(report: PlanReport, gains: Sequence[Gain]) -> str:
    """What to say where a plan does not fit: how much it lacks, and what the gains mean then; empty where it fits."""
    if report.fits:
        return ""
    short = (report.peak_bytes - report.limit_bytes) / GIB
    said = f"Memory binds: this plan needs {short:.1f} GiB more per GPU than may be allocated"
    if not gains:
        return said + ", and no plan of this question fits, so nothing else would buy anything"
    return said + "; its gains below are those of a plan that does not run, the best plan's are of one that fits"


def _ratio(changed: Ranking, today: Ranking) -> float | None:
    if not len(changed.best):
        return None
    rates = [r.scenario.workload.tokens_per_step / float(r.step_seconds[0]) for r in (changed, today)]
    return rates[0] / rates[1]


def _tokens_per_second(scenario: Scenario, plan: TrainPlan) -> float:
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute])
    return scenario.workload.tokens_per_step / float(estimate.step_seconds[0, 0])
