"""Synthetic batches: every sample is drawn from (seed, step, sample number), whatever the plan."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from autoconfig.kernels.attention import sequence_share
from autoconfig.specs.job import Job
from megatron.core import parallel_state
from torch import Tensor


def microbatches(job: Job, step: int, device: torch.device | str) -> Iterator[dict[str, Tensor]]:
    """This data-parallel rank's micro-batches of one step, divided over context-parallel ranks. `tokens`, `labels`,
    `position_ids`: [mbs, s / cp], int64. Micro-batch i of rank r holds the samples (i dp + r) mbs onwards."""
    rank, place = parallel_state.get_data_parallel_rank(), parallel_state.get_context_parallel_rank()
    for number in range(job.num_microbatches):
        first = (number * job.plan.dp + rank) * job.plan.mbs
        whole = torch.stack([sample(job, step, first + i) for i in range(job.plan.mbs)])
        positions = torch.arange(job.workload.seq_length).expand(job.plan.mbs, -1)
        batch = {"tokens": whole[:, :-1], "labels": whole[:, 1:], "position_ids": positions}
        yield {key: sequence_share(value, place, job.plan.cp, dim=1).to(device) for key, value in batch.items()}


def sample(job: Job, step: int, number: int) -> Tensor:
    """[s + 1] token ids, uniform over the vocabulary."""
    seed = (job.seed * 1_000_003 + step) * 1_000_003 + number
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.randint(job.model.vocab_size, (job.workload.seq_length + 1,), generator=generator)


def enough_microbatches(job: Job) -> Job:
    """The job with as many micro-batches as bring the schedule into its steady state: what is in flight is the same. 1F1B holds
    at most p of them, interleaving at most 2 (p - 1) + (v - 1) p + 1 chunks, which 2 p micro-batches cover."""
    plan = job.plan
    wanted = 2 if plan.pp == 1 else plan.pp + 1 if plan.vpp == 1 else 2 * plan.pp
    return job.shortened(num_microbatches=min(wanted, job.num_microbatches))
