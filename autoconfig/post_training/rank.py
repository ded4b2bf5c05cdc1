"""Placements of a step of post-training with their seconds and memory, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from autoconfig.post_training.frameworks import Constants, shipped_constants
from autoconfig.post_training.generation import Rollout, generate
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.memory import phase_memory
from autoconfig.post_training.price import PricedPlacement, generation_factor, priced_phases, trained_seconds, with_constants
from autoconfig.post_training.question import FIT_CHANCE, RlQuestion
from autoconfig.post_training.space import Held, enumerate_placements, held_memory


class Prices:
    """The placements of a job and their prices, each part of which is found once for all numbers of GPUs."""

    def __init__(
        self,
        job: PostTrainingJob,
        tokens: int,
        staleness: int,
        constants: Constants | None = None,
        chance: float = FIT_CHANCE,
    ) -> None:
        self.job, self.tokens, self.staleness, self.chance = job, tokens, staleness, chance
        self.constants = constants or shipped_constants()
        self._factor = generation_factor(job, self.constants)
        self._rollouts: dict[Any, Rollout] = {}
        self._trained: dict[Any, tuple[float, float]] = {}
        self._placed: dict[int, list[Placement]] = {}
        self._bounds: dict[int, list[PricedPlacement]] = {}
        self._held: Held = {}

    @classmethod
    def of(cls, question: RlQuestion) -> Prices:
        """Return the prices that a question asks for."""
        request = question.request
        return cls(question.job, question.tokens, request.staleness, question.constants, request.fit_chance)

    def changed(
        self,
        job: PostTrainingJob | None = None,
        *,
        tokens: int | None = None,
        staleness: int | None = None,
        chance: float | None = None,
    ) -> Prices:
        """Return the prices of the same question with another job, size of micro-batches, staleness or chance."""
        return Prices(
            job or self.job,
            self.tokens if tokens is None else tokens,
            self.staleness if staleness is None else staleness,
            self.constants,
            self.chance if chance is None else chance,
        )

    def placements(self, gpus: int) -> list[Placement]:
        """Return all placements on these GPUs."""
        if gpus not in self._placed:
            every = enumerate_placements(self.job, gpus, self.tokens, self.staleness, self.chance, self._held)
            self._placed[gpus] = list(every)
        return self._placed[gpus]

    def _rollout(self, placement: Placement, *, bound: bool) -> Rollout | None:
        """Return generation, or of one that was not simulated yet its bound."""
        if not self.job.algorithm.generates:
            return None
        key = placement.engine, placement.memory_share, placement.staleness, placement.cuda_graphs, placement.continuous
        if key in self._rollouts:
            return self._rollouts[key]
        if bound:
            return generate(self.job, placement, self._factor, bound=True)
        self._rollouts[key] = generate(self.job, placement, self._factor)
        return self._rollouts[key]

    def price(self, placement: Placement, *, bound: bool = False) -> PricedPlacement:
        """Return step and memory; `bound`: a step that it does not fall below, memory as it is."""
        other = placement.train, placement.tokens_per_gpu, placement.samples, placement.forward
        if other not in self._trained:
            self._trained[other] = trained_seconds(self.job, placement)
        rollout = self._rollout(placement, bound=bound)
        phases, _ = priced_phases(self.job, placement, rollout, self._trained[other])
        memory = phase_memory(self.job, placement, rollout, held_memory(self.job, placement, self._held))
        return with_constants(self.job, placement, phases, memory, self.constants, rollout)

    def bounds(self, gpus: int) -> list[PricedPlacement]:
        """Return all on these GPUs with the bound of their step, the memory as it is."""
        if gpus not in self._bounds:
            self._bounds[gpus] = [self.price(placement, bound=True) for placement in self.placements(gpus)]
        return self._bounds[gpus]

    def considered(self, gpus: int) -> int:
        """Return how many there are on these GPUs, of those that are alike one."""
        return len({alike(placement) for placement in self.placements(gpus)})

    def likely(self, one: PricedPlacement) -> bool:
        """Return whether it fits with the chance that is asked for."""
        return one.memory.fits and one.memory.chance >= self.chance

    def ordered(self, gpus: int, keep: Callable[[PricedPlacement], bool] | None = None) -> Iterator[PricedPlacement]:
        """Yield all on these GPUs, or of them those that are kept: those that fit with the chance first, then the others that
        fit, the quickest first of each; of placements that differ in the engine's share or offload alone, the first.

        One is simulated when its bound is the lowest of all that is left (best first, as branch and bound), so that who asks
        for the first few pays for few.
        """
        bounds = [one for one in self.bounds(gpus) if keep is None or keep(one)]
        queue = [(_order(one, self.chance), number, False, one) for number, one in enumerate(bounds)]
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
        """Return the first of `ordered`."""
        return next(self.ordered(gpus, keep), None)

    def first_likely(self, gpus: int) -> PricedPlacement | None:
        """Return the quickest that fits with the chance that is asked for."""
        return self.first(gpus, self.likely)


def alike(placement: Placement) -> Placement:
    """Return one placement for all that differ in the engine's share or offload alone."""
    return replace(placement, memory_share=0.5, offload=False)


def rank(prices: Prices, gpus: int) -> list[PricedPlacement]:
    """Return all placements on these GPUs in the order of `Prices.ordered`."""
    return list(prices.ordered(gpus))


def _order(one: PricedPlacement, chance: float) -> tuple[bool, bool, float, float, bool]:
    """Return a key for sorting: those that fit with this chance first, then those that fit, the quickest first; of equal steps
    the one that hides less."""
    fits = one.memory.fits
    return not fits, fits and one.memory.chance < chance, round(one.seconds, 6), one.phases.beside, one.placement.offload
