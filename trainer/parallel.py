"""Process groups of a Job: torch.distributed and megatron-core's parallel state."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch.distributed as dist
from autoconfig.specs.errors import PlanError
from autoconfig.specs.job import Job
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed


@contextlib.contextmanager
def parallel_groups(job: Job, timeout_seconds: float) -> Iterator[None]:
    """megatron-core's groups with the plan's sizes over the default process group, and its random number states.

    Raises PlanError when the plan's product is not the world size or megatron-core refuses the sizes.
    """
    plan, world = job.plan, dist.get_world_size()
    if plan.world_size != world:
        raise PlanError(
            f"{plan} is for tp x pp x cp x dp = {plan.tp} x {plan.pp} x {plan.cp} x {plan.dp} = {plan.world_size} processes, "
            f"this job has {world}; start it with torchrun --nproc-per-node so that the product is the number of processes"
        )
    made: list[Any] = []
    try:
        with mock.patch.object(dist, "new_group", _noting(made)):
            initialize_groups(job, timeout_seconds)
    except (AssertionError, RuntimeError, ValueError) as error:
        if isinstance(error, dist.DistError):
            raise
        raise PlanError(f"{plan}: megatron-core refuses it: {error}") from error
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
    for group in made:  # after a failure peers may be gone, and NCCL would wait for them: the process ends then anyway
        dist.destroy_process_group(group)


def _noting(made: list[Any]) -> Callable[..., Any]:
    """`dist.new_group`, its groups noted: megatron-core forgets its groups, and each of gloo's keeps its threads."""
    plain = dist.new_group

    def new_group(*arguments: Any, **named: Any) -> Any:
        group = plain(*arguments, **named)
        if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
            made.append(group)
        return group

    return new_group


def initialize_groups(job: Job, timeout_seconds: float = 600.0) -> None:
    """The groups alone: also for a fake process group."""
    plan = job.plan
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=plan.tp,
        pipeline_model_parallel_size=plan.pp,
        virtual_pipeline_model_parallel_size=plan.vpp if plan.vpp > 1 else None,
        context_parallel_size=plan.cp,
        expert_model_parallel_size=plan.ep,
        expert_tensor_parallel_size=plan.etp,
        distributed_timeout_minutes=timeout_seconds / 60,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(job.seed)


def process_group_timeout(seconds: float) -> datetime.timedelta:
    """For init_process_group: how long a collective waits for a peer."""
    return datetime.timedelta(seconds=seconds)
