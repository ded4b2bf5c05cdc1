"""A training plan under Megatron's long names, as every JSON answer has it."""

from __future__ import annotations

from typing import Any

from autoconfig.specs.plan import TrainPlan


def plan_json(plan: TrainPlan, global_batch_size: int) -> dict[str, Any]:
    """A plan under Megatron's long names; recompute fields are null where they do not apply."""
    recompute = plan.recompute
    full = recompute.granularity == "full"
    return {
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "virtual_pipeline_model_parallel_size": plan.vpp,
        "context_parallel_size": plan.cp,
        "expert_model_parallel_size": plan.ep,
        "expert_tensor_parallel_size": plan.etp,
        "data_parallel_size": plan.dp,
        "sequence_parallel": plan.sp,
        "micro_batch_size": plan.mbs,
        "global_batch_size": global_batch_size,
        "recompute_granularity": None if recompute.granularity == "none" else recompute.granularity,
        "recompute_method": recompute.method if full else None,
        "recompute_num_layers": recompute.num_layers if full else None,
        "recompute_modules": list(recompute.modules),
        "decoder_first_pipeline_num_layers": plan.first,
        "decoder_last_pipeline_num_layers": plan.last,
        "use_distributed_optimizer": plan.dist_opt,
        "fsdp": plan.fsdp,
        "optimizer_offload_fraction": plan.offload,
    }
