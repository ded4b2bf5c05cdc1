"""Event-level simulation of one engine's scheduler: arrivals, admission, chunked prefill, mixed iterations, completions.

Continuous batching (Yu et al. 2022, Orca): every iteration carries one token of each running sequence and prompts that fit the
token budget; a request is admitted when a slot is free and its whole cache fits (TensorRT-LLM's GUARANTEED_NO_EVICT). One
attention
rank and one pipeline micro-batch are simulated; callers divide the load. Iterations between two events are taken together.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from autoconfig.time_model.serving.costs import (
    decode_attention_seconds,
    floor_seconds,
    output_seconds,
    prefill_attention_seconds,
)
from autoconfig.time_model.serving.rows import ServingJob, token_parts

Vector = npt.NDArray[np.float64]
Table = list[list[float]]
"""Plain lists: a look-up in them takes a fraction of numpy's."""
MAX_AT_ONCE = 64
"""Iterations taken together at most, so that growing caches are seen."""


def grid_points(most: float, per_octave: int = 4) -> Vector:
    """1, 2, 3, ..., a geometric grid of whole numbers up to `most`."""
    points = np.unique(np.round(np.exp2(np.arange(0.0, np.log2(most) + 1.0 / per_octave, 1.0 / per_octave))))
    return np.asarray(points[points <= most], dtype=np.float64)


class IterationTable:
    """Seconds of an iteration by lookup: linear in tokens and sequences, bilinear in logs for attention."""

    def __init__(self, job: ServingJob, most_tokens: float = 65536.0, most_length: float = 131072.0) -> None:
        """Prices the grids once, a few milliseconds."""
        c, layers = job.constants, job.layers
        self._tokens = [0.0, *grid_points(most_tokens)]
        priced = token_parts(job, np.array(self._tokens[1:]))
        rows = sum(c.factor_of(name) * s for name, s in priced.items())
        self._token_s = [float(rows[0]), *map(float, rows)]
        self._sequences = [0.0, *grid_points(16384.0)]
        head, sampled = output_seconds(job, np.array(self._sequences[1:]))
        heads = c.factor * head + c.sampler_bytes * sampled + c.sequence_s * job.plan.adp * np.array(self._sequences[1:])
        self._head_s = [float(heads[0]), *map(float, heads)]
        self._fixed = c.host_s + c.layer_s * layers
        self._floor_mixed, self._floor_alone = float(floor_seconds(job, 1.0, 0.0)), float(floor_seconds(job, 0.0, 0.0))
        self._floor_sequence = float(floor_seconds(job, 0.0, 1.0)) - self._floor_alone
        longest = max(131072.0, float(np.exp2(np.ceil(np.log2(most_length)))))
        counts, lengths = grid_points(16384.0, 1), grid_points(longest, 2)
        self._counts, self._lengths = counts.tolist(), lengths.tolist()
        count, length = np.meshgrid(counts, lengths, indexing="ij")
        self._decode: Table = (c.factor * decode_attention_seconds(job, count, length)).tolist()
        self._prefill: Table = (c.factor * prefill_attention_seconds(job, count, length)).tolist()
        self._slowdown = 1.0

    def slowed(self, factor: float) -> IterationTable:
        """The same with every iteration `factor` times as long."""
        other = copy(self)
        other._slowdown = self._slowdown * factor
        return other

    def of_prefilled(self) -> IterationTable:
        """The same where prompts were prefilled elsewhere: their one token runs in the CUDA graphs of decoding."""
        other = copy(self)
        other._floor_mixed = self._floor_alone
        return other

    def seconds(
        self,
        decode: float,
        length: float,
        prompts: float,
        prompt_tokens: float,
        attended: float,
        checked: float = 1.0,
        cached: float = 0.0,
    ) -> float:
        """`decode` sequences of `length` tokens, `checked` computed of each, beside `prompts` prompts with `prompt_tokens` new
        tokens in all, each part of a prompt of `attended` tokens, a share `cached` of which is in the cache already.

        Attention of a prompt with a share c cached is 1 - c^2 of the whole prompt's (serving_layout): 1 + c for each new token.
        """
        total = self._fixed + _linear(self._tokens, self._token_s, decode * checked + prompt_tokens)
        total += _linear(self._sequences, self._head_s, decode * checked + prompts)
        if decode > 0:
            total += self._bilinear(self._decode, decode, length)
        if prompt_tokens > 0:
            whole = max(prompt_tokens / attended * (1.0 + cached), 1e-9)
            total += self._bilinear(self._prefill, max(whole, 1.0), attended) * min(whole, 1.0)
        floor = self._floor_mixed if prompt_tokens > 0 else self._floor_alone
        return self._slowdown * max(total, floor + self._floor_sequence * (decode + prompts))

    def _bilinear(self, table: Table, count: float, length: float) -> float:
        i, u = _position(self._counts, count)
        j, v = _position(self._lengths, length)
        low = table[i][j] * (1 - v) + table[i][j + 1] * v
        high = table[i + 1][j] * (1 - v) + table[i + 1][j + 1] * v
        return low * (1 - u) + high * u


def _position(points: list[float], x: float) -> tuple[int, float]:
    i = min(max(bisect_right(points, x) - 1, 0), len(points) - 2)
    return i, min(max((x - points[i]) / (points[i + 1] - points[i]), 0.0), 1.0)


def _linear(points: list[float], values: list[float], x: float) -> float:
    i = min(bisect_right(points, x), len(points) - 1)
    low, high = points[i - 1], points[i]
    return values[i - 1] + (values[i] - values[i - 1]) * (x - low) / (high - low)


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What arrives: seconds, input and output tokens of each request, in order of arrival."""

    arrival_s: Vector
    isl: Vector
    """Tokens to prefill."""
    osl: Vector
    cached: Vector | float = 0.0
    """Tokens whose cache is there already: prefix hits, or a prompt that was prefilled elsewhere."""


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler may do on one attention rank and micro-batch."""

    batch: int
    tokens: int
    kv_tokens: float
    """Tokens that the cache holds."""
    chunked: bool = True
    whole: bool = True
    """A request is admitted when its whole cache is free, else when its prompt's is (pauses cost nothing here)."""
    steps_per_token: float = 1.0
    """Decode iterations per output token: 1, less with speculation."""
    checked: float = 1.0
    """Tokens that a decode iteration computes of a sequence: its drafts and the one that is due; they take of `tokens`."""


@dataclass(frozen=True, kw_only=True)
class SimulatedStream:
    """Seconds of each request; NaN where it never ran."""

    arrival_s: Vector
    """As asked; of a closed loop as found."""
    ttft_s: Vector
    """Arrival to first output token."""
    tpot_s: Vector
    """Mean time between its later tokens."""
    e2e_s: Vector
    duration_s: float
    """First arrival to last token."""
    iterations: int
    step_end_s: Vector
    """When each iteration that decoded (or run of alike ones) ended; its length and the tokens that it gave follow."""
    step_s: Vector
    step_tokens: Vector

    @property
    def requests_per_s(self) -> float:
        """Completed requests over the duration."""
        return float(np.isfinite(self.e2e_s).sum()) / max(self.duration_s, 1e-12)


def poisson_arrivals(rate: float, count: int, rng: np.random.Generator) -> Vector:
    """Arrival times of a Poisson process; all at once for an infinite rate."""
    return np.zeros(count) if np.isinf(rate) else np.cumsum(rng.exponential(1.0 / rate, count))


def simulate(
    table: IterationTable, requests: Requests, limits: SchedulerLimits, request_s: float = 0.0, users: int | None = None
) -> SimulatedStream:
    """Runs all requests to completion. `users`: closed loop, that many at once, each asks again when it has its answer
    (arrival times are read of each one's first request, and found of the later ones)."""
    count = len(requests.arrival_s)
    held = (requests.isl + requests.cached).tolist()
    need = requests.isl + requests.osl + requests.cached
    first, done = np.full(count, np.nan), np.full(count, np.nan)
    arrival, isl = requests.arrival_s.tolist(), requests.isl.tolist()
    if users is not None:
        arrival = [one if i < users else float("inf") for i, one in enumerate(arrival)]
    asked = count if users is None else min(users, count)
    steps = np.maximum(np.ceil((requests.osl - 1.0) * limits.steps_per_token), 0.0).astype(int).tolist()
    grown = 1.0 / limits.steps_per_token
    coming = [(arrival[i], i) for i in range(asked)]
    waiting: deque[int] = deque()
    finishing: list[tuple[int, int]] = []
    part: dict[int, float] = {}
    steps_done: list[tuple[float, float, int]] = []
    now, iteration, kv_used, cached, iterations = 0.0, 0, 0.0, 0.0, 0
    while coming or waiting or finishing:
        while coming and coming[0][0] <= now:
            waiting.append(heapq.heappop(coming)[1])
        running = len(finishing)
        batch, left, chosen = running, limits.tokens - running * limits.checked, 0.0
        complete: list[int] = []
        while waiting and batch < limits.batch and left > 0:
            r = waiting[0]
            begun = r in part
            asked_kv, used_kv = (need[r], kv_used) if limits.whole else (held[r], cached + sum(held[i] for i in complete))
            if not begun and used_kv + asked_kv > limits.kv_tokens and (running or complete):
                break
            todo = isl[r] - part.get(r, 0.0)
            if todo > left and not limits.chunked and (complete or running) and left + chosen >= isl[r]:
                break
            take = min(todo, left) if limits.chunked else todo
            if not begun:
                kv_used += need[r]
            chosen, left, batch = chosen + take, left - take, batch + 1
            if take < todo:
                part[r] = part.get(r, 0.0) + take
                break
            part.pop(r, None)
            complete.append(waiting.popleft())
        if not running and not chosen:
            now = max(now, coming[0][0])
            continue
        mean = cached / running if running else 0.0
        prefilled = complete or ([waiting[0]] if chosen else [])
        attended = max(sum(held[r] for r in prefilled) / max(len(prefilled), 1), 1.0)
        hit = 1.0 - sum(isl[r] for r in prefilled) / (attended * max(len(prefilled), 1))
        step = table.seconds(running, mean, len(complete), chosen, attended, limits.checked, max(hit, 0.0) if chosen else 0.0)
        jump = 1
        if not chosen:
            jump = max(1, min(finishing[0][0] - iteration, MAX_AT_ONCE))
            if coming:
                jump = max(1, min(jump, int(np.ceil((coming[0][0] - now) / step))))
        now, iteration, iterations = now + step * jump, iteration + jump, iterations + jump
        cached += running * jump * grown
        if running:
            steps_done.append((now, step, running * jump))
        for r in complete:
            first[r] = now
            cached += held[r]
            heapq.heappush(finishing, (iteration + steps[r], r))
        while finishing and finishing[0][0] <= iteration:
            _, r = heapq.heappop(finishing)
            done[r], kv_used = now, kv_used - need[r]
            cached -= held[r] + steps[r] * grown
            if users is not None and asked < count:
                arrival[asked] = now
                heapq.heappush(coming, (now, asked))
                asked += 1
    ttft = first - np.array(arrival) + request_s
    tpot = np.where(requests.osl > 1, (done - first) / np.maximum(requests.osl - 1.0, 1.0), np.nan)
    ends, lengths, tokens = np.array(steps_done, dtype=np.float64).reshape(-1, 3).T
    return SimulatedStream(
        arrival_s=np.array(arrival),
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=done - np.array(arrival) + request_s,
        duration_s=now - arrival[0],
        iterations=iterations,
        step_end_s=ends,
        step_s=lengths,
        step_tokens=tokens,
    )


def sampled_lengths(mean: float, cv: float, most: float, count: int, rng: np.random.Generator) -> Vector:
    """Whole lengths around `mean`: all alike for cv 0, else gamma distributed with that coefficient of variation, from 1 to
    `most`."""
    if cv <= 0:
        return np.full(count, np.round(mean))
    shape = 1.0 / cv**2
    return np.clip(np.round(rng.gamma(shape, mean / shape, count)), 1.0, most)
