"""The application layer of serving: one function per question, called by the command line and by programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoconfig.planning.progress import Progress
from autoconfig.planning.request_fields import MAX_SERVING_GPUS
from autoconfig.serving import disaggregated
from autoconfig.serving.beside import Drafts, beside, drafts
from autoconfig.serving.deployment import DeploymentReport, at_rate, benchmarked, decode_memory, near_capacity, report
from autoconfig.serving.finalists import figure, finalists, kept, of_loads
from autoconfig.serving.hours import Hour, busiest, hours
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.serving.rank import SPARE, Deployments, one_per_layout, search, single
from autoconfig.serving.reasons import (
    exceeded,
    nearest_row,
    no_deployment,
    over_limits,
    over_text,
    readable,
    refuted_text,
    sensitivity,
    shortfall,
    simulated_figures,
    sustained_text,
    why,
)
from autoconfig.serving.request import ServeRequest
from autoconfig.serving.space import refused
from autoconfig.specs.errors import GIB, InputError, option
from autoconfig.specs.layouts import spread
from autoconfig.specs.serve_plan import ServePlan, parse_serve_plan
from autoconfig.specs.software.engine import supports
from autoconfig.time_model.serving.steady import Pricer

PARETO_POINTS = 12


@dataclass(frozen=True, kw_only=True)
class ServeAnswer:
    """What a search found."""

    question: ServeQuestion
    deployments: Deployments
    reports: tuple[DeploymentReport, ...]
    """Best first, one per layout."""
    pareto: tuple[DeploymentReport, ...]
    included: tuple[tuple[str, DeploymentReport | None, str], ...]
    """(asked, its report, why not)."""
    why: tuple[str, ...]
    """Of the first report."""
    sensitivity: tuple[str, ...]
    nearest: DeploymentReport | None
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


def _why(
    question: ServeQuestion,
    found: Deployments,
    rows: Sequence[int],
    best: DeploymentReport,
    tried: Sequence[DeploymentReport],
    sustained: float | None,
) -> tuple[str, ...]:
    """Why the recommended one is, and what it carries under a load of its own."""
    refuted = [one for one in tried if not kept(question, one)]
    row = next(row for row in rows if found.plan(row) == best.plan)
    lines = why(question, found, row, len(tried), len(refuted))
    ahead = min(refuted, key=lambda one: figure(question, one), default=best)
    if ahead is not best and figure(question, ahead) <= figure(question, best):
        lines.append(refuted_text(question, ahead))
    if sustained is not None:
        lines.insert(1, sustained_text(best.requests_per_s, best.tokens_per_s_per_gpu, sustained))
    return tuple(lines)


SHARES = (SPARE, 0.8, 0.7, 0.6, 0.5)
"""Shares of a full queue's throughput that are tried as a rate, most first."""


def answer(request: ServeRequest, progress: Progress | None = None) -> ServeAnswer:
    """Search, report the best ones, simulate the finalists. A limit that nobody asked for goes where none is within it."""
    request = busiest(request)
    asked = understand(request)
    for question in (*readable(asked), asked):
        found, reports, lines, tried = finalists(question, request, progress)
        if reports and (not request.simulate or any(kept(question, one) for one in reports)):
            break
    else:
        reports = []
    known = {str(one.plan): one for one in tried}
    rows = one_per_layout(found, request.top) if reports else []
    nearest, infeasible = (None, "")
    if not reports:
        nearest, infeasible = _nearest_simulated(question, tried) if tried else _nearest(question, found, request)
    sustained = _sustained(question, request, reports[0]) if reports and request.simulate and not question.rate else None
    alternative, said = beside(question, request, found, reports[0], progress) if reports else (None, "")
    return ServeAnswer(
        question=question,
        deployments=found,
        reports=tuple(
            near_capacity(question, benchmarked(question, one)) if i == 0 else benchmarked(question, one)
            for i, one in enumerate(reports)
        ),
        pareto=tuple(_judged(report(question, found, row), known) for row in spread(found.pareto(), PARETO_POINTS)),
        simulated=tuple(known.values()),
        included=tuple(_included(question, found, text) for text in request.include),
        why=_why(question, found, rows, reports[0], tuple(known.values()), sustained) if reports else (),
        sensitivity=(*lines, *sensitivity(question, found, rows)),
        nearest=nearest,
        infeasible=infeasible,
        sustained=sustained,
        alternative=alternative,
        alternative_text=said,
        drafts=drafts(question, request, reports[0]) if reports else None,
        hours=hours(question, reports[0]) if reports else (),
    )


def _judged(one: DeploymentReport, known: Mapping[str, DeploymentReport]) -> DeploymentReport:
    """With its simulation, where there was one."""
    same = known.get(str(one.plan))
    return replace(one, latency=same.latency) if same else one


def _sustained(question: ServeQuestion, request: ServeRequest, best: DeploymentReport) -> float | None:
    """The largest of SHARES of the best deployment's throughput for which the search under this rate has an answer, in three
    digits."""
    for share in SHARES:
        rate = rounded_down(share * best.requests_per_s)
        loaded = replace(question, rate=rate)
        if any(kept(loaded, one) for one in of_loads(loaded, replace(request, rate=rate, top=1, simulate=1), None)[1]):
            return rate
    return None


def rounded_down(value: float) -> float:
    """Three digits, never more than the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit + 1e-9) * unit:.6g}")


def _nearest(question: ServeQuestion, found: Deployments, request: ServeRequest) -> tuple[DeploymentReport | None, str]:
    row = nearest_row(question.in_means(), found)
    if row is None:
        return None, no_deployment(question, found)
    carrying = None if found.carries else _gpus_that_carry(question, request, float(found.columns["requests_per_s"][row]))
    return report(question, found, row), shortfall(question, found, row, carrying)


SIZES = 6
"""Numbers of GPUs that are asked whether they carry a load."""


def _gpus_that_carry(question: ServeQuestion, request: ServeRequest, most: float) -> int | None:
    """The fewest GPUs that carry the load in closed form, as the same question with so many answers: searched among at first
    as many as `most` requests per second of these GPUs suggest. None where none of SIZES does."""
    gpus = max(math.ceil(question.num_gpus * question.rate / most * 1.25), question.num_gpus + 1)
    for _ in range(SIZES):
        gpus = min(gpus, MAX_SERVING_GPUS)
        found = search(understand(replace(request, gpus=gpus)).in_means())
        if found.carries:
            rows = found.order if len(found.order) else slice(None)
            return int(found.columns["gpus"][rows].min())
        if gpus == MAX_SERVING_GPUS:
            break
        gpus *= 2
    return None


def _nearest_simulated(question: ServeQuestion, reports: Sequence[DeploymentReport]) -> tuple[DeploymentReport, str]:
    tried = [(max(over_limits(question, one.latency).values()), one, one.latency) for one in reports if one.latency is not None]
    over, one, latency = min(tried, key=lambda each: each[0])
    return one, (
        f"limits are met by none of {len({str(one.plan) for one in reports})} deployments that were tried, the fastest of each "
        f"tp among them: in the simulation the nearest deployment misses by {over_text(over)} "
        f"({exceeded((name, seconds, limit) for _, name, seconds, limit in simulated_figures(question, latency))}), with "
        f"{latency.goodput_ratio:.0%} of the requests within them; try more --gpus, "
        f"{'a lower --rate or ' * bool(question.rate)}wider limits"
    )


def _included(question: ServeQuestion, found: Deployments, text: str) -> tuple[str, DeploymentReport | None, str]:
    try:
        plan = parse_serve_plan(text)
    except InputError as error:
        raise InputError(f"{option('include')} {text}: {error.message}") from error
    if plan.prefill is not None:
        return text, *_included_disaggregated(question, plan)
    own = plan.decode
    own = own.replace(replicas=max(question.num_gpus // own.size, 1)) if own.replicas == 1 else own
    if own.gpus > question.num_gpus:
        return text, None, f"takes {own.gpus} GPUs, there are {question.num_gpus}"
    if question.model.num_attention_heads % own.tp:
        return text, None, f"tp={own.tp} does not divide the {question.model.num_attention_heads} attention heads"
    if question.checkpoint is not None and own.weights != question.checkpoint.main.form:
        return text, None, f"the checkpoint is quantised: weights={question.checkpoint.main.form}"
    if question.checkpoint is None and not supports(question.gpu, own.weights):
        return text, None, f"{question.gpu.id} does not multiply in weights={own.weights}"
    if why := refused(question.model, question.engine, own, question.gpus_per_node, question.checkpoint):
        return text, None, why
    memory = decode_memory(question, own)
    held = int(memory.max_concurrency) * own.adp
    if held < own.batch:
        return text, None, f"memory holds {held} sequences of {question.workload.held_tokens:g} tokens, batch is {own.batch}"
    if memory.kv_pool_bytes < question.longest_bytes(own, memory):
        return text, None, f"memory does not hold the longest request, {question.workload.longest_tokens:,.0f} tokens"
    constraints = {key: frozenset({getattr(own, key)}) for key in ("tp", "pp", "ep", "adp", "weights", "kv", "batch", "tokens")}
    narrow = replace(question, constraints=constraints, num_gpus=own.gpus, disaggregated=False, ttft_s=None, tpot_s=None)
    tried = (search(replace(narrow, rate=rate)) for rate in dict.fromkeys((question.rate, 0.0)))
    alone = next((each for each in tried if len(each.order)), None)  # of a rate that it does not carry, with a full queue
    if alone is None:
        return text, None, "no engine runs this combination (see docs/inference.md, the space)"
    one = report(narrow, alone, int(alone.order[0]))
    return text, at_rate(question, benchmarked(narrow, one)), ""


def _included_disaggregated(question: ServeQuestion, plan: ServePlan) -> tuple[DeploymentReport | None, str]:
    """The same of separate prefill and decode instances, at the throughput that the fewer of both carry."""
    first = plan.prefill
    assert first is not None
    if question.lengths.steps <= 0:
        return None, "answers of one token need no decode instances"
    if plan.gpus > question.num_gpus:
        return None, f"takes {plan.gpus} GPUs, there are {question.num_gpus}"
    if first.kv != plan.decode.kv:
        return None, f"prefill instances have kv={first.kv}, decode instances kv={plan.decode.kv}: no engine converts a cache"
    for own in (first, plan.decode):
        constraints: dict[str, frozenset[object]] = {
            key: frozenset({getattr(own, key)}) for key in ("tp", "pp", "ep", "adp", "weights", "kv")
        }
        legal = question.layouts(constraints, own.size)
        why = refused(question.model, question.engine, own, question.gpus_per_node, question.checkpoint)
        if why or next(legal, None) is None:
            return None, why or f"{own}: no engine runs this combination (see docs/inference.md, the space)"
    lacks = disaggregated.prefill_lacks_bytes(question, first)
    if lacks > 0:
        return None, f"a prefill GPU lacks {lacks / GIB:.1f} GiB for the longest prompt, {question.longest_prompt:,.0f} tokens"
    question = replace(question, num_gpus=plan.gpus, rate=0.0)
    columns = disaggregated.asked(question, Pricer(lengths=question.lengths), plan)
    if columns is None:
        return None, f"memory of a decode GPU does not hold batch {plan.decode.batch}"
    alone = single(question, (plan.decode, first), columns)
    return report(alone.question, alone, 0), ""
