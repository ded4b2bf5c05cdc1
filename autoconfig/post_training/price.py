"""Seconds of one step of post-training by phase, its band and its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, log
from statistics import NormalDist
from typing import Literal

from autoconfig.post_training.frameworks import STANDARD_90, Constants, PhaseConstants, constants_of, shipped_constants
from autoconfig.post_training.generation import Rollout, generate
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.memory import PhaseMemory, phase_memory
from autoconfig.post_training.passes import pass_seconds, training_seconds, vocabulary_seconds
from autoconfig.post_training.phases import GENERATION, PHASES, Phases, chains, exposed
from autoconfig.post_training.samples.rollout import stale_share
from autoconfig.post_training.weight_sync import sync_seconds, weight_gigabytes
from autoconfig.specs.scenario import BLACKWELL


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """A step with its band."""

    phases: Phases
    generation: Rollout | None
    scatter: float

    @property
    def seconds(self) -> float:
        return self.phases.total


def priced_phases(
    job: PostTrainingJob, placement: Placement, rollout: Rollout | None = None, trained: tuple[float, float] | None = None
) -> tuple[Phases, Rollout | None]:
    """Return seconds of every phase before any constant of post-training. `rollout` and `trained` (seconds of training and
    of one pass of the policy), where these are known already."""
    algorithm = job.algorithm
    if rollout is None and algorithm.generates:
        rollout = generate(job, placement)
    training, one = trained or trained_seconds(job, placement)
    tokens = job.tokens if placement.tokens_per_gpu else job.longest
    logits, others = (vocabulary_seconds(job, placement.train, tokens, model) for model in (job.policy, job.reference))
    phases = Phases(
        generation=rollout.seconds if rollout else 0.0,
        logprob=algorithm.policy_passes * (one + logits),
        reference=algorithm.reference_passes * (_reference_seconds(job, placement, one) + others),
        training=training + logits,
        weight_sync=sync_seconds(job, placement) if rollout else 0.0,
        **_scoring_seconds(job, _beside(placement)),
    )
    return phases, rollout


def trained_seconds(job: PostTrainingJob, placement: Placement) -> tuple[float, float]:
    """Return seconds of (training of the policy, one of its passes over the samples, where there is any)."""
    passes = job.algorithm.policy_passes or job.algorithm.reference_passes
    return training_seconds(job, placement), pass_seconds(job, placement) if passes else 0.0


def _reference_seconds(job: PostTrainingJob, placement: Placement, one: float) -> float:
    """Return seconds of a pass of the reference: `one` of the policy where both are alike."""
    same = job.reference is None or job.reference == job.policy
    if same and (not job.algorithm.reference_passes or placement.reference_forward in (None, placement.forward)):
        return one
    return pass_seconds(job, placement, job.reference, placement.reference_forward)


def _scoring_seconds(job: PostTrainingJob, placement: Placement) -> dict[str, float]:
    """Return seconds of critic and reward model by phase; none of those that are not there."""
    seconds = {"reward": pass_seconds(job, placement, job.reward)} if job.reward else {}
    if job.algorithm.critic and job.critic:
        seconds["values"] = pass_seconds(job, placement, job.critic)
        seconds["critic_training"] = training_seconds(job, placement, job.critic)
    return seconds


def _beside(placement: Placement) -> Placement:
    """Return the placement of critic and reward model: the actor's plan, with as many replicas as their own GPUs hold."""
    if not placement.critic_gpus:
        return placement
    plan = placement.train
    size = plan.tp * plan.pp * plan.cp
    return replace(placement, train=replace(plan, dp=max(1, placement.critic_gpus // size)))


def scaled(job: PostTrainingJob, placement: Placement, phases: Phases, constants: PhaseConstants) -> Phases:
    """Return phases with the constants of their class, and what of them is hidden.

    The seconds beside the phases are those of engines and of moving samples: training on given text has none. A controller
    that hands the samples to each phase (`hands_samples`) takes as long for each of these as for collecting them.
    """
    algorithm, generates = job.algorithm, job.algorithm.generates
    per_gb = constants.seconds_per_gb if placement.colocated else constants.split_seconds_per_gb
    moved = constants.seconds_per_sample * job.trained if generates else 0.0
    handed = {
        "logprob": algorithm.policy_passes,
        "reference": algorithm.reference_passes,
        "training": 1,
        **{name: int(getattr(phases, name) > 0) for name in ("values", "reward", "critic_training")},
    }
    each = moved / (1 + sum(handed.values())) if job.framework.hands_samples else 0.0
    factors = {name: constants.training if "training" in name else constants.forward for name in handed}
    step = Phases(
        generation=phases.generation * constants.generation,
        samples=each or moved,
        weight_sync=phases.weight_sync,
        other=constants.fixed_s + per_gb * weight_gigabytes(job) if generates else 0.0,
        **{name: getattr(phases, name) * factors[name] + times * each for name, times in handed.items()},
    )
    shown = exposed(step, placement)
    return replace(step, beside=step.of(name for name in PHASES if name not in shown))


def generation_factor(job: PostTrainingJob, measured: Constants) -> float:
    """Return the constant of generation, which no plan of training changes."""
    return constants_of(measured, job.framework.name, _job_marks(job)).generation


def class_marks(job: PostTrainingJob, placement: Placement) -> tuple[str, ...]:
    """Return what of a run has constants of its own beside its framework's."""
    return (*_job_marks(job), *(("fsdp",) if placement.train.fsdp else ()))


def _job_marks(job: PostTrainingJob) -> tuple[str, ...]:
    blackwell = (job.gpu.compute_capability or 0.0) >= BLACKWELL
    return (*(("experts",) if job.policy.is_moe else ()), *(("blackwell",) if blackwell else ()))


def estimate_step(job: PostTrainingJob, placement: Placement, measured: Constants, *, guessed: bool = False) -> StepEstimate:
    """Return one step with the constants of its class; `guessed`: model, GPU, batch or lengths were assumed."""
    phases, rollout = priced_phases(job, placement)
    constants = constants_of(measured, job.framework.name, class_marks(job, placement))
    rounds = constants.rounds * job.algorithm.rounds_spread
    spread = constants.scatter_assumed if guessed else hypot(constants.scatter, rounds)
    return StepEstimate(phases=scaled(job, placement, phases, constants), generation=rollout, scatter=spread)


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
        """Return the longest of the phases that the step waits for."""
        return max(exposed(self.phases, self.placement), key=lambda name: self.phases.of((name,)))

    @property
    def starved(self) -> Literal["", "training", "engines"]:
        """Return `training` or `engines`: whose GPUs wait for the others' longer side, where both run at the same time;
        empty where they differ by less than 2 % of the step, or nothing runs beside anything."""
        generated, rest = self._sides
        if not self.placement.staleness or abs(generated - rest) < EVEN * self.seconds:
            return ""
        return "training" if generated > rest else "engines"

    @property
    def idle_share(self) -> float:
        """Return the share of the step in which the starved side waits."""
        generated, rest = self._sides
        return abs(generated - rest) / self.seconds if self.starved else 0.0

    @property
    def stale_share(self) -> float:
        """Return the share of the step's samples that began under older weights."""
        return stale_share(self.residence_s, self._sides[0], max(self._sides), self.placement.staleness)

    @property
    def mean_age(self) -> float:
        """Return steps by which the weights that a sample began under are older than those that it trains, on average: the
        steps that it is there (Little 1961); all that are allowed where the trainer decides."""
        most, (generated, rest) = float(self.placement.staleness), self._sides
        return most if generated < 0.98 * max(generated, rest) else min(self.residence_s / max(generated, rest), most)

    def chance_within(self, seconds: float) -> float:
        """Return the chance that the step takes at most so long: ln(step) is normal around the middle of its band."""
        spread = log(self.band[1] / self.seconds) / STANDARD_90
        return NormalDist().cdf(log(seconds / self.seconds) / spread) if spread else float(seconds >= self.seconds)

    @property
    def _sides(self) -> tuple[float, float]:
        """Return seconds of generation, and of what training does meanwhile."""
        return self.phases.of(GENERATION), max(self.phases.of(chain) for chain in chains(self.placement))


EVEN = 0.02
"""Share of a step by which two sides may differ and none is called starved."""


def price(job: PostTrainingJob, placement: Placement, constants: Constants | None = None) -> PricedPlacement:
    """Return the step and the memory of one placement."""
    constants = constants or shipped_constants()
    rollout = generate(job, placement, generation_factor(job, constants)) if job.algorithm.generates else None
    phases, _ = priced_phases(job, placement, rollout)
    return with_constants(job, placement, phases, phase_memory(job, placement, rollout), constants, rollout)


def with_constants(
    job: PostTrainingJob,
    placement: Placement,
    phases: Phases,
    memory: PhaseMemory,
    measured: Constants,
    rollout: Rollout | None,
) -> PricedPlacement:
    """Return the placement with the phases and the band that measured runs of its class give."""
    constants = constants_of(measured, job.framework.name, class_marks(job, placement))
    final = scaled(job, placement, phases, constants)
    width = exp(STANDARD_90 * hypot(constants.scatter, constants.rounds * job.algorithm.rounds_spread))
    return PricedPlacement(
        placement=placement,
        phases=final,
        memory=memory,
        band=(final.total / width, final.total * width),
        residence_s=rollout.residence_s * constants.generation if rollout else 0.0,
    )
