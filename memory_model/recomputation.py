"""What stays of a layer's saved tensors under recomputation, and what comes back while it is undone in backward.

Megatron's modules (transformer_config.py:1913-2000): output-discarding ones (layernorm, moe_act, mla_up_proj) save their
input and free their output; checkpointed ones (core_attn, mlp, moe, shared_experts) keep their input and drop their inside.
Full recomputation keeps the input of every n-th layer (uniform) or of the first n layers of each model chunk (block).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.activations import Number
from autoconfig.specs.plan import Recompute
from autoconfig.specs.software.software import StackMemory


@dataclass(frozen=True, kw_only=True)
class KeptLayer:
    """One layer under selective recomputation."""

    kept: dict[str, Number]
    """Bytes that stay, by part of `activations.layer_activations`."""
    back_in_mlp: Number
    """Bytes that are back while the MLP's backward runs: the largest recomputed module of that half of the layer."""
    back_in_attention: Number
    """The same for attention's half."""


ATTENTION_MODULES = ("core_attn", "mla_up_proj", "layernorm")
MLP_MODULES = ("mlp", "moe", "moe_act", "shared_experts", "layernorm")
MLP_PARTS = ("mlp_inside", "router", "expert_input", "expert_inside", "expert_activation", "shared_experts_inside")
"""Parts that are gone when attention's backward starts."""


def dropped_by_module(parts: Mapping[str, Number], module: str, stack: StackMemory) -> dict[str, Number]:
    """Bytes per part that recomputing one module frees in a layer with these parts; empty without such a module."""
    norm_output = {"norm_outputs": parts["norm_outputs"] / 2} if stack.norm_inside_mlp else {}
    if module == "core_attn":
        return {name: parts[name] for name in ("attention_scores", "expanded_key_value") if name in parts}
    if module == "layernorm":
        return {"norm_outputs": parts["norm_outputs"]}
    if module == "mla_up_proj":
        return {"query_key_value": parts["query_key_value"]} if np.any(parts["latents"]) else {}
    if module == "mlp":
        return {"mlp_inside": parts["mlp_inside"], **norm_output} if "mlp_inside" in parts else {}
    if module == "shared_experts":
        return {name: parts[name] for name in ("shared_experts_inside",) if name in parts}
    if module == "moe_act":
        return {name: parts[name] for name in ("expert_activation",) if name in parts}
    inside = ("router", "expert_input", "expert_inside", "expert_activation", "shared_experts_inside")
    return {name: parts[name] for name in inside if name in parts}


def kept_under_selective(parts: Mapping[str, Number], modules: tuple[str, ...], stack: StackMemory) -> KeptLayer:
    """A layer's parts with every module of `modules` recomputed; what two modules both free is freed once."""
    freed: dict[str, Number] = {}
    back: dict[str, Number] = {"mlp": 0.0, "attention": 0.0}
    for module in modules:
        dropped = dropped_by_module(parts, module, stack)
        for name, size in dropped.items():
            freed[name] = np.maximum(freed.get(name, 0.0), size)
        size = sum(dropped.values()) / (2 if module == "layernorm" else 1)
        for half, members in (("mlp", MLP_MODULES), ("attention", ATTENTION_MODULES)):
            if module in members:
                back[half] = np.maximum(back[half], size)
    return KeptLayer(
        kept={name: size - freed.get(name, 0.0) for name, size in parts.items()},
        back_in_mlp=back["mlp"],
        back_in_attention=back["attention"],
    )


def recomputed_layers_per_chunk(recompute: Recompute, chunk_layers: Number) -> Number:
    """Layers of one model chunk that full recomputation runs again: all (uniform) or the first n (block)."""
    if recompute.granularity != "full":
        return 0 * np.asarray(chunk_layers)
    if recompute.method == "uniform":
        return np.asarray(chunk_layers)
    return np.minimum(recompute.num_layers, chunk_layers)


def checkpoints_per_chunk(recompute: Recompute, chunk_layers: Number) -> Number:
    """Layer inputs kept per model chunk: one per group of n layers (uniform), one per recomputed layer (block)."""
    if recompute.granularity != "full":
        return 0 * np.asarray(chunk_layers)
    if recompute.method == "uniform":
        return -(-np.asarray(chunk_layers) // recompute.num_layers)
    return np.minimum(recompute.num_layers, chunk_layers)


def recomputed_activations(recompute: Recompute, chunk_layers: Number, whole: Number, module: Number) -> Number:
    """What is back at once in backward: whole layers under full recomputation, else the largest recomputed `module`."""
    if recompute.granularity == "full":
        return returning_layers(recompute, chunk_layers) * whole
    return module


def mlp_released(recompute: Recompute, whole: Number, kept: Number) -> Number:
    """The MLP's tensors of one layer, gone when attention's backward starts: as many as were kept or are back."""
    return whole if recompute.granularity == "full" or recompute.by_operator else kept


def returning_layers(recompute: Recompute, chunk_layers: Number) -> Number:
    """Whole layers that are back at once in backward under full recomputation: n of a uniform group. With block, one where
    every layer is recomputed; else the layers that were left alone are gone when the first recomputed one comes back."""
    if recompute.granularity != "full":
        return 0 * np.asarray(chunk_layers)
    if recompute.method == "block":
        return np.where(np.greater_equal(recompute.num_layers, chunk_layers), 1, 0)
    return np.minimum(recompute.num_layers, chunk_layers)
