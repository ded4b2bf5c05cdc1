"""Rollouts of agents: turns of generation with tools between them, the engine's own scheduler, sandboxes that are few."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, expm1, log1p, sqrt
from typing import NamedTuple

import numpy as np

from autoconfig.post_training.samples.lengths import Vector, deviations
from autoconfig.specs.errors import InputError
from autoconfig.time_model.serving.iteration import IterationTable
from autoconfig.time_model.serving.simulation import Requests, Scheduler, SchedulerLimits

MOST_TURNS, MOST_SECONDS, MOST_SANDBOXES = 1000, 86_400.0, 2**20
KEPT_TURNS, DROPPED_TURNS = 32, 200
"""Turns of a sample that are simulated where its prefix is kept, and where it is prefilled at each; of more those that follow
each other are taken together, with their calls."""
BLOCK = 16.0
"""Tokens of a cache's block: what is prefilled again of a prefix that is kept (vLLM's block_size)."""


@dataclass(frozen=True, kw_only=True)
class Agents:
    """What a sample does between its turns. Raises InputError for numbers out of range."""

    turns: int = 1
    """Of generation; a tool or environment runs between two of them."""
    tool_seconds: float = 0.0
    """Mean of one call, whose logarithm is normal."""
    tool_spread: float = 1.0
    """Standard deviation of that logarithm; 0: all calls take the mean."""
    tool_tokens: int = 0
    """That one call adds to the context."""
    sandboxes: int = 0
    """That run at once, in all; 0: as many as are asked for."""
    keeps_prefix: bool = True
    """Engines keep the cache of a sample while its tool runs."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("turns", 1, MOST_TURNS),
            ("tool_seconds", 0.0, MOST_SECONDS),
            ("tool_spread", 0.0, 3.0),
            ("tool_tokens", 0, 2**20),
            ("sandboxes", 0, MOST_SANDBOXES),
        ):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name.replace('_', ' ')} {getattr(self, name):g}: use {low:g} to {high:g}")

    @property
    def calls(self) -> int:
        """Of tools, for a sample."""
        return self.turns - 1

    @property
    def simulated_turns(self) -> int:
        """Of a sample."""
        return min(self.turns, KEPT_TURNS if self.keeps_prefix else DROPPED_TURNS)

    @property
    def added_tokens(self) -> int:
        """That all calls of a sample add."""
        return self.calls * self.tool_tokens


ONE_TURN = Agents()


def tool_draws(agents: Agents, samples: int) -> Vector:
    """Seconds of every call, [samples, calls]: evenly over the law, in a mixed order that is the same every time; their mean is
    that of the law.

    A sample's calls together are evenly over the law of their sum, taken as lognormal of the same mean and variance (Fenton
    1960): the slowest sample is then that of its number, and not of a throw of the dice.
    """
    if not agents.tool_seconds or not agents.tool_spread or not agents.calls:
        return np.full((samples, agents.calls), agents.tool_seconds)
    s, mixed = agents.tool_spread, np.random.default_rng(11)
    drawn = mixed.permutation(np.resize(np.exp(s * _even(min(samples * agents.calls, 4096))), samples * agents.calls))
    drawn = drawn.reshape(samples, agents.calls)
    totals = np.exp(sqrt(log1p(expm1(s * s) / agents.calls)) * _even(samples))
    totals *= agents.calls * agents.tool_seconds / float(np.mean(totals))
    return np.asarray(drawn * (mixed.permutation(totals) / drawn.sum(axis=1))[:, None])


def _even(count: int) -> Vector:
    """Deviations of a normal law, as many in each equal share of it."""
    return deviations(tuple((np.arange(count) + 0.5) / count))


@dataclass(frozen=True, kw_only=True)
class AgentRollout:
    """`seconds` until the last sample is there."""

    seconds: float
    tool_seconds: float
    """Mean over samples: in tools, and waiting for a sandbox."""


def simulate_agents(
    agents: Agents, table: IterationTable, requests: Requests, limits: SchedulerLimits, sandboxes: float = 0.0
) -> AgentRollout:
    """All samples of one engine until the last is there, turn by turn through the engine's own scheduler.

    `requests`: the samples, `osl` the tokens that each generates over all of its turns; `sandboxes`: of this engine's samples,
    a share of the pool that may be a fraction; 0: without limit. With one turn it is `simulate`, step by step.
    """
    run = _AgentScheduler(agents, table, requests, limits, sandboxes)
    seconds = run.drained().duration_s
    return AgentRollout(seconds=seconds, tool_seconds=run.in_tools / len(requests.osl))


class _AgentScheduler(Scheduler):
    """A scheduler to which a sample comes back when its tool has answered.

    A sample is admitted when the cache of all that it will hold is free beside those of samples that generate, as one of a
    single turn is. While its tool runs its cache stays where nothing else needs the room: the one that is idle longest goes
    first, and its sample is prefilled anew. Samples that have begun go before those that have not.
    """

    def __init__(
        self, agents: Agents, table: IterationTable, requests: Requests, limits: SchedulerLimits, sandboxes: float
    ) -> None:
        super().__init__(table, requests, limits, 0.0, 0.0, None)
        count = len(requests.osl)
        self.agents = agents
        self.turns = agents.simulated_turns
        last = np.round(np.outer(requests.osl, np.arange(self.turns + 1) / self.turns))
        self.pieces = np.maximum(np.diff(last, axis=1), 1.0).tolist()
        """Tokens of each turn of each sample."""
        between = np.linspace(0, agents.calls, self.turns).astype(int)
        self.merged = np.diff(between).tolist()
        """Calls between two turns that are simulated."""
        draws = tool_draws(agents, count)
        self.draws = np.add.reduceat(draws, between[:-1], axis=1).tolist() if self.turns > 1 else []
        own = self.merged_tokens = [calls * agents.tool_tokens for calls in self.merged]
        self.most = [held + sum(pieces) + sum(own) for held, pieces in zip(self.held, self.pieces, strict=True)]
        """Tokens that a sample's cache holds at its end."""
        self.turn = [0] * count
        channels = min(ceil(sandboxes), count)
        self.sandboxes = [0.0] * channels
        """When each is free: the pool's share in whole ones, slower where it is no whole number."""
        self.slower = channels / sandboxes if 0 < sandboxes < count else 1.0
        self.idle: dict[int, float] = {}
        """Tokens of caches whose samples' tools run or that wait, the one that is idle longest first."""
        self.idle_tokens, self.in_tools = 0.0, 0.0
        for r in range(count):
            self._turn(r)

    def _turn(self, r: int) -> None:
        """What the scheduler sees of sample r's next turn."""
        self.osl[r] = self.most[r] - self.held[r]
        self.steps[r] = max(ceil((self.pieces[r][self.turn[r]] - 1.0) * self.limits.steps_per_token), 0)

    def _ended(self, r: int) -> None:
        turn = self.turn[r]
        if turn == self.turns - 1:
            return
        begin, seconds = self.now, self.draws[r][turn]
        if self.sandboxes:
            begin, seconds = max(begin, self.sandboxes[0]), seconds * self.slower
            heapq.heapreplace(self.sandboxes, begin + seconds)
        self.in_tools += begin + seconds - self.now
        self.turn[r] = turn + 1
        context = self.held[r] + self.pieces[r][turn]
        self.held[r] = context + self.merged_tokens[turn]
        self.isl[r] = min(self.merged_tokens[turn] + BLOCK * self.merged[turn], self.held[r])
        if self.agents.keeps_prefix:
            self.idle[r] = context
            self.idle_tokens += context
        else:
            self.isl[r] = self.held[r]
        self._turn(r)
        self._comes(begin + seconds, r)

    def _receive(self) -> None:
        """Samples whose tools have answered, before those that have not begun."""
        while self.coming and self.coming[0][0] <= self.now:
            r = self.coming.popleft()[1]
            if not self.turn[r]:
                self.waiting.append(r)
                continue
            place = 0
            while place < len(self.waiting) and (self.turn[self.waiting[place]] or self.waiting[place] in self.begun):
                place += 1
            self.waiting.insert(place, r)

    def _choose(self) -> tuple[list[int], list[tuple[int, float, float]]]:
        complete, parts = super()._choose()
        for r, _, _ in parts:
            self.idle_tokens -= self.idle.pop(r, 0.0)
        while self.idle and self.kv_used + self.idle_tokens > self.limits.kv_tokens:
            r = next(iter(self.idle))
            self.idle_tokens -= self.idle.pop(r)
            self.isl[r] = self.held[r]
        return complete, parts


def mean_context(agents: Agents, prompt_tokens: float, response: float) -> float:
    """Of a sample at the end of a tool's call, over its calls: turn k of T begins with k pieces and what k calls added."""
    return prompt_tokens + agents.turns / 2.0 * (agents.tool_tokens + response / agents.turns)


class SteadyEngine(NamedTuple):
    """One engine of which samples neither begin nor end together."""

    samples_per_s: float
    at_once: float
    """Samples that have begun and not ended."""


def steady_agents(
    agents: Agents, response: float, slots: float, ahead: float, sandboxes: float, iteration: Callable[[float, float], float]
) -> SteadyEngine:
    """The fluid limit of an engine, `ahead` samples and a pool of sandboxes (a closed queueing network with a delay: asymptotic
    bounds of Muntz and Wong 1974, exact where many samples share it).

    b sequences that generate give X = b / (r t) samples a second, which by Little's law (1961) have X c d calls in tools:
    b + X c d is at most `ahead`, b at most `slots`, X c d at most `sandboxes`. `iteration`: t by b and the calls in tools.
    """
    delay = agents.calls * agents.tool_seconds

    def rate(b: float) -> float:
        per_s = b / (response * iteration(b, 0.0))
        return b / (response * iteration(b, per_s * delay)) if delay else per_s

    most = min(slots, ahead)
    if most + rate(most) * delay <= ahead or not delay:
        b = most
    else:
        low, high = 0.0, most
        for _ in range(30):
            b = (low + high) / 2.0
            low, high = (b, high) if b + rate(b) * delay < ahead else (low, b)
    per_s = rate(b)
    if sandboxes and delay and sandboxes / delay < per_s:
        return SteadyEngine(sandboxes / delay, ahead)
    return SteadyEngine(per_s, b + per_s * delay)


def stale_share(residence: float, rollout_seconds: float, step_seconds: float, staleness: int) -> float:
    """Share of a step's samples that began under older weights than those that it trains.

    Synchronous: none. Rollouts that decide the step: a sample that is there for w of a step's S seconds began before the last
    weights with the chance w / S (begins are even over the step; Little 1961). A trainer that decides: samples wait for it, all
    are of an earlier step.
    """
    if not staleness:
        return 0.0
    if rollout_seconds < 0.98 * step_seconds:
        return 1.0
    return min(1.0, residence / max(step_seconds, 1e-9))
