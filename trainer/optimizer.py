"""Process groups, data parallelism and optimizer of a Job, as Megatron-LM's training loop sets them up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from autoconfig.specs.errors import PlanError, UnsupportedError
from autoconfig.specs.job import Job
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import load_stack
from autoconfig.trainer.host.cpu import transformer_engine_is_there
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig


@contextlib.contextmanager
def parallel_groups(job: Job, timeout_seconds: float) -> Iterator[None]:
    """megatron-core's groups with the plan's sizes over the default process group, and its random number states. Raises
    PlanError when the plan's product is not the world size or megatron-core refuses the sizes."""
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


BUCKET_PARAMETERS = 40_000_000
BUCKET_PARAMETERS_PER_RANK = 1_000_000
"""Megatron-LM's bucket size with overlapped reduction: max(40e6, 1e6 x data-parallel size) parameters."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}


def data_parallel_chunks(job: Job, config: TransformerConfig, chunks: list[Any]) -> list[DistributedDataParallel]:
    """Each chunk with gradient buffers and buckets; fills in what the schedule calls when gradients are there."""
    overlap = load_stack(job.software).time
    reduce_overlaps = overlap.overlap_grad_reduce
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=job.numerics.grad_reduce_dtype == "fp32",
        use_distributed_optimizer=job.plan.dist_opt,
        overlap_grad_reduce=reduce_overlaps,
        overlap_param_gather=reduce_overlaps and overlap.overlap_param_gather and job.plan.dist_opt,
        bucket_size=max(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * job.plan.dp) if reduce_overlaps else None,
        fp8_param_gather=job.numerics.fp8_param_gather,
    )
    wrapped = [
        DistributedDataParallel(config=config, ddp_config=ddp_config, module=chunk, disable_bucketing=number > 0)
        for number, chunk in enumerate(chunks)
    ]
    if reduce_overlaps:
        no_sync = [chunk.no_sync for chunk in wrapped]
        config.no_sync_func = no_sync[0] if len(no_sync) == 1 else no_sync
    config.finalize_model_grads_func = finalize_model_grads
    return wrapped


def build_optimizer(job: Job, config: TransformerConfig, chunks: list[DistributedDataParallel]) -> Any:
    """Adam, distributed where the plan says so. Raises UnsupportedError for state types that need Transformer Engine."""
    numerics = job.numerics
    types = (numerics.main_params_dtype, numerics.exp_avg_dtype, numerics.exp_avg_sq_dtype)
    precise = types != ("fp32",) * 3 or numerics.store_param_remainders
    if precise and not transformer_engine_is_there():
        raise UnsupportedError(f"optimizer state in {', '.join(types)}: other types than fp32 need Transformer Engine")
    wanted = OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        min_lr=1e-4,
        weight_decay=0.1,
        adam_beta1=0.9,
        adam_beta2=0.95,
        clip_grad=1.0,
        bf16=config.bf16,
        fp16=config.fp16,
        params_dtype=config.params_dtype,
        use_distributed_optimizer=job.plan.dist_opt,
        overlap_param_gather=chunks[0].ddp_config.overlap_param_gather,
        **(_precision_aware(numerics) if precise else {}),
    )
    optimizer = get_megatron_optimizer(wanted, chunks, use_gloo_process_groups=False)
    if job.device == "cuda":
        _fuse(optimizer)
    config.grad_scale_func = optimizer.scale_loss
    return optimizer


def _fuse(optimizer: Any) -> None:
    """One kernel without temporaries, as Transformer Engine's and Apex's FusedAdam. Without them megatron-core takes torch's
    AdamW, whose default on CUDA keeps the square roots of all second moments: 4 bytes a parameter at the peak (seen, H100)."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        adam = getattr(part, "optimizer", None)
        if isinstance(adam, torch.optim.AdamW):
            for group in adam.param_groups:
                group |= {"fused": True, "foreach": False}


def _precision_aware(numerics: Numerics) -> dict[str, Any]:
    return {
        "use_precision_aware_optimizer": True,
        "main_grads_dtype": _DTYPES[numerics.grad_reduce_dtype],
        "main_params_dtype": _DTYPES[numerics.main_params_dtype],
        "exp_avg_dtype": _DTYPES[numerics.exp_avg_dtype],
        "exp_avg_sq_dtype": _DTYPES[numerics.exp_avg_sq_dtype],
        "store_param_remainders": numerics.store_param_remainders,
    }
