"""Answers of `autoconfig rl` as JSON records. Sizes are GiB, times seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from autoconfig.post_training.answer import RlAnswer
from autoconfig.post_training.job import Placement
from autoconfig.post_training.phases import PHASES, GpuGroup, timeline
from autoconfig.post_training.price import PricedPlacement
from autoconfig.post_training.questions.unknowns import band_where_said
from autoconfig.specs.errors import GIB
from autoconfig.specs.json_record import AboveZero, Keywords, Natural, NotNegative, Positive, Share
from autoconfig.specs.remarks import AssumedJson, assumed_json


@dataclass(frozen=True, kw_only=True)
class RolloutEngineJson:
    """The engines that generate."""

    tp: Positive
    """GPUs that share every layer of an engine."""
    pp: Positive
    """Pipeline stages of an engine."""
    replicas: Positive
    """Engines."""
    memory_share: float
    """Of each of its GPUs that an engine takes (gpu_memory_utilization)."""


@dataclass(frozen=True, kw_only=True)
class StepMemoryJson:
    """Peak of one GPU by phase against what it has, and of one node's host."""

    generation: NotNegative
    """Of a GPU that generates."""
    training: NotNegative
    """Of a GPU that trains, with the largest of 512 drawn micro-batches."""
    passes: NotNegative
    """Of a GPU in passes of log-probabilities with micro-batches of their own; 0: they take less than training."""
    device: AboveZero
    """What one GPU has."""
    host: NotNegative
    """What waits on the host of one node."""
    generation_fit_probability: Share
    """Chance that generation does not run out of memory."""
    training_fit_probability: Share
    """Chance that training and passes do not run out of memory."""


@dataclass(frozen=True, kw_only=True)
class PlacementJson:
    """Who runs where, and what a step takes."""

    placement: str
    """`colocated`, `split`, or how many steps generation may be ahead (`async-1`); `critic apart`: on nodes of its own."""
    train_plan: str
    """Short form."""
    train_gpus: Positive
    """GPUs that train the policy."""
    engine: RolloutEngineJson | None
    """Null where nothing is generated."""
    staleness: Natural
    """Steps by which generation may be ahead of the weights."""
    critic_gpus: Natural
    """Of critic and reward model on nodes of their own; 0: they share those of training."""
    offload: bool
    """Training waits on the host while the engines generate."""
    step_seconds: float
    """Time of a step, all phases."""
    step_seconds_p5: float
    """Lower end of its 90 % band."""
    step_seconds_p95: float
    """Upper end of its 90 % band."""
    cost: AboveZero | None
    """Money for a step, with `price`; null without, and of `rl check`."""
    phases: dict[str, NotNegative]
    """Seconds of every phase."""
    hidden_seconds: float
    """Of the phases, what runs at the same time on other GPUs; the step is their sum without it."""
    timeline: tuple[GpuGroup, ...]
    binds: Annotated[str, Keywords(enum=PHASES)]
    """The longest phase that the step waits for."""
    starved: Literal["training", "engines"] | None
    """Whose GPUs wait for the other side, where generation and training run at the same time."""
    idle_share: Share
    """Of the step, in which the starved side waits."""
    stale_share: Share
    """Of the step's samples, those that began under older weights."""
    memory_gib: StepMemoryJson
    fits: bool
    """No phase runs out of memory."""
    reason: str | None
    """What does not fit."""


@dataclass(frozen=True, kw_only=True)
class DeadlineJson:
    """Steps that must be done in these hours, and what fewer GPUs take."""

    hours: float
    steps: Positive
    step_seconds: float
    """Most seconds of a step."""
    fewer_gpus: Positive | None
    """The quickest on fewer GPUs, which misses it; null where fewer do not fit."""
    fewer_hours: float | None
    """Hours that those take."""
    chance: Share | None
    """That the first placement is in time, by its band; null where none is."""
    cost: AboveZero | None
    """Money for all steps of the first placement, with `price`; null without."""


@dataclass(frozen=True, kw_only=True)
class UnknownJson:
    """Something that was not said and widens the band."""

    field: str
    """The field that says it."""
    step_seconds_p5: float
    """Lower end of the first placement's band were it said."""
    step_seconds_p95: float
    """Upper end of that band."""


@dataclass(frozen=True, kw_only=True)
class RlJson(AssumedJson):
    """Ranked placements of a step of post-training."""

    schema_version: Literal[2] = 2
    """Raised when a name or meaning changes."""
    model: str
    algorithm: str
    framework: str
    gpu: str
    gpus: Positive
    samples: Positive
    """Prompts of a step times responses of each."""
    considered: Natural
    """Placements that were priced."""
    placements: tuple[PlacementJson, ...]
    """Those that fit, quickest first: of those with `fit_chance` where any has it."""
    nearest: PlacementJson | None
    """Where none fits: the one that lacks least; where there is no placement at all, the first with `remedy`, which fits."""
    remedy: str | None
    """Where none fits, or none with `fit_chance`: a change of the question that was tried."""
    fit_chance: NotNegative
    """The least chance to fit that was asked for."""
    fit_chance_met: bool
    """Whether a placement has it."""
    riskier: PlacementJson | None
    """The quickest that fits with less than `fit_chance`, where it is quicker than the first."""
    ties: Natural
    """So many placements, the first among them, are closer in step time than the model can tell apart."""
    one_more_node_step_seconds: float | None
    """The quickest step of as many samples with one more node; null where that is not asked, or nothing fits."""
    deadline: DeadlineJson | None
    """Of `goal` gpus: what was asked, and what fewer GPUs take; `gpus` is the fewest that meet it."""
    unknowns: tuple[UnknownJson, ...]
    """What was not said and widens the band, the one whose answer narrows it most first."""


def answer_json(answer: RlAnswer) -> RlJson:
    """The whole answer."""
    return RlJson(
        model=answer.job.policy.name,
        algorithm=answer.job.algorithm.name,
        framework=answer.job.framework.name,
        gpu=answer.job.gpu.id,
        gpus=answer.gpus,
        samples=answer.job.samples,
        **assumed_json((*answer.notes, *answer.assumed)),
        considered=answer.considered,
        placements=tuple(placement_json(one, answer.cost_of(one)) for one in answer.ranked),
        nearest=placement_json(answer.nearest, answer.cost_of(answer.nearest)) if answer.nearest else None,
        remedy=answer.remedy or None,
        fit_chance=answer.fit_chance,
        fit_chance_met=answer.fit_chance_met,
        riskier=placement_json(answer.riskier, answer.cost_of(answer.riskier)) if answer.riskier else None,
        ties=answer.ties,
        one_more_node_step_seconds=answer.one_more_node,
        deadline=_deadline_json(answer),
        unknowns=_unknowns_json(answer),
    )


def _deadline_json(answer: RlAnswer) -> DeadlineJson | None:
    deadline, fewer = answer.deadline, answer.fewer
    if deadline is None:
        return None
    return DeadlineJson(
        hours=deadline.hours,
        steps=deadline.steps,
        step_seconds=deadline.step_seconds,
        fewer_gpus=fewer.gpus if fewer else None,
        fewer_hours=deadline.hours_of(fewer.seconds) if fewer else None,
        chance=answer.ranked[0].chance_within(deadline.step_seconds) if answer.ranked else None,
        cost=deadline.steps * cost if answer.ranked and (cost := answer.cost_of(answer.ranked[0])) else None,
    )


def _unknowns_json(answer: RlAnswer) -> tuple[UnknownJson, ...]:
    bands = [(one.field, band_where_said(answer.ranked[0], one)) for one in answer.unknowns]
    return tuple(UnknownJson(field=name, step_seconds_p5=low, step_seconds_p95=high) for name, (low, high) in bands)


def placement_json(one: PricedPlacement, cost: float | None = None) -> PlacementJson:
    """One placement: plans, seconds by phase, memory. `cost`: money for a step."""
    p, memory = one.placement, one.memory
    engine = RolloutEngineJson(tp=p.engine.tp, pp=p.engine.pp, replicas=p.engine.replicas, memory_share=p.memory_share)
    return PlacementJson(
        placement=kind_of(p),
        train_plan=str(p.train),
        train_gpus=p.train.world_size,
        engine=engine if one.phases.generation else None,
        staleness=p.staleness,
        critic_gpus=p.critic_gpus,
        offload=p.offload,
        step_seconds=one.seconds,
        step_seconds_p5=one.band[0],
        step_seconds_p95=one.band[1],
        cost=cost,
        phases={name: one.phases.of((name,)) for name in PHASES},
        hidden_seconds=one.phases.beside,
        timeline=timeline(one.phases, p),
        binds=one.binds,
        starved=one.starved or None,
        idle_share=one.idle_share,
        stale_share=one.stale_share,
        memory_gib=StepMemoryJson(
            generation=memory.generation_bytes / GIB,
            training=memory.training_bytes / GIB,
            passes=memory.forward_bytes / GIB,
            device=memory.device_bytes / GIB,
            host=memory.host_bytes / GIB,
            generation_fit_probability=memory.generation_fit,
            training_fit_probability=memory.training_fit,
        ),
        fits=memory.fits,
        reason=memory.reason or None,
    )


def kind_of(placement: Placement) -> str:
    """colocated, split, or how many steps off; with critic nodes."""
    words = "colocated" if placement.colocated else "split" if not placement.staleness else f"async-{placement.staleness}"
    return f"{words}, critic apart" if placement.critic_gpus else words
