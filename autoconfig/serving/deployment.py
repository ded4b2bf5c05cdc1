"""One deployment in full: what it carries and its memory holds; as a finalist also its latencies under load, event by event."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.serving import ServingMemory, weight_parts_bytes
from autoconfig.serving.closed_loop import REQUESTS_A_USER, Benchmark, EdgeRange, LiveServer
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.rank import Deployments
from autoconfig.specs.json_record import Positive, Share
from autoconfig.specs.serve_plan import EnginePlan, ServePlan
from autoconfig.time_model.serving.iteration import IterationTable, iteration_parts
from autoconfig.time_model.serving.simulation import (
    Requests,
    SimulatedStream,
    poisson_arrivals,
    sampled_answers,
    sampled_lengths,
    simulate,
)
from autoconfig.time_model.serving.steady import prompts_per_iteration
from autoconfig.time_model.serving.workload import Trace


@dataclass(frozen=True, kw_only=True)
class SummaryJson:
    """Mean and percentiles: seconds, or tokens of a trace's requests."""

    mean: float
    """Of all requests."""
    p50: float
    """Half are at most this."""
    p90: float
    """Nine in ten are at most this."""
    p95: float
    """95 in a hundred are at most this."""
    p99: float
    """99 in a hundred are at most this."""


@dataclass(frozen=True, kw_only=True)
class SimulatedJson:
    """Event-level simulation."""

    requests: Positive
    """Whose latency was counted."""
    ttft_seconds: SummaryJson
    tpot_seconds: SummaryJson
    itl_seconds: SummaryJson
    e2e_seconds: SummaryJson
    tokens_per_second_per_gpu: float
    """Output tokens."""
    goodput_ratio: Share
    """Share of requests within both limits."""
    ttft_range_seconds: tuple[float, float] | None = None
    """Least and most of the mean where the rate is 0.9 to 1.1 of the most that the first deployment takes; else null; so the
    next."""
    tpot_range_seconds: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class BenchmarkJson:
    """A benchmark of as many users as the deployment runs: what `predict --inference` says of its row."""

    users: Positive
    """At once, each asking again when it has its answer."""
    requests: Positive
    """Of the run, the burst at its start included."""
    range_ratio: Share
    """Least length over the longest."""
    ttft_seconds: float
    """Mean of all requests."""
    tpot_seconds: float
    """Mean of all requests."""
    tokens_per_second_per_gpu: float
    """Output tokens."""
    cache_load: float
    """Whole sequences of all users over what the KV cache holds: near 1 and beyond, requests wait for it."""
    ttft_range_seconds: tuple[float, float] | None = None
    """Least and most of the mean where cache_load is 0.9 to 1.1; null elsewhere; so for the next."""
    tpot_range_seconds: tuple[float, float] | None = None


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
    latency: SimulatedJson | None = None
    benchmark: BenchmarkJson | None = None
    cost_per_million_tokens: float | None = None
    joules_per_token: float | None = None
    """Of an output token, with the GPUs at their power limit; None where it is not known."""

    @property
    def kwh_per_million_tokens(self) -> float | None:
        """The same of a million of them."""
        return None if self.joules_per_token is None else self.joules_per_token / 3.6

    def figure(self, goal: str) -> float:
        """What the goal makes least."""
        figures = {"ttft": self.ttft_s, "tpot": self.tpot_s, "gpus": float(self.gpus)}
        return figures.get(goal, -self.tokens_per_s_per_gpu)

    @property
    def varies(self) -> bool:
        return self.longest_bytes > float(self.memory.kv_bytes_per_sequence)


def report(question: ServeQuestion, deployments: Deployments, row: int) -> DeploymentReport:
    """A row of the columns in full."""
    plan, c = deployments.plan(row), {name: float(getattr(deployments.columns, name)[row]) for name in MEASURED}
    decode = plan.decode
    per_gpu = c["requests_per_s"] * question.lengths.osl / c["gpus"]
    job = question.job(decode)
    lengths = question.lengths
    memory = question.decode_memory(decode)
    longest = question.longest_bytes(decode, memory)
    running = c["batch"] / (decode.adp * decode.pp)
    checked = 1.0 + lengths.drafted
    if plan.prefill is None:
        prompts = float(prompts_per_iteration(lengths, running, plan.decode.tokens, question.chunked))
        mixed = iteration_parts(job, running, lengths.average, prompts, lengths.prompt, checked)
    else:
        mixed = iteration_parts(question.job(plan.prefill), 0.0, 1.0, 1.0, lengths.prompt)
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
        step_parts=step_parts(question, decode, c["batch"]),
        mixed_parts={name: float(s) for name, s in mixed.items()},
        prefill_memory=question.prefill_memory(plan.prefill) if plan.prefill else None,
        cost_per_million_tokens=_cost(question, per_gpu),
        joules_per_token=None if (watts := question.gpu.power_watts) is None else watts / per_gpu,
    )


MEASURED = ("requests_per_s", "batch", "ttft_s", "tpot_s", "gpus")


def step_parts(question: ServeQuestion, plan: EnginePlan, users: float) -> dict[str, float]:
    """Seconds of a decode iteration by part, with so many users of an instance."""
    lengths, running = question.lengths, users / (plan.adp * plan.pp)
    parts = iteration_parts(question.job(plan), running, lengths.average, 0.0, 1.0, 1.0 + lengths.drafted)
    return {name: float(seconds) for name, seconds in parts.items()}


def _cost(question: ServeQuestion, per_gpu: float) -> float | None:
    """Money for a million output tokens, at so many a second of a GPU."""
    return question.price / 3600.0 / per_gpu * 1e6 if question.price else None


def benchmarked(question: ServeQuestion, one: DeploymentReport) -> DeploymentReport:
    """With the benchmark of its users, where a full queue of requests of one length was asked."""
    decode, lengths = one.plan.decode, question.lengths
    asked = question.workload
    if question.rate or one.plan.prefill is not None or isinstance(asked, Trace) or asked.isl_stddev or asked.osl_stddev:
        return one
    users, server = one.concurrency, server_of(question, one)
    if users == 1 and not lengths.cached and not lengths.drafted:
        first, each = server.alone(asked.isl, asked.osl)
        rate = asked.osl / (first + (asked.osl - 1.0) * each) / one.gpus
        alone = BenchmarkJson(
            users=1,
            requests=REQUESTS_A_USER,
            range_ratio=1.0,
            ttft_seconds=first,
            tpot_seconds=each,
            tokens_per_second_per_gpu=rate,
            cache_load=1.0 / max(one.max_concurrency, 1),
        )
        return replace(one, benchmark=alone)
    loop = Benchmark(users=users, requests=REQUESTS_A_USER * users, isl=asked.isl, osl=asked.osl)
    figures = replace(server, batch=-(-decode.batch // (decode.adp * decode.pp))).benchmark(loop)
    benchmark = BenchmarkJson(
        users=users,
        requests=loop.requests,
        range_ratio=loop.range_ratio,
        ttft_seconds=figures.ttft_s,
        tpot_seconds=figures.tpot_s,
        tokens_per_second_per_gpu=figures.tokens_per_s / one.gpus,
        cache_load=figures.load,
        ttft_range_seconds=figures.edge.ttft_s if figures.edge else None,
        tpot_range_seconds=figures.edge.tpot_s if figures.edge else None,
    )
    return replace(one, benchmark=benchmark)


Vector = npt.NDArray[np.float64]
SEED = 20
SIMULATED = 400
"""Requests of a finalist's simulation per attention rank at most, and at least four generations of its batch."""
BEYOND = 10
"""Requests beyond a percentile that has a limit: where so few are expected, their number has a standard deviation of 3."""
MAX_RECORDED = 20_000
"""Requests of a trace that are simulated per finalist: whole ranks while they stay within it, else the busiest of one rank."""
MAX_PREFILLED = 100_000
"""Requests of drawn ones that are prefilled per finalist, where that many ranks hold POOLED prefill ranks."""
POOLED = 4
SETTLING = 2.0
"""Generations of a full queue that are not counted: the first to come are answered faster than those that follow, and come
again beside the last ones."""
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The requests of one micro-batch of all attention ranks, in order; times are theirs, lengths as asked."""

    arrival_s: Vector
    isl: Vector
    osl: Vector
    begin_s: Vector
    """When each is with the engine: as it came, or when separate prefill instances have sent its cache and first token."""
    early_s: Vector | None = None
    """Times to first token where decoding has a closed loop of its own (a full queue before separate prefill)."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    ttft_s: Vector
    tpot_s: Vector
    """NaN for answers of one token."""
    e2e_s: Vector
    tokens: float
    seconds: float
    itl_s: Vector
    itl_tokens: Vector


def simulated(question: ServeQuestion, one: DeploymentReport, slowdown: float = 1.0) -> SimulatedJson:
    """The finalist's latency under its load: a trace at its times, Poisson arrivals at --rate, else as many users as its batch,
    each asking again at once. These users come in the course of one generation, as completions of a queue that is never empty
    are spread: where all came at once, prompts of one length would stay in step.

    Ranks and micro-batches of decode instances get requests in turn; of drawn requests one such rank is simulated, with more of
    them where percentiles have limits (needed), of a trace all of them (up to MAX_RECORDED). With separate prefill, its ranks
    take prompts first in first out; with a full queue prompts come to them at random, as many as the deployment serves, while
    decode instances run their whole batch. Of drawn requests the first quarter is not counted, nor what was asked before all
    users had come. Every iteration is `slowdown` times as long as priced.
    """
    server = server_of(question, one)
    streams = _streams(question, one, server)
    table = IterationTable(server.job, most_length=question.workload.longest_tokens).slowed(slowdown)
    table = table.of_prefilled() if one.plan.prefill is not None else table
    seen = [_run(question, one, server, table, stream) for stream in streams]
    return _latency(question, one, seen, server.lanes / len(seen))


def server_of(question: ServeQuestion, one: DeploymentReport) -> LiveServer:
    """The deployment under live load."""
    decode, work, lengths = one.plan.decode, question.workload, question.lengths
    running = max(decode.batch // (decode.adp * decode.pp), 1)
    return LiveServer(
        job=question.job(decode),
        memory=one.memory,
        lengths=None if isinstance(work, Trace) else work.data,
        held_tokens=work.held_tokens,
        batch=running,
        running=float(running),
        tokens=decode.tokens,
        chunked=question.chunked,
        cached=lengths.cached,
        steps_per_token=1.0 / lengths.tokens_per_step,
        drafted=lengths.drafted,
    )


def near_capacity(question: ServeQuestion, one: DeploymentReport) -> DeploymentReport:
    """With a range where Poisson arrivals are about the most that the deployment takes, of a tenth less and more of that."""
    latency = one.latency
    if latency is None or not question.rate or one.plan.prefill is not None or isinstance(question.workload, Trace):
        return one

    def means(share: float) -> tuple[float, float]:
        other = latency if share == 1.0 else simulated(question, one, 1.0 / share)
        return other.ttft_seconds.mean, other.tpot_seconds.mean

    return _ranged(one, EdgeRange.at(question.rate / server_of(question, one).most_requests_per_s(), means))


def _ranged(one: DeploymentReport, edge: EdgeRange | None) -> DeploymentReport:
    if edge is None or one.latency is None:
        return one
    return replace(one, latency=replace(one.latency, ttft_range_seconds=edge.ttft_s, tpot_range_seconds=edge.tpot_s))


def at_rate(question: ServeQuestion, one: DeploymentReport) -> DeploymentReport:
    """The deployment at the rate asked for: latencies, users and throughput of the run that `check` and `predict --inference`
    simulate (`LiveServer.at_rate`), which counts the whole run. As it is where no rate of drawn requests was asked of it."""
    decode = one.plan.decode
    if not question.rate or one.plan.prefill is not None or isinstance(question.workload, Trace):
        return one
    server, rate = server_of(question, one), question.rate
    found = server.at_rate(rate)
    asked = found.requests
    stream = Stream(arrival_s=asked.arrival_s, begin_s=asked.arrival_s, isl=asked.isl + asked.cached, osl=asked.osl)
    latency = _latency(question, one, [_seen(one, stream, found.served, 0.0, None)], server.lanes)
    users = min(max(round(rate * found.e2e_s), 1), decode.batch * decode.replicas)
    carried = replace(
        one,
        requests_per_s=found.requests_per_s,
        tokens_per_s_per_gpu=latency.tokens_per_second_per_gpu,
        tokens_per_s_per_user=1.0 / found.tpot_s if found.tpot_s else 0.0,
        ttft_s=found.ttft_s,
        tpot_s=found.tpot_s,
        concurrency=users,
        step_parts=step_parts(question, decode, users / decode.replicas),
        latency=latency,
        cost_per_million_tokens=_cost(question, latency.tokens_per_second_per_gpu),
    )
    return _ranged(carried, server.near_capacity(rate, server.most_requests_per_s(), found))


def _streams(question: ServeQuestion, one: DeploymentReport, server: LiveServer) -> list[Stream]:
    lanes, running = server.lanes, server.seats
    work, disaggregated, together = question.workload, one.plan.prefill is not None, lanes
    rng = np.random.default_rng(SEED)
    if isinstance(work, Trace):
        arrival, isl, osl = work.arrival_s, work.input_tokens, work.output_tokens
        share = max(len(arrival) // lanes, 1)
        chosen = max(min(MAX_RECORDED // share, lanes, len(arrival)), 1)
        most = MAX_RECORDED
    else:
        count = max(min(SIMULATED, 8 * running), 4 * running)
        if question.tails:
            count = max(count, math.ceil(needed(question) / 0.75) + (0 if question.rate else 4 * running))
        together = _together(one, lanes, MAX_PREFILLED // count) if disaggregated else 1
        most, chosen, count = count, 1, count * together
        rate = (question.rate or (one.requests_per_s if disaggregated else 0.0)) * together / lanes
        arrival = poisson_arrivals(rate, count, rng) if rate else _spread(count, running, one.requests_per_s / lanes, rng)
        isl = sampled_lengths(work.isl, work.data.input_cv, work.longest_input, count, rng)
        stepping = 1 if disaggregated else one.plan.decode.adp
        osl = sampled_answers(work.osl, work.data.output_cv, work.data.most_output, count, rng, stepping)
    ready = _prefilled(question, one, arrival, isl, together / lanes) if disaggregated else arrival
    turn = [np.argsort(ready, kind="stable")[i::together] for i in range(chosen)]
    if disaggregated and not question.rate:
        begin = _spread(count, running, one.requests_per_s / lanes, rng)
        begun, (t,) = begin[:most], [one[:most] for one in turn]
        return [Stream(arrival_s=begun, begin_s=begun, isl=isl[t], osl=osl[t], early_s=(ready - arrival)[t])]
    return [_stretch(Stream(arrival_s=arrival[t], begin_s=ready[t], isl=isl[t], osl=osl[t]), most) for t in turn]


def _stretch(stream: Stream, most: int) -> Stream:
    """The `most` requests in a row with most tokens a second, from 0 s on."""
    if len(stream.osl) <= most:
        return stream
    work = np.concatenate([[0.0], np.cumsum(stream.isl + stream.osl)])
    spans = stream.arrival_s[most - 1 :] - stream.arrival_s[: len(stream.osl) - most + 1]
    start = int(np.argmax((work[most:] - work[:-most]) / np.maximum(spans, 1e-9)))
    part, begin = slice(start, start + most), stream.arrival_s[start]
    arrival, ready = stream.arrival_s[part] - begin, stream.begin_s[part] - begin
    return Stream(arrival_s=arrival, begin_s=ready, isl=stream.isl[part], osl=stream.osl[part])


def _together(one: DeploymentReport, ranks: int, most: int) -> int:
    """Of the `ranks` of decode instances those whose requests are simulated with their share of the prefill ranks, which see
    the requests of all: at most `most`, and so many that POOLED prefill ranks are among them, as fewer wait longer; of these
    the number whose share is nearest to whole ranks."""
    prefill = _prefill_ranks(one)
    most = max(most, math.ceil(min(POOLED, prefill) * ranks / prefill))
    if ranks <= most:
        return ranks
    shares = {some: prefill * some / ranks for some in range(most, most // 2, -1) if prefill * some / ranks >= 1.0}
    return min(shares, key=lambda some: abs(round(shares[some]) / shares[some] - 1.0))


def _prefill_ranks(one: DeploymentReport) -> int:
    plan = one.plan.prefill
    assert plan is not None
    return plan.adp * plan.pp * plan.replicas


def needed(question: ServeQuestion) -> int:
    """Requests that are counted so that BEYOND of them are beyond every percentile that has a limit; 0 without any."""
    return max((BEYOND * 100 // (100 - int(name.rpartition("p")[2])) for name in question.tails), default=0)


def _spread(count: int, users: int, rate: float, rng: np.random.Generator) -> Vector:
    """When the first requests of `users` come, at random in a generation of them at `rate`; later ones follow an answer."""
    return np.concatenate([np.sort(rng.uniform(0.0, users / rate, users)), np.full(max(count - users, 0), np.inf)])[:count]


def _prefilled(question: ServeQuestion, one: DeploymentReport, arrival: Vector, isl: Vector, share: float) -> Vector:
    """When the first token and the cache of each request are with a decode instance: one prompt at a time on every rank of the
    prefill instances, or on this share of them, first in first out, then the transfer."""
    plan = one.plan.prefill
    assert plan is not None
    job = question.job(plan)
    table = IterationTable(job, most_length=question.workload.longest_tokens)
    sent = question.transfer_seconds(plan, one.gpus) * isl / question.lengths.isl
    free = [0.0] * max(round(_prefill_ranks(one) * share), 1)
    slower = len(free) / (_prefill_ranks(one) * share)  # as busy as all are, where the share is no whole number of ranks
    lengths, which = np.unique(isl, return_inverse=True)
    hit = question.lengths.cached
    own = [
        table.seconds(0.0, 1.0, 1.0, max(tokens * (1.0 - hit), 1.0), tokens, whole=1.0 - hit**2) for tokens in lengths.tolist()
    ]
    service = (slower * (np.array(own) + job.constants.request_s))[which]
    ready = np.empty_like(arrival)
    for i, (time, seconds) in enumerate(zip(arrival.tolist(), service.tolist(), strict=True)):
        done = max(time, heapq.heappop(free)) + seconds
        heapq.heappush(free, done)
        ready[i] = done
    return ready + sent


def _run(question: ServeQuestion, one: DeploymentReport, server: LiveServer, table: IterationTable, stream: Stream) -> _Seen:
    disaggregated, constants = one.plan.prefill is not None, server.job.constants
    prompt = (
        np.ones_like(stream.isl) if disaggregated else np.maximum(np.round(stream.isl * (1.0 - question.lengths.cached)), 1.0)
    )
    # A request that was prefilled elsewhere brings its first token: its first decode iteration gives the second.
    left = np.maximum(stream.osl - 1.0, 1.0) if disaggregated else stream.osl
    users = None if question.rate else server.seats
    served = simulate(
        table,
        Requests(arrival_s=stream.begin_s, isl=prompt, osl=left, cached=stream.isl - prompt),
        server.limits(server.held_tokens),
        0.0 if disaggregated else constants.request_s,
        users=users,
        token_s=0.0 if disaggregated else constants.request_token_s,
    )
    return _seen(one, stream, served, 0.0 if isinstance(question.workload, Trace) else 0.25, users)


def _seen(one: DeploymentReport, stream: Stream, served: SimulatedStream, skipped: float, users: int | None) -> _Seen:
    count = len(stream.osl)
    first = int(count * skipped)
    if users is not None:
        first = int((served.arrival_s <= SETTLING * served.arrival_s[:users].max()).sum())
    kept = np.isfinite(served.e2e_s) & (np.arange(count) >= first)
    if users is not None:
        kept &= served.arrival_s + served.e2e_s <= served.arrival_s[-1]
    ttft, tpot, e2e = served.ttft_s, served.tpot_s, served.e2e_s
    if one.plan.prefill is not None:
        early = stream.begin_s - stream.arrival_s if stream.early_s is None else stream.early_s
        more = stream.osl > 1
        tpot = np.where(more, e2e / np.maximum(stream.osl - 1.0, 1.0), np.nan)
        ttft, e2e = early, early + np.where(more, e2e, 0.0)
    late = np.arange(len(served.step_s)) >= len(served.step_s) * first // count
    done, seconds = served.requests_per_s * served.duration_s, served.duration_s
    if users is not None:  # one asks where one has ended: from the first that is counted to the last, all users are there
        late = (served.step_end_s >= served.arrival_s[first]) & (served.step_end_s <= served.arrival_s[-1])
        done, seconds = count - 1.0 - first, float(served.arrival_s[-1] - served.arrival_s[first])
    return _Seen(
        ttft_s=ttft[kept],
        tpot_s=tpot[kept],
        e2e_s=e2e[kept],
        tokens=done * float(stream.osl.mean()),
        seconds=seconds,
        itl_s=served.step_s[late],
        itl_tokens=served.step_tokens[late],
    )


def _latency(question: ServeQuestion, one: DeploymentReport, seen: list[_Seen], share: float) -> SimulatedJson:
    """All streams together; `share`: ranks that each of them stands for."""
    ttft, tpot, e2e = (np.concatenate([getattr(s, name) for s in seen]) for name in ("ttft_s", "tpot_s", "e2e_s"))
    limits = question.in_means()
    good = (ttft <= (limits.ttft_s or np.inf)) & (np.nan_to_num(tpot) <= (limits.tpot_s or np.inf))
    speed = share * sum(s.tokens for s in seen) / max(max(s.seconds for s in seen), 1e-12) / one.gpus
    if one.plan.prefill is not None:
        speed = min(speed, one.tokens_per_s_per_gpu)
    between = np.concatenate([s.itl_s for s in seen]) / question.lengths.tokens_per_step
    return SimulatedJson(
        requests=len(ttft),
        ttft_seconds=summary(ttft),
        tpot_seconds=summary(tpot[np.isfinite(tpot)]),
        itl_seconds=_weighted(between, np.concatenate([s.itl_tokens for s in seen])),
        e2e_seconds=summary(e2e),
        tokens_per_second_per_gpu=float(speed),
        goodput_ratio=float(good.mean()),
    )


def summary(values: Vector) -> SummaryJson:
    """Mean and percentiles; zeros where no request has the figure (answers of one token have no TPOT)."""
    values = values if len(values) else np.zeros(1)
    return SummaryJson(mean=float(values.mean()), **{f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES})


def _weighted(values: Vector, weights: Vector) -> SummaryJson:
    if not len(values):
        return summary(values)
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    found = {f"p{p}": float(values[order][np.searchsorted(below, p / 100.0 * below[-1])]) for p in PERCENTILES}
    return SummaryJson(mean=float(np.average(values, weights=weights)), **found)
