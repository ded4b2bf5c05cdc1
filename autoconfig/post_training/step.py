"""Seconds of one step of post-training, by phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot

from autoconfig.post_training.frameworks import Constants, PhaseConstants, constants_of
from autoconfig.post_training.generation import Rollout, generate
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.passes import pass_seconds, training_seconds, vocabulary_seconds
from autoconfig.post_training.phases import PHASES, Phases, exposed
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
    """Seconds of every phase before any constant of post-training. `rollout` and `trained` (seconds of training and of one pass
    of the policy), where these are known already."""
    algorithm = job.algorithm
    found = rollout or (generate(job, placement) if algorithm.generates else None)
    passes = algorithm.policy_passes or algorithm.reference_passes
    training, one = trained or (training_seconds(job, placement), pass_seconds(job, placement) if passes else 0.0)
    same = job.reference is None or job.reference == job.policy
    known = placement.reference_forward in (None, placement.forward) or not algorithm.reference_passes
    reference = one if same and known else pass_seconds(job, placement, job.reference, placement.reference_forward)
    tokens = job.tokens if placement.tokens_per_gpu else job.longest
    logits, others = (vocabulary_seconds(job, placement.train, tokens, model) for model in (job.policy, job.reference))
    side = _beside(placement)
    critic = job.critic if algorithm.critic else None
    return Phases(
        generation=found.seconds if found else 0.0,
        logprob=algorithm.policy_passes * (one + logits),
        reference=algorithm.reference_passes * (reference + others),
        values=pass_seconds(job, side, critic) if critic else 0.0,
        reward=pass_seconds(job, side, job.reward) if job.reward else 0.0,
        training=training + logits,
        critic_training=training_seconds(job, side, critic) if critic else 0.0,
        weight_sync=sync_seconds(job, placement) if found else 0.0,
    ), found


def _beside(placement: Placement) -> Placement:
    """The placement of critic and reward model: the actor's plan, with as many replicas as their own GPUs hold."""
    if not placement.critic_gpus:
        return placement
    plan = placement.train
    size = plan.tp * plan.pp * plan.cp
    return replace(placement, train=replace(plan, dp=max(1, placement.critic_gpus // size)))


def scaled(job: PostTrainingJob, placement: Placement, phases: Phases, constants: PhaseConstants) -> Phases:
    """Phases with the constants of their class, and what of them is hidden.

    The seconds beside the phases are those of engines and of moving samples: training on given text has none. A controller
    that hands the samples to each phase (`hands_samples`) takes as long for each of these as for collecting them.
    """
    c, algorithm = constants, job.algorithm
    per_gb = c.seconds_per_gb if placement.colocated else c.split_seconds_per_gb
    moved = c.seconds_per_sample * job.trained if algorithm.generates else 0.0
    handed = {
        "logprob": algorithm.policy_passes,
        "reference": algorithm.reference_passes,
        "training": 1,
        **{name: int(getattr(phases, name) > 0) for name in ("values", "reward", "critic_training")},
    }
    each = moved / (1 + sum(handed.values())) if job.framework.hands_samples else 0.0
    factors = {name: c.training if "training" in name else c.forward for name in handed}
    found = Phases(
        generation=phases.generation * c.generation,
        samples=each or moved,
        weight_sync=phases.weight_sync,
        other=c.fixed_s + per_gb * weight_gigabytes(job) if algorithm.generates else 0.0,
        **{name: getattr(phases, name) * factors[name] + times * each for name, times in handed.items()},
    )
    shown = exposed(found, placement)
    return replace(found, beside=found.of(name for name in PHASES if name not in shown))


def generation_factor(job: PostTrainingJob, known: Constants) -> float:
    """The constant of generation, which no plan of training changes."""
    return constants_of(known, job.framework.name, _job_marks(job)).generation


def class_marks(job: PostTrainingJob, placement: Placement) -> tuple[str, ...]:
    """What of a run has constants of its own beside its framework's."""
    return (*_job_marks(job), *(("fsdp",) if placement.train.fsdp else ()))


def _job_marks(job: PostTrainingJob) -> tuple[str, ...]:
    blackwell = (job.gpu.compute_capability or 0.0) >= BLACKWELL
    return (*(("experts",) if job.policy.is_moe else ()), *(("blackwell",) if blackwell else ()))


def estimate_step(job: PostTrainingJob, placement: Placement, known: Constants, *, guessed: bool = False) -> StepEstimate:
    """One step with the constants of its class; `guessed`: model, GPU, batch or lengths were assumed."""
    phases, found = priced_phases(job, placement)
    constants = constants_of(known, job.framework.name, class_marks(job, placement))
    rounds = constants.rounds * job.algorithm.rounds_spread
    spread = constants.scatter_assumed if guessed else hypot(constants.scatter, rounds)
    return StepEstimate(phases=scaled(job, placement, phases, constants), generation=found, scatter=spread)
