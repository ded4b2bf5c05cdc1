"""Deployments of a question as typed columns, and their prices: throughput, latency and GPUs of full queues, in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.space import least_tokens
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.scheduler import policy_of
from autoconfig.time_model.serving.steady import Pricer, steady_state

Vector = npt.NDArray[np.float64]
BATCHES = np.unique(np.round(np.exp2(np.arange(0.0, 13.01, 0.125))))
TOKENS = np.array([512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0])


@dataclass(frozen=True, kw_only=True)
class DeploymentColumns:
    """Deployments, one row each, that memory holds."""

    layout: npt.NDArray[np.int64]
    """Index of the layout that decodes."""
    batch: Vector
    """Sequences of an instance that run at once."""
    tokens: Vector
    """Of an iteration of an attention rank."""
    replicas: Vector
    requests_per_s: Vector
    """Of the deployment."""
    ttft_s: Vector
    tpot_s: Vector
    random_ttft_s: Vector
    """TTFT where requests come at random."""
    gpus: Vector
    headroom: Vector
    """Sequences that memory holds, over batch."""
    prefill: npt.NDArray[np.int64]
    """Index of the prefill layout; -1: the instances do both."""
    prefills: Vector
    """Its instances."""
    size: Vector
    """GPUs of one of the replicas, and its requests per second."""
    each: Vector
    most_batch: Vector
    """Limits of an engine's sequences and tokens: under a load with headroom for bursts."""
    most_tokens: Vector

    @classmethod
    def of(
        cls, *, batch: Vector, tokens: Vector, layout: int, prefill: int = -1, **columns: Vector | float
    ) -> DeploymentColumns:
        """Rows of one layout: numbers stand in every row, and no limit leaves headroom."""
        one = np.ones(len(batch))
        return cls(
            layout=np.full(len(batch), layout),
            prefill=np.full(len(batch), prefill),
            **{name: one * values for name, values in columns.items()},
            **dict(batch=batch, tokens=tokens, most_batch=batch, most_tokens=tokens),
        )

    @classmethod
    def joined(cls, blocks: Sequence[DeploymentColumns]) -> DeploymentColumns:
        """All rows, in order."""
        if not blocks:
            empty: dict[str, Any] = {name: np.zeros(0, np.int64 if name in INDICES else np.float64) for name in NAMES}
            return cls(**empty)
        return cls(**{name: np.concatenate([getattr(one, name) for one in blocks]) for name in NAMES})

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, rows: npt.NDArray[np.int64] | list[int] | slice) -> DeploymentColumns:
        """These rows."""
        return DeploymentColumns(**{name: getattr(self, name)[rows] for name in NAMES})

    def within(self, ttft_s: float | None, tpot_s: float | None) -> npt.NDArray[np.bool_]:
        """Rows whose latencies in closed form are within the limits."""
        return (self.ttft_s <= (ttft_s or np.inf)) & (self.tpot_s <= (tpot_s or np.inf))


NAMES = tuple(field.name for field in fields(DeploymentColumns))
INDICES = ("layout", "prefill")


def grid(question: ServeQuestion) -> tuple[Vector, Vector]:
    """Batches and token budgets, those of --fix where given; whole prompts of any length get a budget that holds them."""
    batches, tokens = (_fixed(question.constraints.get(key), usual) for key, usual in (("batch", BATCHES), ("tokens", TOKENS)))
    if not question.chunked and "tokens" not in question.constraints and question.longest_prompt > TOKENS[-1]:
        tokens = np.append(tokens, np.ceil(question.longest_prompt / 1024.0) * 1024.0)
    return batches, tokens


def _fixed(values: Iterable[object] | None, usual: Vector) -> Vector:
    return usual if values is None else np.array(sorted(float(str(value)) for value in values))


def price(question: ServeQuestion, pricer: Pricer, job: ServingJob, index: int) -> DeploymentColumns | None:
    """Deployments of the layout number `index` that memory holds and whose batch fills every rank and stage; None without."""
    plan, lengths = job.plan, question.lengths
    batch, tokens = (x.ravel() for x in np.meshgrid(*grid(question), indexing="ij"))
    ranks = plan.adp * plan.pp
    memory = question.memory(job, batch, tokens)
    held = memory.max_concurrency * plan.adp
    keep = (held >= batch) & (batch >= ranks) & (tokens >= np.minimum(batch / ranks * (1.0 + lengths.drafted), 8192.0))
    keep &= memory.kv_pool_bytes >= question.longest_bytes(plan, memory)
    keep &= tokens >= least_tokens(question.engine, plan, batch)
    if not question.chunked:
        keep &= tokens >= question.longest_prompt
    if not keep.any():
        return None
    batch, tokens, held = batch[keep], tokens[keep], held[keep]
    asked_s = job.constants.request_s + job.constants.request_token_s * lengths.isl
    late = policy_of(question.engine).late
    state = steady_state(
        pricer.prices(job), lengths, batch / ranks, tokens, ranks, question.chunked, asked_s, late, together=plan.adp
    )
    return DeploymentColumns.of(
        layout=index,
        batch=batch,
        tokens=tokens,
        replicas=plan.replicas,
        requests_per_s=state.requests_per_s * plan.replicas,
        ttft_s=state.ttft_s,
        tpot_s=state.tpot_s,
        random_ttft_s=state.random_ttft_s,
        gpus=plan.replicas * plan.size,
        headroom=held / batch,
        prefills=0.0,
        size=plan.size,
        each=state.requests_per_s,
    )
