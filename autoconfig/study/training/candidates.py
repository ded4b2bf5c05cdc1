"""Candidates of a study of training: plans, with everything predicted about them before the first measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoconfig.calibration.observe import shares_of
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.specs.plan import DEGREES, ENDS, SHARDING, SHORT_TO_LONG, TrainPlan
from autoconfig.specs.scenario import NAMES, Scenario
from autoconfig.study.trials import Choices, Floats, Params, Value
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.rank import Ranking

MAX_LAYOUTS = 256
MAX_PLANS = 256
ALWAYS = ("tp", "pp", "dp", "mbs", "recompute")
"""Keys shown for every trial; the others where some candidate differs from the default."""
KINDS = ("sp", "recompute", *SHARDING, *ENDS)
"""Keys that are alike where their values are the same; DEGREES where their logarithms are near."""


@dataclass(frozen=True, kw_only=True)
class Candidates(Choices):
    """Plans of one question. All columns have n rows."""

    plans: tuple[TrainPlan, ...]
    predicted_s: Floats
    shares: Floats
    """[n, factors]: part of the predicted step that each calibration factor but `step` scales."""
    sizes: Floats
    """[n, DEGREES]: log2 of the degrees."""
    kinds: npt.NDArray[np.int64]
    """[n, KINDS + variant]: codes; equal codes mean equal values."""
    peak_bytes: Floats
    limit_bytes: Floats
    device_bytes: float

    @cached_property
    def doublings_apart(self) -> Floats:
        """[n, n]: doublings between the degrees of two plans, summed over the degrees."""
        return np.abs(self.sizes[:, None] - self.sizes[None, :]).sum(axis=-1)

    @cached_property
    def differences_apart(self) -> npt.NDArray[np.int64]:
        """[n, n]: keys of other kinds in which two plans differ."""
        return (self.kinds[:, None] != self.kinds[None, :]).sum(axis=-1)


def candidates_of(ranking: Ranking) -> Candidates:
    """What survived the memory model: the best plan of the fastest layouts, and the fastest plans overall, fastest first."""
    positions = np.unique(np.concatenate([ranking.best[:MAX_LAYOUTS], np.arange(min(MAX_PLANS, len(ranking.row)))]))
    plans = [ranking.plan(int(position)) for position in positions]
    return build([(ranking.scenario, plan) for plan in plans])


def build(cases: Sequence[tuple[Scenario, TrainPlan]], variants: Sequence[str] = ()) -> Candidates:
    """Predict every (setting, plan). `variants` names what else tells them apart, where settings differ. Plans that share a
    setting and a recomputation are priced together."""
    variants = variants or [""] * len(cases)
    n = len(cases)
    predicted, peak, limit = np.empty(n), np.empty(n), np.empty(n)
    shares = np.empty((n, len(NAMES) - 1))
    groups: dict[tuple[Scenario, str], list[int]] = {}
    for number, (scenario, plan) in enumerate(cases):
        groups.setdefault((scenario, str(plan.recompute)), []).append(number)
    for (scenario, _), members in groups.items():
        plans = [cases[number][1] for number in members]
        asked = scenario, scenario.layouts(plans), [plans[0].recompute]
        time, memory = estimate_step_time(*asked, detail=True), estimate_memory(*asked)
        for row, number in enumerate(members):
            predicted[number] = time.step_seconds[row, 0]
            parts = {name: float(value[row, 0]) for name, value in time.parts.items()}
            shares[number] = shares_of(parts)[1:]
            peak[number], limit[number] = memory.peak_bytes[row, 0], memory.limit_bytes[row]
    found = [plan for _, plan in cases]
    return Candidates(
        plans=tuple(found),
        params=_params(found, variants),
        predicted_s=predicted,
        shares=shares,
        sizes=np.array([[math.log2(getattr(plan, key)) for key in DEGREES] for plan in found]),
        kinds=_codes(found, variants),
        peak_bytes=peak,
        limit_bytes=limit,
        device_bytes=float(cases[0][0].cluster.memory_bytes),
    )


def _value(plan: TrainPlan, key: str) -> Value:
    value = getattr(plan, key)
    if key == "recompute":
        return str(value)
    return "even" if value is None else value if isinstance(value, float) else int(value)


def _params(plans: Sequence[TrainPlan], variants: Sequence[str]) -> tuple[Params, ...]:
    columns = {key: [_value(plan, key) for plan in plans] for key in SHORT_TO_LONG}
    kept = [key for key, values in columns.items() if key in ALWAYS or len(set(values)) > 1]
    rows: list[dict[str, Value]] = [{key: columns[key][row] for key in kept} for row in range(len(plans))]
    if len(set(variants)) > 1:
        for params, variant in zip(rows, variants, strict=True):
            params["variant"] = variant
    return tuple(rows)


def _codes(plans: Sequence[TrainPlan], variants: Sequence[str]) -> npt.NDArray[np.int64]:
    columns: list[npt.NDArray[np.int64]] = []
    for values in [[str(_value(plan, key)) for plan in plans] for key in KINDS] + [list(variants)]:
        columns.append(np.unique(np.array(values), return_inverse=True)[1].reshape(-1))
    return np.stack(columns, axis=1)
