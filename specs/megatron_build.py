"""What megatron-core's GPT model cannot be built with, said once for exported scripts and for the training core."""

from __future__ import annotations

from specs.model import ModelSpec


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
