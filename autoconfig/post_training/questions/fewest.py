"""The fewest GPUs that do so many steps in so many hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoconfig.post_training.frameworks import Constants
from autoconfig.post_training.job import PostTrainingJob
from autoconfig.post_training.ranking import PricedPlacement, ranked
from autoconfig.specs.models.parameters import active_matmul_parameters

FLOPS_PER_PARAMETER = 4.0
"""Of a token in forward and backward at the least: 2 forward, 2 for what flows back; frozen weights have no gradients (Hu et
al. 2021, arXiv:2106.09685)."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """Steps that must be done in these hours."""

    hours: float
    steps: int

    @property
    def step_seconds(self) -> float:
        """Most seconds of a step."""
        return self.hours * 3600.0 / self.steps

    def hours_of(self, step_seconds: float) -> float:
        """Of all steps."""
        return step_seconds * self.steps / 3600.0


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A number of GPUs, and every placement on it that has the asked chance to fit, in order."""

    gpus: int
    placements: tuple[PricedPlacement, ...]
    considered: int

    @property
    def seconds(self) -> float:
        """Of the quickest step; infinite without one."""
        return min((one.seconds for one in self.placements), default=float("inf"))


def gpu_counts(node: int, most: int) -> Iterator[int]:
    """Powers of two below a node, then whole nodes, up to `most`."""
    size = 1
    while size < min(node, most + 1):
        yield size
        size *= 2
    yield from range(node, most + 1, node)


def least_seconds(job: PostTrainingJob, gpus: int) -> float:
    """A bound from below of a step on these GPUs: the matrix FLOPs of its training at the highest peak of all of them."""
    tokens = job.trained * job.tokens * job.algorithm.sequences_per_sample
    flops = FLOPS_PER_PARAMETER * float(active_matmul_parameters(job.policy)) * tokens
    return flops / (gpus * max(job.gpu.flops_per_s.values()))


def tried(job: PostTrainingJob, gpus: int, tokens: int, staleness: int, known: Constants | None, chance: float) -> Tried:
    """The placements of a number of GPUs with the asked chance to fit."""
    found = ranked(job, gpus, tokens, staleness, known, chance)
    likely = tuple(one for one in found if one.memory.fits and one.memory.chance >= chance)
    return Tried(gpus=gpus, placements=likely, considered=len(found))


def fewest(
    job: PostTrainingJob,
    most: int,
    tokens: int,
    staleness: int,
    deadline: Deadline,
    known: Constants | None = None,
    chance: float = 0.9,
) -> tuple[Tried | None, Tried | None]:
    """(the least number of GPUs that meets the deadline, the quickest below it or, where none does, of all); each None where
    there is none.

    Numbers are tried from below, as a step does not fall with every GPU (samples must divide over those that train); of those
    that `least_seconds` rules out none is priced but where no other says what fewer take.
    """
    nearest: Tried | None = None
    enough: Tried | None = None
    passed: list[int] = []
    for gpus in gpu_counts(job.gpu.gpus_per_node, most):
        if least_seconds(job, gpus) > deadline.step_seconds:
            passed.append(gpus)
            continue
        one = tried(job, gpus, tokens, staleness, known, chance)
        if one.seconds <= deadline.step_seconds:
            enough = one
            break
        if one.placements and (nearest is None or one.seconds < nearest.seconds):
            nearest = one
    while nearest is None and passed:
        one = tried(job, passed.pop(), tokens, staleness, known, chance)
        nearest = one if one.placements else None
    return enough, nearest
