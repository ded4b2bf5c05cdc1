"""A Hugging Face config.json of a ModelSpec, for engines that load nothing else: the Llama, Qwen and Mixtral families.

What is written is read back by `model_from_mapping`; a model that does not come out as it went in is refused. Rotary scaling,
epsilons and published counts are left out: they change no shape.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.model import ModelSpec

_NOT_A_SHAPE = frozenset(
    {
        "name", "norm_epsilon", "rope_scaling", "rotary_base", "router", "default_seq_length", "default_global_batch_size",
        "published_parameters", "make_vocab_size_divisible_by", "sources", "position_embedding_type", "mtp_num_layers",
    }
)  # fmt: skip
_FAMILIES = (
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("mixtral", "MixtralForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
)


def huggingface_config(model: ModelSpec) -> dict[str, Any]:
    """The content of a config.json. Raises UnsupportedError where no family has the model's shape."""
    nearest: list[str] | None = None
    for family, architecture in _FAMILIES:
        body = {**_common(model), "model_type": family, "architectures": [architecture]}
        try:
            again = model_from_mapping(body, family, model.name)
        except InputError:
            continue
        other = _differences(model, again)
        if not other:
            return body
        if nearest is None or len(other) < len(nearest):
            nearest = other
    why = f" (nearest family differs in {', '.join(nearest)})" if nearest else ""
    raise UnsupportedError(f"{model.name}: no Hugging Face architecture of Llama, Qwen or Mixtral has its shape{why}")


def _common(model: ModelSpec) -> dict[str, Any]:
    body: dict[str, Any] = {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.kv_channels,
        "intermediate_size": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon or 1e-5,
        "rope_theta": float(model.rotary_base or 10_000),
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        "attention_bias": False,
        "sliding_window": model.window_size,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    if model.is_moe:
        body |= {
            "num_local_experts": model.num_moe_experts,
            "num_experts": model.num_moe_experts,
            "num_experts_per_tok": model.moe_router_topk,
            "moe_intermediate_size": model.moe_ffn_hidden_size,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    return body


def _differences(model: ModelSpec, again: ModelSpec) -> list[str]:
    fields = [f.name for f in dataclasses.fields(ModelSpec) if f.name not in _NOT_A_SHAPE]
    other = [name for name in fields if getattr(model, name) != getattr(again, name)]
    rotary = (model.position_embedding_type in ("rope", "yarn")) == (again.position_embedding_type in ("rope", "yarn"))
    return other if rotary else [*other, "position_embedding_type"]
