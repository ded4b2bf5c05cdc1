"""What megatron-core's GPT model cannot be built with, said once for exported scripts and for the training core."""

from __future__ import annotations

from collections.abc import Sequence

from autoconfig.specs.models.model import ModelSpec


def all_biases(model: ModelSpec) -> bool:
    """Megatron's add_bias_linear: attention output, MLP, experts and router have biases, all or none."""
    return model.add_bias_linear or (model.add_attention_output_bias and model.moe_expert_bias)


def not_buildable(model: ModelSpec) -> list[str]:
    """What of this architecture Megatron has no setting for, in words; empty where it can be built."""
    reasons = {
        "alibi positions": model.position_embedding_type == "alibi",
        "attention and MLP in parallel": model.parallel_attention,
        "a norm behind the embedding": model.embedding_layernorm,
        "a LayerNorm without bias": model.normalization == "LayerNorm" and not model.layernorm_bias,
        f"the activation {model.activation}": model.activation in ("geglu", "relu"),
        "norms behind attention and MLP (four a layer)": model.num_layernorms_per_layer > 2 and not model.parallel_attention,
        "biases in some linear layers only": model.add_attention_output_bias != all_biases(model) and not model.add_bias_linear,
    }
    return [reason for reason, holds in reasons.items() if holds]


def endless_recomputation(model: ModelSpec, modules: Sequence[str]) -> str | None:
    """Why this selective recomputation never ends in megatron-core, or None.

    An MLP with biases returns its last bias, a parameter, as an output of `checkpoint` (tensor_parallel/random.py,
    0.16.1 and 0.19.2); autograd then takes the checkpoint for the parameter's history, and its backward runs itself again.
    """
    if "mlp" not in modules or not all_biases(model) or 0 not in model.moe_pattern:
        return None
    return (
        "recomputing mlp where linear layers have biases never ends in megatron-core (the checkpoint returns the bias, a "
        "parameter, as its output); take full recomputation, or other modules"
    )
