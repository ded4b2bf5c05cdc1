"""Placements of a step of post-training with their seconds and memory, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot
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


def ranked(
    job: PostTrainingJob, gpus: int, tokens: int, staleness: int, known: Constants | None = None, chance: float = FIT_CHANCE
) -> list[PricedPlacement]:
    """All placements: those that fit with this chance first, then the others that fit, the quickest first of each; what shares
    engines or plans is priced once."""
    generated: dict[Any, Any] = {}
    trained: dict[Any, tuple[float, float]] = {}
    held: Held = {}
    known, found = known or shipped_constants(), []
    factor = generation_factor(job, known)
    for placement in placements(job, gpus, tokens, staleness, chance, held):
        key = placement.engine, placement.memory_share, placement.staleness
        if job.algorithm.generates and key not in generated:
            generated[key] = generate(job, placement, factor)
        rollout = generated.get(key)
        other = placement.train, placement.tokens_per_gpu
        if other not in trained:
            trained[other] = training_seconds(job, placement), pass_seconds(job, placement)
        phases, _ = priced_phases(job, placement, rollout, trained[other])
        memory = phase_memory(job, placement, rollout, held_memory(job, placement, held))
        found.append(_with_constants(job, placement, phases, memory, known, rollout))
    return _distinct(sorted(found, key=lambda one: _order(one, chance)))


def _order(one: PricedPlacement, chance: float) -> tuple[bool, bool, float, float, bool]:
    """Those that fit with this chance first, then those that fit, the quickest first; of equal steps the one that hides
    less."""
    fits = one.memory.fits
    return not fits, fits and one.memory.chance < chance, round(one.seconds, 6), one.phases.beside, one.placement.offload


def _distinct(ordered: list[PricedPlacement]) -> list[PricedPlacement]:
    """Of placements that differ in the engine's share or offload alone, the first."""
    seen, kept = set(), []
    for one in ordered:
        key = replace(one.placement, memory_share=0.5, offload=False)
        if key not in seen:
            seen.add(key)
            kept.append(one)
    return kept
