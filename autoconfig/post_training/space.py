"""Every placement of a job on N GPUs worth pricing: colocated, split, one step off, critic nodes apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from autoconfig.memory_model.predict import estimate_memory, fit_probability
from autoconfig.memory_model.serving import weights_bytes
from autoconfig.post_training.job import Placement, PostTrainingJob, plan_on
from autoconfig.post_training.memory import ASLEEP_BYTES, TrainingMemory, training_chance, training_memory
from autoconfig.post_training.passes import microbatches, priced, scenario_of, stage_ends, vocabulary_seconds
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.layouts import divisors
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import module_formats
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.plan_rules import broken_rules

RECOMPUTES = (NONE, Recompute.parse("full"))
DEEPEST = 16
"""Pipeline stages at most."""
UNEVEN = (4, 8, 12, 16)
"""Stages of pipelines whose ends have fewer layers."""
PLANS_KEPT = 2
"""Training plans of a number of GPUs that go on to placements: the quickest that fit."""
Held = dict[tuple[TrainPlan, int], TrainingMemory]
"""What training holds, by plan and tokens of a packed micro-batch."""
EVERY_SPLIT = 48
"""Splits over which the samples divide up to which all are priced: of 8,192 samples those of 1,000 nodes are fewer."""
SHARES = (0.85, 0.7, 0.5, 0.35)
"""Shares of a GPU's memory for an engine, the largest first; with GPUs of its own always the first."""
PADDED = (1, 2, 4, 8)
"""Samples of a micro-batch where they are padded."""
LEAST_LEFT = 0.15
"""Share of a GPU that weights must leave of the engine's for its cache."""


def packed_tokens(job: PostTrainingJob, plan: TrainPlan, tokens: int) -> int:
    """Return tokens of a packed micro-batch on each of cp GPUs: `tokens`, or what the longest sample takes. verl asserts it
    (verl/utils/seqlen_balancing.py, rearrange_micro_batches), NeMo-RL's packer raises otherwise. 0 where samples are padded."""
    return 0 if not job.framework.packs else max(tokens, -(-job.longest // plan.cp))


def held_memory(job: PostTrainingJob, placement: Placement, held: Held) -> TrainingMemory:
    """Return `training_memory`, of each plan once."""
    key = placement.train, placement.tokens_per_gpu
    if key not in held:
        held[key] = training_memory(job, placement)
    return held[key]


def training_plans(
    job: PostTrainingJob, gpus: int, tokens: int, fit_chance: float, held: Held, beside: Placement
) -> list[TrainPlan]:
    """Return the quickest legal training plans on these GPUs that fit, at most PLANS_KEPT, of Megatron and of FSDP together,
    and where none of them has a chance of `fit_chance` in a placement like `beside`, the quickest that has, or the
    likeliest. Colocated, where none fits those of Megatron whose optimizer is on the host; where none of these does the one
    that lacks least."""
    every = _every_plan(job, gpus, tokens, hosted=False)
    if beside.colocated and all(one[0] for one in every):
        every = _every_plan(job, gpus, tokens, hosted=True)
    fitting = [one for one in every if not one[0]]
    chosen = fitting[:PLANS_KEPT]

    def likely(plan: TrainPlan) -> bool:
        placed = replace(beside, train=plan, tokens_per_gpu=packed_tokens(job, plan, tokens))
        return training_chance(job, placed, held_memory(job, placed, held)) >= fit_chance

    if fitting and not any(likely(one[3]) for one in chosen):
        others = (one for one in fitting[PLANS_KEPT:] if one[2] >= fit_chance and likely(one[3]))
        chosen.append(next(others, max(fitting, key=lambda one: one[2])))
    return [one[3] for one in dict.fromkeys(chosen or every[:1])]


@lru_cache(maxsize=512)
def _every_plan(job: PostTrainingJob, gpus: int, tokens: int, *, hosted: bool) -> list[tuple[bool, float, float, TrainPlan]]:
    """Return `_priced` of all plans on these GPUs, in order; `hosted`: of Megatron also those whose optimizer is on the
    host."""
    rows: list[tuple[bool, float, float, TrainPlan]] = []
    makers = {"megatron": _megatron, "fsdp": _sharded}
    made = {name: [one for plan in makers[name](job, gpus) for one in _sized(job, plan)] for name in job.framework.back_ends}
    for plans in made.values():
        rows += _priced(job, plans, gpus, tokens)
    if hosted:
        rows += _priced(job, [replace(plan, offload=1.0) for plan in made.get("megatron", [])], gpus, tokens)
    return sorted(rows, key=lambda one: one[:2])


def _sized(job: PostTrainingJob, plan: TrainPlan) -> list[TrainPlan]:
    """Return the plan with every micro-batch whose samples the ranks share evenly; of packed ones the size is that of their
    tokens."""
    sizes = PADDED if not job.framework.packs else (1,)
    return [replace(plan, mbs=size) for size in sizes if job.minibatch % (plan.dp * size) == 0]


def _priced(job: PostTrainingJob, plans: list[TrainPlan], gpus: int, tokens: int) -> list[tuple[bool, float, float, TrainPlan]]:
    """Return (does not fit, seconds of an optimizer step or where it does not fit bytes, chance to fit, plan) of every legal
    plan, all of one stack."""
    cuts = [microbatches(job, plan, job.trained / job.updates, packed_tokens(job, plan, tokens)) for plan in plans]
    ready = [priced(cut, plan) for cut, plan in zip(cuts, plans, strict=True)]
    batches = [cut.whole * cut.count * plan.dp for cut, plan in zip(cuts, ready, strict=True)]
    if not plans:
        return []
    scenario = scenario_of(job, ready[0], job.policy, cuts[0])
    legal = [i for i, rules in enumerate(broken_rules(scenario, ready, [gpus] * len(ready), batches)) if not rules]
    if not legal:
        return []
    layouts = scenario.layouts([ready[i] for i in legal], [batches[i] for i in legal], gpus)
    seconds = estimate_step_time(scenario, layouts, RECOMPUTES).step_seconds
    memory = estimate_memory(scenario, layouts, RECOMPUTES)
    beside = ASLEEP_BYTES if job.algorithm.generates else 0.0
    chances = fit_probability(memory.peak_bytes + beside, memory.limit_bytes[:, None], job.gpu.memory_bytes)
    rows = []
    for row, i in enumerate(legal):
        for r, recompute in enumerate(RECOMPUTES):
            fits = bool(memory.fits[row, r])
            logits = vocabulary_seconds(job, plans[i], job.tokens if job.framework.packs else job.longest) / job.updates
            cost = float(seconds[row, r]) * cuts[i].scale + logits if fits else float(memory.peak_bytes[row, r])
            rows.append((not fits, cost, float(chances[row, r]), replace(plans[i], recompute=recompute)))
    return rows


def _sharded(job: PostTrainingJob, gpus: int) -> list[TrainPlan]:
    """Return the plans of FSDP over all GPUs, with context parallelism (Ulysses) within a node."""
    node = min(job.gpus_per_node or job.gpu.gpus_per_node, gpus)
    if gpus == 1:
        return [plan_on(gpus, sharding=3)] if "megatron" not in job.framework.back_ends else []
    if job.policy.is_moe:
        return []
    sizes = [cp for cp in divisors(node) if cp <= 8 and job.policy.num_query_groups % cp == 0]
    return [plan_on(gpus, sharding=3, cp=cp) for cp in sizes]


def _megatron(job: PostTrainingJob, gpus: int) -> list[TrainPlan]:
    """Return plans with tensor parallelism within a node, pipelines, and experts over the data-parallel ranks."""
    model, node, plans = job.policy, min(job.gpus_per_node or job.gpu.gpus_per_node, gpus), []
    for tp in [t for t in divisors(node) if model.num_attention_heads % t == 0]:
        for pp in [p for p in _depths(model.num_layers) if gpus % (tp * p) == 0]:
            first, last = stage_ends(model, pp)
            plan = plan_on(gpus, tp=tp, pp=pp, sp=tp > 1, first=first, last=last)
            plans += [replace(plan, ep=ep) for ep in _expert_degrees(model, tp, plan.dp)]
    return plans


def _expert_degrees(model: ModelSpec, tp: int, dp: int) -> list[int]:
    """Return the three largest degrees over the data-parallel ranks, and the largest over those of tensor parallelism too."""
    if not model.is_moe:
        return [1]
    experts = model.num_moe_experts or 1
    sizes = [ep for ep in divisors(dp) if experts % ep == 0][-3:]
    return list(dict.fromkeys([*sizes, max(ep for ep in divisors(tp * dp) if experts % ep == 0)]))


def _depths(layers: int) -> list[int]:
    """Return pipelines of even stages, and beyond the deepest of them those whose first and last stage have fewer layers (61
    or 94 layers have no other)."""
    even = [p for p in divisors(layers) if p <= DEEPEST]
    return even + [p for p in UNEVEN if even[-1] < p <= layers // 2]


@lru_cache(maxsize=256)
def engine_weights(model: ModelSpec, gpu: GpuSpec, tp: int) -> float:
    """Return bytes on one GPU of an engine."""
    return float(weights_bytes(model, EnginePlan(tp=tp), module_formats(model, "bf16", gpu)))


def engine_plans(job: PostTrainingJob, gpus: int, share: float) -> list[EnginePlan]:
    """Return engines of each tensor parallelism whose weights leave room in the share for a cache, at most four; else the
    largest."""
    plans = []
    sizes = [t for t in divisors(gpus) if job.policy.num_attention_heads % t == 0 and t & (t - 1) == 0]
    for tp in sizes:
        plan = EnginePlan(tp=tp, replicas=gpus // tp)
        if engine_weights(job.policy, job.gpu, tp) < (share - LEAST_LEFT) * job.gpu.memory_bytes:
            plans.append(plan)
    return plans[:4] or [EnginePlan(tp=sizes[-1], replicas=gpus // sizes[-1])]


def enumerate_placements(
    job: PostTrainingJob, gpus: int, tokens: int, staleness: int, fit_chance: float = 0.0, held: Held | None = None
) -> Iterator[Placement]:
    """Yield all placements of the job, memory not looked at but for training alone, of which `held` keeps what was found."""
    held = {} if held is None else held
    node = min(job.gpus_per_node or job.gpu.gpus_per_node, gpus)
    critics = [0]
    if job.algorithm.critic and gpus >= 2 * node and job.framework.critic_apart:
        critics.append(gpus // node // 2 * node)
    for critic in critics:
        own = gpus - critic
        engines = _engines(job, own)
        offloads = job.framework.offloads if job.algorithm.generates else (False,)
        least = _trained_on(own, critic, offload=any(offloads))
        for plan in training_plans(job, own, tokens, fit_chance, held, least):
            for share, engine in engines:
                for offload in offloads:
                    yield Placement(
                        train=plan,
                        engine=engine,
                        critic_gpus=critic,
                        tokens_per_gpu=packed_tokens(job, plan, tokens),
                        memory_share=share,
                        offload=offload,
                    )
        if job.algorithm.generates and job.framework.splits:
            yield from _split(job, own, node, tokens, staleness, critic, fit_chance, held)


def _trained_on(gpus: int, critic: int, *, offload: bool = False, colocated: bool = True) -> Placement:
    """Return a placement whose plan of training is still to be found."""
    plan = TrainPlan(tp=1, pp=1, dp=gpus, mbs=1)
    engine = EnginePlan(tp=1, replicas=gpus)
    return Placement(train=plan, engine=engine, colocated=colocated, critic_gpus=critic, offload=offload)


def _engines(job: PostTrainingJob, gpus: int) -> list[tuple[float, EnginePlan]]:
    """Return (share of memory, engines) on all of these GPUs; one that takes nothing where no responses are generated."""
    if not job.algorithm.generates:
        return [(0.0, EnginePlan(tp=1, replicas=gpus))]
    return [(share, engine) for share in SHARES for engine in engine_plans(job, gpus, share)]


def _split(
    job: PostTrainingJob, own: int, node: int, tokens: int, staleness: int, critic: int, fit_chance: float, held: Held
) -> Iterator[Placement]:
    """Yield placements whose generation has GPUs of its own, whole nodes where there are several."""
    unit = node if own >= 2 * node else 1
    for rollout in _rollout_gpus(job, own, unit):
        beside = _trained_on(own - rollout, critic, colocated=False)
        for plan in training_plans(job, own - rollout, tokens, fit_chance, held, beside):
            for engine in engine_plans(job, rollout, SHARES[0]):
                for ahead in [n for n in range(staleness + 1) if ("async" if n else "sync") in job.framework.splits]:
                    yield Placement(
                        train=plan,
                        engine=engine,
                        colocated=False,
                        staleness=ahead,
                        critic_gpus=critic,
                        tokens_per_gpu=packed_tokens(job, plan, tokens),
                        memory_share=SHARES[0],
                        offload=False,
                    )


def _rollout_gpus(job: PostTrainingJob, own: int, unit: int) -> list[int]:
    """Return GPUs for generation: every number of nodes (of few GPUs, of GPUs) that leaves training so many that the samples
    divide; of more than EVERY_SPLIT such numbers, that many evenly."""
    left = [count for count in range(unit, own - unit + 1, unit) if _divides(job, own - count)]
    if len(left) > EVERY_SPLIT:
        left = [left[round(place * (len(left) - 1) / (EVERY_SPLIT - 1))] for place in range(EVERY_SPLIT)]
    return list(dict.fromkeys(left))


def _divides(job: PostTrainingJob, gpus: int) -> bool:
    """Return whether the samples of a minibatch divide over the ranks of some plan of training."""
    node = min(job.gpus_per_node or job.gpu.gpus_per_node, gpus)
    sizes = {cp for cp in divisors(node) if cp <= 8} if "fsdp" in job.framework.back_ends else set()
    if "megatron" in job.framework.back_ends:
        sizes |= {tp * pp for tp in divisors(node) for pp in _depths(job.policy.num_layers)}
    return any(gpus % size == 0 and job.minibatch % (gpus // size) == 0 for size in sizes)
