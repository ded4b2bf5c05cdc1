"""The application layer of serving: one function per question, called by the command line and by programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autoconfig.serving.engine_limits import limit as engine_limit
from autoconfig.serving.question import ServeQuestion, ServeRequest, understand
from autoconfig.serving.search import Deployments, search
from memory_model.serving import ServingMemory, weight_parts_bytes
from specs.errors import PlanError
from specs.serve_plan import EnginePlan, ServePlan, parse_serve_plan
from time_model.serving_costs import iteration_parts
from time_model.serving_simulation import IterationTable, Limits, Requests, Served, poisson_arrivals, sampled_lengths, simulate
from time_model.serving_steady import prompts_per_iteration

if TYPE_CHECKING:
    from autoconfig.question import Progress

SEED = 20
SIMULATED = 400
"""Requests of a finalist's simulation per attention rank at most, and at least four generations of its batch."""
RELAXED = 1.25
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """A simulated finalist: seconds, mean and percentiles."""

    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    e2e_s: dict[str, float]
    tokens_per_s_per_gpu: float
    goodput_ratio: float
    """Share of requests that meet both limits."""


@dataclass(frozen=True, kw_only=True)
class DeploymentReport:
    """One deployment in full. Throughput per GPU of the deployment, speed per user, latency means of the closed form."""

    plan: ServePlan
    requests_per_s: float
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    ttft_s: float
    tpot_s: float
    gpus: int
    concurrency: int
    memory: ServingMemory
    weight_parts: dict[str, float]
    max_concurrency: int
    """Whole sequences that memory holds in all decode instances."""
    step_parts: dict[str, float]
    """Seconds of a decode iteration by part."""
    mixed_parts: dict[str, float]
    """The same with the prompts that an iteration carries (of a prefill instance: one prompt alone)."""
    latency: Latency | None = None
    cost_per_million_tokens: float | None = None


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
    sensitivity: tuple[str, ...]
    nearest: DeploymentReport | None
    """Where no deployment meets the limits: the one that misses by least."""
    miss: str = ""


def answer(request: ServeRequest, progress: Progress | None = None) -> ServeAnswer:
    """Search, report the best ones, simulate the finalists."""
    question = understand(request)
    found = search(question, progress)
    rows = _one_per_layout(found, request.top)
    reports = [report(question, found, row) for row in rows]
    for i in range(min(request.simulate, len(reports))):
        if progress is not None:
            progress(f"simulating {reports[i].plan}")
        reports[i] = replace(reports[i], latency=simulated(question, reports[i]))
    nearest, miss = _nearest(question, found) if not rows else (None, "")
    return ServeAnswer(
        question=question,
        deployments=found,
        reports=tuple(reports),
        pareto=tuple(report(question, found, row) for row in _thinned(found.pareto(), 12)),
        included=tuple(_included(question, found, text) for text in request.include),
        sensitivity=tuple(_sensitivity(question, found, rows)),
        nearest=nearest,
        miss=miss,
    )


def report(question: ServeQuestion, found: Deployments, row: int) -> DeploymentReport:
    """A row of the columns in full."""
    plan, c = found.plan(row), {name: float(values[row]) for name, values in found.columns.items()}
    decode = plan.decode
    per_gpu = c["requests_per_s"] * question.lengths.osl / c["gpus"]
    job = question.job(decode)
    lengths = question.lengths
    memory = _memory(question, decode)
    running = decode.batch / (decode.adp * decode.pp)
    checked = running * (1.0 + lengths.drafted)
    parts = iteration_parts(job, checked, lengths.average, 0.0, 1.0)
    if plan.prefill is None:
        prompts = float(prompts_per_iteration(lengths, running, plan.decode.tokens, question.chunked))
        mixed = iteration_parts(job, checked, lengths.average, prompts, lengths.prompt)
    else:
        mixed = iteration_parts(question.job(plan.prefill), 0.0, 1.0, 1.0, lengths.prompt)
    cost = question.price / 3600.0 / per_gpu * 1e6 if question.price else None
    return DeploymentReport(
        plan=plan,
        requests_per_s=c["requests_per_s"],
        tokens_per_s_per_gpu=per_gpu,
        tokens_per_s_per_user=1.0 / max(c["tpot_s"], 1e-9),
        ttft_s=c["ttft_s"],
        tpot_s=c["tpot_s"],
        gpus=int(c["gpus"]),
        concurrency=decode.batch * decode.replicas,
        memory=memory,
        weight_parts=weight_parts_bytes(question.model, decode, job.formats),
        max_concurrency=int(memory.max_concurrency) * decode.adp * decode.replicas,
        step_parts={name: float(s) for name, s in parts.items()},
        mixed_parts={name: float(s) for name, s in mixed.items()},
        cost_per_million_tokens=cost,
    )


def _memory(question: ServeQuestion, plan: EnginePlan) -> ServingMemory:
    return question.memory(question.job(plan), float(plan.batch), float(plan.tokens))


def simulated(question: ServeQuestion, one: DeploymentReport) -> Latency:
    """The finalist's latency under its load: Poisson arrivals at --rate, else as many users as its batch, each asking again at
    once.

    One attention rank and micro-batch of one decode instance; with separate prefill its time to first token is the closed
    form's.
    """
    decode, lengths = one.plan.decode, question.lengths
    ranks = decode.adp * decode.pp
    running = max(decode.batch // ranks, 1)
    rng = np.random.default_rng(SEED)
    count = max(min(SIMULATED, 8 * running), 4 * running)
    rate = question.rate / (ranks * decode.replicas)
    arrivals = poisson_arrivals(rate, count, rng) if question.rate else np.zeros(count)
    whole = sampled_lengths(lengths.isl, question.length_cv, 10 * lengths.isl, count, rng)
    isl = np.maximum(np.round(whole * (1.0 - lengths.cached)), 1.0) if one.plan.prefill is None else np.ones(count)
    osl = sampled_lengths(lengths.osl, question.length_cv, 10 * lengths.osl, count, rng)
    memory = one.memory
    held = float(memory.kv_pool_bytes / memory.kv_bytes_per_sequence) * (lengths.isl + lengths.osl) / decode.pp
    limits = Limits(
        batch=running,
        tokens=decode.tokens,
        kv_tokens=held,
        chunked=question.chunked,
        steps_per_token=1.0 / lengths.tokens_per_step,
    )
    table = IterationTable(question.job(decode))
    users = None if question.rate else running
    served = simulate(
        table,
        Requests(arrival_s=arrivals, isl=isl, osl=osl, cached=whole - isl),
        limits,
        question.job(decode).constants.request_s,
        users=users,
    )
    return _latency(question, one, served, osl, ranks)


def _latency(question: ServeQuestion, one: DeploymentReport, served: Served, osl: np.ndarray, ranks: int) -> Latency:
    count = len(osl)
    kept = np.isfinite(served.e2e_s) & (np.arange(count) >= count // 4)
    ttft = np.full(count, one.ttft_s) if one.plan.prefill is not None else served.ttft_s
    tpot = np.nan_to_num(served.tpot_s)
    e2e = served.e2e_s + (one.ttft_s if one.plan.prefill is not None else 0.0)
    good = (ttft <= (question.ttft_s or np.inf)) & (tpot <= (question.tpot_s or np.inf))
    speed = served.requests_per_s * ranks * one.plan.decode.replicas * float(osl.mean()) / one.gpus
    if one.plan.prefill is not None:
        speed = min(speed, one.tokens_per_s_per_gpu)
    return Latency(
        ttft_s=_summary(ttft[kept]),
        tpot_s=_summary(tpot[kept]),
        e2e_s=_summary(e2e[kept]),
        tokens_per_s_per_gpu=speed,
        goodput_ratio=float(good[kept].mean()),
    )


def _summary(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), **{f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}}


def _one_per_layout(found: Deployments, most: int) -> list[int]:
    """The first row of each layout in rank order."""
    seen: set[tuple[float, float]] = set()
    rows = []
    for row in found.order:
        key = (float(found.columns["layout"][row]), float(found.columns["prefill"][row]))
        if key not in seen:
            seen.add(key)
            rows.append(int(row))
            if len(rows) == most:
                break
    return rows


def _thinned(rows: Sequence[int], most: int) -> list[int]:
    if len(rows) <= most:
        return list(rows)
    return [rows[int(i)] for i in np.unique(np.linspace(0, len(rows) - 1, most).round())]


def _included(question: ServeQuestion, found: Deployments, text: str) -> tuple[str, DeploymentReport | None, str]:
    """A plan that was asked for: its report, or why it is not among the deployments."""
    plan = parse_serve_plan(text)
    if plan.prefill is not None:
        raise PlanError(f"--include {text}: name one kind of instance; prefill(...)+decode(...) is searched only")
    own = plan.decode
    own = own.replace(replicas=max(question.num_gpus // (own.tp * own.pp * own.adp), 1)) if own.replicas == 1 else own
    if own.gpus > question.num_gpus:
        return text, None, f"takes {own.gpus} GPUs, there are {question.num_gpus}"
    if question.model.num_attention_heads % own.tp:
        return text, None, f"tp={own.tp} does not divide the {question.model.num_attention_heads} attention heads"
    why = engine_limit(question.engine, own)
    if why:
        return text, None, why
    memory = _memory(question, own)
    held = int(memory.max_concurrency) * own.adp
    if held < own.batch:
        return (
            text,
            None,
            f"memory holds {held} sequences of {question.lengths.isl + question.lengths.osl:g} tokens, batch is {own.batch}",
        )
    wish = {key: frozenset({getattr(own, key)}) for key in ("tp", "pp", "ep", "adp", "weights", "kv", "batch", "tokens")}
    narrow = replace(question, wish=wish, num_gpus=own.gpus, disaggregated=False, ttft_s=None, tpot_s=None)
    alone = search(narrow)
    if not len(alone.order):
        return text, None, "no engine runs this combination (see docs/inference.md, the space)"
    return text, report(narrow, alone, int(alone.order[0])), ""


def _sensitivity(question: ServeQuestion, found: Deployments, rows: Sequence[int]) -> list[str]:
    """What a limit a quarter wider buys."""
    if not rows:
        return []
    best = float(found.tokens_per_s_per_gpu[rows[0]])
    lines = []
    for name, limit, wider in (
        ("TTFT", question.ttft_s, question.limited(ttft=RELAXED)),
        ("TPOT", question.tpot_s, question.limited(tpot=RELAXED)),
    ):
        if limit:
            c = found.columns
            ok = (c["ttft_s"] <= (wider.ttft_s or np.inf)) & (c["tpot_s"] <= (wider.tpot_s or np.inf))
            gain = float(found.tokens_per_s_per_gpu[ok].max()) / best - 1.0
            lines.append(f"{name} {limit * 1e3:g} -> {limit * RELAXED * 1e3:g} ms gives {gain:+.0%} tokens/s/GPU")
    return lines


def _nearest(question: ServeQuestion, found: Deployments) -> tuple[DeploymentReport | None, str]:
    """The deployment that misses the limits by least, and by how much."""
    c = found.columns
    if not len(c["layout"]):
        plan = found.too_large
        if plan is None:
            return None, "no legal layout on these GPUs"
        memory = _memory(question, plan.replace(batch=plan.adp * plan.pp, tokens=512))
        short = float(memory.kv_bytes_per_sequence - memory.kv_pool_bytes) / 2**30
        if short > 0:
            return None, f"nothing fits; nearest: {plan}, which lacks {short:.1f} GiB a GPU for one sequence"
        return None, f"no deployment carries the load or matches --fix; memory would allow {plan}"
    over = np.maximum(c["ttft_s"] / (question.ttft_s or np.inf), c["tpot_s"] / (question.tpot_s or np.inf))
    row = int(np.argmin(over))
    return report(question, found, row), f"limits cannot be met; the nearest deployment misses by {over[row] - 1.0:.0%}"
