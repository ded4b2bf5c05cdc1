"""Seconds in which rollout engines generate all samples of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from autoconfig.memory_model.engines.plan import ServedPlan
from autoconfig.memory_model.serving import ServingMemory
from autoconfig.post_training.frameworks import section
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.post_training.samples.rollout import (
    BLOCK,
    ONE_TURN,
    AgentRollout,
    Agents,
    SteadyEngine,
    mean_context,
    simulate_agents,
    steady_agents,
)
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.hardware.cluster import GpuSpec, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import EngineSpec, load_engine
from autoconfig.time_model.serving.iteration import IterationTable
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.simulation import Requests, SchedulerLimits, simulate
from autoconfig.time_model.serving.tables import ServingTables, host_slowness, serving_tables_of, shipped_calibration

MOST_SIMULATED = 4096
"""Sequences of one engine that are simulated; more repeat the same."""


ROUNDING = 1.0 + 1e-9
"""Of sums of tokens."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """`seconds` until the last response of the step is there; `tail_s` of them with fewer than half of the slots in use."""

    seconds: float
    tail_s: float
    slots: float
    """Sequences that one engine runs at once."""
    memory: ServingMemory
    whole: bool
    """The engine's cache holds the longest sample."""
    residence_s: float = 0.0
    """Mean of a sample from its begin to its end, where generation runs ahead of the weights."""

    @property
    def fits(self) -> bool:
        """The engine holds at least one sequence, of any length that may come."""
        return self.slots >= 1.0 and self.whole


@lru_cache(maxsize=256)
def _engine(model: ModelSpec, gpu: GpuSpec, plan: EnginePlan, graphs: bool) -> tuple[EngineSpec, ServingJob, IterationTable]:
    """The engine with the host's seconds of an iteration as rollout engines of reinforcement learning have them."""
    host = section("engine_host")
    gpu = replace(gpu, flops_per_s={"bf16": gpu.flops_per_s.get("fp16", 0.0), **gpu.flops_per_s})
    engine = load_engine("vllm")
    constants = shipped_calibration().constants(engine, gpu)
    slow = host_slowness(gpu.id)
    seconds = {name: slow * host[name] for name in ("host_s", "layer_s", "sequence_s")}
    constants = replace(constants, **seconds)
    if not graphs:
        engine = replace(engine, eager_iterations="all")
        constants = replace(constants, eager_layer_s=host["eager_layer_s"])
    job = ServingJob(model=model, gpu=gpu, plan=plan, engine=engine, constants=constants, measured=_operators(gpu))
    return engine, job, IterationTable(job)


def _operators(gpu: GpuSpec) -> ServingTables | None:
    """None: the GPU's own. Where no chip like it was measured, A100's shares of the roofline."""
    try:
        serving_tables_of(gpu)
    except AutoconfigError:
        return serving_tables_of(load_gpu("a100-80gb"))
    return None


def _room(job: PostTrainingJob, placement: Placement) -> tuple[ServingMemory, float, float]:
    """(memory of one engine, samples that its cache holds at once, tokens that it holds)."""
    plan = replace(placement.engine, replicas=1)
    memory = _memory(job.policy, job.gpu, plan, placement.cuda_graphs, placement.memory_share, job.tokens)
    slots = float(np.maximum(memory.kv_pool_bytes, 0.0) / memory.kv_bytes_per_sequence) / plan.pp
    return memory, slots, max(slots, 1.0) * job.tokens


@lru_cache(maxsize=1024)
def _memory(model: ModelSpec, gpu: GpuSpec, plan: EnginePlan, graphs: bool, share: float, tokens: float) -> ServingMemory:
    """Of one engine, however many there are."""
    engine, served, _ = _engine(model, gpu, plan, graphs)
    start = ServedPlan(model=model, plan=plan, formats=served.formats, gpu=gpu, engine=engine, kv_memory_ratio=share)
    return start.memory(length=tokens, batch=256)


LARGER_SHARES = (0.7, 0.8, 0.9)
"""What runs give their engines whose weights ask for more than a framework's own share (NeMo-RL's recipes: 0.6, 0.8, 0.88)."""


def share_that_holds(job: PostTrainingJob, placement: Placement) -> float:
    """The placement's memory share, or where an engine does not hold the longest sample with it, the first of LARGER_SHARES
    with which it does; the placement's own where none does."""
    own = placement.memory_share
    for share in (own, *(one for one in LARGER_SHARES if one > own)):
        _, slots, tokens = _room(job, replace(placement, memory_share=share))
        if slots >= 1.0 and tokens >= job.longest:
            return share
    return own


def generate(job: PostTrainingJob, placement: Placement, factor: float = 1.0, *, bound: bool = False) -> Rollout:
    """All samples through the engines of a placement, before the constant of generation: of agents, `factor` is what it will
    be, which slows engines and no tools.

    Continuous batching of one engine is simulated from its first prompt until its last response (drained), a prompt prefilled
    once for its group (prefix cache); the engine with the longest response of the step decides. Where generation runs
    `staleness` steps ahead nothing drains: sequences of the next steps fill the slots, so that a step takes its share of a
    full engine's time. An engine that does not hold a sequence is priced as a full one, not simulated. Samples of several turns
    go through the same scheduler, turn by turn; each engine has its share of the pool of sandboxes. `bound`: where this
    simulates, seconds that it does not fall below, at a hundredth of the cost.
    """
    plan = placement.engine
    engine, _, table = _engine(job.policy, job.gpu, replace(plan, replicas=1), placement.cuda_graphs)
    memory, slots, kv_tokens = _room(job, placement)
    ranks = plan.replicas * plan.adp * plan.pp
    count = ceil(job.samples / ranks)
    batch = max(1, min(engine.max_batch_size, int(slots)))
    holds = slots >= 1.0 and kv_tokens >= job.longest
    limits = SchedulerLimits(batch=batch, tokens=engine.max_num_tokens, kv_tokens=max(kv_tokens, float(job.longest)))
    load = EngineShare(job.responses, job.samples, job.group, job.prompt_tokens, count)
    boxes = job.agents.sandboxes / ranks
    tail, residence = 0.0, 0.0
    if job.agents.turns > 1:
        table = _slowed(table, factor)
    else:
        factor = 1.0
    if job.agents.turns == 1 and not (placement.continuous and job.framework.continuous):
        seconds = _static(job, table, ceil(job.samples / (plan.replicas * plan.adp)), batch)
    elif placement.staleness > 0 or not holds:  # where it cannot run, sequences one after the other take long to simulate
        steady = _steady(table, load, job.agents, limits, (1.0 + placement.staleness) * count, boxes)
        seconds = count / steady.samples_per_s
        residence = steady.at_once / steady.samples_per_s if placement.staleness else 0.0
    elif bound:
        seconds = _least(table, load, job.agents, limits, boxes)
    elif job.agents.turns > 1:
        seconds = _agents(table, load, job.agents, _that_bind(load, limits, job.agents), boxes).seconds
    else:
        seconds, tail = _drained(job, table, count, limits)
    used = min(slots, engine.max_batch_size)
    return Rollout(
        seconds=seconds / factor,
        tail_s=tail,
        slots=used,
        memory=memory,
        whole=kv_tokens >= job.longest,
        residence_s=residence / factor,
    )


BOUND = 0.85
"""Of an iteration's seconds at the mean batch, as a bound: seconds are near linear in the batch, not quite."""


@lru_cache(maxsize=1024)
def _least(table: IterationTable, load: EngineShare, agents: Agents, limits: SchedulerLimits, sandboxes: float) -> float:
    """A bound from below of one engine's samples drained.

    Iterations are at least the tokens of the longest sample, those of all over the slots, and over the cache that each holds
    from its begin to its end; their seconds are near linear in the sequences that run, so that those of the mean batch stand
    for all. Calls take their seconds beside: of a sample one after the other, of all from the pool of sandboxes.
    """
    requests = _requests(load)
    tokens, longest = float(requests.osl.sum()), float(requests.osl.max())
    held = requests.isl + requests.cached + requests.osl + agents.added_tokens
    iterations = max(longest, tokens / limits.batch, float((held * requests.osl).sum()) / limits.kv_tokens)
    context = load.prompt_tokens + float((requests.osl**2).sum()) / (2.0 * tokens)
    delay = agents.calls * agents.tool_seconds
    calls = load.number * delay / sandboxes if sandboxes and delay else 0.0
    alone = longest * table.seconds(1.0, load.prompt_tokens + longest / 2.0, 0.0, 0.0, 1.0)
    return max(BOUND * iterations * table.seconds(tokens / iterations, context, 0.0, 0.0, 1.0), calls, delay, BOUND * alone)


@lru_cache(maxsize=256)
def _slowed(table: IterationTable, factor: float) -> IterationTable:
    """One table of each factor, so that what was found with it is found again."""
    return table if factor == 1.0 else table.slowed(factor)


TURNS_SIMULATED = 1_600
"""Turns of one engine's samples that are simulated: of more, samples that are alike are taken together."""
LEAST_COHORTS = 48
"""Groups of alike samples at the least."""
LEAST_SLOTS = 16
"""Of an engine in such groups, at the least; samples beyond them follow at the rate of a full engine."""


@lru_cache(maxsize=1024)
def _agents(
    table: IterationTable, load: EngineShare, agents: Agents, limits: SchedulerLimits, sandboxes: float
) -> AgentRollout:
    """One engine's samples over all of their turns, the last one drained.

    Alike samples are taken together in cohorts: n of weight w are simulated on a table, slots, cache and sandboxes of 1 / w.
    Where engines run few of many samples at once, those beyond the simulated ones follow at a full engine's rate.
    """
    most = max(LEAST_COHORTS, TURNS_SIMULATED // agents.simulated_turns)
    weight = min(max(load.number / most, 1.0), max(min(limits.batch, load.number) / LEAST_SLOTS, 1.0))
    cohorts = min(ceil(load.number / weight - 1e-9), most)
    weight = min(weight, load.number / cohorts)
    half = 0.5 * (1.0 - 1.0 / weight)  # room of which a whole cohort leaves as much unused as a sample would
    of_cohorts = replace(
        limits,
        batch=max(1, int(limits.batch / weight + half)),
        tokens=max(1, round(limits.tokens / weight)),
        kv_tokens=limits.kv_tokens / weight + half * (load.prompt_tokens + load.responses.mean + agents.added_tokens),
    )
    requests = _requests(load._replace(number=cohorts))
    if weight > 1.0:
        requests = _of_cohorts(requests, float(_requests(load).osl.sum()) * cohorts / load.number)
    rollout = simulate_agents(agents, table.of_cohorts(weight), requests, of_cohorts, sandboxes / weight)
    rest = load.number - cohorts * weight
    if rest < 1.0:
        return rollout
    full = _steady(table, load, agents, limits, float("inf"), sandboxes)
    return replace(rollout, seconds=rollout.seconds + rest / full.samples_per_s)


def _of_cohorts(requests: Requests, tokens: float) -> Requests:
    """The same with `tokens` in all: the longest stands for one sample alone, so that the others are a little shorter."""
    longest, total = float(requests.osl.max()), float(requests.osl.sum())
    share = (tokens - longest) / (total - longest) if total > longest else 1.0
    lengths = np.where(requests.osl == longest, longest, np.maximum(np.round(requests.osl * min(share, 1.0)), 1.0))
    return replace(requests, osl=lengths)


def _drained(job: PostTrainingJob, table: IterationTable, count: int, limits: SchedulerLimits) -> tuple[float, float]:
    """(seconds until the last response of the unluckiest engine, of these with less than half of its sequences running)."""
    shown = min(count, MOST_SIMULATED)
    load = EngineShare(job.responses, job.samples, job.group, job.prompt_tokens, shown)
    lengths = _requests(load).osl
    duration, tail = _stream(table, load, _that_bind(load, limits))
    repeats = (count - shown) * float(lengths.mean()) / max(float(lengths.sum()), 1.0) * (duration - tail)
    return duration + repeats, tail


class EngineShare(NamedTuple):
    """What one engine is asked in a step."""

    responses: ResponseLengths
    samples: int
    """Of the step, on all engines: the longest of them is among the engine's."""
    group: int
    prompt_tokens: float
    number: int


@lru_cache(maxsize=64)
def _requests(load: EngineShare) -> Requests:
    """All at once; of a group's prompts the first is prefilled, of the others the last block."""
    lengths = load.responses.sample(load.number)
    lengths[load.number // 2] = max(load.responses.longest(load.samples), lengths[load.number // 2])
    first = np.arange(load.number) % load.group == 0
    prompts = np.where(first, load.prompt_tokens, min(16.0, load.prompt_tokens))
    return Requests(
        arrival_s=np.zeros(load.number),
        isl=np.maximum(prompts, 1.0),
        osl=lengths,
        cached=np.maximum(load.prompt_tokens - prompts, 0.0),
    )


def _that_bind(load: EngineShare, limits: SchedulerLimits, agents: Agents = ONE_TURN) -> SchedulerLimits:
    """The limits, no larger than where all requests run at once: engines that differ in what they never use are alike."""
    requests = _requests(load)
    added = load.number * (agents.added_tokens + agents.turns - 1)
    most = float(np.sum(requests.isl + requests.osl + requests.cached) + added) * ROUNDING
    return replace(limits, batch=min(limits.batch, load.number), kv_tokens=min(limits.kv_tokens, most))


@lru_cache(maxsize=256)
def _stream(table: IterationTable, load: EngineShare, limits: SchedulerLimits) -> tuple[float, float]:
    """(seconds until the last response, of these with less than half of the sequences running)."""
    simulated = simulate(table, _requests(load), limits)
    order = np.sort(simulated.e2e_s[np.isfinite(simulated.e2e_s)])
    return simulated.duration_s, simulated.duration_s - float(order[-max(1, limits.batch // 2)])


def _steady(
    table: IterationTable, load: EngineShare, agents: Agents, limits: SchedulerLimits, ahead: float, sandboxes: float
) -> SteadyEngine:
    """A full engine: of b sequences that generate b / r responses end in an iteration and as many begin, with their prefills.
    Of caches that wait for tools those that do not fit beside the running ones are prefilled anew."""
    response, prompt = load.responses.mean, load.prompt_tokens
    context = prompt + (response + agents.added_tokens) / 2.0
    tokens = prompt + response + agents.added_tokens
    first = (1.0 + (load.group - 1) * BLOCK / max(prompt, BLOCK)) / load.group
    later = mean_context(agents, prompt, response)
    own = agents.tool_tokens + BLOCK if agents.keeps_prefix else later
    attended = max((prompt + agents.calls * later) / agents.turns, 1.0)

    def iteration(running: float, in_tools: float) -> float:
        begun, idle = running / response, in_tools * later
        gone = 1.0 - min(1.0, max(limits.kv_tokens - running * tokens, 0.0) / idle) if idle else 0.0
        prefilled = first * prompt + agents.calls * (own + gone * (later - own))
        return table.seconds(running, context, begun * (first + agents.calls), begun * prefilled, attended)

    return steady_agents(agents, response, limits.batch, ahead, sandboxes, iteration)


def _static(job: PostTrainingJob, table: IterationTable, count: int, batch: int) -> float:
    """Batches one after the other, each padded to the longest of its responses (Hugging Face generate, NeMo-Aligner's rollout
    micro-batches); of pipeline stages one works at a time."""
    size = min(batch, count, job.framework.rollout_batch or count)
    longest = job.responses.longest(size)
    prefill = table.seconds(0.0, 1.0, size, size * job.prompt_tokens, max(job.prompt_tokens, 1.0))
    return ceil(count / size) * (prefill + longest * table.seconds(size, job.prompt_tokens + longest / 2.0, 0.0, 0.0, 1.0))
