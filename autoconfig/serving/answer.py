"""The application layer of serving: one function per question, called by the command line and by programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoconfig.planning.progress import Progress
from autoconfig.planning.request_fields import MAX_SERVING_GPUS
from autoconfig.serving.beside import Drafts, beside, drafts, included
from autoconfig.serving.deployment import DeploymentReport, benchmarked, near_capacity, report
from autoconfig.serving.finalists import Contest, Finalists
from autoconfig.serving.hours import Hour
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.serving.rank import SPARE, Deployments, rank
from autoconfig.serving.reasons import (
    keeps_limits,
    missed_text,
    nearest_row,
    no_deployment,
    readable,
    refuted_text,
    sensitivity,
    shortfall,
    sustained_text,
    why,
)
from autoconfig.serving.request import ServeRequest
from autoconfig.serving.traces import Recorded
from autoconfig.specs.layouts import spread

PARETO_POINTS = 12


@dataclass(frozen=True, kw_only=True)
class ServeAnswer:
    """What a search found."""

    question: ServeQuestion
    deployments: Deployments
    reports: tuple[DeploymentReport, ...] = ()
    """Best first, one per layout."""
    pareto: tuple[DeploymentReport, ...]
    included: tuple[tuple[str, DeploymentReport | None, str], ...]
    """(asked, its report, why not)."""
    why: tuple[str, ...] = ()
    """Of the first report."""
    sensitivity: tuple[str, ...]
    nearest: DeploymentReport | None = None
    """Where no deployment meets the limits: the one that misses by least."""
    infeasible: str = ""
    simulated: tuple[DeploymentReport, ...] = ()
    """All that were, those that are not recommended as well."""
    sustained: float | None = None
    """Of a full queue: requests per second that the GPUs carry when requests come at random, within the limits in the
    simulation, as `rate` would find; None where a rate was asked, nothing is simulated, or none of SHARES is carried."""
    alternative: DeploymentReport | None = None
    """Without separate prefill instances where they are recommended, with them where not: the best of that kind."""
    alternative_text: str = ""
    """What it costs or saves, or why there is none."""
    drafts: Drafts | None = None
    """What the checkpoint's own draft layer gives the recommended deployment."""
    hours: tuple[Hour, ...] = ()
    """Of a trace that is sized by a part of it: what the recommended deployment needs of its instances hour by hour."""


SHARES = (SPARE, 0.8, 0.7, 0.6, 0.5)
"""Shares of a full queue's throughput that are tried as a rate, most first."""


def answer(request: ServeRequest, progress: Progress | None = None) -> ServeAnswer:
    """Search, report the best ones, simulate the finalists. A limit that nobody asked for goes where none is within it."""
    request = _busiest(request)
    question, finalists = _finalists(request, progress)
    deployments, reports = finalists.deployments, finalists.reports
    simulated = {str(one.plan): one for one in finalists.simulated}
    rows = deployments.one_per_layout(request.top) if reports else []
    frontier = [report(question, deployments, row) for row in spread(deployments.pareto(), PARETO_POINTS)]
    best = _best(question, request, finalists, rows, simulated, progress) if reports else _nearest(question, request, finalists)
    return ServeAnswer(
        question=question,
        deployments=deployments,
        pareto=tuple(_judged(one, simulated) for one in frontier),
        simulated=tuple(simulated.values()),
        included=tuple(included(question, text) for text in request.include),
        sensitivity=(*finalists.remarks, *sensitivity(question, deployments, rows)),
        **best,
    )


def _busiest(request: ServeRequest) -> ServeRequest:
    """The request with its trace read, and sized by the part of it that asks most of the GPUs in closed form: where most tokens
    come in and where most go out may be two. Raises FileError, InputError."""
    if request.trace is None:
        return request
    whole = Recorded.of(request.trace, local_files=request.local_files)
    parts = [replace(request, trace=replace(whole, chosen=i)) for i in range(len(whole.windows()))]
    if len(parts) == 1:
        return parts[0]
    return min(parts, key=lambda one: rank(replace(understand(one).in_means(), disaggregated=False)).most_load)


def _finalists(request: ServeRequest, progress: Progress | None) -> tuple[ServeQuestion, Finalists]:
    """The question, with a usual limit where some deployment keeps it, and its finalists."""
    asked = understand(request)
    for question in (*readable(asked), asked):
        contest = Contest(question, request, progress)
        finalists = contest.best()
        if finalists.reports and (not request.simulate or contest.any_keeps(finalists.reports)):
            return question, finalists
    return question, replace(finalists, reports=[])


def _best(
    question: ServeQuestion,
    request: ServeRequest,
    finalists: Finalists,
    rows: Sequence[int],
    simulated: Mapping[str, DeploymentReport],
    progress: Progress | None,
) -> dict[str, Any]:
    """Fields of the answer where there is a deployment."""
    first, others = finalists.reports[0], finalists.reports[1:]
    sustained = _sustained(question, request, first) if request.simulate and not question.rate else None
    alternative, text = beside(question, request, finalists.deployments, first, progress)
    if alternative is not None and alternative.latency is not None:
        others = [_judged(one, {str(alternative.plan): alternative}) for one in others]
    return dict(
        reports=(near_capacity(question, benchmarked(question, first)), *(benchmarked(question, one) for one in others)),
        why=_why(question, finalists.deployments, rows, first, tuple(simulated.values()), sustained),
        sustained=sustained,
        alternative=alternative,
        alternative_text=text,
        drafts=drafts(question, request, first),
        hours=Hour.of_day(question, first),
    )


def _why(
    question: ServeQuestion,
    deployments: Deployments,
    rows: Sequence[int],
    best: DeploymentReport,
    tried: Sequence[DeploymentReport],
    sustained: float | None,
) -> tuple[str, ...]:
    """Why the recommended one is, and what it carries under a load of its own."""
    refuted = [one for one in tried if not keeps_limits(question, one)]
    row = next(row for row in rows if deployments.plan(row) == best.plan)
    lines = why(question, deployments, row, len(tried), len(refuted))
    ahead = min(refuted, key=lambda one: one.figure(question.goal), default=best)
    if ahead is not best and ahead.figure(question.goal) <= best.figure(question.goal):
        lines.append(refuted_text(question, ahead))
    if sustained is not None:
        lines.insert(1, sustained_text(best.requests_per_s, best.tokens_per_s_per_gpu, sustained))
    return tuple(lines)


def _judged(one: DeploymentReport, simulated: Mapping[str, DeploymentReport]) -> DeploymentReport:
    """With its simulation, where there was one."""
    same = simulated.get(str(one.plan))
    return replace(one, latency=same.latency) if same else one


def _sustained(question: ServeQuestion, request: ServeRequest, best: DeploymentReport) -> float | None:
    """The largest of SHARES of the best deployment's throughput for which the search under this rate has an answer, in three
    digits."""
    for share in SHARES:
        rate = rounded_down(share * best.requests_per_s)
        contest = Contest(replace(question, rate=rate), replace(request, rate=rate, top=1, simulate=1))
        if contest.any_keeps(contest.of_loads(contest.question).reports):
            return rate
    return None


def rounded_down(value: float) -> float:
    """Three digits, never more than the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit + 1e-9) * unit:.6g}")


def _nearest(question: ServeQuestion, request: ServeRequest, finalists: Finalists) -> dict[str, Any]:
    """Fields of the answer where there is no deployment: what comes nearest, and by how much it misses."""
    if finalists.simulated:
        nearest, text = missed_text(question, finalists.simulated)
        return dict(nearest=nearest, infeasible=text)
    deployments = finalists.deployments
    row = nearest_row(question.in_means(), deployments)
    if row is None:
        return dict(infeasible=no_deployment(question, deployments))
    most = float(deployments.columns.requests_per_s[row])
    carrying = None if deployments.carries else _gpus_that_carry(question, request, most)
    return dict(nearest=report(question, deployments, row), infeasible=shortfall(question, deployments, row, carrying))


SIZES = 6
"""Numbers of GPUs that are asked whether they carry a load."""


def _gpus_that_carry(question: ServeQuestion, request: ServeRequest, most: float) -> int | None:
    """The fewest GPUs that carry the load in closed form, as the same question with so many answers: searched among at first
    as many as `most` requests per second of these GPUs suggest. None where none of SIZES does."""
    gpus = max(math.ceil(question.num_gpus * question.rate / most * 1.25), question.num_gpus + 1)
    for _ in range(SIZES):
        gpus = min(gpus, MAX_SERVING_GPUS)
        deployments = rank(understand(replace(request, gpus=gpus)).in_means())
        if deployments.carries:
            rows = deployments.order if len(deployments.order) else slice(None)
            return int(deployments.columns.gpus[rows].min())
        if gpus == MAX_SERVING_GPUS:
            break
        gpus *= 2
    return None
