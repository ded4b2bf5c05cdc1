"""Separate prefill and decode instances: what fits a prefill instance, and the ratio of both that serves most requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.serving import ServingMemory, kv_token_bytes, state_sequence_bytes
from autoconfig.serving.price import DeploymentColumns
from autoconfig.serving.question import NIC_EFFICIENCY, ServeQuestion
from autoconfig.specs.serve_plan import EnginePlan, ServePlan
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.steady import Pricer, highest_utilisation_within, waiting_services

Vector = npt.NDArray[np.float64]
PREFILLS_KEPT = 6
MAX_UTILISATION = 0.9
"""Share of their throughput that prefill instances are asked for: prompts come in bursts."""
MIN_TOKENS = 512.0
"""Tokens of an iteration that an instance is started with at least."""


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """A layout as a prefill instance: one prompt at a time on every attention rank and pipeline stage."""

    index: int
    """Of its layout."""
    plan: EnginePlan
    prompt_s: float
    """Of one prompt."""
    sent_s: float
    """Its cache on the way to the decode instance."""

    @property
    def size(self) -> int:
        return self.plan.size

    @property
    def at_once(self) -> int:
        return self.plan.adp * self.plan.pp

    @property
    def requests_per_s(self) -> float:
        return self.at_once / self.prompt_s

    def ttft_s(self, utilisation: Vector, instances: Vector) -> Vector:
        """Mean time to first token where this share of the instances' throughput is asked for: wait, prompt, transfer."""
        return self.prompt_s * (1.0 + waiting_services(utilisation, instances * self.at_once)) + self.sent_s


def prefill_tokens(question: ServeQuestion) -> float:
    """Tokens of an iteration of a prefill instance: the longest prompt, whole."""
    return max(question.longest_prompt, MIN_TOKENS)


def prefill_memory(question: ServeQuestion, plan: EnginePlan) -> ServingMemory:
    """Of one GPU of a prefill instance with a prompt on every rank and stage; a sequence is then a mean prompt."""
    return question.memory(
        question.job(plan), float(plan.adp * plan.pp), prefill_tokens(question), length=question.workload.isl
    )


def prefill_lacks_bytes(question: ServeQuestion, plan: EnginePlan) -> float:
    """What a GPU of the prefill instance lacks to hold the longest prompt's activations, and the cache of as many such prompts
    as it has stages; at most 0 where they fit."""
    longest = question.sequence_bytes(plan, question.workload.longest_input)
    return plan.pp * longest - float(prefill_memory(question, plan).kv_pool_bytes)


def prefill(question: ServeQuestion, pricer: Pricer, job: ServingJob, index: int) -> Prefill:
    """The layout as a prefill instance; memory is not looked at."""
    each = float(pricer.prices(job).seconds(0.0, 1.0, 1.0, question.lengths.prompt)) + job.constants.request_s
    return Prefill(index=index, plan=job.plan, prompt_s=each, sent_s=transfer_seconds(question, job.plan, question.num_gpus))


def transfer_seconds(question: ServeQuestion, plan: EnginePlan, gpus: int) -> float:
    """KV cache of one prompt from prefill to decode GPUs of a deployment of so many: each rank sends its share through its own
    network card."""
    moved = question.lengths.isl * kv_token_bytes(question.model, plan) + state_sequence_bytes(question.model, plan)
    return moved / (question.sent_bytes_per_s(gpus) * NIC_EFFICIENCY)


@dataclass(frozen=True, kw_only=True)
class Decode:
    """A layout as a decode instance at the batch sizes that memory holds."""

    batch: Vector
    headroom: Vector
    """Sequences that memory holds, over batch."""
    step_s: Vector
    requests_per_s: Vector


def decode(question: ServeQuestion, pricer: Pricer, job: ServingJob, batches: Vector) -> Decode | None:
    """The layout as a decode instance; None where memory holds no batch."""
    plan, lengths = job.plan, question.lengths
    ranks = plan.adp * plan.pp
    memory = question.memory(job, batches, np.maximum(batches / ranks * (1.0 + lengths.drafted), MIN_TOKENS))
    held = memory.max_concurrency * plan.adp
    keep = (memory.kv_pool_bytes >= question.longest_bytes(plan, memory)) & (held >= batches) & (batches >= ranks)
    if not keep.any():
        return None
    batch = batches[keep]
    step = pricer.prices(job).seconds(batch / ranks, 1.0 + lengths.drafted, 0.0 * batch, 1.0)
    return Decode(
        batch=batch, headroom=held[keep] / batch, step_s=step, requests_per_s=batch / (max(lengths.steps, 1e-9) * step)
    )


def pairs(
    question: ServeQuestion, pricer: Pricer, plans: Sequence[EnginePlan], prefills: Sequence[Prefill], batches: Vector
) -> list[DeploymentColumns]:
    """The best prefill layouts within --ttft with every decode layout, in the ratio that serves most requests; GPUs that
    neither side uses are not booked."""
    limit = question.ttft_s or np.inf
    within = [one for one in prefills if one.prompt_s + one.sent_s < limit]
    best = sorted(within, key=lambda one: (one.requests_per_s / one.size, one.prompt_s, one.index), reverse=True)
    blocks = []
    for first, index, second in _matched(question, pricer, plans, best[:PREFILLS_KEPT], batches):
        size = plans[index].size
        counts = np.arange(1.0, (question.num_gpus - size) // first.size + 1.0)
        busy = utilisation(question, first, counts)
        decoders = np.floor((question.num_gpus - counts * first.size) / size)
        carried = (busy * counts * first.requests_per_s)[:, None]
        served = np.minimum(carried, decoders[:, None] * second.requests_per_s[None, :])
        pick = served.argmax(axis=0)
        needed = np.ceil(served[pick, np.arange(len(second.batch))] / second.requests_per_s - 1e-9)
        blocks.append(columns(question, first, second, index, plans[index], counts[pick], needed, busy[pick]))
    return blocks


MORE_PREFILLS = 2
"""Numbers of prefill instances that are tried under a load: the fewest that carry it, and one more."""
PREFILLS_OF_A_FORMAT = 2
"""Prefill layouts under a load by formats of weights and cache, those of fewest GPUs."""


def pairs_under_load(
    question: ServeQuestion,
    pricer: Pricer,
    plans: Sequence[EnginePlan],
    prefills: Sequence[Prefill],
    batches: Vector,
    wanted: float,
) -> list[DeploymentColumns]:
    """Pairs of layouts whose prefill instances are the fewest that carry `wanted` requests/s within --ttft, or one more; a
    row's requests are those of one decode instance, whose number the load decides. A deployment within a node sends over its
    link."""
    blocks: list[DeploymentColumns] = []
    for most in sorted({min(question.num_gpus, question.gpus_per_node), question.num_gpus}):
        smaller = replace(question, num_gpus=most)
        ready = []
        for one in prefills:
            first = replace(one, sent_s=transfer_seconds(question, one.plan, most))
            counts = np.arange(1.0, (most - 1) // one.size + 1.0)
            carried = utilisation(question, first, counts) * counts * first.requests_per_s
            if len(counts) and carried[-1] >= wanted:
                fewest = float(counts[np.searchsorted(carried, wanted)])
                ready.append((fewest * one.size, first.prompt_s + first.sent_s, one.index, fewest, first))
        ready.sort(key=lambda each: each[:3])
        by_format: dict[tuple[str, str], list[tuple[float, Prefill]]] = {}
        for *_, fewest, first in ready:
            by_format.setdefault((first.plan.weights, first.plan.kv), []).append((fewest, first))
        chosen = {first.index: fewest for some in by_format.values() for fewest, first in some[:PREFILLS_OF_A_FORMAT]}
        firsts = [first for *_, first in ready if first.index in chosen]
        for first, index, second in _matched(smaller, pricer, plans, firsts, batches):
            for counts in chosen[first.index] + np.arange(float(MORE_PREFILLS)):
                if counts * first.size + plans[index].size <= most:
                    blocks.append(_under_load(smaller, first, second, index, plans[index], float(counts)))
    return blocks


def utilisation(question: ServeQuestion, first: Prefill, counts: Vector) -> Vector:
    """Share of their throughput that so many prefill instances may be asked for within --ttft."""
    headroom = (question.ttft_s or np.inf) - first.sent_s
    services = max(headroom / first.prompt_s - 1.0, 0.0)
    return np.minimum(MAX_UTILISATION, highest_utilisation_within(services, counts * first.at_once))


def _matched(
    question: ServeQuestion, pricer: Pricer, plans: Sequence[EnginePlan], firsts: Sequence[Prefill], batches: Vector
) -> Iterator[tuple[Prefill, int, Decode]]:
    """Every prefill layout with every decode layout of its formats that there is room for: (prefill, index, decode)."""
    decodes: dict[int, Decode | None] = {}
    for first in firsts:
        for index, plan in enumerate(plans):
            alike = plan.kv == first.plan.kv and plan.weights == first.plan.weights
            if first.size + plan.size > question.num_gpus or not alike:
                continue
            if index not in decodes:
                decodes[index] = decode(question, pricer, question.job(plan), batches)
            second = decodes[index]
            if second is not None:
                yield first, index, second


def _under_load(
    question: ServeQuestion, first: Prefill, second: Decode, index: int, plan: EnginePlan, instances: float
) -> DeploymentColumns:
    """Columns with `instances` of `first` under the load, and as many decode instances as there is room for."""
    one = np.ones(len(second.batch))
    beside = instances * first.size
    busy = np.minimum(question.rate / (instances * first.requests_per_s), 1.0 - 1e-9)
    decoders = np.floor((question.num_gpus - beside) / plan.size)
    block = columns(question, first, second, index, plan, one * instances, one * decoders, one * MAX_UTILISATION)
    ttft_s = first.ttft_s(one * busy, one * instances)
    return replace(block, ttft_s=ttft_s, random_ttft_s=ttft_s)


def columns(
    question: ServeQuestion,
    first: Prefill,
    second: Decode,
    index: int,
    plan: EnginePlan,
    instances: Vector,
    decoders: Vector,
    utilisation: Vector,
) -> DeploymentColumns:
    """Rows of `instances` of `first` at no more than this utilisation, and `decoders` of `second`, layout
    `plan` of that index."""
    served = np.minimum(utilisation * instances * first.requests_per_s, decoders * second.requests_per_s)
    ttft_s = first.ttft_s(served / (instances * first.requests_per_s), instances)
    rank_tokens = second.batch / (plan.adp * plan.pp) * (1.0 + question.lengths.drafted)
    return DeploymentColumns.of(
        layout=index,
        prefill=first.index,
        batch=second.batch,
        tokens=np.maximum(np.ceil(rank_tokens / 256.0) * 256.0, MIN_TOKENS),
        replicas=decoders,
        requests_per_s=served,
        ttft_s=ttft_s,
        random_ttft_s=ttft_s,
        tpot_s=second.step_s / question.lengths.tokens_per_step,
        gpus=instances * first.size + decoders * plan.size,
        headroom=second.headroom,
        prefills=instances,
        size=plan.size,
        each=second.requests_per_s,
    )


def instance(question: ServeQuestion, plan: EnginePlan, replicas: int) -> EnginePlan:
    """The layout as the prefill side of a plan: batch 1, which engines read as one prompt a rank and stage."""
    return plan.replace(batch=1, tokens=int(prefill_tokens(question)), replicas=replicas)


def named(question: ServeQuestion, pricer: Pricer, plan: ServePlan) -> DeploymentColumns | None:
    """One deployment that was named, prefill instances at index 1 of its layouts; None where its decode side does not fit."""
    assert plan.prefill is not None
    first = prefill(question, pricer, question.job(plan.prefill), 1)
    second = decode(question, pricer, question.job(plan.decode), np.array([float(plan.decode.batch)]))
    if second is None:
        return None
    counts, decoders = np.array([float(plan.prefill.replicas)]), np.array([float(plan.decode.replicas)])
    return columns(question, first, second, 0, plan.decode, counts, decoders, utilisation(question, first, counts))
