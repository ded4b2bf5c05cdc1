"""R09, R17: the plan itself is slow, or leaves its stages and phases waiting."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from autoconfig.diagnosis import timers
from autoconfig.diagnosis.expectation import PIPELINE, Better, Expectation, expected_seconds
from autoconfig.diagnosis.finding import (
    CERTAIN,
    CONSISTENT,
    LIKELY,
    Cause,
    Cleared,
    RunCase,
    Undecided,
    caused,
    longest_phase,
    threshold,
)
from autoconfig.diagnosis.gain import cured_step
from autoconfig.evidence.records import Warned
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.training.nearest import changed_keys
from autoconfig.training.price import PlanReport, report_plan, violations
from autoconfig.training.rank import rank
from autoconfig.training.space import Constraints

WAITS = ("wait", "idle", "bubble", "exposed_generation", "stall", "queue")
"""Words in the names of phases of reinforcement learning in which GPUs wait."""
CORE_ATTENTION = Recompute(granularity="selective", modules=("core_attn",))
CLOSE = 0.01
"""Among plans this close to the fastest, the one with the fewest changed keys is named, as `check` does."""


def same_layout(e: Expectation) -> Better | None:
    """The same layout with less run again, where its activations fit with the chance that is asked for."""
    if e.plan is None or e.scenario is None or e.plan.recompute == NONE:
        return None
    less = [NONE, *([CORE_ATTENTION] if e.plan.recompute.granularity == "full" else [])]
    plans = [replace(e.plan, recompute=recompute) for recompute in less]
    reports = [report_plan(e.scenario, plan) for plan in plans if not violations(e.scenario, plan)]
    fitting = [one for one in reports if one.fits and one.confidence.fit_probability >= threshold("R09", "fit_chance")]
    return _better(e, min(fitting, key=lambda one: one.step_seconds)) if fitting else None


def better_plan(e: Expectation) -> Better | None:
    """The plan to change to: among those within a hundredth of the fastest that fits with the asked chance the one with the
    fewest changes."""
    if e.plan is None or e.scenario is None or e.question is None:
        return None
    ranking = rank(e.scenario, Constraints(), e.question.request.memory_margin)
    chances = ranking.fit_chances()
    positions = [int(place) for place in np.flatnonzero(chances >= threshold("R09", "fit_chance"))]
    if not positions:
        return None
    fastest, own = min(float(ranking.step_seconds[place]) for place in positions), e.plan
    near = [ranking.plan(place) for place in positions if float(ranking.step_seconds[place]) <= fastest * (1 + CLOSE)]
    return _better(e, report_plan(e.scenario, min(near, key=lambda one: len(changed_keys(one, own)))))


def _better(e: Expectation, report: PlanReport) -> Better | None:
    gain = 1.0 - report.step_seconds / e.step_seconds
    return Better(report=report, gain=gain) if gain > 0 else None


def slow_plan(case: RunCase) -> Cause | Cleared | None:
    """R09: the step is about what its plan takes, and the same layout with less run again, or another plan, is far faster
    and fits; beyond the band any plan that is faster."""
    if case.planned is None or case.step_seconds is None or case.ratio is None:
        return None
    if case.ratio > threshold("R02", "ratio"):
        return None  # no plan explains what the plan itself does not take
    e, scenario, own = case.planned
    better, words, certainty = _faster_plan(case, e)
    if better is None:
        return Cleared("no plan is much faster" if case.better is not None else "")
    plan = better.report.plan
    after = cured_step(case.step_seconds, (scenario, own), (scenario, plan), case.budget.measured(), kept=())
    peak, limit = better.report.peak_bytes / 2**30, better.report.limit_bytes / 2**30
    return caused(
        case,
        "R09",
        words,
        certainty,
        figures=f"{plan}: {better.gain:.0%} less, peak {peak:.0f} of {limit:.0f} GiB",
        remedy=f"{plan} (autoconfig check says it in the launcher's words)",
        seconds=None if after is None else case.step_seconds - after,
        step_after=after,
        cured=(plan, scenario),
    )


def _faster_plan(case: RunCase, e: Expectation) -> tuple[Better | None, str, str]:
    """Return (the plan that is far faster, what is slow in words, certainty); None where no plan is."""
    same, other = same_layout(e), case.better
    if same is not None and same.gain >= threshold("R09", "strong_gain"):
        recompute = e.plan.recompute if e.plan is not None else ""
        return same, f"the plan itself is slow: {recompute} runs again what fits in memory", LIKELY
    if other is None or other.gain < threshold("R09", "gain" if case.above_band else "other_gain"):
        return None, "", ""
    if case.above_band:
        return other, "the plan itself is slow", CONSISTENT
    mixture = e.scenario is not None and e.scenario.model.is_moe
    return (None, "", "") if mixture else (other, "the plan itself is slow", LIKELY)


def waiting(case: RunCase) -> Cause | Cleared | Undecided | None:
    """R17: stages wait in the pipeline longer than priced, or the plan has too few micro-batches for them; phases of
    reinforcement learning wait for each other; an engine's cache is full while requests wait."""
    finding = _phases_wait(case) or _engine_waits(case) or _bubble(case)
    if finding is not None:
        return finding
    if _warned_of_preemption(case) is not None and not case.evidence.engines:
        return Undecided("lines of the engine's own counters (Running, Waiting, cache usage) over some minutes")
    looked = case.evidence.phases or case.evidence.engines or timers.timed(case.evidence, timers.RECEIVE)
    return Cleared("nothing waits for long") if looked else None


def _phases_wait(case: RunCase) -> Cause | None:
    longest, total = longest_phase(case, WAITS)
    if longest is None or longest.seconds < threshold("R17", "wait_share") * total:
        return None
    words, figures = (
        "one side of the post-training waits for the other",
        f"{longest.name}: {longest.seconds:.3g} of {total:.3g} s",
    )
    remedy, lost = "another split of the GPUs between training and generation (autoconfig rl)", longest.seconds
    return caused(case, "R17", words, CERTAIN, evidence=(longest.origin,), figures=figures, remedy=remedy, seconds=lost)


def _warned_of_preemption(case: RunCase) -> Warned | None:
    return next((one for one in case.evidence.warnings if one.kind == "preempted"), None)


def _engine_waits(case: RunCase) -> Cause | None:
    """Half of an engine's lines or more show a full cache while requests wait, or sequences that are preempted; or its warnings
    count more of these than the first, of which it warns whatever comes after."""
    lines, warned = case.evidence.engines, _warned_of_preemption(case)
    full = [one for one in lines if one.waiting and (one.kv_cache_share or 0.0) >= threshold("R17", "engine_share")]
    shown = max(full, [one for one in lines if one.preempted], key=len)
    often, preemptions = bool(shown) and len(shown) * 2 >= len(lines), (warned.count or 0) if warned is not None else 0
    if not often and preemptions < threshold("R17", "preemptions"):
        return None
    words = "the engine's cache is full while requests wait: sequences are preempted and computed again"
    remedy = "more memory for the cache (--gpu-memory-utilization), fewer sequences at once, or more GPUs"
    parts = [f"{len(shown)} of {len(lines)} lines"] if often else []
    if warned is not None:
        parts.append(f"{warned.count} preemptions so far")
    origins, figures = ((warned or shown[0]).origin,), ", ".join(parts)
    return caused(case, "R17", words, LIKELY, evidence=origins, figures=figures, remedy=remedy, seconds=None)


def _bubble(case: RunCase) -> Cause | None:
    """Stages that wait longer than priced, or a price that is bubble for a good part."""
    if case.planned is None or case.step_seconds is None or case.planned[2].pp == 1:
        return None
    e, scenario, plan = case.planned
    price, seen = e.phases.get(PIPELINE, 0.0), case.budget.measured()
    receive = timers.timed(case.evidence, timers.RECEIVE)
    seconds = seen.get(PIPELINE, receive.most if receive is not None else None)
    micro_batches = scenario.workload.global_batch_size // (plan.dp * plan.mbs)
    remedy = f"more micro-batches than {micro_batches} (a larger batch, a smaller one a step), or more virtual stages (vpp)"
    if seconds is not None:
        lost = seconds - price
        if seconds < threshold("R17", "growth") * price or lost < threshold("R17", "bubble_share") * case.step_seconds:
            return None
        words = "the stages of the pipeline wait longer than their plan makes them"
        figures = f"{seconds:.3g} s, {price:.3g} s are expected"
        origins = receive.origins if receive is not None and PIPELINE not in seen else ()
        return caused(case, "R17", words, LIKELY, evidence=origins, figures=figures, remedy=remedy, seconds=lost)
    share = price / e.step_seconds
    if share < threshold("R17", "bubble_share") or not case.above_band or seen:
        return None
    words = f"too few micro-batches for the stages: {share:.0%} of the expected step is bubble already"
    after = None
    with suppress(InputError):
        wider = scenario.with_batch(2 * scenario.workload.global_batch_size)
        after = case.step_seconds * expected_seconds(wider, plan) / 2 / e.step_seconds
    return caused(case, "R17", words, CONSISTENT, remedy=remedy, step_after=after)
