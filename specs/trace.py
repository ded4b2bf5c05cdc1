"""TraceRequest and RankTrace: what a trace of one rank is asked and answers, as JSON between planner and training core."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from autoconfig.specs.errors import InputError
from autoconfig.specs.job import Job, job_json, read_job_text
from autoconfig.specs.json_record import from_json, to_json
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.software.software import StackMemory

SCHEMA_VERSION = 1
MAX_PROCESSES = 2
"""Traces at a time: each takes one core and up to 2 GB."""
CATEGORIES = ("weights", "gradients", "optimizer", "activations", "logits", "temporary")
"""Why a byte is held: model state (three), saved for a backward, as wide as the vocabulary, anything else."""


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """Ranks of one job to trace, with the memory facts of the software stack that the stand-ins need."""

    job: Job
    ranks: tuple[int, ...]
    memory: StackMemory
    copies_attention_output: bool = False
    """The GPU's attention kernel is batch-first: above micro-batch 1 its output is kept in both orders."""

    def __post_init__(self) -> None:
        world = self.job.plan.world_size
        for rank in self.ranks:
            if not 0 <= rank < world:
                raise InputError(f"rank {rank}: the plan {self.job.plan} has the ranks 0 to {world - 1}")


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """Storages of one kind that one layer keeps for its backward."""

    module: str
    operator: str
    bytes: int
    """Of each."""
    count: int


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One traced rank; bytes."""

    rank: int
    pipeline_stage: int
    seconds: float
    num_microbatches: int
    """That the trace ran: enough for the real number in flight."""
    peak_bytes: int
    peak_phase: str
    """forward, backward or between."""
    by_category: dict[str, int]
    by_module: dict[str, dict[str, int]]
    """Module (layer numbers left out) -> category -> bytes at the peak; largest first."""
    state_bytes: int
    """Weights, gradient buffers, optimizer state and everything else that is alive before the first micro-batch."""
    after_bytes: int = 0
    """Alive after the last micro-batch: the state, and what the stack keeps from then on (caches, workspaces)."""
    saved_tensors: list[SavedTensor] = field(default_factory=list)


def request_text(request: TraceRequest) -> str:
    """The request as JSON."""
    body = {
        "schema_version": SCHEMA_VERSION,
        "job": job_json(request.job),
        "ranks": list(request.ranks),
        "memory": to_json(request.memory),
        "copies_attention_output": request.copies_attention_output,
    }
    return json.dumps(body, allow_nan=False)


def read_request(text: str, where: str = "trace request") -> TraceRequest:
    """The request that `request_text` wrote. Raises InputError."""
    try:
        body = json.loads(text)
        version, job, ranks = body["schema_version"], json.dumps(body["job"]), tuple(body["ranks"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{where}: not a trace request ({error})") from None
    if version != SCHEMA_VERSION:
        raise InputError(f"{where}: schema_version {version!r}; this version reads {SCHEMA_VERSION}")
    memory = from_json(StackMemory, body.get("memory", {}), f"{where}.memory")
    copies = body.get("copies_attention_output") is True
    return TraceRequest(job=read_job_text(job, f"{where}.job"), ranks=ranks, memory=memory, copies_attention_output=copies)


def read_rank(values: dict[str, Any]) -> RankTrace:
    """One line of the trace's output."""
    saved = [from_json(SavedTensor, item, "saved tensor") for item in values.pop("saved_tensors", [])]
    return RankTrace(**values, saved_tensors=saved)


def pipeline_stage(plan: TrainPlan, rank: int) -> int:
    """Stage of a rank in Megatron's default order tp-cp-ep-dp-pp: the ranks of one stage are consecutive."""
    return rank // (plan.world_size // plan.pp)


def default_ranks(plan: TrainPlan) -> tuple[int, ...]:
    """First and last rank of each pipeline stage.

    All stages are distinct: each holds another number of micro-batches, or other layers, or the embedding or the head. The
    ranks of one stage are alike but for the rounding of shards, which its last rank shows.
    """
    per_stage = plan.world_size // plan.pp
    ends = {first + place for first in range(0, plan.world_size, per_stage) for place in (0, per_stage - 1)}
    return tuple(sorted(ends))
