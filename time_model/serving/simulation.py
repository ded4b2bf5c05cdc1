"""Event-level simulation of one engine's scheduler: arrivals, admission, chunked prefill, mixed iterations, completions.

Continuous batching (Yu et al. 2022, Orca): every iteration carries one token of each running sequence and prompts that fit the
token budget; a request is admitted when a slot is free and its whole cache fits (TensorRT-LLM's GUARANTEED_NO_EVICT). The
attention ranks of one instance and pipeline micro-batch are simulated, which step together; callers divide the load. Iterations
between two events are taken together.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from autoconfig.time_model.serving.iteration import IterationTable

Vector = npt.NDArray[np.float64]
MAX_AT_ONCE = 64
"""Iterations taken together at most, so that growing caches are seen."""
FIRST_RATIO, LAST_RATIO, RATIO_STEP = 0.7, 0.098, (0.7 - 0.098) / 600.0
"""Of `estimated` admission: the share of what is still to come that has to be free, at first and from 600 iterations on,
and its fall in one (SGLang, srt/environ.py: SGLANG_INIT_NEW_TOKEN_RATIO, _MIN_NEW_TOKEN_RATIO_FACTOR, _DECAY_STEPS)."""
RESUMED_ROOM = 16
"""Tokens a sequence that have to be free beside before one that was thrown out comes back: the next block of each."""
PREFILL_COUNTS = 1000
"""Iterations that one with prompts counts for receive_every (SGLang, srt/managers/scheduler_recv_skipper.py)."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """What arrives: seconds, input and output tokens of each request, in order of arrival."""

    arrival_s: Vector
    isl: Vector
    """Tokens to prefill."""
    osl: Vector
    cached: Vector | float = 0.0
    """Tokens whose cache is there already: prefix hits, or a prompt that was prefilled elsewhere."""


class PromptBalance(NamedTuple):
    """Prompts begin in the same iterations on all ranks (TensorRT-LLM, pyexecutor/py_executor.py: attention_dp_config)."""

    most_apart: int
    """timeout_iters: iterations in a row in which some rank has no prompt, of which the last takes those that there are."""
    gathering: int = 0
    """batching_wait_iters: iterations that they wait for more where every rank has one."""


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler may do on `ranks` attention ranks and one micro-batch, and how it goes about it."""

    batch: int
    """Sequences of all ranks."""
    tokens: int
    """Of one rank and iteration."""
    kv_tokens: float
    """Tokens that the caches of all ranks hold."""
    chunked: bool = True
    admission: str = "whole"
    """A request is admitted when its whole cache is free beside those of all that run (`whole`), beside what they hold and a
    falling share of what they are still to get (`estimated`), or when its prompt's is beside what they hold now (`prompt`).
    Where the cache then runs full the newest sequence is thrown out and begins again."""
    steps_per_token: float = 1.0
    """Decode iterations per output token: 1, less with speculation."""
    checked: float = 1.0
    """Tokens that a decode iteration computes of a sequence: its drafts and the one that is due; they take of `tokens`."""
    alone: bool = False
    """Prompts go first and alone, and decoding waits; else they share iterations with it."""
    late: bool = False
    """An iteration is put together while the one before runs; what came since is not in it (asynchronous scheduling)."""
    receive_every: int = 1
    """Iterations without prompts after which new requests are looked for; after one with prompts at once."""
    ranks: int = 1
    """Attention ranks that step together: an iteration lasts as long as the busiest rank's. A request goes to the rank that
    has fewest; the cache is one pool."""
    balance: PromptBalance | None = None
    """How prompts of several ranks wait for each other; None: they do not."""

    @property
    def beside(self) -> float:
        """Tokens that a decoding sequence takes of those for prompts."""
        return 0.0 if self.alone else self.checked


class StepState(NamedTuple):
    """One iteration, or `repeats` alike ones: end and length, sequences that decoded, what IterationTable.seconds was asked."""

    end_s: float
    seconds: float
    repeats: int
    decoding: int
    asked: tuple[float, ...]


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
    log: tuple[StepState, ...] = ()
    """All iterations in order."""
    arrival_step: npt.NDArray[np.int64]
    """Iterations of the log that were over when a request was sent (-1: at its own time), had its first token and its last."""
    first_step: npt.NDArray[np.int64]
    done_step: npt.NDArray[np.int64]

    @property
    def requests_per_s(self) -> float:
        """Completed requests over the duration."""
        return float(np.isfinite(self.e2e_s).sum()) / max(self.duration_s, 1e-12)


def poisson_arrivals(rate: float, count: int, rng: np.random.Generator) -> Vector:
    """Arrival times of a Poisson process; all at once for an infinite rate."""
    return np.zeros(count) if np.isinf(rate) else np.cumsum(rng.exponential(1.0 / rate, count))


def simulate(
    table: IterationTable,
    requests: Requests,
    limits: SchedulerLimits,
    request_s: float = 0.0,
    users: int | None = None,
    token_s: float = 0.0,
) -> SimulatedStream:
    """Runs all requests to completion.

    `users`: closed loop, that many at once, each asks again when it has its answer (arrival times are read of each one's first
    request, and found of the later ones). A request is with the scheduler `request_s` after it was sent, and `token_s` a token
    later that it waits for in a queue of its own (one tokeniser).
    """
    return Scheduler(table, requests, limits, request_s, token_s, users).drained()


class Scheduler:
    """The state of a simulated run."""

    def __init__(
        self,
        table: IterationTable,
        requests: Requests,
        limits: SchedulerLimits,
        request_s: float,
        token_s: float,
        users: int | None,
    ) -> None:
        count = len(requests.arrival_s)
        self.table, self.requests, self.limits, self.users = table, requests, limits, users
        self.request_s, self.token_s = request_s, token_s
        self.isl, self.osl = requests.isl.tolist(), requests.osl.tolist()
        self.held = (requests.isl + requests.cached).tolist()
        """Tokens of a sequence in the cache when its prompt is done."""
        self.steps = np.maximum(np.ceil((requests.osl - 1.0) * limits.steps_per_token), 0.0).astype(int).tolist()
        self.grown = 1.0 / limits.steps_per_token
        self.arrival = requests.arrival_s.tolist()
        if users is not None:
            self.arrival = [one if i < users else float("inf") for i, one in enumerate(self.arrival)]
        self.asked = count if users is None else min(users, count)
        self.first, self.done = [float("nan")] * count, [float("nan")] * count
        self.first_step, self.done_step, self.arrival_step = [-1] * count, [-1] * count, [-1] * count
        self.coming: deque[tuple[float, int]] = deque()
        """In order of time."""
        self.waiting: deque[int] = deque()
        self.finishing: list[tuple[int, int]] = []
        self.rank = [0] * count
        self.requests_of, self.decoding = [0] * limits.ranks, [0] * limits.ranks
        """Of each rank: requests that came and are not done, and those of them that decode."""
        self.apart, self.gathered = 0, 0
        """Iterations that prompts have waited by `balance`."""
        self.admitted: list[int] = []
        """Sequences that run, the newest last; some are done already."""
        self.thrown_out: set[int] = set()
        self.begun: dict[int, float] = {}
        """Tokens done of prompts that are under way."""
        self.log: list[StepState] = []
        self.now, self.free, self.seen = 0.0, 0.0, 0.0
        self.iteration, self.iterations, self.since = 0, 0, 0
        self.kv_used, self.cached, self.ratio = 0.0, 0.0, FIRST_RATIO
        for i in range(self.asked):
            self._send(i)

    def _send(self, r: int) -> None:
        """Request r is on its way to the scheduler."""
        self.free = max(self.arrival[r] + self.request_s, self.free) + self.token_s * self.held[r]
        self._comes(self.free if self.token_s else self.arrival[r] + self.request_s, r)

    def _comes(self, at: float, r: int) -> None:
        """Request r reaches the scheduler then."""
        if self.coming and (at, r) < self.coming[-1]:
            insort(self.coming, (at, r))
        else:
            self.coming.append((at, r))

    def _receive(self) -> None:
        """Requests that the scheduler may know of."""
        busy = bool(self.finishing or self.begun)
        if busy and self.since < self.limits.receive_every:
            return
        self.since = 0
        known = self.seen if self.limits.late and busy else self.now
        coming = self.coming
        while coming and coming[0][0] <= known:
            r = coming.popleft()[1]
            self.rank[r] = rank = self.requests_of.index(min(self.requests_of))
            self.requests_of[rank] += 1
            self.waiting.append(r)

    def _fits(self, r: int, count: int, prompts: float, answers: float) -> bool:
        """Whether the cache has room for request r beside `count` of this iteration, their prompts and answers in tokens."""
        room, how = self.limits.kv_tokens, self.limits.admission
        if how == "whole":
            return self.kv_used + self.held[r] + self.osl[r] <= room
        prompts = self.held[r] + prompts
        if how == "prompt":
            more = RESUMED_ROOM * (len(self.finishing) + count + 1) if r in self.thrown_out else 0
            return self.cached + prompts + more <= room
        answers = self.osl[r] + answers
        left = self.kv_used + self.held[r] + self.osl[r] - self.cached - prompts - answers  # of those that run
        return self.cached + self.ratio * max(left, 0.0) + prompts + answers <= room

    def _choose(self) -> tuple[list[int], list[tuple[int, float, float]]]:
        """(requests whose prompts end in this iteration, [(request, first and last token)] of what it takes of prompts)."""
        limits, running = self.limits, len(self.finishing)
        complete: list[int] = []
        parts: list[tuple[int, float, float]] = []
        if self._waits_for_others() or not self.waiting:
            return complete, parts
        whole = [limits.tokens - count * limits.beside for count in self.decoding]
        left, prompts, answers = list(whole), 0.0, 0.0
        for r in self.waiting:
            if running + len(parts) >= limits.batch or max(left) <= 0:
                break
            rank, at, held = self.rank[r], self.begun.get(r, 0.0), self.held[r]
            todo = self.isl[r] - at
            take = self._part(todo, left[rank], whole[rank])
            if take is None:
                left[rank] = 0.0
                continue
            left[rank] -= take
            if r not in self.begun:
                if not self._fits(r, len(complete), prompts, answers) and (running or complete):
                    break
                self.kv_used += held + self.osl[r]
            before = held - self.isl[r] + at
            parts.append((r, before, before + take))
            if take < todo:
                self.begun[r] = at + take
                continue
            self.begun.pop(r, None)
            prompts, answers = prompts + held, answers + self.osl[r]
            complete.append(r)
        for r in complete:
            self.waiting.remove(r)
        return complete, parts

    def _part(self, todo: float, left: float, whole: float) -> float | None:
        """Tokens of a prompt that an iteration with so much room takes; None: none of it now, as of a prompt that is not cut
        where it is not whole."""
        if left <= 0 or (left < todo <= whole and not self.limits.chunked):
            return None
        return min(todo, left) if self.limits.chunked else todo

    def _waits_for_others(self) -> bool:
        """Whether prompts wait in this iteration for those of other ranks, or for more; not where a rank has nothing to do."""
        balance = self.limits.balance
        if balance is None or not all(self.decoding):
            return False
        if len({self.rank[r] for r in self.waiting}) == self.limits.ranks:
            count, most, self.apart = self.gathered, balance.gathering, 0
            self.gathered = 0 if count >= most else count + 1
            return count < most
        self.apart = (self.apart + 1) % max(balance.most_apart, 1)
        return self.apart > 0

    def step(self) -> None:
        """One iteration, or many alike ones."""
        limits = self.limits
        self._receive()
        complete, parts = self._choose()
        running = len(self.finishing)
        if not running and not parts:
            self.now, self.ratio = max(self.now, self.coming[0][0]), FIRST_RATIO
            return
        decoding = 0 if limits.alone and parts else running
        state = self._state(decoding, complete, parts)
        seconds = self.table.seconds(*state)
        jump = 1 if parts else self._alike(seconds)
        self.apart += (jump - 1) * (self.apart > 0)
        self.seen = self.now + seconds * (jump - 1)
        self.now, self.iterations = self.now + seconds * jump, self.iterations + jump
        self.since += PREFILL_COUNTS if parts else jump
        self.ratio = max(self.ratio - RATIO_STEP * jump * (decoding > 0), LAST_RATIO)
        self.log.append(StepState(self.now, seconds, jump, decoding, state))
        if decoding:
            self.iteration += jump
            self.cached += running * jump * self.grown
        for r in complete:
            if self.first_step[r] < 0:
                self.first[r], self.first_step[r] = self.now, len(self.log)
            self.cached += self.held[r]
            self.admitted.append(r)
            self.decoding[self.rank[r]] += 1
            heapq.heappush(self.finishing, (self.iteration + self.steps[r], r))
        self._finish()
        if limits.admission != "whole":
            self._evict()

    def _state(self, decoding: int, complete: list[int], parts: list[tuple[int, float, float]]) -> tuple[float, ...]:
        """What IterationTable.seconds is asked: of the busiest rank where several step together."""
        running = len(self.finishing)
        most, mean = (max(self.decoding), self.cached / running) if decoding else (0, 0.0)
        if not parts:
            return (float(most), mean, 0.0, 0.0, 1.0, self.limits.checked, 0.0)
        if self.limits.ranks > 1:
            work = [count * self.limits.checked * (decoding > 0) for count in self.decoding]
            for r, start, end in parts:
                work[self.rank[r]] += end - start
            busiest = max({self.rank[r] for r, _, _ in parts}, key=lambda rank: work[rank])
            most = self.decoding[busiest] if decoding else 0
            parts = [part for part in parts if self.rank[part[0]] == busiest]
            complete = [r for r in complete if self.rank[r] == busiest]
        tokens = attended = whole = 0.0
        for r, start, end in parts:
            held = self.held[r]
            tokens, attended = tokens + (end - start), attended + held
            whole += (end * end - start * start) / max(held, 1.0) ** 2
        return (float(most), mean, float(len(complete)), tokens, max(attended / len(parts), 1.0), self.limits.checked, whole)

    def _alike(self, seconds: float) -> int:
        """Iterations until the next event: an answer ends, a request comes, the cache is full."""
        jump = max(1, min(self.finishing[0][0] - self.iteration, MAX_AT_ONCE))
        if self.limits.balance is not None:
            jump = max(1, min(jump, self.limits.balance.most_apart - self.apart - 1)) if self.apart else 1
        if self.coming and len(self.finishing) < self.limits.batch:
            jump = max(1, min(jump, int(np.ceil((self.coming[0][0] - self.now) / seconds))))
        if self.coming and self.limits.receive_every > 1 and self.coming[0][0] <= self.now + jump * seconds:
            jump = max(1, min(jump, self.limits.receive_every - self.since))
        if self.limits.admission != "whole":
            room = self.limits.kv_tokens - self.cached
            jump = max(1, min(jump, int(room / (len(self.finishing) * self.grown))))
        return jump

    def _finish(self) -> None:
        finishing = self.finishing
        while finishing and finishing[0][0] <= self.iteration:
            _, r = heapq.heappop(finishing)
            self.done[r], self.done_step[r], held = self.now, len(self.log), self.held[r]
            self.decoding[self.rank[r]] -= 1
            self.requests_of[self.rank[r]] -= 1
            self.kv_used -= held + self.osl[r]
            self.cached -= held + self.steps[r] * self.grown
            self._ended(r)
            if self.users is not None and self.asked < len(self.arrival):
                self.arrival[self.asked], self.arrival_step[self.asked] = self.now, len(self.log)
                self._send(self.asked)
                self.asked += 1
        if len(self.admitted) > 2 * len(finishing) + 64:
            self.admitted = [r for r in self.admitted if self.done_step[r] < 0]

    def _ended(self, r: int) -> None:
        """Request r has its last token; a run whose requests come back sends it again."""

    def _evict(self) -> None:
        """Throw out the newest sequences until the next tokens fit; they come first again, their tokens so far a prompt."""
        while len(self.finishing) > 1 and self.cached + len(self.finishing) * self.grown > self.limits.kv_tokens:
            while self.done_step[self.admitted[-1]] >= 0:
                self.admitted.pop()
            r = self.admitted.pop()
            place = next(i for i, (_, one) in enumerate(self.finishing) if one == r)
            end, _ = self.finishing.pop(place)
            heapq.heapify(self.finishing)
            left = end - self.iteration
            given = (self.steps[r] - left) * self.grown
            self.cached -= self.held[r] + given
            self.kv_used -= self.held[r] + self.osl[r]
            self.held[r] += given + 1.0  # the prompt that it now is gives the next token
            self.isl[r] = self.held[r]
            self.osl[r], self.steps[r] = max(self.osl[r] - given - 1.0, 1.0), left - 1
            self.thrown_out.add(r)
            self.decoding[self.rank[r]] -= 1
            self.ratio = FIRST_RATIO
            self.waiting.appendleft(r)

    def drained(self) -> SimulatedStream:
        """Every request to its last token."""
        while self.coming or self.waiting or self.finishing:
            self.step()
        return self.stream()

    def stream(self) -> SimulatedStream:
        """What came of it."""
        arrival, first, done = np.array(self.arrival), np.array(self.first), np.array(self.done)
        osl = self.requests.osl
        decoded = [one for one in self.log if one.decoding]
        return SimulatedStream(
            arrival_s=arrival,
            ttft_s=first - arrival,
            tpot_s=np.where(osl > 1, (done - first) / np.maximum(osl - 1.0, 1.0), np.nan),
            e2e_s=done - arrival,
            duration_s=self.now - self.arrival[0],
            iterations=self.iterations,
            step_end_s=np.array([one.end_s for one in decoded]),
            step_s=np.array([one.seconds for one in decoded]),
            step_tokens=np.array([float(one.decoding * one.repeats) for one in decoded]),
            log=tuple(self.log),
            arrival_step=np.array(self.arrival_step),
            first_step=np.array(self.first_step),
            done_step=np.array(self.done_step),
        )


def uniform_lengths(longest: float, ratio: float, count: int, rng: np.random.Generator) -> Vector:
    """Whole lengths, each as likely, from `ratio` times the longest to the longest: `--random-range-ratio` of the engines' own
    benchmarks (vLLM benchmarks/benchmark_serving.py and SGLang bench_serving.py as InferenceX runs them)."""
    least = max(int(longest * ratio), 1)
    return rng.integers(least, max(int(longest), least) + 1, count).astype(np.float64)


def sampled_lengths(mean: float, cv: float, most: float, count: int, rng: np.random.Generator) -> Vector:
    """Whole lengths around `mean`: all alike for cv 0, else gamma distributed with that coefficient of variation, from 1 to
    `most`."""
    if cv <= 0:
        return np.full(count, np.round(mean))
    shape = 1.0 / cv**2
    return np.clip(np.round(rng.gamma(shape, mean / shape, count)), 1.0, most)


JITTER = 0.1
"""Of answers of one length where ranks step together."""


def sampled_answers(mean: float, cv: float, most: float, count: int, rng: np.random.Generator, ranks: int) -> Vector:
    """Lengths of answers: `sampled_lengths`, but that answers of one length differ by JITTER, beyond `most`, too, where several
    ranks step together: else prompts that fall into the same iteration once do so for ever, as under no live load."""
    if ranks == 1 or cv > 0 or mean * JITTER < 1.0:
        return sampled_lengths(mean, cv, most, count, rng)
    return np.round(mean * rng.uniform(1.0 - JITTER, 1.0 + JITTER, count))
