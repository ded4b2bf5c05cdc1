"""Phases of a step: their seconds, which of them run at the same time, and when each runs on which GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoconfig.post_training.job import Placement

PHASES = (
    *("generation", "samples", "logprob", "reference", "values", "reward", "training", "critic_training", "weight_sync"),
    "other",
)
GENERATION = ("generation", "samples")
ACTOR = ("logprob", "reference", "training")
CRITIC = ("values", "reward", "critic_training")
REST = ("samples", "other")
"""What no phase of a framework's own timing holds."""
LAST = ("weight_sync", "other")
"""What every GPU waits for at the end of a step."""


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Seconds of each phase, as priced or as scaled by constants; 0 where an algorithm has none."""

    generation: float = 0.0
    samples: float = 0.0
    """Of scoring them by rules, padding, and moving them between workers."""
    logprob: float = 0.0
    """Of the policy."""
    reference: float = 0.0
    values: float = 0.0
    reward: float = 0.0
    training: float = 0.0
    """Of the policy."""
    critic_training: float = 0.0
    weight_sync: float = 0.0
    other: float = 0.0
    beside: float = 0.0
    """Of these seconds, what runs on other GPUs at the same time and is hidden."""

    def of(self, names: Iterable[str]) -> float:
        """Seconds of these phases, one after the other."""
        return float(sum(getattr(self, name) for name in names))

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.of(PHASES) - self.beside


def exposed(phases: Phases, placement: Placement) -> tuple[str, ...]:
    """The phases that the step waits for, in their order.

    Synchronous: one after the other. `staleness` above 0: later steps are generated and their samples collected beside passes
    and training, the longer decides. Critic and reward model on their own GPUs run beside the actor's passes and training, the
    longer decides.
    """
    chain = max(chains(placement), key=phases.of)
    if placement.staleness:
        chain = max(GENERATION, chain, key=phases.of)
    else:
        chain = (*GENERATION, *chain)
    return (*chain, *LAST)


def chains(placement: Placement) -> tuple[tuple[str, ...], ...]:
    """Passes and training, apart from each other where the critic has GPUs of its own."""
    return (ACTOR, CRITIC) if placement.critic_gpus else ((*ACTOR[:2], *CRITIC[:2], ACTOR[2], CRITIC[2]),)


@dataclass(frozen=True, kw_only=True)
class PhaseInterval:
    """A phase from `start` to `end`, seconds after the step began."""

    phase: str
    """Its name."""
    start: float
    """Seconds after the step began."""
    end: float
    """Seconds after the step began."""


@dataclass(frozen=True, kw_only=True)
class GpuGroup:
    """GPUs that do the same, and what they do in a step; between intervals they wait."""

    name: str
    """`engines`, `training`, `training and engines` or `critic`."""
    gpus: int
    intervals: tuple[PhaseInterval, ...]


def timeline(phases: Phases, placement: Placement) -> tuple[GpuGroup, ...]:
    """The step over groups of GPUs; the last interval of each ends with the step."""
    apart = bool(phases.generation) and (not placement.colocated or placement.staleness > 0)
    begin = 0.0 if placement.staleness else phases.of(GENERATION)
    ready = phases.of(exposed(phases, placement)[: -len(LAST)])
    end = _laid(LAST, ready, phases)
    generation = _laid(GENERATION, 0.0, phases)
    laid = [_laid(chain, begin, phases) for chain in chains(placement)]
    name = "training" if apart or not phases.generation else "training and engines"
    groups = [GpuGroup(name="engines", gpus=placement.engine.gpus, intervals=generation + end)] if apart else []
    groups.append(GpuGroup(name=name, gpus=placement.train.world_size, intervals=(() if apart else generation) + laid[0] + end))
    if placement.critic_gpus:
        groups.append(GpuGroup(name="critic", gpus=placement.critic_gpus, intervals=laid[1] + end))
    return tuple(groups)


def _laid(names: Iterable[str], start: float, phases: Phases) -> tuple[PhaseInterval, ...]:
    """These phases one after the other from `start`, those that take no time left out."""
    intervals = []
    for name in names:
        end = start + float(getattr(phases, name))
        if end > start:
            intervals.append(PhaseInterval(phase=name, start=start, end=end))
        start = end
    return tuple(intervals)
