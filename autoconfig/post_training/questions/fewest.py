"""The fewest GPUs that do so many steps in so many hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoconfig.post_training.job import PostTrainingJob
from autoconfig.post_training.price import PricedPlacement
from autoconfig.post_training.question import Deadline
from autoconfig.post_training.rank import Prices
from autoconfig.specs.models.parameters import active_matmul_parameters

FLOPS_PER_PARAMETER = 4.0
"""Of a token in forward and backward at the least: 2 forward, 2 for what flows back; frozen weights have no gradients (Hu et
al. 2021, arXiv:2106.09685)."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A number of GPUs, and the quickest placement on it that has the asked chance to fit."""

    gpus: int
    first: PricedPlacement
    considered: int

    @property
    def seconds(self) -> float:
        """Return the seconds of the quickest step."""
        return self.first.seconds


def gpu_counts(node: int, most: int) -> Iterator[int]:
    """Yield every number below a node, then whole nodes, up to `most`: those that a question may have."""
    yield from range(1, min(node, most + 1))
    yield from range(node, most + 1, node)


def least_seconds(job: PostTrainingJob, gpus: int) -> float:
    """Return a bound from below of a step on these GPUs: the matrix FLOPs of its training at the highest peak of all of
    them."""
    tokens = job.trained * job.tokens * job.algorithm.sequences_per_sample
    flops = FLOPS_PER_PARAMETER * float(active_matmul_parameters(job.policy)) * tokens
    return flops / (gpus * max(job.gpu.flops_per_s.values()))


def _bound(prices: Prices, gpus: int) -> float:
    """Return the bound of a step on these GPUs; infinite where no placement is likely to fit."""
    return min((one.seconds for one in prices.bounds(gpus) if prices.likely(one)), default=math.inf)


def _quickest(prices: Prices, counts: Iterable[int]) -> Tried | None:
    """Return the quickest of these numbers of GPUs; those are priced whose bound is below the best, the largest first."""
    best: Tried | None = None
    for gpus in sorted(counts, reverse=True):
        most = best.seconds if best else math.inf
        if least_seconds(prices.job, gpus) >= most or _bound(prices, gpus) >= most:
            continue
        one = prices.first_likely(gpus)
        if one and one.seconds < most:
            best = Tried(gpus=gpus, first=one, considered=len(prices.placements(gpus)))
    return best


def fewest(prices: Prices, most: int, deadline: Deadline) -> tuple[Tried | None, Tried | None]:
    """Return (the least number of GPUs that meets the deadline, the quickest below it or, where none does, of all); each None
    where there is none.

    Numbers are tried from below, as a step does not fall with every GPU (samples must divide over those that train); none is
    simulated whose bounds miss the deadline.
    """
    counts = list(gpu_counts(prices.job.gpu.gpus_per_node, most))
    for at, gpus in enumerate(counts):
        if least_seconds(prices.job, gpus) > deadline.step_seconds or _bound(prices, gpus) > deadline.step_seconds:
            continue
        one = prices.first_likely(gpus)
        if one and one.seconds <= deadline.step_seconds:
            enough = Tried(gpus=gpus, first=one, considered=len(prices.placements(gpus)))
            return enough, _quickest(prices, counts[:at])
    return None, _quickest(prices, counts)
