"""Plans priced: of a whole space those that a search needs, as columns; one in full, with memory of every stage and part, time
of every part, throughput, cost and confidence; the rules that one breaks."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.peaks import MOMENTS
from autoconfig.memory_model.predict import (
    FittingPlans,
    MemoryEstimate,
    dispatch_buffer_bytes,
    estimate_memory,
    fit_probability,
    nccl_bytes,
    plans_that_fit,
)
from autoconfig.specs.errors import SECONDS_PER_DAY
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.json_record import Keywords
from autoconfig.specs.layouts import first_positions
from autoconfig.specs.models.parameters import model_flops_per_token
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.predict import MixedTimes, TimeEstimate, estimate_step_time
from autoconfig.training.confidence import Confidence
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Space, legal_mask

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ROWS_PER_BLOCK = 8_192
"""Layouts priced at once; bounds memory, not results."""
MAX_THREADS = 4
SLOWEST = 2.0
"""Plans this many times slower than the first are the last ones of a Pareto set."""
FIRST_ROWS = 1_024
"""Layouts with the least bounds, priced first: the fastest of their plans says how far the others may be off."""
FARTHER = 2.0
"""Where the plans so far are too few, all up to so many times their slowest are priced."""
SAFE_FIT = 0.95
"""Chance to fit from which a plan is called safe."""
COLUMNS = ("row", "option", "step", "peak", "limit")


class PhaseClock:
    """Seconds by phase, and the wall time since it was made."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self.start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time inside to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class PlanColumns:
    """Plans, one row each: number of the layout and of the recomputation, step seconds, peak and limit in bytes."""

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
        """Every column and the level, by name."""
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
    """The plans of a space that a search needs to know the step time of, and how many fit."""

    plans: int
    """That fit, priced or not."""
    layouts: Ints
    """One row of every layout with a plan that fits."""
    whole: bool
    """Every plan that fits is priced."""


def price(
    scenario: Scenario,
    space: Space,
    options: list[Recompute],
    margin: float,
    first: int | None,
    clock: PhaseClock,
    fit_chance: float = 0.0,
) -> Priced:
    """The plans that fit, all of them; with `first` those of them that no plan left out is faster than: so many layouts with a
    plan of the asked chance to fit, a safe plan where there is one, and all plans within SLOWEST of the fastest."""
    with clock.phase("memory"), _pool(len(space.layouts) > ROWS_PER_BLOCK) as run:
        legal = legal_mask(options, space.layouts, scenario)
        memory = plans_that_fit(scenario, space.layouts, options, legal, margin=margin, run=run)
        rows = np.flatnonzero(memory.fits.any(axis=1))
    if not len(rows):
        return Priced(**PlanColumns.none().columns(), plans=0, layouts=rows, whole=True)
    with clock.phase("time"):
        times = MixedTimes.of(scenario, space.layouts.take(rows), options)
    pricing = _Pricing(scenario=scenario, rows=rows, memory=memory, times=times, clock=clock)
    if first is None or len(rows) <= FIRST_ROWS:
        found = pricing.with_peaks(pricing.plans(np.arange(len(rows))))
    else:
        found = _beginning(pricing, space, first, fit_chance)
    plans = int(np.count_nonzero(memory.fits))
    layouts = rows[first_positions(space.layout_id[rows])]
    return Priced(**found.columns(), plans=plans, layouts=layouts, whole=len(found.step) == plans)


def _beginning(pricing: _Pricing, space: Space, first: int, fit_chance: float) -> PlanColumns:
    """The beginning of the order: all plans up to a step time that is raised until enough is there.

    A layout is priced where its lower bound is within that time. So no plan of the others is, and what is left after dropping
    the priced plans beyond it is what pricing everything would begin with.
    """
    with pricing.clock.phase("time"):
        least = pricing.times.least_seconds(np.arange(len(pricing.rows)))
    todo = np.zeros(len(least), bool)
    todo[np.argpartition(least, FIRST_ROWS)[:FIRST_ROWS]] = True
    done = np.zeros(len(least), bool)
    found, most = PlanColumns.none(), 0.0
    while True:
        found = found.joined(pricing.plans(np.flatnonzero(todo)))
        done |= todo
        most = max(most * FARTHER, SLOWEST * float(found.step.min()))
        pricing.raise_bounds(least, np.flatnonzero((least <= most) & ~done))
        todo = (least <= most) & ~done
        if todo.any():
            found = found.joined(pricing.plans(np.flatnonzero(todo)))
            done |= todo
        within = pricing.with_peaks(found if done.all() else found.take(found.step <= most))
        if done.all() or _enough(pricing, space, within.take(within.step <= most), first, fit_chance):
            return within
        todo = (least <= most * FARTHER) & ~done


def _enough(pricing: _Pricing, space: Space, within: PlanColumns, first: int, fit_chance: float) -> bool:
    """Whether `first` layouts have a plan with the asked chance to fit among those within the time, and one plan is safe."""
    chance = np.asarray(fit_probability(within.peak, within.limit, pricing.scenario.cluster.memory_bytes))
    likely = within.row[chance >= fit_chance]
    return bool((chance >= SAFE_FIT).any()) and len(first_positions(space.layout_id[likely])) >= first


@dataclass(frozen=True, kw_only=True)
class _Pricing:
    """What pricing needs to know of a search."""

    scenario: Scenario
    rows: Ints
    """Layouts with a plan that fits."""
    memory: FittingPlans
    times: MixedTimes
    """Of these layouts."""
    clock: PhaseClock

    def raise_bounds(self, least: Floats, which: Ints) -> None:
        """The least step seconds of these of `rows`, with what of them fits."""
        with self.clock.phase("time"):
            bounds = _in_blocks(lambda some: self.times.least_seconds(some, self.memory.fits[self.rows[some]]), which)
            least[which] = np.concatenate([least[:0], *bounds])

    def plans(self, which: Ints) -> PlanColumns:
        """The plans of these of `rows` that fit, without peaks, in the order of the layouts and options, whatever the threads
        do."""
        with self.clock.phase("time"):
            return PlanColumns.none().joined(*_in_blocks(self._timed, which))

    def with_peaks(self, plans: PlanColumns) -> PlanColumns:
        """The plans with their peaks."""
        new = np.append(True, plans.row[1:] != plans.row[:-1])[: len(plans.row)]
        with self.clock.phase("memory"):
            peaks = np.concatenate([self.memory.peak_bytes(plans.row[:0]), *_in_blocks(self.memory.peak_bytes, plans.row[new])])
        return replace(plans, peak=peaks[np.cumsum(new) - 1, plans.option], limit=self.memory.limit_bytes[plans.row])

    def _timed(self, which: Ints) -> PlanColumns:
        rows = self.rows[which]
        index, option = np.nonzero(self.memory.fits[rows])
        step = self.times.seconds(which)[index, option]
        return PlanColumns(
            row=rows[index].astype(np.int32),
            option=option.astype(np.int16),
            step=step,
            peak=np.zeros_like(step),
            limit=np.zeros_like(step),
            level=self.times.level,
        )


def _in_blocks(work: Callable[[Ints], Any], rows: Ints) -> list[Any]:
    """What `work` makes of the rows, ROWS_PER_BLOCK at a time."""
    starts = range(0, len(rows), ROWS_PER_BLOCK)
    with _pool(len(starts) > 1) as run:
        return list(run(lambda start: work(rows[start : start + ROWS_PER_BLOCK]), starts))


@contextmanager
def _pool(many: bool) -> Iterator[Callable[..., Iterable[Any]]]:
    """`map`, on a few threads where there is much to do: NumPy releases the interpreter lock."""
    if not many:
        yield map
        return
    with ThreadPoolExecutor(max_workers=min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        yield pool.map


FLOPS_CONVENTION = "causal"
"""Model FLOPs count half of the attention matrix and no recomputation; said beside every TFLOPS and MFU."""


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """One pipeline stage at its largest moment; bytes."""

    stage: int
    peak_bytes: float
    moment: str
    parts: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """Everything predicted for one legal plan."""

    plan: TrainPlan
    step_seconds: float
    time_parts: dict[str, float]
    stages: tuple[StageMemory, ...]
    limit_bytes: float
    nccl_bytes: float
    dispatch_buffer_bytes: float
    tokens_per_second_per_gpu: float
    model_flops_per_second_per_gpu: float
    mfu: float
    days_to_train: float | None
    cost: float | None
    cost_per_billion_tokens: float | None
    joules_per_token: float | None
    """Of all GPUs at their power limit; None where it is not known."""
    energy_kwh: float | None
    """The same for the tokens asked for."""
    confidence: Confidence
    origin: str = "formula"

    @property
    def steps_to_train(self) -> int | None:
        """Steps that see the tokens asked for, the last of them whole; None where none were."""
        if self.days_to_train is None:
            return None
        return math.ceil(self.days_to_train * SECONDS_PER_DAY / self.step_seconds * (1 - 1e-12))

    @property
    def worst_stage(self) -> StageMemory:
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def peak_bytes(self) -> float:
        return self.worst_stage.peak_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.limit_bytes


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A rule that a plan breaks."""

    rule: Annotated[str, Keywords(pattern="^(NV|AC)[0-9]{3}$")]
    """Its id in docs/legality.md (AC: ours)."""
    text: str
    """What must hold."""


@dataclass(frozen=True, kw_only=True)
class Money:
    """What turns step time into days and cost."""

    tokens: float | None = None
    price_per_gpu_hour: float | None = None


def violations(scenario: Scenario, plan: TrainPlan) -> list[Violation]:
    """Every rule that the plan breaks, in the order of the rules; empty when legal."""
    return [Violation(rule=rule, text=RULE_TEXT[rule]) for rule in broken_rules(scenario, [plan])[0]]


PLANS_AT_ONCE = 64
"""Plans reported in one batch: bounds the memory of their parts."""


def report_plan(scenario: Scenario, plan: TrainPlan, money: Money | None = None, margin: float = 0.0) -> PlanReport:
    """Predict one legal plan in full. Raises PlanError when its stages or micro-batches are not whole numbers."""
    return report_plans(scenario, [plan], money, margin)[0]


def report_plans(
    scenario: Scenario, plans: Sequence[TrainPlan], money: Money | None = None, margin: float = 0.0
) -> list[PlanReport]:
    """Predict legal plans in full, together."""
    found: list[PlanReport] = []
    for start in range(0, len(plans), PLANS_AT_ONCE):
        part = plans[start : start + PLANS_AT_ONCE]
        recomputes = list(dict.fromkeys(plan.recompute for plan in part))
        layouts = scenario.layouts(part)
        memory = estimate_memory(scenario, layouts, recomputes, margin=margin, detail=True)
        time = estimate_step_time(scenario, layouts, recomputes, detail=True)
        estimates = _Estimates(
            memory=memory,
            time=time,
            fit_probability=memory.fit_probability,
            dispatch_buffer_bytes=dispatch_buffer_bytes(scenario, layouts),
            flops=flops_per_step(scenario, FLOPS_CONVENTION),
        )
        for row, plan in enumerate(part):
            found.append(_report(scenario, plan, (row, recomputes.index(plan.recompute)), estimates, money or Money()))
    return found


@dataclass(frozen=True, kw_only=True)
class _Estimates:
    """Of plans that are reported together."""

    memory: MemoryEstimate
    time: TimeEstimate
    fit_probability: npt.NDArray[np.float64]
    dispatch_buffer_bytes: npt.NDArray[np.float64]
    flops: float
    """Of a step of any of them."""


def _report(scenario: Scenario, plan: TrainPlan, at: tuple[int, int], estimates: _Estimates, money: Money) -> PlanReport:
    """The report of the plan that the estimates hold at (row, recompute option)."""
    memory, time = estimates.memory, estimates.time
    step = float(time.step_seconds[at])
    gpus, workload = scenario.cluster.num_gpus, scenario.workload
    tokens_rate = workload.tokens_per_step / step
    flops_rate = estimates.flops / step / gpus
    days = money.tokens / tokens_rate / SECONDS_PER_DAY if money.tokens else None
    hourly = gpus * money.price_per_gpu_hour if money.price_per_gpu_hour else None
    cost = days * 24 * hourly if days is not None and hourly is not None else None
    return PlanReport(
        plan=plan,
        step_seconds=step,
        time_parts={name: float(value[at]) for name, value in time.parts.items()},
        stages=tuple(_stage(memory, at, stage) for stage in range(plan.pp)),
        limit_bytes=float(memory.limit_bytes[at[0]]),
        tokens_per_second_per_gpu=tokens_rate / gpus,
        nccl_bytes=float(nccl_bytes(plan.tp, plan.pp, plan.cp, plan.ep, plan.dp)),
        dispatch_buffer_bytes=float(estimates.dispatch_buffer_bytes[at[0]]),
        model_flops_per_second_per_gpu=flops_rate,
        mfu=flops_rate / scenario.cluster.gpu.peak_flops_per_s(scenario.numerics.gemm_precision),
        days_to_train=days,
        cost=cost,
        cost_per_billion_tokens=hourly and hourly / 3600 / tokens_rate * 1e9,
        joules_per_token=None if (watts := gpu_watts(scenario.cluster)) is None else watts * gpus / tokens_rate,
        energy_kwh=None if days is None else energy_kwh(scenario.cluster, days),
        confidence=Confidence.of(scenario, step, float(estimates.fit_probability[at]), plan.cp),
    )


def _stage(memory: MemoryEstimate, at: tuple[int, int], stage: int) -> StageMemory:
    assert memory.per_stage_bytes is not None and memory.moment is not None
    place = (*at, stage)
    return StageMemory(
        stage=stage,
        peak_bytes=float(memory.per_stage_bytes[place]),
        moment=MOMENTS[int(memory.moment[place])],
        parts={name: float(value[place]) for name, value in memory.parts.items() if value[place] != 0},
    )


def gpu_watts(cluster: ClusterSpec) -> float | None:
    """Power limit of one GPU (TDP, or the one set below it). None where no source says that of the GPU alone."""
    return cluster.power_limit_watts if cluster.power_limit_watts is not None else cluster.gpu.power_watts


def energy_kwh(cluster: ClusterSpec, days: float) -> float | None:
    """kWh of a cluster's GPUs at their power limit in so many days: more than they draw, and without hosts, network and
    cooling. None where the limit is not known."""
    watts = gpu_watts(cluster)
    return None if watts is None else watts * cluster.num_gpus * days * 24 / 1000


CONVENTIONS = ("causal", "full", "full+recompute")


def flops_per_step(scenario: Scenario, convention: str = "causal", recompute: Recompute = NONE) -> float:
    """FLOPs of one step as a publication counts them; blank, or a word that is none of CONVENTIONS, means causal.

    `full+recompute` counts what is computed: where whole layers are recomputed (`recompute`, of the plan) their forward pass
    once more and the output layer once (Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh)), else the same as
    `full` (InternEvo counts so: "recompute counted when on").
    """
    model, seq, behind = scenario.model, scenario.workload.attended_length, scenario.workload.decoder_seq_length
    tokens, frozen = scenario.workload.tokens_per_step, scenario.numerics.peft != "none"
    convention = convention.strip().lower()
    if convention == "full+recompute" and recompute.granularity == "full":
        head = 6.0 * model.vocab_size * model.hidden_size
        layers = model_flops_per_token(model, seq, "full", decoder_seq_length=behind) - head
        return tokens * (layers * 4 / 3 + head)
    counted = "full" if convention in ("full", "full+recompute") else "causal"
    return tokens * model_flops_per_token(model, seq, counted, frozen=frozen, decoder_seq_length=behind)
