"""What one layer of each kind saves: the parts of `activations` and `recurrent` put together."""

from __future__ import annotations

from autoconfig.memory_model import recurrent
from autoconfig.memory_model.activations import (
    Number,
    Shape,
    attention_gate,
    attention_output,
    attention_scores,
    dropout_masks,
    expanded_key_value,
    expert_activation,
    expert_input,
    expert_inside,
    gathered_key_value,
    latent_experts,
    latents,
    mlp_inside,
    norm_inputs,
    norm_outputs,
    norm_statistics,
    padded_values,
    query_key_value,
    rotary_angles,
    router,
    shared_experts_inside,
)
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory


def layer_activations(
    model: ModelSpec, kind: str, numerics: Numerics, stack: StackMemory, shape: Shape, gpu: GpuSpec
) -> dict[str, Number]:
    """All saved tensors of one layer of this kind (ModelSpec.kinds) by part; `sum(...values())` is the layer without
    recomputation. A layer of a hybrid has one norm and one residual."""
    share = 0.5 if model.is_hybrid else 1.0
    parts = {
        "norm_inputs": share * norm_inputs(model, numerics, stack, shape),
        "norm_outputs": share * norm_outputs(model, numerics, stack, shape),
        "norm_statistics": share * norm_statistics(model, stack, shape),
        "dropout_masks": share * dropout_masks(model, numerics, shape),
    }
    if not model.is_hybrid or kind == "attention":
        parts |= _attention_activations(model, numerics, stack, shape, gpu)
    if kind == "mamba":
        parts["mamba_projections"] = recurrent.mamba_projections(model, numerics, shape)
        parts["scan_outputs"] = recurrent.scan_outputs(model, numerics, stack, shape)
    if kind == "gdn":
        parts["gdn_projections"] = recurrent.gdn_projections(model, numerics, shape)
        parts["delta_rule_outputs"] = recurrent.delta_rule_outputs(model, numerics, stack, shape)
    if kind in ("dense", "mlp"):
        parts["mlp_inside"] = mlp_inside(model, model.ffn_hidden_size, numerics, stack, shape)
    if kind == "moe":
        parts |= _expert_activations(model, numerics, stack, shape)
    return parts


def _attention_activations(
    model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape, gpu: GpuSpec
) -> dict[str, Number]:
    parts = {
        "latents": latents(model, numerics, shape),
        "query_key_value": query_key_value(model, numerics, stack, shape),
        "expanded_key_value": expanded_key_value(model, numerics, stack, shape),
        "padded_values": padded_values(model, numerics, stack, shape),
        "gathered_key_value": gathered_key_value(model, numerics, stack, shape),
        "rotary_angles": rotary_angles(model, numerics, stack, shape),
        "attention_scores": attention_scores(model, numerics, stack, shape),
        "attention_output": attention_output(model, numerics, stack, shape, gpu),
    }
    if model.attention_output_gate:
        parts["attention_gate"] = attention_gate(model, numerics, shape)
    return parts


def _expert_activations(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> dict[str, Number]:
    parts = {
        "router": router(model, shape),
        "expert_input": expert_input(model, numerics, stack, shape),
        "expert_inside": expert_inside(model, numerics, stack, shape),
        "expert_activation": expert_activation(model, numerics, stack, shape),
    }
    if model.moe_latent_size:
        parts["latent_experts"] = latent_experts(model, numerics, stack, shape)
    if model.moe_shared_expert_intermediate_size:
        parts["shared_experts_inside"] = shared_experts_inside(model, numerics, stack, shape)
    return parts
