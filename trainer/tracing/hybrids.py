"""The real HybridModel of megatron-core 0.19 for a job that is traced (trace.py): its own layer specification, with the
stand-ins of Transformer Engine and of the kernels of Mamba-2 and Gated DeltaNet (te_stand_ins.py, scan_stand_ins.py,
delta_stand_ins.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.job import Job
from autoconfig.specs.layouts import staged_pattern
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.trainer.host.cpu import patched
from autoconfig.trainer.model import substituted
from autoconfig.trainer.tracing import delta_stand_ins, scan_stand_ins, te_stand_ins
from autoconfig.trainer.tracing.stand_in import StandIn, keeps_input
from megatron.core import parallel_state

FIELDS = (
    *("mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    *("linear_conv_kernel_dim", "attention_output_gate"),
)
"""Of ModelSpec and of megatron-core's configuration."""
STAND_INS = {
    "TEColumnParallelLinear": te_stand_ins.ColumnParallelLinear,
    "TELayerNormColumnParallelLinear": te_stand_ins.LayerNormColumnParallelLinear,
    "TERowParallelLinear": te_stand_ins.RowParallelLinear,
    "TEDotProductAttention": te_stand_ins.DotProductAttention,
    "TELinear": te_stand_ins.Linear,
    "TENorm": te_stand_ins.Norm,
}


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """In place of megatron.core.activations.squared_relu, which is compiled: saves its input."""
    return StandIn.apply(keeps_input, x)


@contextlib.contextmanager
def hybrid_kernels(job: Job) -> Iterator[None]:
    """Inside, megatron-core's hybrid layers run on the stand-ins. Raises UnsupportedError where they cannot be built."""
    model = job.model
    if job.software != "transformer-engine":
        raise UnsupportedError(f"{model.name} is a hybrid: it is traced with software transformer-engine")
    try:
        import megatron.core.fusions.fused_weighted_squared_relu as fused
        import megatron.core.models.hybrid.hybrid_block as block
        import megatron.core.ssm.gated_delta_net.common as delta
        import megatron.core.ssm.gated_delta_net.gdn as delta_layer
        import megatron.core.ssm.mamba_mixer as mixer
        import megatron.core.transformer.attention as attention
        import megatron.core.transformer.moe.experts as experts
    except ImportError as error:
        raise UnsupportedError(f"{model.name} is a hybrid: it is traced with megatron-core 0.19 or later") from error
    stand_ins = [
        (mixer, "HAVE_MAMBA_SSM", True),
        (mixer, "mamba_split_conv1d_scan_combined", scan_stand_ins.split_conv1d_scan),
        (mixer, "ExtendedRMSNorm", scan_stand_ins.GatedNorm),
        (delta, "HAVE_FLA", True),
        (delta, "l2norm", delta_stand_ins.l2norm),
        (delta_layer, "causal_conv1d", delta_stand_ins.causal_conv1d),
        (delta_layer, "chunk_gated_delta_rule", delta_stand_ins.chunk_gated_delta_rule),
        (delta_layer.GatedDeltaNet, "_compute_g_and_beta", delta_stand_ins.compute_g_and_beta),
        (delta_layer.GatedDeltaNet, "_apply_gated_norm", delta_stand_ins.apply_gated_norm),
        (attention.Attention, "_apply_output_gate", delta_stand_ins.apply_output_gate),
        (attention, "TENorm", te_stand_ins.Norm),
        (block, "TENorm", te_stand_ins.Norm),
        (experts, "squared_relu", squared_relu),
        (fused, "weighted_squared_relu", lambda x, weights: torch.empty_like(x)),
        (fused, "weighted_squared_relu_back", lambda g, x, weights: (torch.empty_like(x), torch.empty_like(weights))),
    ]
    with patched(stand_ins):
        yield


def hybrid_chunk(job: Job, config: Any, vp_stage: int | None) -> Any:
    """This rank's chunk of the HybridModel; inside of `hybrid_kernels`."""
    from megatron.core.models.hybrid.hybrid_model import HybridModel

    model = job.model
    for name in FIELDS:
        setattr(config, name, getattr(model, name) or None)
    config.is_hybrid_model = True
    config.num_layers_in_first_pipeline_stage = config.num_layers_in_last_pipeline_stage = None  # the pattern's | say it
    if model.activation == "squared-relu":
        config.activation_func = squared_relu
        config.use_fused_weighted_squared_relu = model.is_moe
    return HybridModel(
        config=config,
        hybrid_stack_spec=_layers(),
        vocab_size=int(padded_vocab_size(model, job.plan.tp)),
        max_sequence_length=max(model.max_position_embeddings, job.workload.seq_length),
        hybrid_layer_pattern=staged_pattern(model, job.plan),
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        parallel_output=True,
        share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
        position_embedding_type="rope" if model.position_embedding_type == "rope" else "none",
        rotary_percent=model.rotary_percent,
        vp_stage=vp_stage,
    )


def _layers() -> Any:
    """megatron-core's hybrid_stack_spec with the stand-ins; its mixture of experts made anew, because without Transformer
    Engine megatron-core takes experts one by one."""
    import megatron.core.extensions.transformer_engine as engine
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend
    from megatron.core.models.hybrid import hybrid_layer_specs

    by = {getattr(engine, name): stand_in for name, stand_in in STAND_INS.items()}
    grouped = get_moe_module_spec_for_backend(te_stand_ins.SpecProvider(), num_experts=1, moe_grouped_gemm=True)
    return substituted(hybrid_layer_specs.hybrid_stack_spec, {**by, hybrid_layer_specs.moe: grouped})
