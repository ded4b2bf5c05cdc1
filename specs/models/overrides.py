"""Every architecture number as a flag: a catalogue model with some of its numbers changed."""

from __future__ import annotations

from collections.abc import Mapping

from autoconfig.specs.errors import InputError, UnknownNameError
from autoconfig.specs.models.model import ModelSpec

INTEGER_FIELDS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "vocab_size", "max_position_embeddings", "rotary_base", "make_vocab_size_divisible_by"),
    *("num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_layer_freq"),
    *("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    *("mtp_num_layers", "window_size", "window_attn_skip_freq", "default_seq_length", "default_global_batch_size"),
)
"""Fields that take a whole number."""
BOOLEAN_FIELDS = ("untie_embeddings_and_output_weights", "add_bias_linear", "add_qkv_bias", "qk_layernorm", "gated_linear_unit")
"""Fields that take true or false."""
SHORT_NAMES = {"seq_length": "default_seq_length", "global_batch_size": "default_global_batch_size"}
"""Megatron's flag -> our field, where they differ."""
_ZERO_MEANS_NONE = ("num_moe_experts", "q_lora_rank", "window_size", "window_attn_skip_freq")


def apply_overrides(model: ModelSpec, changes: Mapping[str, object]) -> ModelSpec:
    """`model` with some numbers changed, named like `gpt3-175b*`; `model` itself when nothing changes.

    Keys are Megatron's flag names (ModelSpec's fields; `seq_length`, `global_batch_size`). A value of None means not given; 0
    for num_moe_experts, q_lora_rank, window_size and window_attn_skip_freq means without. What depends on a changed number
    follows it only where the base model derived it that way and it is not given itself:

    - kv_channels = hidden_size / num_attention_heads       if the base has it so (and no multi-latent attention);
    - num_query_groups = num_attention_heads                if the base has one key/value head per query head;
    - ffn_hidden_size = 4 hidden_size                       if the base has it so;
    - moe_ffn_hidden_size = ffn_hidden_size                 if the base has it so (Mixtral), or the base has no experts;
    - moe_router_topk = min(2, experts)                     if the base has no experts (Megatron's default is 2);
    - moe_layer_freq: a pattern of first dense, then MoE layers keeps its number of dense layers when num_layers changes;
    - activation = its gated or ungated counterpart         when gated_linear_unit changes (gelu - geglu, swiglu - gelu);
    - max_position_embeddings grows to default_seq_length, and follows it down too if learned positions had exactly that many.

    Raises UnknownNameError for a name that is no architecture number, InputError for a value that no model can have.
    """
    checked = {
        SHORT_NAMES.get(key, key): _checked(SHORT_NAMES.get(key, key), value)
        for key, value in changes.items()
        if value is not None
    }
    given: dict[str, int | None] = {
        key: None if key in _ZERO_MEANS_NONE and value == 0 else value for key, value in checked.items()
    }
    given = {key: value for key, value in given.items() if value != getattr(model, key)}
    if not given:
        return model
    if isinstance(model.window_attn_skip_freq, tuple) and "num_layers" in given and "window_attn_skip_freq" not in given:
        raise InputError(f"{model.name}: which layers slide is said one by one; give window_attn_skip_freq with num_layers")
    derived = {**_attention(model, given), **_mlp(model, given), **_experts(model, given), **_positions(model, given)}
    sources = {**model.sources, **dict.fromkeys(given, "given by the user")}
    name = model.name if model.name.endswith("*") else f"{model.name}*"
    return model.replace(name=name, published_parameters=None, sources=sources, **{**derived, **given})


def _checked(name: str, value: object) -> int | bool:
    if name in BOOLEAN_FIELDS:
        if isinstance(value, bool):
            return value
        raise InputError(f"{name}={value!r} must be true or false")
    if name not in INTEGER_FIELDS:
        raise UnknownNameError(
            "architecture number",
            name,
            [*INTEGER_FIELDS, *BOOLEAN_FIELDS, *SHORT_NAMES],
            "names are Megatron's flags with _ for -",
        )
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal() and len(value.strip()) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{name}={value!r} must be a whole number, not negative")
    return value


def _number(model: ModelSpec, given: Mapping[str, object], name: str) -> int:
    value = given.get(name, getattr(model, name))
    return value if isinstance(value, int) else 0


def _attention(model: ModelSpec, given: Mapping[str, object]) -> dict[str, object]:
    derived: dict[str, object] = {}
    hidden, heads = _number(model, given, "hidden_size"), _number(model, given, "num_attention_heads")
    if heads < 1:
        return derived  # ModelSpec refuses it with a message of its own
    if model.num_query_groups == model.num_attention_heads:
        derived["num_query_groups"] = heads
    follows = model.kv_channels * model.num_attention_heads == model.hidden_size and not model.multi_latent_attention
    if follows and "kv_channels" not in given and {"hidden_size", "num_attention_heads"} & set(given):
        if hidden % heads:
            raise InputError(
                f"{model.name}: hidden_size={hidden} is not a multiple of num_attention_heads={heads}; "
                "change one of them or give kv_channels"
            )
        derived["kv_channels"] = hidden // heads
    return derived


def _mlp(model: ModelSpec, given: Mapping[str, object]) -> dict[str, object]:
    derived: dict[str, object] = {}
    if model.ffn_hidden_size == 4 * model.hidden_size:
        derived["ffn_hidden_size"] = 4 * _number(model, given, "hidden_size")
    if "gated_linear_unit" in given:
        gated = {"gelu": "geglu", "relu": "swiglu", "squared-relu": "swiglu"}
        ungated = {"geglu": "gelu", "swiglu": "gelu"}
        derived["activation"] = (gated if given["gated_linear_unit"] else ungated).get(model.activation, model.activation)
    return derived


def _experts(model: ModelSpec, given: Mapping[str, object]) -> dict[str, object]:
    derived: dict[str, object] = {}
    experts = given.get("num_moe_experts", model.num_moe_experts)
    if not isinstance(experts, int):
        return {"moe_layer_freq": 1} if model.is_moe else derived
    if not model.is_moe:
        derived["moe_router_topk"] = min(2, experts)
    if not model.is_moe or model.moe_ffn_hidden_size == model.ffn_hidden_size:
        ffn = _mlp(model, given).get("ffn_hidden_size", model.ffn_hidden_size)
        derived["moe_ffn_hidden_size"] = given.get("ffn_hidden_size", ffn)
    pattern, layers = model.moe_layer_freq, _number(model, given, "num_layers")
    if isinstance(pattern, tuple) and layers != model.num_layers and "moe_layer_freq" not in given:
        dense = pattern.index(1) if 1 in pattern else len(pattern)
        if 0 in pattern[dense:]:
            raise InputError(
                f"{model.name}: its mixture-of-experts layers follow a pattern of {model.num_layers} layers that "
                "cannot be stretched; give moe_layer_freq too"
            )
        if 0 < layers <= 10_000:
            derived["moe_layer_freq"] = tuple(int(i >= dense) for i in range(layers))
    return derived


def _positions(model: ModelSpec, given: Mapping[str, object]) -> dict[str, object]:
    seq = given.get("default_seq_length")
    if not isinstance(seq, int):
        return {}
    learned = model.position_embedding_type == "learned_absolute"
    follows = learned and model.default_seq_length == model.max_position_embeddings
    return {"max_position_embeddings": seq if follows else max(seq, model.max_position_embeddings)}
