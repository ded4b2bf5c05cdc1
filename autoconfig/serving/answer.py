"""The application layer of serving: one function per question, called by the command line and by programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autoconfig.memory_model.serving import ServingMemory, weight_parts_bytes
from autoconfig.planning.answer import first_positions, spread
from autoconfig.serving import disaggregated
from autoconfig.serving.disaggregated import prefill_memory
from autoconfig.serving.engine_limits import limit as engine_limit
from autoconfig.serving.miss import missed, missed_limits, nearest_row, no_deployment, over_text
from autoconfig.serving.question import ServeQuestion, ServeRequest, understand
from autoconfig.serving.rank import Deployments, search, single
from autoconfig.serving.reasons import sensitivity, why
from autoconfig.serving.simulate import Latency, simulated
from autoconfig.serving.space import layouts
from autoconfig.specs.errors import InputError
from autoconfig.specs.serve_plan import EnginePlan, ServePlan, parse_serve_plan
from autoconfig.specs.software.serving_formats import supports
from autoconfig.specs.units import GIB
from autoconfig.time_model.serving.costs import iteration_parts
from autoconfig.time_model.serving.layout import Pricer
from autoconfig.time_model.serving.steady import prompts_per_iteration

if TYPE_CHECKING:
    from autoconfig.planning.progress import Progress

PARETO_POINTS = 12
HEADROOM_STEP, MOST_SIZES = 1.5, 6
"""Least factor between the loads that deployments are sized for, and how many such loads are tried up to all GPUs."""


@dataclass(frozen=True, kw_only=True)
class DeploymentReport:
    """One deployment in full. Throughput per GPU of the deployment, speed per user, latency means of the closed form."""

    plan: ServePlan
    requests_per_s: float
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    ttft_s: float
    tpot_s: float
    """0, as tokens/s/user, where answers are one token."""
    gpus: int
    concurrency: int
    memory: ServingMemory
    weight_parts: dict[str, float]
    max_concurrency: int
    """Sequences of average length that memory holds in all decode instances."""
    longest_bytes: float
    """Cache of the longest request on one GPU."""
    max_concurrency_longest: int
    """Sequences as long as the longest that memory holds in all decode instances."""
    step_parts: dict[str, float]
    """Seconds of a decode iteration by part."""
    mixed_parts: dict[str, float]
    """The same with the prompts that an iteration carries (of a prefill instance: one prompt alone)."""
    prefill_memory: ServingMemory | None = None
    """Of a GPU of a separate prefill instance; a sequence is there a mean prompt."""
    latency: Latency | None = None
    cost_per_million_tokens: float | None = None

    @property
    def varies(self) -> bool:
        """The longest request holds more than one of average length."""
        return self.longest_bytes > float(self.memory.kv_bytes_per_sequence)


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
    miss: str = ""


def answer(request: ServeRequest, progress: Progress | None = None) -> ServeAnswer:
    """Search, report the best ones, simulate the finalists."""
    question = understand(request)
    found, reports, lines = _finalists(question, request, progress)
    rows = _one_per_layout(found, request.top) if reports else []
    nearest, miss = (None, "") if reports else _nearest(question, found)
    if request.simulate and reports and question.rate and not any(_kept(question, one) for one in reports):
        nearest, miss = _nearest_simulated(question, reports)
        reports, rows = [], []
    return ServeAnswer(
        question=question,
        deployments=found,
        reports=tuple(reports),
        pareto=tuple(report(question, found, row) for row in spread(found.pareto(), PARETO_POINTS)),
        included=tuple(_included(question, found, text) for text in request.include),
        why=tuple(why(question, found, next(row for row in rows if found.plan(row) == reports[0].plan))) if reports else (),
        sensitivity=(*lines, *sensitivity(question, found, rows)),
        nearest=nearest,
        miss=miss,
    )


def _finalists(
    question: ServeQuestion, request: ServeRequest, progress: Progress | None
) -> tuple[Deployments, list[DeploymentReport], list[str]]:
    """(columns, reports with the first ones simulated, remarks). Under a load, where the simulated means of no finalist are
    within the limits, deployments are sized for more load until they are, or until the GPUs carry no more: bursts and long
    requests are in no closed form."""
    found, reports = _simulated_reports(question, request, progress)
    sized, step = question.sized_for, max(HEADROOM_STEP, (0.99 * found.most_load) ** (1.0 / MOST_SIZES))
    while question.rate and request.simulate and reports and not any(_kept(question, one) for one in reports):
        sized *= step
        more = _simulated_reports(replace(question, sized_for=sized), request, progress)
        if not more[1]:
            return found, reports, []
        found, reports = more
    if question.rate:
        reports.sort(key=lambda one: one.latency is not None and not _kept(question, one))
    if sized == question.sized_for:
        return found, reports, []
    return found, reports, [
        f"sized for {sized:.3g} times the mean load (users and latencies of the tables are at that load): "
        "sized for less, bursts break the limits in the simulation"
    ]  # fmt: skip


def _simulated_reports(
    question: ServeQuestion, request: ServeRequest, progress: Progress | None
) -> tuple[Deployments, list[DeploymentReport]]:
    """The search, and the best deployment of each layout, the first ones simulated."""
    found = search(question, progress)
    reports = [report(question, found, row) for row in _one_per_layout(found, request.top)]
    for i in range(min(request.simulate, len(reports))):
        if progress is not None:
            progress(f"simulating {reports[i].plan}")
        reports[i] = replace(reports[i], latency=simulated(question, reports[i]))
    return found, reports


def _kept(question: ServeQuestion, one: DeploymentReport) -> bool:
    """Whether the simulated means are within the limits."""
    return one.latency is not None and _over(question, one.latency) <= 1.0


def _over(question: ServeQuestion, found: Latency) -> float:
    """The larger of simulated mean over limit."""
    return max(found.ttft_s["mean"] / (question.ttft_s or np.inf), found.tpot_s["mean"] / (question.tpot_s or np.inf))


def _nearest(question: ServeQuestion, found: Deployments) -> tuple[DeploymentReport | None, str]:
    """Where no deployment is left: the one that misses by least, and by how much, or what stands in the way."""
    row = nearest_row(question, found)
    return (
        (None, no_deployment(question, found)) if row is None else (report(question, found, row), missed(question, found, row))
    )


def _nearest_simulated(question: ServeQuestion, reports: Sequence[DeploymentReport]) -> tuple[DeploymentReport, str]:
    """Where the closed form meets limits that bursts break."""
    tried = [(_over(question, one.latency), one, one.latency) for one in reports if one.latency is not None]
    over, one, latency = min(tried, key=lambda each: each[0])
    return one, (
        f"limits cannot be met: in the simulation the nearest deployment misses by {over_text(over)} "
        f"({missed_limits(question, latency.ttft_s['mean'], latency.tpot_s['mean'])}), with "
        f"{latency.goodput_ratio:.0%} of the requests within them; try more --gpus or wider limits"
    )


def report(question: ServeQuestion, found: Deployments, row: int) -> DeploymentReport:
    """A row of the columns in full."""
    plan, c = found.plan(row), {name: float(values[row]) for name, values in found.columns.items()}
    decode = plan.decode
    per_gpu = c["requests_per_s"] * question.lengths.osl / c["gpus"]
    job = question.job(decode)
    lengths = question.lengths
    memory = _memory(question, decode)
    longest = question.longest_bytes(decode, memory)
    running = c["batch"] / (decode.adp * decode.pp)
    checked = 1.0 + lengths.drafted
    parts = iteration_parts(job, running, lengths.average, 0.0, 1.0, checked)
    if plan.prefill is None:
        prompts = float(prompts_per_iteration(lengths, running, plan.decode.tokens, question.chunked))
        mixed = iteration_parts(job, running, lengths.average, prompts, lengths.prompt, checked)
    else:
        mixed = iteration_parts(question.job(plan.prefill), 0.0, 1.0, 1.0, lengths.prompt)
    cost = question.price / 3600.0 / per_gpu * 1e6 if question.price else None
    return DeploymentReport(
        plan=plan,
        requests_per_s=c["requests_per_s"],
        tokens_per_s_per_gpu=per_gpu,
        tokens_per_s_per_user=1.0 / c["tpot_s"] if c["tpot_s"] else 0.0,
        ttft_s=c["ttft_s"],
        tpot_s=c["tpot_s"],
        gpus=int(c["gpus"]),
        concurrency=int(c["batch"]) * decode.replicas,
        memory=memory,
        weight_parts=weight_parts_bytes(question.model, decode, job.formats),
        max_concurrency=int(memory.max_concurrency) * decode.adp * decode.replicas,
        longest_bytes=longest,
        max_concurrency_longest=int(max(float(memory.kv_pool_bytes), 0.0) // longest) * decode.adp * decode.replicas,
        step_parts={name: float(s) for name, s in parts.items()},
        mixed_parts={name: float(s) for name, s in mixed.items()},
        prefill_memory=prefill_memory(question, plan.prefill) if plan.prefill else None,
        cost_per_million_tokens=cost,
    )


def _memory(question: ServeQuestion, plan: EnginePlan) -> ServingMemory:
    return question.memory(question.job(plan), float(plan.batch), float(plan.tokens))


def _one_per_layout(found: Deployments, most: int) -> list[int]:
    """The first row of each layout in rank order."""
    decode, prefill = (found.columns[name][found.order].astype(np.int64) for name in ("layout", "prefill"))
    first = first_positions(decode * (len(found.layouts) + 1) + prefill + 1)
    return [int(row) for row in found.order[first[:most]]]


def _included(question: ServeQuestion, found: Deployments, text: str) -> tuple[str, DeploymentReport | None, str]:
    """A plan that was asked for: its report, or why it is not among the deployments."""
    try:
        plan = parse_serve_plan(text)
    except InputError as error:
        raise InputError(f"--include {text}: {error}") from error
    if plan.prefill is not None:
        return text, *_included_apart(question, plan)
    own = plan.decode
    own = own.replace(replicas=max(question.num_gpus // (own.tp * own.pp * own.adp), 1)) if own.replicas == 1 else own
    if own.gpus > question.num_gpus:
        return text, None, f"takes {own.gpus} GPUs, there are {question.num_gpus}"
    if question.model.num_attention_heads % own.tp:
        return text, None, f"tp={own.tp} does not divide the {question.model.num_attention_heads} attention heads"
    if not supports(question.gpu, own.weights):
        return text, None, f"{question.gpu.id} does not multiply in weights={own.weights}"
    why = engine_limit(question.engine, own)
    if why:
        return text, None, why
    memory = _memory(question, own)
    held = int(memory.max_concurrency) * own.adp
    if held < own.batch:
        return text, None, f"memory holds {held} sequences of {question.workload.held_tokens:g} tokens, batch is {own.batch}"
    if memory.kv_pool_bytes < question.longest_bytes(own, memory):
        return text, None, f"memory does not hold the longest request, {question.workload.longest_tokens:,.0f} tokens"
    wish = {key: frozenset({getattr(own, key)}) for key in ("tp", "pp", "ep", "adp", "weights", "kv", "batch", "tokens")}
    narrow = replace(question, wish=wish, num_gpus=own.gpus, disaggregated=False, ttft_s=None, tpot_s=None)
    alone = search(narrow)
    if not len(alone.order):
        return text, None, "no engine runs this combination (see docs/inference.md, the space)"
    return text, report(narrow, alone, int(alone.order[0])), ""


def _included_apart(question: ServeQuestion, plan: ServePlan) -> tuple[DeploymentReport | None, str]:
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
        size = own.tp * own.pp * own.adp
        wish: dict[str, frozenset[object]] = {
            key: frozenset({getattr(own, key)}) for key in ("tp", "pp", "ep", "adp", "weights", "kv")
        }
        legal = layouts(question.model, question.gpu, question.engine, size, question.gpus_per_node, wish)
        why = engine_limit(question.engine, own)
        if why or next(legal, None) is None:
            return None, why or f"{own}: no engine runs this combination (see docs/inference.md, the space)"
    lacks = disaggregated.prefill_lacks_bytes(question, first)
    if lacks > 0:
        return None, f"a prefill GPU lacks {lacks / GIB:.1f} GiB for the longest prompt, {question.longest_prompt:,.0f} tokens"
    columns = disaggregated.asked(question, Pricer(lengths=question.lengths), plan)
    if columns is None:
        return None, f"memory of a decode GPU does not hold batch {plan.decode.batch}"
    alone = single(replace(question, num_gpus=plan.gpus, rate=0.0), (plan.decode, first), columns)
    return report(alone.question, alone, 0), ""
