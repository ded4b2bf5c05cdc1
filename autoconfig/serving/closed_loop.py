"""The run of a benchmark or of live load on one deployment: closed loop of users, or arrivals at a rate, under the engine's own
scheduler; what `predict --inference`, `check` and `deployments` print of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.serving import ServingMemory
from autoconfig.time_model.serving.iteration import IterationTable, iteration_seconds
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.scheduler import scheduler_limits
from autoconfig.time_model.serving.simulation import (
    PromptBalance,
    Requests,
    SchedulerLimits,
    SimulatedStream,
    poisson_arrivals,
    sampled_answers,
    sampled_lengths,
    simulate,
    uniform_lengths,
)
from autoconfig.time_model.serving.tables import EngineConstants
from autoconfig.time_model.serving.workload import DataSet

Vector = npt.NDArray[np.float64]
SEED = 20
REQUESTS_A_USER, RANGE_RATIO = 10, 0.8
"""Of a benchmark that does not say: requests over users, and the least length over the longest (InferenceX's scripts,
--num-prompts and --random-range-ratio, in its releases of October 2025 to August 2026)."""
EDGE = (0.9, 1.1)
"""Load over capacity from which and up to which a tenth of the capacity decides whether requests wait: whole sequences over
those that the cache holds, or requests a second over the most that are served (measured 0.15 s of TTFT where 3 s were said, and
the reverse). The answer is then a range, of a capacity that much smaller and larger."""
MOST_REQUESTS = 6000
"""Of one instance and micro-batch; a benchmark of more has long been in its steady state."""
STEADY_SECONDS, MAX_REQUESTS = 600.0, 15_000
"""Length of a simulated run whose requests are not counted; requests per rank at most."""
FULL_BATCHES, SETTLED = 8, 2
"""Batches of a queue that is never empty, and those at either end that are not counted."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A closed loop: `users` at once, `requests` in all, lengths drawn evenly from `range_ratio` of the longest to the longest
    (input and output by themselves)."""

    users: int
    requests: int
    isl: float
    osl: float
    range_ratio: float = RANGE_RATIO


@dataclass(frozen=True, kw_only=True)
class EdgeRange:
    """Least and most of the means where the capacity is a tenth smaller or larger."""

    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]

    @classmethod
    def at(cls, load: float, means: Callable[[float], tuple[float, float]]) -> EdgeRange | None:
        """The range where the load is within EDGE; `means`: (TTFT, TPOT) at a share of the capacity. None elsewhere."""
        if not EDGE[0] <= load <= EDGE[1]:
            return None
        ttft, tpot = zip(*(means(share) for share in (EDGE[0], 1.0, EDGE[1])), strict=True)
        return cls(ttft_s=(min(ttft), max(ttft)), tpot_s=(min(tpot), max(tpot)))

    @property
    def text(self) -> str:
        """For a sentence."""
        parts = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
        return ", ".join(f"{name} {milliseconds(low)} to {milliseconds(high)}" for name, (low, high) in parts)


def milliseconds(value: float) -> str:
    """Three significant digits below a second, two decimals above."""
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:,.2f} s"


@dataclass(frozen=True, kw_only=True)
class LoopFigures:
    """What a benchmark prints: means over its requests, tokens of the whole run."""

    ttft_s: float
    tpot_s: float
    e2e_s: float
    tokens_per_s: float
    """Output tokens of the whole deployment."""
    load: float
    """Whole sequences that the users ask for at once, over those that the cache holds."""
    stream: SimulatedStream
    edge: EdgeRange | None = None
    """Where `load` is near 1."""


@dataclass(frozen=True, kw_only=True)
class OpenLoop:
    """Means of a simulated run."""

    ttft_s: float
    tpot_s: float
    """Mean over requests of the mean time between a request's tokens (MLPerf's TPOT)."""
    itl_s: float
    """Mean over all tokens (TensorRT-LLM's and vLLM's ITL)."""
    e2e_s: float
    requests_per_s: float
    served: SimulatedStream
    requests: Requests
    slowdown: float = 1.0
    """How much slower than priced the deployment is, where a published rate says so."""


@dataclass(frozen=True, kw_only=True)
class LiveServer:
    """A deployment, and the lengths of the requests that come by themselves; limits are of an attention rank and
    micro-batch."""

    job: ServingJob
    memory: ServingMemory
    lengths: DataSet | None
    """None: those of a trace."""
    held_tokens: float
    """Of the sequence whose cache `memory` counts."""
    batch: int
    running: float
    """Whole sequences that run at once."""
    tokens: int
    chunked: bool = True
    cached: float = 0.0
    """Share of a prompt that is in the cache."""
    steps_per_token: float = 1.0
    drafted: float = 0.0
    receive_every: int = 1
    balance: PromptBalance | None = None

    @property
    def lanes(self) -> int:
        """Who steps by itself: micro-batches in flight of all replicas, each of all attention ranks together."""
        return self.job.plan.pp * self.job.plan.replicas

    @property
    def seats(self) -> int:
        """Sequences of a lane."""
        return self.batch * self.job.plan.adp

    def at_rate(self, rate: float, count: float = 0.0, slowdown: float = 1.0) -> OpenLoop:
        """Poisson arrivals on one lane, which gets its share of `rate` requests/s and of `count` requests (0: STEADY_SECONDS of
        them); every iteration `slowdown` times as long as priced."""
        rng = np.random.default_rng(SEED)
        asked = count / self.lanes if count else min(STEADY_SECONDS * rate / self.lanes, MAX_REQUESTS)
        return self.simulated(poisson_arrivals(rate / self.lanes, max(round(asked), 1), rng), rng, slowdown)

    def at_once(self, count: int) -> OpenLoop:
        """So many requests of a rank, all there from the start."""
        return self.simulated(np.zeros(count * self.job.plan.adp), np.random.default_rng(SEED))

    def most_requests_per_s(self) -> float:
        """Requests a second of a queue that is never empty, between its first SETTLED batches and its last.

        The first batch comes at random in the course of one generation, as answers end: where all came at once, requests of one
        length would stay in step, prompts apart from answers, which no server under live load does.
        """
        running = max(min(round(self.running * self.job.plan.adp), MAX_REQUESTS // FULL_BATCHES), 1)
        together = self.simulated(np.zeros(running), np.random.default_rng(SEED)).served.duration_s
        rng, count = np.random.default_rng(SEED), FULL_BATCHES * running
        first = np.sort(rng.uniform(0.0, together, running))
        served = self.simulated(np.concatenate([first, np.full(count - running, together)]), rng).served
        ended = np.sort((served.arrival_s + served.e2e_s)[np.isfinite(served.e2e_s)])
        kept = ended[SETTLED * running : max(len(ended) - running, 0)]
        spent = float(kept[-1] - kept[0]) if len(kept) > 1 else 0.0
        return (len(kept) - 1) / spent * self.lanes if spent else served.requests_per_s * self.lanes

    def near_capacity(self, rate: float, most: float, found: OpenLoop, count: float = 0.0) -> EdgeRange | None:
        """The range of the means of `found` where the rate is about the most that is taken (`EdgeRange.at`)."""

        def means(share: float) -> tuple[float, float]:
            other = found if share == 1.0 else self.at_rate(rate, count, found.slowdown / share)
            return other.ttft_s, other.tpot_s

        return EdgeRange.at(rate / most, means)

    def benchmark(self, asked: Benchmark) -> LoopFigures:
        """A benchmark simulated; with a range where its users ask for about all of the KV cache."""
        figures = self.loop(asked)

        def means(share: float) -> tuple[float, float]:
            other = figures if share == 1.0 else self.loop(asked, share)
            return other.ttft_s, other.tpot_s

        return replace(figures, edge=EdgeRange.at(figures.load, means))

    def loop(self, asked: Benchmark, room: float = 1.0) -> LoopFigures:
        """A benchmark on one instance and one micro-batch of it, all attention ranks together, with its share of the users;
        `room`: share of the KV cache that is there. Users and requests of an instance are those of the busiest."""
        users = ceil(asked.users / self.lanes)
        count = max(min(round(asked.requests / self.lanes), max(MOST_REQUESTS, 2 * users)), users)
        rng = np.random.default_rng(SEED)
        isl, osl = (uniform_lengths(one, asked.range_ratio, count, rng) for one in (asked.isl, asked.osl))
        limits = self.limits(asked.isl + asked.osl, room)
        table = IterationTable(self.job, most_length=asked.isl + asked.osl)
        served = self._served(table, self._requests(np.zeros(count), isl, osl), limits, users)
        return LoopFigures(
            ttft_s=float(np.mean(served.ttft_s)),
            tpot_s=float(np.nanmean(served.tpot_s)) if np.isfinite(served.tpot_s).any() else 0.0,
            e2e_s=float(np.mean(served.e2e_s)),
            tokens_per_s=float(osl.sum()) / served.duration_s * self.lanes,
            load=users * (float(isl.mean()) + float(osl.mean())) / max(limits.kv_tokens / room, 1.0),
            stream=served,
        )

    def simulated(self, arrivals: Vector, rng: np.random.Generator, slowdown: float = 1.0) -> OpenLoop:
        """One lane that gets requests at these times."""
        data, count = self.lengths, len(arrivals)
        assert data is not None, "a trace has arrivals of its own"
        isl = sampled_lengths(data.isl, data.input_cv, data.most_input, count, rng)
        osl = sampled_answers(data.osl, data.output_cv, data.most_output, count, rng, self.job.plan.adp)
        requests = self._requests(arrivals, isl, osl)
        served = self._served(IterationTable(self.job).slowed(slowdown), requests, self.limits(self.held_tokens))
        ran = np.isfinite(served.e2e_s)
        later, tpot = np.maximum(osl - 1.0, 0.0)[ran], served.tpot_s[ran]
        return OpenLoop(
            ttft_s=float(np.mean(served.ttft_s[ran])),
            tpot_s=float(np.nanmean(tpot)) if np.isfinite(tpot).any() else 0.0,
            itl_s=float(np.nansum(tpot * later) / max(later.sum(), 1.0)),
            e2e_s=float(np.mean(served.e2e_s[ran])),
            requests_per_s=served.requests_per_s * self.lanes,
            served=served,
            requests=requests,
            slowdown=slowdown,
        )

    def _requests(self, arrivals: Vector, isl: Vector, osl: Vector) -> Requests:
        new = np.maximum(np.round(isl * (1.0 - self.cached)), 1.0) if self.cached else isl
        return Requests(arrival_s=arrivals, isl=new, osl=osl, cached=isl - new)

    def limits(self, held_tokens: float, room: float = 1.0) -> SchedulerLimits:
        """Of all attention ranks of a lane, where a whole sequence has `held_tokens`."""
        ranks = self.job.plan.adp
        sequences = float(self.memory.kv_pool_bytes / self.memory.kv_bytes_per_sequence) / self.job.plan.pp * ranks
        return scheduler_limits(
            self.job.engine,
            batch=self.seats,
            tokens=self.tokens,
            kv_tokens=room * sequences * held_tokens,
            chunked=self.chunked,
            steps_per_token=self.steps_per_token,
            checked=1.0 + self.drafted,
            receive_every=self.receive_every,
            ranks=ranks,
            balance=self.balance,
            synchronous=self.job.synchronous,
        )

    def _served(
        self, table: IterationTable, requests: Requests, limits: SchedulerLimits, users: int | None = None
    ) -> SimulatedStream:
        c = self.job.constants
        return simulate(table, requests, limits, c.request_s, users=users, token_s=c.request_token_s)

    def alone(self, isl: float, osl: float) -> tuple[float, float]:
        """(time to first token, time per output token) of a user alone, whose next request comes when one is answered."""
        first = float(iteration_seconds(self.job, 0.0, 1.0, 1.0, isl)) + self.job.constants.request_s
        return first, float(iteration_seconds(self.job, 1.0, isl + osl / 2.0, 0.0, 1.0))


def edge_text(load: float, edge: EdgeRange | None = None) -> str:
    """What a load of the cache near 1 or beyond does to the answer; empty below."""
    if load < EDGE[0]:
        return ""
    if edge is not None:
        return f"a range: users ask for {load:.2f} of the KV cache, which a tenth smaller or larger gives {edge.text}"
    return f"users ask for {load:.2f} times the KV cache: requests wait for it"


def rate_text(rate: float, most: float, edge: EdgeRange | None = None) -> str:
    """What a rate near or above the most that a server takes, both in requests/s, does to the answer; empty below."""
    load = rate / most
    if load < EDGE[0]:
        return ""
    if edge is not None:
        said = f"a range: {load:.2f} of the {most:.3g} requests/s that the server takes at most, and a tenth less or more gives"
        return f"{said} {edge.text}"
    return f"the server takes {most:.3g} requests/s at most: the queue grows without end, and TTFT with it"


def bands_text(constants: EngineConstants) -> str:
    """What nine in ten measured runs were over predictions; empty where it is not known."""
    said = [f"{name.upper()} {band[0]:.2f} to {band[1]:.2f}" for name, band in constants.bands.items()]
    text = f"nine in ten measured {' and '.join(said)} times what is said" if said else ""
    unseen = f"no measured run on a GPU of this generation ({constants.unseen}): " if constants.unseen else ""
    return unseen + text
