"""Placements of a step of post-training with their seconds and memory, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import Any

from autoconfig.planning.request_fields import POST_TRAINING
from autoconfig.post_training.frameworks import STANDARD_90, Constants, constants_of, shipped_constants
from autoconfig.post_training.generation import generate
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.memory import PhaseMemory, phase_memory
from autoconfig.post_training.passes import pass_seconds, training_seconds
from autoconfig.post_training.phases import Phases, exposed
from autoconfig.post_training.placements import Held, held_memory, placements
from autoconfig.post_training.step import class_marks, priced_phases, scaled

FIT_CHANCE: float = next(field.default for field in POST_TRAINING if field.name == "fit_chance")


@dataclass(frozen=True, kw_only=True)
class PricedPlacement:
    """A placement, its step and its memory."""

    placement: Placement
    phases: Phases
    memory: PhaseMemory
    band: tuple[float, float]
    """5 % and 95 % bound of the step."""

    @property
    def seconds(self) -> float:
        return self.phases.total

    @property
    def binds(self) -> str:
        """The longest of the phases that the step waits for."""
        return max(exposed(self.phases, self.placement), key=lambda name: self.phases.of((name,)))


def price(job: PostTrainingJob, placement: Placement, known: Constants | None = None) -> PricedPlacement:
    """The step and the memory of one placement."""
    rollout = generate(job, placement) if job.algorithm.generates else None
    phases, _ = priced_phases(job, placement, rollout)
    return _with_constants(job, placement, phases, phase_memory(job, placement, rollout), known or shipped_constants())


def _with_constants(
    job: PostTrainingJob, placement: Placement, phases: Phases, memory: PhaseMemory, known: Constants
) -> PricedPlacement:
    constants = constants_of(known, job.framework.name, class_marks(job, placement))
    final = scaled(job, placement, phases, constants)
    width = exp(STANDARD_90 * constants.scatter)
    return PricedPlacement(placement=placement, phases=final, memory=memory, band=(final.total / width, final.total * width))


def ranked(
    job: PostTrainingJob, gpus: int, tokens: int, staleness: int, known: Constants | None = None, chance: float = FIT_CHANCE
) -> list[PricedPlacement]:
    """All placements: those that fit with this chance first, then the others that fit, the quickest first of each; what shares
    engines or plans is priced once."""
    generated: dict[Any, Any] = {}
    trained: dict[Any, tuple[float, float]] = {}
    held: Held = {}
    known, found = known or shipped_constants(), []
    for placement in placements(job, gpus, tokens, staleness, chance, held):
        key = placement.engine, placement.memory_share, placement.staleness
        if job.algorithm.generates and key not in generated:
            generated[key] = generate(job, placement)
        rollout = generated.get(key)
        other = placement.train, placement.tokens_per_gpu
        if other not in trained:
            trained[other] = training_seconds(job, placement), pass_seconds(job, placement)
        phases, _ = priced_phases(job, placement, rollout, trained[other])
        memory = phase_memory(job, placement, rollout, held_memory(job, placement, held))
        found.append(_with_constants(job, placement, phases, memory, known))
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
