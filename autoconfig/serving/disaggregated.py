"""Separate prefill and decode instances: what fits a prefill instance, and the ratio of both that serves most requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.serving import ServingMemory, kv_token_bytes, state_sequence_bytes
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
        return self.plan.tp * self.plan.pp * self.plan.adp

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
    return Prefill(index=index, plan=job.plan, prompt_s=each, sent_s=transfer_seconds(question, job.plan))


def transfer_seconds(question: ServeQuestion, plan: EnginePlan) -> float:
    """KV cache of one prompt from prefill to decode GPUs: each rank sends its share through its own network card."""
    moved = question.lengths.isl * kv_token_bytes(question.model, plan) + state_sequence_bytes(question.model, plan)
    return moved / (question.nic_bytes_per_s * NIC_EFFICIENCY)


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
) -> list[dict[str, Vector]]:
    """The best prefill layouts within --ttft with every decode layout, in the ratio that serves most requests."""
    limit = question.ttft_s or np.inf
    within = [one for one in prefills if one.prompt_s + one.sent_s < limit]
    best = sorted(within, key=lambda one: (one.requests_per_s / one.size, one.prompt_s, one.index), reverse=True)
    decodes: dict[int, Decode | None] = {}
    blocks = []
    for first in best[:PREFILLS_KEPT]:
        most = np.arange(1.0, question.num_gpus // first.size + 1.0)
        utilisation = np.minimum(
            MAX_UTILISATION, highest_utilisation_within((limit - first.sent_s) / first.prompt_s - 1.0, most * first.at_once)
        )
        for index, plan in enumerate(plans):
            size = plan.tp * plan.pp * plan.adp
            if first.size + size > question.num_gpus or plan.kv != first.plan.kv or plan.weights != first.plan.weights:
                continue
            if index not in decodes:
                decodes[index] = decode(question, pricer, question.job(plan), batches)
            second = decodes[index]
            if second is None:
                continue
            counts = np.arange(1.0, (question.num_gpus - size) // first.size + 1.0)
            decoders = np.floor((question.num_gpus - counts * first.size) / size)
            carried = (utilisation[: len(counts)] * counts * first.requests_per_s)[:, None]
            pick = np.minimum(carried, decoders[:, None] * second.requests_per_s[None, :]).argmax(axis=0)
            blocks.append(columns(question, first, second, index, plan, counts[pick], decoders[pick], utilisation[pick]))
    return blocks


def columns(
    question: ServeQuestion,
    first: Prefill,
    second: Decode,
    index: int,
    plan: EnginePlan,
    instances: Vector,
    decoders: Vector,
    utilisation: Vector,
) -> dict[str, Vector]:
    """Columns of rank.COLUMNS: `instances` of `first` at no more than this utilisation, and `decoders` of `second`, layout
    `plan` of that index."""
    one = np.ones(len(second.batch))
    served = np.minimum(utilisation * instances * first.requests_per_s, decoders * second.requests_per_s)
    ttft_s = first.ttft_s(served / (instances * first.requests_per_s), instances)
    rank_tokens = second.batch / (plan.adp * plan.pp) * (1.0 + question.lengths.drafted)
    return {
        "layout": one * index,
        "batch": second.batch,
        "tokens": np.maximum(np.ceil(rank_tokens / 256.0) * 256.0, MIN_TOKENS),
        "replicas": one * decoders,
        "requests_per_s": served,
        "ttft_s": ttft_s,
        "random_ttft_s": ttft_s,
        "tpot_s": second.step_s / question.lengths.tokens_per_step,
        "gpus": one * question.num_gpus,
        "headroom": second.headroom,
        "prefill": one * first.index,
        "prefills": one * instances,
    }


def instance(question: ServeQuestion, plan: EnginePlan, replicas: int) -> EnginePlan:
    """The layout as the prefill side of a plan: batch 1, which engines read as one prompt a rank and stage."""
    return plan.replace(batch=1, tokens=int(prefill_tokens(question)), replicas=replicas)


def asked(question: ServeQuestion, pricer: Pricer, plan: ServePlan) -> dict[str, Vector] | None:
    """One deployment that was named, prefill instances at index 1 of its layouts; None where its decode side does not fit."""
    assert plan.prefill is not None
    first = prefill(question, pricer, question.job(plan.prefill), 1)
    second = decode(question, pricer, question.job(plan.decode), np.array([float(plan.decode.batch)]))
    if second is None:
        return None
    counts, decoders = np.array([float(plan.prefill.replicas)]), np.array([float(plan.decode.replicas)])
    headroom = (question.ttft_s or np.inf) - first.sent_s
    utilisation = np.minimum(
        MAX_UTILISATION, highest_utilisation_within(max(headroom / first.prompt_s - 1.0, 0.0), counts * first.at_once)
    )
    return columns(question, first, second, 0, plan.decode, counts, decoders, utilisation)
