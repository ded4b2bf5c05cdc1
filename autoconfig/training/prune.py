"""Which plans of a space fit, and the step time of those that a search asks for: bounds first, detail where needed.

Every layout's plans are looked at for memory, so counts are exact. A step time is worked out where a lower bound of it says
that the plan may be among those asked for: the fastest layouts, and all plans up to a multiple of the fastest.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.predict import estimate_memory, fit_probability, plans_that_fit
from autoconfig.specs.layouts import Layouts, first_positions
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.predict import estimate_step_time, least_step_seconds
from autoconfig.training.space import Space, legal_mask

ROWS_PER_BLOCK = 8_192
"""Layouts priced at once; bounds memory, not results."""
MAX_THREADS = 4
SLOWEST = 2.0
"""PlanColumns this many times slower than the first are the last ones of a Pareto set."""
FIRST_ROWS = 1_024
"""Layouts with the least bounds, priced first: the fastest of their plans says how far the others may be off."""
FARTHER = 2.0
"""Where the plans so far are too few, all up to so many times their slowest are priced."""
SAFE_FIT = 0.95
"""Chance to fit from which a plan is called safe."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
COLUMNS = ("row", "option", "step", "peak", "limit")


class PhaseClock:
    """Seconds by phase, and the wall time since it was made."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._lock = threading.Lock()
        self.start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time inside to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class PlanColumns:
    """PlanColumns with their step times and peaks, in parallel columns."""

    row: Ints
    option: Ints
    step: Floats
    peak: Floats
    limit: Floats
    level: str = "default"

    @classmethod
    def none(cls) -> PlanColumns:
        """No plan."""
        ints, floats = np.zeros(0, np.int64), np.zeros(0)
        return cls(row=ints, option=ints, step=floats, peak=floats, limit=floats)

    def columns(self) -> dict[str, Any]:
        """The columns and the level by name."""
        return {field.name: getattr(self, field.name) for field in fields(PlanColumns)}

    def joined(self, *others: PlanColumns) -> PlanColumns:
        """These plans and others, in the order of layouts and options."""
        some = [plans for plans in (self, *others) if len(plans.step)]
        if len(some) < 2:
            return some[0] if some else self
        all_ = {name: np.concatenate([getattr(plans, name) for plans in some]) for name in COLUMNS}
        joined = PlanColumns(**all_, level=some[0].level)
        sorted_already = not np.any(joined.row[1:] < joined.row[:-1])
        return joined if sorted_already else joined.take(np.argsort(joined.row, kind="stable"))

    def take(self, which: Any) -> PlanColumns:
        """Those that positions or a mask select."""
        return PlanColumns(**{name: getattr(self, name)[which] for name in COLUMNS}, level=self.level)


@dataclass(frozen=True, kw_only=True)
class Priced(PlanColumns):
    """PlanColumns of a space that got a time, and the count of all that fit."""

    plans: int
    """That fit, priced or not."""
    layouts: Ints
    """One row of every layout with a plan that fits."""
    whole: bool
    """Every plan that fits is priced."""


def price_plans(
    scenario: Scenario, space: Space, options: list[Recompute], margin: float, first: int | None, clock: PhaseClock
) -> Priced:
    """The plans that fit, all of them; with `first` those of them that no plan left out is faster than: so many layouts, a safe
    plan where there is one, and all plans within SLOWEST of the fastest."""
    pricing = _Pricing(scenario=scenario, layouts=space.layouts, options=options, margin=margin, clock=clock)
    with clock.phase("memory"):
        fits = pricing.fitting()
        rows = np.flatnonzero(fits.any(axis=1))
        fits = fits[rows]
    if first is None or len(rows) <= FIRST_ROWS:
        found = pricing.plans(rows, fits)
    else:
        found = _beginning(pricing, space, rows, fits, first)
    return Priced(
        **found.columns(),
        plans=int(np.count_nonzero(fits)),
        layouts=rows[first_positions(space.layout_id[rows])],
        whole=len(found.step) == np.count_nonzero(fits),
    )


def _beginning(pricing: _Pricing, space: Space, rows: Ints, fits: Mask, first: int) -> PlanColumns:
    """The beginning of the order: all plans up to a step time that is raised until enough is there.

    A layout is priced where its lower bound is within that time. So no plan of the others is, and what is left after dropping
    the priced plans beyond it is what pricing everything would begin with.
    """
    with pricing.clock.phase("time"):
        least = least_step_seconds(pricing.scenario, pricing.layouts.take(rows), pricing.options)
    todo = np.zeros(len(rows), bool)
    todo[np.argpartition(least, FIRST_ROWS)[:FIRST_ROWS]] = True
    done = np.zeros(len(rows), bool)
    found, most = PlanColumns.none(), 0.0
    while True:
        found = found.joined(pricing.plans(rows[todo], fits[todo]))
        done |= todo
        most = max(most * FARTHER, SLOWEST * float(found.step.min()))
        todo = (least <= most) & ~done
        if todo.any():
            found = found.joined(pricing.plans(rows[todo], fits[todo]))
            done |= todo
        within = found.step <= most
        if done.all() or _enough(pricing, space, found, within, first):
            return found if done.all() else found.take(within)
        todo = (least <= most * FARTHER) & ~done


def _enough(pricing: _Pricing, space: Space, found: PlanColumns, within: Mask, first: int) -> bool:
    """So many layouts and a safe plan are among the plans within the time."""
    device = pricing.scenario.cluster.memory_bytes
    safe = fit_probability(found.peak[within], found.limit[within], device) >= SAFE_FIT
    return bool(safe.any()) and len(first_positions(space.layout_id[found.row[within]])) >= first


@dataclass(frozen=True, kw_only=True)
class _Pricing:
    """What pricing needs to know of a search."""

    scenario: Scenario
    layouts: Layouts
    options: list[Recompute]
    margin: float
    clock: PhaseClock

    def fitting(self) -> Mask:
        """[n, R]: the plan is legal and fits."""
        with _pool(len(self.layouts) > ROWS_PER_BLOCK) as run:
            fits = plans_that_fit(self.scenario, self.layouts, self.options, margin=self.margin, run=run)
        fits &= legal_mask(self.options, self.layouts, self.scenario)
        return fits

    def plans(self, rows: Ints, fits: Mask) -> PlanColumns:
        """The plans of these layouts that fit, in the order of the layouts and options, whatever the threads do."""
        starts = range(0, len(rows), ROWS_PER_BLOCK)

        def price(start: int) -> PlanColumns:
            return self._block(rows[start : start + ROWS_PER_BLOCK], fits[start : start + ROWS_PER_BLOCK])

        with _pool(len(starts) > 1) as run:
            return PlanColumns.none().joined(*run(price, starts))

    def _block(self, rows: Ints, fits: Mask) -> PlanColumns:
        part = self.layouts.take(rows)
        with self.clock.phase("time"):
            estimate = estimate_step_time(self.scenario, part, self.options)
        with self.clock.phase("memory"):
            memory = estimate_memory(self.scenario, part, self.options, margin=self.margin)
        index, option = np.nonzero(fits)
        return PlanColumns(
            row=rows[index].astype(np.int32),
            option=option.astype(np.int16),
            step=estimate.step_seconds[index, option],
            peak=memory.peak_bytes[index, option],
            limit=memory.limit_bytes[index],
            level=estimate.level,
        )


@contextmanager
def _pool(many: bool) -> Iterator[Callable[..., Iterable[Any]]]:
    """`map`, on a few threads where there is much to do: NumPy releases the interpreter lock."""
    if not many:
        yield map
        return
    with ThreadPoolExecutor(max_workers=min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        yield pool.map
