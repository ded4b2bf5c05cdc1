"""A training plan under Megatron's long names, as every JSON answer has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoconfig.specs.json_record import Keywords, Positive, Share
from autoconfig.specs.plan import MODULES, SHORT_TO_LONG, TrainPlan


@dataclass(frozen=True, kw_only=True)
class NamedPlan:
    """A plan under Megatron's names; recompute fields are null where they do not apply."""

    tensor_model_parallel_size: Positive
    """GPUs that share every layer (tp)."""
    pipeline_model_parallel_size: Positive
    """Pipeline stages (pp)."""
    virtual_pipeline_model_parallel_size: Positive
    """Model chunks per stage; 1 without interleaving."""
    context_parallel_size: Positive
    """GPUs that share one sequence (cp)."""
    expert_model_parallel_size: Positive
    """GPUs over which a layer's experts are spread (ep)."""
    expert_tensor_parallel_size: Positive
    """GPUs that share one expert (etp)."""
    data_parallel_size: Positive
    """Copies of the model that take samples of their own (dp)."""
    sequence_parallel: bool
    """Norms and residuals are divided over the tensor-parallel GPUs, too."""
    micro_batch_size: Positive
    """Samples of one micro-batch."""
    global_batch_size: Positive
    """Samples of one optimizer step."""
    recompute_granularity: Annotated[str, Keywords(enum=("selective", "full"))] | None
    """What is recomputed in backward: parts of layers or whole ones; null: nothing."""
    recompute_method: Annotated[str, Keywords(enum=("uniform", "block"))] | None
    """Of whole layers: one checkpoint for so many of them, or the first so many of a stage; null: none."""
    recompute_num_layers: Positive | None
    """uniform: layers of one checkpoint; block: layers recomputed per model chunk; null unless full."""
    recompute_modules: Annotated[tuple[Annotated[str, Keywords(enum=MODULES)], ...], Keywords(uniqueItems=True)]
    """Modules of selective recomputation; empty otherwise."""
    decoder_first_pipeline_num_layers: Positive | None
    """Layers of the first stage where stages are uneven, else null."""
    decoder_last_pipeline_num_layers: Positive | None
    """Layers of the last stage where stages are uneven, else null."""
    use_distributed_optimizer: bool
    """Optimizer state is divided over the data-parallel GPUs."""
    fsdp: Annotated[int, Keywords(enum=(0, 2, 3))]
    """Sharding: 0 off, 2 gradients too, 3 weights too."""
    optimizer_offload_fraction: Share
    """Share of the optimizer state in CPU memory."""


def named_plan(plan: TrainPlan, global_batch_size: int) -> NamedPlan:
    """The plan under its long names."""
    recompute = plan.recompute
    full = recompute.granularity == "full"
    degrees = {long: getattr(plan, short) for short, long in SHORT_TO_LONG.items() if short != "recompute"}
    return NamedPlan(
        **degrees,
        global_batch_size=global_batch_size,
        recompute_granularity=None if recompute.granularity == "none" else recompute.granularity,
        recompute_method=recompute.method if full else None,
        recompute_num_layers=recompute.num_layers if full else None,
        recompute_modules=recompute.modules,
    )
