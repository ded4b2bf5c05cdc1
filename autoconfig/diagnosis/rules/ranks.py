"""R08, R10, R14, R16: ranks, stages, experts and clocks that are unlike the others."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from functools import cache

from autoconfig.diagnosis import solve, timers
from autoconfig.diagnosis.finding import (
    CERTAIN,
    CONSISTENT,
    LIKELY,
    Cause,
    Cleared,
    Finding,
    RunCase,
    Undecided,
    caused,
    first_finding,
    threshold,
)
from autoconfig.evidence.records import ClockSample, Origin
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.layouts import stage_layers

FAULTS = {
    "hw_thermal": "the GPU is too hot (hardware slowdown)",
    "sw_thermal": "the GPU is too hot (software slowdown)",
    "power_brake": "the server's power supply brakes the GPU",
    "hw_slowdown": "the hardware slows the GPU down",
}
"""Reasons of NVML for a lowered clock that are faults; a power cap at full load is none (NVML, clocks event reasons)."""
COOL = "cooling, power supply and placement of that server; another node meanwhile"
FORWARD_AND_BACKWARD = 3.0
"""Times of the forward pass: the backward one has twice its FLOPs."""


def low_clock(case: RunCase) -> Finding | None:
    """R10: NVML names a slowdown, the clock of a busy GPU is far below its highest, or its power limit is below its own."""
    return first_finding(case, (_fault, _spread_of_clocks, _throttled_cpu, _clocks_at_work))


def _fault(case: RunCase) -> Cause | None:
    """A reason of NVML that is a fault, in more than a few samples."""
    samples = case.evidence.clocks
    for reason, words in FAULTS.items():
        hit = [one for one in samples if reason in one.reasons]
        if not hit or len(hit) * 20 < len(samples):  # a single sample of many is a spike
            continue
        lowest = min(hit, key=lambda one: one.sm_mhz or float("inf"))
        figures = f"{reason} in {len(hit)} of {len(samples)} samples" + _clock_text(lowest)
        return caused(case, "R10", words, CERTAIN, evidence=(lowest.origin,), figures=figures, remedy=COOL)
    return None


def _clocks_at_work(case: RunCase) -> Finding | None:
    """Clocks and power of the GPUs that work."""
    samples = case.evidence.clocks
    if not samples:
        return Cleared("clocks alike") if any(one.figure == "sm_mhz" for one in case.evidence.slowest) else None
    busy = _at_work(samples)
    if (cause := _limited(case, busy) or _low(case, busy)) is not None:
        return cause
    if any(_capped_unseen(one) for one in busy) and _low_share(busy) < threshold("R10", "clock_share"):
        return Undecided("power.draw and power.limit beside the clocks: a power cap leaves less clock under load")
    return Cleared("clocks as they should be") if any(one.reasons or one.sm_mhz for one in samples) else None


def _throttled_cpu(case: RunCase) -> Cause | None:
    """The kernel lowers the clock of a processor that is too hot: launches and data come late."""
    warning = next((one for one in case.evidence.warnings if one.kind == "cpu_throttled"), None)
    if warning is None:
        return None
    words, figures = "the host's processor is too hot and lowers its clock", f"{warning.count} times since its start"
    certainty = LIKELY if (warning.count or 0) >= threshold("R10", "cpu_events") else CONSISTENT
    return caused(case, "R10", words, certainty, evidence=(warning.origin,), figures=figures, remedy=COOL)


def _at_work(samples: Sequence[ClockSample]) -> list[ClockSample]:
    """The samples of GPUs that work: by their use, else by NVML's own reason, else by their power beside the one that draws
    most. A GPU that does nothing lowers its clock by itself."""
    most = max((one.power_watts for one in samples if one.power_watts), default=0.0)
    idle_watts = threshold("R10", "idle_power") * most

    def works(one: ClockSample) -> bool:
        if one.utilization is not None:
            return one.utilization >= threshold("R10", "least_utilization")
        return "idle" not in one.reasons and (one.power_watts is None or one.power_watts >= idle_watts)

    return [one for one in samples if works(one)]


def _clock_text(one: ClockSample) -> str:
    clock = f", SM clock {one.sm_mhz:,.0f} MHz" if one.sm_mhz is not None else ""
    return clock + (f", {one.temperature_c:.0f} C" if one.temperature_c is not None else "")


def _limited(case: RunCase, busy: list[ClockSample]) -> Cause | None:
    limited = [
        (one.limit_watts, own, one)
        for one in busy
        if one.limit_watts and (own := _own_watts(case, one)) and one.limit_watts < threshold("R10", "limit_share") * own
    ]
    if not limited:
        return None
    _, own, least = min(limited, key=lambda item: item[0])
    words = f"the power limit is {least.limit_watts:,.0f} W where the GPU's own is {own:,.0f} W"
    remedy = f"nvidia-smi -pl {own:.0f}; or expect less (--power-limit {least.limit_watts:.0f})"
    return caused(case, "R10", words, CERTAIN, evidence=(least.origin,), remedy=remedy)


def _own_watts(case: RunCase, sample: ClockSample) -> float | None:
    """The power limit that a GPU has by itself: as the plan takes it, else as its driver says its default, else of the GPU
    that the sample names, else of the plan's; None where nothing says the GPU."""
    cluster = case.scenario.cluster if case.scenario else None
    if cluster is not None and cluster.power_limit_watts is not None:
        return cluster.power_limit_watts
    return sample.own_watts or _watts_of(sample.name) or (cluster.gpu.power_watts if cluster is not None else None)


@cache
def _watts_of(name: str) -> float | None:
    """Power of a GPU as its driver names it, by the catalogue; None where that has none of the name."""
    try:
        return load_gpu(name).power_watts if name else None
    except InputError:
        return None


def _at_its_limit(case: RunCase, sample: ClockSample) -> bool:
    """Whether a GPU draws all that it may: its clock is then what the power leaves, as under any load of dense products."""
    limit = sample.limit_watts or _own_watts(case, sample)
    share = threshold("R10", "capped_share" if "power_cap" in sample.reasons else "limit_share")
    return bool(limit and sample.power_watts and sample.power_watts >= share * limit)


def _capped_unseen(one: ClockSample) -> bool:
    """Whether NVML says that the power cap lowers the clock, and nothing says the power or its limit."""
    return "power_cap" in one.reasons and one.power_watts is None


def _low_share(busy: Sequence[ClockSample]) -> float:
    """The median clock over the GPU's highest; 1 where nothing says it."""
    shares = [one.sm_mhz / one.max_sm_mhz for one in busy if one.sm_mhz and one.max_sm_mhz]
    return statistics.median(shares) if shares else 1.0


def _low(case: RunCase, busy: list[ClockSample]) -> Cause | None:
    free = [one for one in busy if not _at_its_limit(case, one) and not _capped_unseen(one)]
    clocks = [(one.sm_mhz / one.max_sm_mhz, one) for one in free if one.sm_mhz and one.max_sm_mhz]
    if not clocks:
        return None
    share, one = sorted(clocks, key=lambda item: item[0])[len(clocks) // 2]
    if share >= threshold("R10", "clock_share"):
        return None
    words = f"the SM clock is {share:.0%} of the GPU's highest under load"
    certainty = LIKELY if case.above_band or case.expectation is None else CONSISTENT
    remedy = "power limit, application clocks (nvidia-smi -q -d CLOCK,PERFORMANCE), cooling"
    figures = _clock_text(one).lstrip(", ")
    return caused(case, "R10", words, certainty, evidence=(one.origin,), figures=figures, remedy=remedy)


def _spread_of_clocks(case: RunCase) -> Cause | None:
    """One GPU's clock far below the others': by the run's own straggler line, or by samples of several GPUs."""
    for line in case.evidence.slowest:
        if line.figure == "sm_mhz" and 0 < line.least < threshold("R10", "spread") * line.most:
            words = f"rank {line.least_rank} runs at {line.least:,.0f} MHz, others at up to {line.most:,.0f}"
            lost = case.gap_seconds or ((1 - line.least / line.most) * case.step_seconds if case.step_seconds else None)
            return caused(case, "R10", words, CERTAIN, evidence=(line.origin,), remedy=COOL, seconds=lost)
    return _spread_of_samples(case)


def _spread_of_samples(case: RunCase) -> Cause | None:
    by_gpu: dict[int, list[ClockSample]] = {}
    for one in _at_work(case.evidence.clocks):
        if one.gpu is not None and one.sm_mhz:
            by_gpu.setdefault(one.gpu, []).append(one)
    medians = {gpu: statistics.median(one.sm_mhz or 0.0 for one in samples) for gpu, samples in by_gpu.items()}
    if len(medians) < 2:
        return None
    slow = min(medians, key=lambda gpu: medians[gpu])
    others = statistics.median(clock for gpu, clock in medians.items() if gpu != slow)
    if medians[slow] >= threshold("R10", "spread") * others:
        return None
    seen = by_gpu[slow][0]
    words = f"GPU {slow} runs at {medians[slow]:,.0f} MHz, the others at {others:,.0f}"
    works = seen.utilization is not None or seen.power_watts is not None or seen.reasons
    return caused(case, "R10", words, CERTAIN if works else LIKELY, evidence=(seen.origin,), remedy=COOL)


SLOWER_IS_LESS = ("tflops", "relative_performance", "individual_performance")
FIGURES_OF_RANKS = ("step_seconds", *SLOWER_IS_LESS)
RANKS = re.compile(r"(?:rank=|[\[{ ])(\d{1,7})(?=[,\]} )])")
"""Of a list of ranks, or of a set of StragglerId(rank=3, ...)."""


def slow_rank(case: RunCase) -> Finding | None:
    """R14: one rank comes last to most collectives, or its step or its compute is longer than its peers'."""
    looks = (_last_to_collectives, _slowest_of_lines, _named_by_its_detector, _by_timers)
    if (finding := first_finding(case, looks)) is not None:
        return finding
    looked = any(one.collectives >= threshold("R14", "least_collectives") for one in case.evidence.arrivals)
    looked = looked or any(line.figure in FIGURES_OF_RANKS for line in case.evidence.slowest)
    return Cleared("ranks alike") if looked or _peers(case) else None


def _last_to_collectives(case: RunCase) -> Cause | None:
    """A rank for which the others wait, in traces of several."""
    steps = max((trace.steps for trace in case.evidence.traces), default=1) or 1
    for one in case.evidence.arrivals:
        often = one.last >= threshold("R14", "last_share") * one.collectives
        if one.collectives < threshold("R14", "least_collectives") or not often:
            continue
        waited = one.others_waited_s / steps
        if case.step_seconds and case.share(waited) < threshold("R14", "spread") - 1.0:
            continue
        text = f"rank {one.rank} last in {one.last} of {one.collectives} collectives; the others waited {waited:.3g} s a step"
        file = case.evidence.traces[0].origin.file if case.evidence.traces else ""
        return _slow_rank(case, one.rank, CERTAIN, Origin(file=file, text=text), text, waited)
    return None


def _slowest_of_lines(case: RunCase) -> Cause | None:
    """The run's own line of its slowest and fastest rank, where no clock is the cause of it."""
    for line in case.evidence.slowest:
        if line.figure not in FIGURES_OF_RANKS or line.least <= 0 or line.most < threshold("R14", "spread") * line.least:
            continue
        if _spread_of_clocks(case) is not None:
            continue
        rank = line.most_rank if line.figure == "step_seconds" else line.least_rank
        text = f"{line.figure.replace('_', ' ')}: {line.least:.4g} to {line.most:.4g}"
        lost = (1 - line.least / line.most) * case.step_seconds if case.step_seconds else None
        return _slow_rank(case, rank, LIKELY, line.origin, text, lost)
    return None


def _named_by_its_detector(case: RunCase) -> Cause | None:
    """The run's own detector of stragglers."""
    warning = next((one for one in case.evidence.warnings if one.kind == "straggler"), None)
    ranks = RANKS.findall(warning.origin.text.partition("Affected ranks: ")[2]) if warning is not None else []
    if warning is None or not ranks:
        return None
    text = f"the run's own detector names {len(ranks)} ranks" if len(ranks) > 1 else "the run's own detector names it"
    return _slow_rank(case, int(ranks[0]), LIKELY, warning.origin, text, None)


def _slow_rank(case: RunCase, rank: int, certainty: str, origin: Origin, text: str, lost: float | None) -> Cause:
    return caused(
        case,
        "R14",
        f"rank {rank} is slower than its peers, and all wait for it",
        certainty,
        evidence=(origin,),
        figures=text,
        remedy=f"take the node of rank {rank} out, and compare its clocks, links and CPU with another's",
        seconds=lost,
    )


def _stages(case: RunCase) -> int:
    if case.plan is not None:
        return case.plan.pp
    values = case.evidence.plans[0].values if case.evidence.plans else {}
    text = values.get("pipeline_model_parallel_size", "1")
    return int(text) if text.isdigit() else 1


def _forward(case: RunCase) -> timers.Timed | None:
    """The timer of the forward pass, else of both."""
    return timers.timed(case.evidence, timers.FORWARD) or timers.timed(case.evidence, timers.FORWARD_BACKWARD)


def _peers(case: RunCase) -> dict[int, dict[int, float]]:
    """Stage -> rank -> seconds of its forward pass, where the timers say every rank; stages are blocks of ranks in Megatron's
    order (tp-cp-ep-dp-pp)."""
    timer = _forward(case)
    return _by_stage(case, timer.by_rank) if timer is not None else {}


def _by_stage(case: RunCase, by_rank: Mapping[int, float]) -> dict[int, dict[int, float]]:
    if len(by_rank) < 2:
        return {}
    ranks = max(by_rank) + 1
    world = case.expectation.scenario.cluster.num_gpus if case.expectation and case.expectation.scenario else ranks
    each = max(1, world // _stages(case))
    stages: dict[int, dict[int, float]] = {}
    for rank, seconds in by_rank.items():
        stages.setdefault(rank // each, {})[rank] = seconds
    return stages


def _by_timers(case: RunCase) -> Cause | None:
    """The slowest rank over the median of its stage, by the timers; ranks of experts differ by their load (R08)."""
    if case.plan is not None and case.plan.ep > 1:
        return None
    apart = [_worst_of(ranks) for ranks in _peers(case).values() if len(ranks) > 1]
    ratio, rank, lost = max(apart, key=lambda item: item[0], default=(0.0, 0, 0.0))
    if not ratio:
        return _by_extremes(case)
    timer = _forward(case)
    if ratio < threshold("R14", "spread") or timer is None:
        return None
    text = f"{timer.name}: {ratio:.2f} times the median of its stage"
    lost *= FORWARD_AND_BACKWARD if timer.name in timers.FORWARD else 1.0
    return _slow_rank(case, rank, CERTAIN, timer.origins[0], text, lost)


def _worst_of(ranks: Mapping[int, float]) -> tuple[float, int, float]:
    """Return (times the median of the others, rank, seconds above it) of the slowest rank of a stage; 0 times where the others
    take no time."""
    rank = max(ranks, key=lambda one: ranks[one])
    others = statistics.median(seconds for one, seconds in ranks.items() if one != rank)
    return (ranks[rank] / others, rank, ranks[rank] - others) if others > 0 else (0.0, rank, 0.0)


def _by_extremes(case: RunCase) -> Cause | None:
    """Least and most of the forward pass, where the plan gives all ranks equal work."""
    timer, plan = timers.timed(case.evidence, timers.FORWARD), case.plan
    if timer is None or plan is None or timer.by_rank:
        return None
    if plan.pp > 1 or timer.least <= 0 or timer.most < threshold("R14", "spread") * timer.least:
        return None
    return caused(
        case,
        "R14",
        "a rank is slower than its peers, and all wait for it",
        LIKELY,
        evidence=timer.origins,
        figures=f"{timer.name}: {timer.least:.3g} to {timer.most:.3g} s across ranks of equal work",
        remedy="--log-straggler, or --timing-log-option all, names the rank",
        seconds=timer.most - timer.least,
    )


def slow_stage(case: RunCase) -> Cause | Cleared | None:
    """R16: the stages' forward passes differ by more than their layers do."""
    stages = {stage: statistics.median(ranks.values()) for stage, ranks in _peers(case).items()}
    if len(stages) < 2:
        return _stages_by_extremes(case)
    share = _layers_share(case, len(stages))
    per_layer = {stage: seconds / share.get(stage, 1.0) for stage, seconds in stages.items()}
    slow = max(per_layer, key=lambda stage: per_layer[stage])
    others = statistics.median(seconds for stage, seconds in per_layer.items() if stage != slow)
    inside = max(max(ranks.values()) / statistics.median(ranks.values()) for ranks in _peers(case).values())
    ratio = max(stages.values()) / statistics.mean(stages.values())
    if ratio < threshold("R16", "spread") or ratio < inside:
        return Cleared("stages alike")
    timer = _forward(case)
    assert timer is not None
    longest = max(stages, key=lambda stage: stages[stage])
    more = "" if others <= 0 or per_layer[slow] < threshold("R16", "spread") * others else f", stage {slow} for its layers too"
    text = f"stage {longest} takes {ratio:.2f} times the mean of the stages{more}"
    return _slow_stage(case, CERTAIN, timer.origins[0], text, ratio)


def _layers_share(case: RunCase, stages: int) -> Mapping[int, float]:
    if case.planned is None or case.planned[2].pp != stages:
        return {}
    _, scenario, plan = case.planned
    layers = stage_layers(scenario.model, plan)
    mean = sum(layers) / len(layers)
    return {stage: count / mean for stage, count in enumerate(layers) if count}


def _stages_by_extremes(case: RunCase) -> Cause | Cleared | None:
    """Least and most of the forward pass where the plan has stages: more apart than head and embedding put them."""
    timer = timers.timed(case.evidence, timers.FORWARD)
    if case.plan is None or case.plan.pp == 1 or timer is None or timer.least <= 0 or timer.by_rank:
        return None
    ratio = timer.most / ((timer.most + timer.least) / 2)
    if ratio < threshold("R16", "spread"):
        return Cleared("stages alike")
    text = f"{timer.name}: {timer.least:.3g} to {timer.most:.3g} s across ranks"
    return _slow_stage(case, LIKELY, timer.origins[0], text, ratio)


def _slow_stage(case: RunCase, certainty: str, origin: Origin, text: str, ratio: float) -> Cause:
    lost = case.step_seconds * (1 - 1 / ratio) if case.step_seconds else None
    return caused(
        case,
        "R16",
        "one pipeline stage is slower than the others, which wait for it",
        certainty,
        evidence=(origin,),
        figures=text,
        remedy="fewer layers on that stage (--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers)",
        seconds=lost,
    )


def _steps_of_peers(case: RunCase, timer: timers.Timed | None) -> list[list[list[float]]]:
    """Of each stage the seconds of its ranks, step by step: which rank is the busiest may change with the step."""
    steps: dict[int, list[list[float]]] = {}
    for by_rank in timer.steps if timer is not None else ():
        for stage, ranks in _by_stage(case, by_rank).items():
            if len(ranks) > 1 and min(ranks.values()) > 0:
                steps.setdefault(stage, []).append(list(ranks.values()))
    return list(steps.values())


def unbalanced_experts(case: RunCase) -> Cause | Cleared | None:
    """R08: ranks of the experts' group differ in their forward pass; or only a load of the busiest rank explains the step."""
    if case.planned is None:
        return None
    _, scenario, plan = case.planned
    if not scenario.model.is_moe or plan.ep == 1:
        return None
    solved = solve.imbalance(scenario, plan, case.step_seconds) if case.step_seconds and case.above_band else None
    explains = f"a busiest rank of {solved.value:.2f} times its share explains the step" if solved else ""
    timer = timers.timed(case.evidence, timers.FORWARD)
    steps = _steps_of_peers(case, timer)
    spreads = _spreads(steps, timer, plan.pp)
    if spreads and timer is not None:
        return _unlike_ranks(case, timer, max(spreads), steps, explains)
    if solved is None or solved.value > threshold("R08", "solved") or case.evidence.traces:
        return None
    return _unbalanced(case, CONSISTENT, (), explains, case.gap_seconds)


def _spreads(steps: list[list[list[float]]], timer: timers.Timed | None, pp: int) -> list[float]:
    """Slowest over quickest rank of each stage; without steps of the ranks of the timer, where there is one stage."""
    spreads = [statistics.median(max(seconds) / min(seconds) for seconds in one) for one in steps]
    if not spreads and timer is not None and pp == 1 and timer.least > 0:
        spreads = [timer.most / timer.least]
    return spreads


def _unlike_ranks(
    case: RunCase, timer: timers.Timed, spread: float, stages: Sequence[Sequence[Sequence[float]]], explains: str
) -> Cause | Cleared:
    """Ranks of experts whose slowest takes `spread` times the fastest; `explains`: what the step's length alone says."""
    if spread < threshold("R08", "spread"):
        return Cleared("ranks of experts alike")
    busiest = max(
        (statistics.median(max(seconds) / statistics.mean(seconds) for seconds in steps) for steps in stages), default=1.0
    )
    waited = case.step_seconds * (1 - 1 / busiest) if case.step_seconds else 0.0
    certain = bool(explains) or busiest >= threshold("R08", "busiest")
    text = "; ".join(filter(None, (f"{timer.name}: the slowest rank takes {spread:.2f} times the fastest", explains)))
    return _unbalanced(case, CERTAIN if certain else LIKELY, (timer.origins[0],), text, max(waited, case.gap_seconds))


def _unbalanced(case: RunCase, certainty: str, origins: tuple[Origin, ...], text: str, lost: float) -> Cause:
    return caused(
        case,
        "R08",
        "experts are unevenly loaded, and all ranks wait for the busiest",
        certainty,
        evidence=origins,
        figures=text,
        remedy="load balancing (--moe-router-load-balancing-type, its coefficient, an expert bias), a capacity factor, less ep",
        seconds=lost or None,
    )
