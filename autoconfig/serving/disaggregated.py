"""Separate prefill and decode instances: what fits a prefill instance, and the ratio of both that serves most requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoconfig.serving.price import DeploymentColumns
from autoconfig.serving.question import MIN_TOKENS, ServeQuestion
from autoconfig.specs.serve_plan import EnginePlan, ServePlan
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.steady import Pricer, highest_utilisation_within, waiting_services

Vector = npt.NDArray[np.float64]
PREFILLS_KEPT = 6
MAX_UTILISATION = 0.9
"""Share of their throughput that prefill instances are asked for: prompts come in bursts."""
MORE_PREFILLS = 2
"""Numbers of prefill instances that are tried under a load: the fewest that carry it, and one more."""
PREFILLS_OF_A_FORMAT = 2
"""Prefill layouts under a load by formats of weights and cache, those of fewest GPUs."""


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

    @classmethod
    def of(cls, question: ServeQuestion, pricer: Pricer, job: ServingJob, index: int) -> Prefill:
        """The layout as a prefill instance; memory is not looked at."""
        each = float(pricer.prices(job).seconds(0.0, 1.0, 1.0, question.lengths.prompt)) + job.constants.request_s
        sent_s = question.transfer_seconds(job.plan, question.num_gpus)
        return cls(index=index, plan=job.plan, prompt_s=each, sent_s=sent_s)

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

    def utilisation(self, limit_s: float | None, counts: Vector) -> Vector:
        """Share of their throughput that so many prefill instances may be asked for within this TTFT."""
        services = max(((limit_s or np.inf) - self.sent_s) / self.prompt_s - 1.0, 0.0)
        return np.minimum(MAX_UTILISATION, highest_utilisation_within(services, counts * self.at_once))


@dataclass(frozen=True, kw_only=True)
class Decode:
    """A layout as a decode instance at the batch sizes that memory holds."""

    batch: Vector
    headroom: Vector
    """Sequences that memory holds, over batch."""
    step_s: Vector
    requests_per_s: Vector

    @classmethod
    def of(cls, question: ServeQuestion, pricer: Pricer, job: ServingJob, batches: Vector) -> Decode | None:
        """The layout as a decode instance; None where memory holds no batch."""
        plan, lengths = job.plan, question.lengths
        ranks, checked = plan.adp * plan.pp, 1.0 + lengths.drafted
        memory = question.memory(job, batches, np.maximum(batches / ranks * checked, MIN_TOKENS))
        held = memory.max_concurrency * plan.adp
        keep = (memory.kv_pool_bytes >= question.longest_bytes(plan, memory)) & (held >= batches) & (batches >= ranks)
        if not keep.any():
            return None
        batch = batches[keep]
        step = pricer.prices(job).seconds(batch / ranks, checked, 0.0 * batch, 1.0)
        served = batch / (max(lengths.steps, 1e-9) * step)
        return cls(batch=batch, headroom=held[keep] / batch, step_s=step, requests_per_s=served)

    def columns(
        self,
        question: ServeQuestion,
        first: Prefill,
        index: int,
        plan: EnginePlan,
        instances: Vector | float,
        decoders: Vector,
        utilisation: Vector | float,
    ) -> DeploymentColumns:
        """Rows of `instances` of `first` at no more than this utilisation, and of `decoders` of this one, layout `plan` of that
        index."""
        served = np.minimum(utilisation * instances * first.requests_per_s, decoders * self.requests_per_s)
        instances = np.ones(len(self.batch)) * instances
        ttft_s = first.ttft_s(served / (instances * first.requests_per_s), instances)
        rank_tokens = self.batch / (plan.adp * plan.pp) * (1.0 + question.lengths.drafted)
        return DeploymentColumns.of(
            layout=index,
            prefill=first.index,
            batch=self.batch,
            tokens=np.maximum(np.ceil(rank_tokens / 256.0) * 256.0, MIN_TOKENS),
            replicas=decoders,
            requests_per_s=served,
            ttft_s=ttft_s,
            random_ttft_s=ttft_s,
            tpot_s=self.step_s / question.lengths.tokens_per_step,
            gpus=instances * first.size + decoders * plan.size,
            headroom=self.headroom,
            prefills=instances,
            size=plan.size,
            each=self.requests_per_s,
        )


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Every prefill layout beside every decode layout of its formats; GPUs that neither side uses are not booked."""

    question: ServeQuestion
    pricer: Pricer
    plans: Sequence[EnginePlan]
    prefills: Sequence[Prefill]
    batches: Vector

    def best(self) -> list[DeploymentColumns]:
        """The best prefill layouts within --ttft with every decode layout, in the ratio that serves most requests."""
        limit = self.question.ttft_s
        within = [one for one in self.prefills if one.prompt_s + one.sent_s < (limit or np.inf)]
        best = sorted(within, key=lambda one: (one.requests_per_s / one.size, one.prompt_s, one.index), reverse=True)
        blocks = []
        for first, index, second in self._matched(best[:PREFILLS_KEPT]):
            size = self.plans[index].size
            counts = np.arange(1.0, (self.question.num_gpus - size) // first.size + 1.0)
            busy = first.utilisation(limit, counts)
            decoders = np.floor((self.question.num_gpus - counts * first.size) / size)
            carried = (busy * counts * first.requests_per_s)[:, None]
            served = np.minimum(carried, decoders[:, None] * second.requests_per_s[None, :])
            pick = served.argmax(axis=0)
            needed = np.ceil(served[pick, np.arange(len(second.batch))] / second.requests_per_s - 1e-9)
            blocks.append(second.columns(self.question, first, index, self.plans[index], counts[pick], needed, busy[pick]))
        return blocks

    def under_load(self, wanted: float) -> list[DeploymentColumns]:
        """Pairs of layouts whose prefill instances are the fewest that carry `wanted` requests/s within --ttft, or one more; a
        row's requests are those of one decode instance, whose number the load decides. A deployment within a node sends over
        its link."""
        most = self.question.num_gpus
        sizes = sorted({min(most, self.question.gpus_per_node), most})
        return [block for size in sizes for block in self._on(replace(self.question, num_gpus=size), wanted)]

    def _on(self, question: ServeQuestion, wanted: float) -> Iterator[DeploymentColumns]:
        """The same on as many GPUs as `question` has."""
        most = question.num_gpus
        ready = []
        for one in self.prefills:
            first = replace(one, sent_s=question.transfer_seconds(one.plan, most))
            counts = np.arange(1.0, (most - 1) // one.size + 1.0)
            carried = first.utilisation(question.ttft_s, counts) * counts * first.requests_per_s
            if len(counts) and carried[-1] >= wanted:
                fewest = float(counts[np.searchsorted(carried, wanted)])
                ready.append((fewest * one.size, first.prompt_s + first.sent_s, one.index, fewest, first))
        ready.sort(key=lambda each: each[:3])
        by_format: dict[tuple[str, str], list[tuple[float, Prefill]]] = {}
        for *_, fewest, first in ready:
            by_format.setdefault((first.plan.weights, first.plan.kv), []).append((fewest, first))
        chosen = {first.index: fewest for some in by_format.values() for fewest, first in some[:PREFILLS_OF_A_FORMAT]}
        smaller = replace(self, question=question)
        for first, index, second in smaller._matched([first for *_, first in ready if first.index in chosen]):
            for instances in (chosen[first.index] + more for more in range(MORE_PREFILLS)):
                if instances * first.size + self.plans[index].size <= most:
                    yield smaller._loaded(first, second, index, instances)

    def _loaded(self, first: Prefill, second: Decode, index: int, instances: float) -> DeploymentColumns:
        """Rows with `instances` of `first` under the load, and as many decode instances as there is room for."""
        question, plan, one = self.question, self.plans[index], np.ones(len(second.batch))
        busy = np.minimum(question.rate / (instances * first.requests_per_s), 1.0 - 1e-9)
        decoders = one * np.floor((question.num_gpus - instances * first.size) / plan.size)
        block = second.columns(question, first, index, plan, instances, decoders, MAX_UTILISATION)
        ttft_s = first.ttft_s(one * busy, one * instances)
        return replace(block, ttft_s=ttft_s, random_ttft_s=ttft_s)

    def _matched(self, firsts: Sequence[Prefill]) -> Iterator[tuple[Prefill, int, Decode]]:
        """These prefill layouts with every decode layout that there is room for: (prefill, index, decode)."""
        decodes: dict[int, Decode | None] = {}
        for first in firsts:
            for index, plan in enumerate(self.plans):
                alike = plan.kv == first.plan.kv and plan.weights == first.plan.weights
                if first.size + plan.size > self.question.num_gpus or not alike:
                    continue
                if index not in decodes:
                    decodes[index] = Decode.of(self.question, self.pricer, self.question.job(plan), self.batches)
                if (second := decodes[index]) is not None:
                    yield first, index, second

    @classmethod
    def named(cls, question: ServeQuestion, plan: ServePlan) -> DeploymentColumns | None:
        """One deployment that was named, prefill instances at index 1 of its layouts; None where its decode side does not
        fit."""
        assert plan.prefill is not None
        pricer = Pricer(lengths=question.lengths)
        first = Prefill.of(question, pricer, question.job(plan.prefill), 1)
        second = Decode.of(question, pricer, question.job(plan.decode), np.array([float(plan.decode.batch)]))
        if second is None:
            return None
        counts, decoders = np.array([float(plan.prefill.replicas)]), np.array([float(plan.decode.replicas)])
        return second.columns(question, first, 0, plan.decode, counts, decoders, first.utilisation(question.ttft_s, counts))
