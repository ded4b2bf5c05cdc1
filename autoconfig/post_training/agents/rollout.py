"""Rollouts of agents: turns of generation with tools between them, shared iterations of engines, sandboxes that are few."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from statistics import NormalDist

import numpy as np

from autoconfig.specs.errors import InputError

MOST_TURNS, MOST_SECONDS, MOST_SANDBOXES = 1000, 86_400.0, 2**20
POINTS = 24
"""Batches at which an engine's iteration is priced; between them linear."""
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
    def added_tokens(self) -> int:
        """That all calls of a sample add."""
        return self.calls * self.tool_tokens


ONE_TURN = Agents()


@dataclass(frozen=True, kw_only=True)
class EngineWork:
    """What one engine and its share of the sandboxes are given."""

    lengths: tuple[float, ...]
    """Generated tokens of each sample, over all of its turns."""
    group: int
    """Samples of one prompt, which is prefilled once."""
    prompt_tokens: float
    slots: int
    """Sequences that the engine runs at once."""
    sandboxes: int
    """Of this engine's samples; 0: without limit."""
    at_once: int = 0
    """Samples begun and not ended; a further one waits until one ends. 0: all."""


@dataclass(frozen=True, kw_only=True)
class AgentRollout:
    """`seconds` until the last sample is there; when each began and ended, in the order of their ends."""

    seconds: float
    begun: tuple[float, ...]
    ended: tuple[float, ...]
    engine_seconds: float
    """In which the engine generated or prefilled."""
    tool_seconds: float
    """Mean over samples: in tools, and waiting for a sandbox."""

    @property
    def residence(self) -> float:
        """Mean seconds from a sample's begin to its end."""
        return float(np.mean(np.array(self.ended) - np.array(self.begun)))


def tool_draws(agents: Agents, count: int) -> list[float]:
    """Seconds of so many calls, evenly over the law, in a mixed order that is the same every time; their mean is that of the
    law."""
    if not agents.tool_seconds or not agents.tool_spread:
        return [agents.tool_seconds] * count
    s, law = agents.tool_spread, NormalDist()
    z = np.array([law.inv_cdf((i + 0.5) / count) for i in range(min(count, 4096))])
    drawn = np.exp(log(agents.tool_seconds) - s * s / 2.0 + s * z)
    drawn *= agents.tool_seconds / float(np.mean(drawn))
    mixed = np.random.default_rng(11).permutation(np.resize(drawn, count))
    return [float(seconds) for seconds in mixed]


def simulate_agents(
    agents: Agents, work: EngineWork, iteration: Callable[[float], float], prefill: Callable[[float], float]
) -> AgentRollout:
    """All samples of one engine until the last is there.

    `iteration`: seconds in which each of so many running sequences gets a token; `prefill`: seconds of so many new tokens, in
    which the others wait. Sequences share iterations, so that the tokens that one of them has are a clock that all share: it
    advances by 1 / iteration(running) a second, and a turn that begins at V ends at V + its tokens.
    """
    found = _Simulation(agents, work, _interpolated(iteration, min(work.slots, len(work.lengths))), prefill)
    found.run()
    return AgentRollout(
        seconds=found.now,
        begun=tuple(found.begun[sample] for sample in found.order),
        ended=tuple(found.ended[sample] for sample in found.order),
        engine_seconds=found.busy,
        tool_seconds=found.in_tools / len(work.lengths),
    )


class _Simulation:
    """Samples of one engine by events: the end of a turn, the end of a call."""

    def __init__(
        self, agents: Agents, work: EngineWork, speed: Callable[[int], float], prefill: Callable[[float], float]
    ) -> None:
        count = len(work.lengths)
        self.agents, self.work, self.speed, self.prefill = agents, work, speed, prefill
        self.draws = tool_draws(agents, count * agents.calls)
        self.now, self.clock, self.busy, self.in_tools = 0.0, 0.0, 0.0, 0.0
        self.ready: deque[tuple[int, int]] = deque()
        """(sample, turn) that waits for a slot."""
        self.waiting: deque[tuple[int, int, float]] = deque()
        """(sample, turn, since when) that waits for a sandbox."""
        self.running: list[tuple[float, int, int]] = []
        """(clock at which its turn ends, sample, turn)."""
        self.tools: list[tuple[float, int, int]] = []
        """(time at which its call ends, sample, turn)."""
        self.begun, self.ended = [0.0] * count, [0.0] * count
        self.order: list[int] = []
        self.started = 0

    def run(self) -> None:
        """Until every sample has ended."""
        self._begin()
        while len(self.order) < len(self.begun):
            self._admit()
            step = self.speed(len(self.running)) if self.running else 0.0
            until = self.now + (self.running[0][0] - self.clock) * step if self.running else float("inf")
            if self.tools and self.tools[0][0] <= until:
                self._end_call(step)
            else:
                self._end_turn(until)

    def _begin(self) -> None:
        """Samples that may begin now."""
        most = self.work.at_once or len(self.begun)
        while self.started < len(self.begun) and self.started - len(self.order) < most:
            self.begun[self.started] = self.now
            self.ready.append((self.started, 0))
            self.started += 1

    def _admit(self) -> None:
        """Turns into free slots, first come, first served."""
        while self.ready and len(self.running) < self.work.slots:
            sample, turn = self.ready.popleft()
            seconds = self.prefill(new_tokens(self.agents, self.work, sample, turn))
            self.now, self.busy = self.now + seconds, self.busy + seconds
            piece = self.work.lengths[sample] / self.agents.turns
            heapq.heappush(self.running, (self.clock + piece, sample, turn))

    def _end_call(self, step: float) -> None:
        """The next call ends; its sandbox is free for the sample that waited longest."""
        at, sample, turn = heapq.heappop(self.tools)
        if self.running and at > self.now:
            self.clock, self.busy = self.clock + (at - self.now) / step, self.busy + at - self.now
        self.now = max(self.now, at)
        self.ready.append((sample, turn + 1))
        if self.waiting:
            other, its_turn, since = self.waiting.popleft()
            self.in_tools += self.now - since
            self._call(other, its_turn)

    def _end_turn(self, until: float) -> None:
        """The next turn ends: its sample, or a call begins."""
        self.busy += until - self.now
        self.now = until
        self.clock, sample, turn = heapq.heappop(self.running)
        if turn == self.agents.calls:
            self.ended[sample] = self.now
            self.order.append(sample)
            self._begin()
        elif self.work.sandboxes and len(self.tools) >= self.work.sandboxes:
            self.waiting.append((sample, turn, self.now))
        else:
            self._call(sample, turn)

    def _call(self, sample: int, turn: int) -> None:
        seconds = self.draws[sample * self.agents.calls + turn]
        self.in_tools += seconds
        heapq.heappush(self.tools, (self.now + seconds, sample, turn))


def new_tokens(agents: Agents, work: EngineWork, sample: int, turn: int) -> float:
    """That an engine prefills before a turn: the prompt once for its group, what the tool added, and all of the context where
    the prefix is gone."""
    if turn == 0:
        return work.prompt_tokens if sample % work.group == 0 else min(BLOCK, work.prompt_tokens)
    if agents.keeps_prefix:
        return agents.tool_tokens + BLOCK
    return work.prompt_tokens + turn * (agents.tool_tokens + work.lengths[sample] / agents.turns)


def _interpolated(iteration: Callable[[float], float], most: int) -> Callable[[int], float]:
    """The same from POINTS batches of 1 to `most`."""
    if most <= POINTS:
        exact = [0.0, *(iteration(float(b)) for b in range(1, most + 1))]
        return exact.__getitem__
    batches = np.unique(np.round(np.geomspace(1, most, POINTS)))
    every = np.interp(np.arange(most + 1), batches, [iteration(float(b)) for b in batches])
    return [float(seconds) for seconds in every].__getitem__


@dataclass(frozen=True, kw_only=True)
class SteadyRollout:
    """Rollouts that run ahead of the weights, once their first steps are over."""

    step_seconds: float
    """In which as many samples end as a step trains on."""
    residence: float
    """Mean seconds of a sample from begin to end."""
    tool_seconds: float
    """Mean over samples: in tools, and waiting for a sandbox."""


def steady_agents(
    agents: Agents, work: EngineWork, iteration: Callable[[float], float], prefill: Callable[[float], float], staleness: int
) -> SteadyRollout:
    """Seconds of a step where samples of up to 1 + `staleness` steps are begun and not ended: the mean over the steps behind
    the first of 3 + staleness that are simulated, the last left out."""
    n, steps = len(work.lengths), 3 + staleness
    more = EngineWork(
        lengths=work.lengths * steps,
        group=work.group,
        prompt_tokens=work.prompt_tokens,
        slots=work.slots,
        sandboxes=work.sandboxes,
        at_once=n * (1 + staleness),
    )
    found = simulate_agents(agents, more, iteration, prefill)
    first, last = found.ended[n - 1], found.ended[n * (steps - 1) - 1]
    seconds = (last - first) / (steps - 2)
    return SteadyRollout(step_seconds=seconds, residence=found.residence, tool_seconds=found.tool_seconds)


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
