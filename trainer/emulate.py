"""One rank of a job of any size with real tensors and kernels on one device: its peers are not there, collectives do nothing.

Collectives return at once (trainer/tracing/fake_ranks.py); what they would bring is what the rank has itself, and pipeline
neighbours send noise, so that kernels run on numbers like real ones. Time and memory are the rank's own: the planner adds what
collectives cost. The schedule runs as many micro-batches as it takes to have the real number in flight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from autoconfig.specs.job import Job
from autoconfig.trainer.tracing.fake_ranks import fake_process_group
from autoconfig.trainer.tracing.fixed_routing import fixed_routing
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

NOISE_STD = 0.02
"""Of received activations and gradients."""


@contextlib.contextmanager
def without_peers(job: Job) -> Iterator[None]:
    """torch.distributed as rank `job.rank` of the plan's world."""
    assert job.rank is not None
    plain = P2PCommunicator._communicate

    def communicate(*arguments: Any, **named: Any) -> Any:
        received = plain(*arguments, **named)
        for tensor in received[:2]:
            if isinstance(tensor, torch.Tensor):
                tensor.data.normal_(std=NOISE_STD)
        return received

    with contextlib.ExitStack() as stack:
        stack.enter_context(fake_process_group(job.rank, job.plan.world_size))
        stack.enter_context(fixed_routing(job.numerics.moe_imbalance, values=True))
        stack.enter_context(mock.patch.object(P2PCommunicator, "_communicate", communicate))
        yield
