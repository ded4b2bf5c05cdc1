"""Placements of a step of post-training with their seconds and memory, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import exp, hypot, log
from statistics import NormalDist
from typing import Any, Literal

from autoconfig.planning.request_fields import POST_TRAINING
from autoconfig.post_training.agents.rollout import stale_share
from autoconfig.post_training.frameworks import STANDARD_90, Constants, constants_of, shipped_constants
from autoconfig.post_training.generation import Rollout, generate
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.memory import PhaseMemory, phase_memory
from autoconfig.post_training.passes import pass_seconds, training_seconds
from autoconfig.post_training.phases import GENERATION, Phases, chains, exposed
from autoconfig.post_training.placements import Held, held_memory, placements
from autoconfig.post_training.step import class_marks, generation_factor, priced_phases, scaled

FIT_CHANCE: float = next(field.default for field in POST_TRAINING if field.name == "fit_chance")


@dataclass(frozen=True, kw_only=True)
class PricedPlacement:
    """A placement, its step and its memory."""

    placement: Placement
    phases: Phases
    memory: PhaseMemory
    band: tuple[float, float]
    """5 % and 95 % bound of the step."""
    residence_s: float = 0.0
    """Of a sample from its begin to its end, mean, where generation runs ahead of the weights."""

    @property
    def seconds(self) -> float:
        return self.phases.total

    @property
    def binds(self) -> str:
        """The longest of the phases that the step waits for."""
        return max(exposed(self.phases, self.placement), key=lambda name: self.phases.of((name,)))

    @property
    def starved(self) -> Literal["", "training", "engines"]:
        """`training` or `engines`: whose GPUs wait for the others' longer side, where both run at the same time; empty where
        they differ by less than 2 % of the step, or nothing runs beside anything."""
        generated, rest = self._sides
        if not self.placement.staleness or abs(generated - rest) < EVEN * self.seconds:
            return ""
        return "training" if generated > rest else "engines"

    @property
    def idle_share(self) -> float:
        """Share of the step in which the starved side waits."""
        generated, rest = self._sides
        return abs(generated - rest) / self.seconds if self.starved else 0.0

    @property
    def stale_share(self) -> float:
        """Share of the step's samples that began under older weights."""
        return stale_share(self.residence_s, self._sides[0], max(self._sides), self.placement.staleness)

    @property
    def mean_age(self) -> float:
        """Steps by which the weights that a sample began under are older than those that it trains, on average: the steps that
        it is there (Little 1961); all that are allowed where the trainer decides."""
        most, (generated, rest) = float(self.placement.staleness), self._sides
        return most if generated < 0.98 * max(generated, rest) else min(self.residence_s / max(generated, rest), most)

    def chance_within(self, seconds: float) -> float:
        """That the step takes at most so long: ln(step) is normal around the middle of its band."""
        spread = log(self.band[1] / self.seconds) / STANDARD_90
        return NormalDist().cdf(log(seconds / self.seconds) / spread) if spread else float(seconds >= self.seconds)

    @property
    def _sides(self) -> tuple[float, float]:
        """Seconds of generation, and of what training does meanwhile."""
        return self.phases.of(GENERATION), max(self.phases.of(chain) for chain in chains(self.placement))


EVEN = 0.02
"""Share of a step by which two sides may differ and none is called starved."""


def price(job: PostTrainingJob, placement: Placement, known: Constants | None = None) -> PricedPlacement:
    """The step and the memory of one placement."""
    known = known or shipped_constants()
    rollout = generate(job, placement, generation_factor(job, known)) if job.algorithm.generates else None
    phases, _ = priced_phases(job, placement, rollout)
    memory = phase_memory(job, placement, rollout)
    return _with_constants(job, placement, phases, memory, known, rollout)


def _with_constants(
    job: PostTrainingJob,
    placement: Placement,
    phases: Phases,
    memory: PhaseMemory,
    known: Constants,
    rollout: Rollout | None,
) -> PricedPlacement:
    constants = constants_of(known, job.framework.name, class_marks(job, placement))
    final = scaled(job, placement, phases, constants)
    width = exp(STANDARD_90 * hypot(constants.scatter, constants.rounds * job.algorithm.rounds_spread))
    return PricedPlacement(
        placement=placement,
        phases=final,
        memory=memory,
        band=(final.total / width, final.total * width),
        residence_s=rollout.residence_s * constants.generation if rollout else 0.0,
    )


class Prices:
    """The placements of a job and their prices, each part of which is found once for all numbers of GPUs."""

    def __init__(
        self, job: PostTrainingJob, tokens: int, staleness: int, known: Constants | None = None, chance: float = FIT_CHANCE
    ) -> None:
        self.job, self.tokens, self.staleness, self.chance = job, tokens, staleness, chance
        self.known = known or shipped_constants()
        self._factor = generation_factor(job, self.known)
        self._rollouts: dict[Any, Rollout] = {}
        self._trained: dict[Any, tuple[float, float]] = {}
        self._placed: dict[int, list[Placement]] = {}
        self._bounds: dict[int, list[PricedPlacement]] = {}
        self.held: Held = {}

    def placements(self, gpus: int) -> list[Placement]:
        """All on these GPUs."""
        if gpus not in self._placed:
            self._placed[gpus] = list(placements(self.job, gpus, self.tokens, self.staleness, self.chance, self.held))
        return self._placed[gpus]

    def _rollout(self, placement: Placement, *, bound: bool) -> Rollout | None:
        """Generation, or of one that was not simulated yet its bound."""
        if not self.job.algorithm.generates:
            return None
        key = placement.engine, placement.memory_share, placement.staleness
        if key in self._rollouts:
            return self._rollouts[key]
        if bound:
            return generate(self.job, placement, self._factor, bound=True)
        self._rollouts[key] = generate(self.job, placement, self._factor)
        return self._rollouts[key]

    def price(self, placement: Placement, *, bound: bool = False) -> PricedPlacement:
        """Step and memory; `bound`: a step that it does not fall below, memory as it is."""
        other = placement.train, placement.tokens_per_gpu
        if other not in self._trained:
            self._trained[other] = training_seconds(self.job, placement), pass_seconds(self.job, placement)
        rollout = self._rollout(placement, bound=bound)
        phases, _ = priced_phases(self.job, placement, rollout, self._trained[other])
        memory = phase_memory(self.job, placement, rollout, held_memory(self.job, placement, self.held))
        return _with_constants(self.job, placement, phases, memory, self.known, rollout)

    def bounds(self, gpus: int) -> list[PricedPlacement]:
        """All on these GPUs with the bound of their step, the memory as it is."""
        if gpus not in self._bounds:
            self._bounds[gpus] = [self.price(placement, bound=True) for placement in self.placements(gpus)]
        return self._bounds[gpus]

    def likely(self, one: PricedPlacement) -> bool:
        """It fits with the chance that is asked for."""
        return one.memory.fits and one.memory.chance >= self.chance

    def ordered(self, gpus: int, keep: Callable[[PricedPlacement], bool] | None = None) -> Iterator[PricedPlacement]:
        """All on these GPUs, or of them those that are kept: those that fit with the chance first, then the others that fit,
        the quickest first of each; of placements that differ in the engine's share or offload alone, the first.

        One is simulated when its bound is the lowest of all that is left (best first, as branch and bound), so that who asks
        for the first few pays for few.
        """
        found = [one for one in self.bounds(gpus) if keep is None or keep(one)]
        queue = [(_order(one, self.chance), number, False, one) for number, one in enumerate(found)]
        heapq.heapify(queue)
        seen = set()
        while queue:
            _, number, exact, one = heapq.heappop(queue)
            if not exact:
                one = self.price(one.placement)
                heapq.heappush(queue, (_order(one, self.chance), number, True, one))
                continue
            key = alike(one.placement)
            if key not in seen:
                seen.add(key)
                yield one

    def first(self, gpus: int, keep: Callable[[PricedPlacement], bool] | None = None) -> PricedPlacement | None:
        """The first of `ordered`."""
        return next(self.ordered(gpus, keep), None)


def alike(placement: Placement) -> Placement:
    """The same for placements that differ in the engine's share or offload alone."""
    return replace(placement, memory_share=0.5, offload=False)


def ranked(
    job: PostTrainingJob, gpus: int, tokens: int, staleness: int, known: Constants | None = None, chance: float = FIT_CHANCE
) -> list[PricedPlacement]:
    """All placements in the order of `Prices.ordered`."""
    return list(Prices(job, tokens, staleness, known, chance).ordered(gpus))


def _order(one: PricedPlacement, chance: float) -> tuple[bool, bool, float, float, bool]:
    """Those that fit with this chance first, then those that fit, the quickest first; of equal steps the one that hides
    less."""
    fits = one.memory.fits
    return not fits, fits and one.memory.chance < chance, round(one.seconds, 6), one.phases.beside, one.placement.offload
