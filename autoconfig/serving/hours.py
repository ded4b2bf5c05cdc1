"""A day's trace hour by hour: instances of a deployment that each hour takes, beside those that its busiest part takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from autoconfig.serving.deployment import DeploymentReport
from autoconfig.serving.disaggregated import Decode, Prefill
from autoconfig.serving.price import BATCHES, price
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.rank import SPARE
from autoconfig.serving.traces import WINDOW_S, Span
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.time_model.serving.steady import Lengths, Pricer

MOST_HOURS = 168
"""Rows of the table: a week of hours; of a longer trace each row is two, four, ... hours."""


@dataclass(frozen=True, kw_only=True)
class Hour:
    """What one hour of a trace asks for."""

    start_s: float
    """After the first request."""
    clock: str
    """When it starts, by the trace's clock."""
    seconds: float
    rate: float
    """Requests per second."""
    isl: float
    osl: float
    """Mean tokens of a request, in and out; 0 where there is none."""
    replicas: int
    """Instances that decode."""
    prefill_replicas: int | None
    """Separate prefill instances; None where there are none."""
    gpus: int

    @classmethod
    def of_day(cls, question: ServeQuestion, one: DeploymentReport) -> tuple[Hour, ...]:
        """Of a trace that is longer than an hour: instances of the deployment that carry the busiest quarter of each hour in
        closed form, at most as many as the deployment has. Where the simulation of the busiest part asks for more than the
        closed form, so do all hours."""
        if question.day is None:
            return ()
        busy = _needed(question.in_means(), one)
        there = (float(one.plan.decode.replicas), float(one.plan.prefill.replicas) if one.plan.prefill else 0.0)
        more = [1.0 if math.ceil(need) >= have else have / need for need, have in zip(busy, there, strict=True)]
        return tuple(_hour(question, one, span, more) for span in question.day.spans(WINDOW_S, MOST_HOURS))

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.seconds / 3600.0


def _hour(question: ServeQuestion, one: DeploymentReport, span: Span, more: list[float]) -> Hour:
    decode, prefill = one.plan.decode, one.plan.prefill
    counts = [0, 0]
    if span.peak["requests"]:
        own = replace(question.in_means(), rate=span.peak_rate * question.times, lengths=_lengths(question, span.peak))
        needs = zip(_needed(own, one), more, (decode.replicas, prefill.replicas if prefill else 0), strict=True)
        counts = [min(math.ceil(need * factor - 1e-9), most) for need, factor, most in needs]
    requests = max(span.sums["requests"], 1.0)
    return Hour(
        start_s=span.start_s,
        clock=span.clock,
        seconds=span.seconds,
        rate=span.rate * question.times,
        isl=span.sums["inputs"] / requests,
        osl=span.sums["outputs"] / requests,
        replicas=counts[0],
        prefill_replicas=counts[1] if prefill else None,
        gpus=counts[0] * decode.size + (counts[1] * prefill.size if prefill else 0),
    )


def _lengths(question: ServeQuestion, sums: Mapping[str, float]) -> Lengths:
    """Mean lengths of requests, as question.understand has them of a trace."""
    n, inputs, outputs, squared, context = sums.values()
    return replace(
        question.lengths, isl=inputs / n, osl=outputs / n, context=context / outputs, prompt_rms=math.sqrt(squared / n)
    )


def _needed(question: ServeQuestion, one: DeploymentReport) -> tuple[float, float]:
    """Decode and prefill instances that carry the question's load at SPARE of their throughput within the limits of means, as
    far as any number is; fractions, at least a little of one."""
    pricer, wanted = Pricer(lengths=question.lengths), question.rate * question.sized_for / SPARE
    decode, prefill = one.plan.decode, one.plan.prefill
    if prefill is not None:
        return _needed_apart(replace(question, num_gpus=one.gpus), pricer, decode, prefill, wanted)
    rows = price(question, pricer, question.job(decode), 0)
    if rows is None:
        return float(decode.replicas), 0.0
    same = np.flatnonzero((rows.tokens == decode.tokens) & (rows.batch <= decode.batch))
    rows = rows.take(same) if len(same) else rows
    within = rows.tpot_s <= (question.tpot_s or np.inf)
    need = wanted / float((rows.each * (within if within.any() else 1.0)).max())
    most = np.maximum.accumulate(rows.each)
    for count in range(max(math.ceil(need), 1), decode.replicas):
        at = min(int(np.searchsorted(most, question.rate / count)), len(rows) - 1)
        if rows.random_ttft_s[at] <= (question.ttft_s or np.inf):
            return max(need, count - 1 + 1e-6), 0.0
    return max(need, decode.replicas - 1 + 1e-6), 0.0


def _needed_apart(
    question: ServeQuestion, pricer: Pricer, decode: EnginePlan, prefill: EnginePlan, wanted: float
) -> tuple[float, float]:
    """The same of separate prefill and decode instances."""
    batches = BATCHES[max(decode.batch, decode.adp * decode.pp) >= BATCHES]
    second = Decode.of(question, pricer, question.job(decode), batches)
    first = Prefill.of(question, pricer, question.job(prefill), 0)
    counts = np.arange(1.0, prefill.replicas + 1.0)
    carried = first.utilisation(question.ttft_s, counts) * counts * first.requests_per_s
    enough = counts[carried >= wanted]
    prefills = float(enough[0] if len(enough) else counts[-1])
    if second is None:
        return float(decode.replicas), prefills
    within = second.step_s / question.lengths.tokens_per_step <= (question.tpot_s or np.inf)
    return wanted / float((second.requests_per_s * (within if within.any() else 1.0)).max()), prefills
