"""One function per Hugging Face model family: its config.json's keys -> ModelSpec fields.

Defaults for absent keys are those of `transformers` 4.57, models/*/configuration_*.py. FAMILIES maps `model_type` to function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.models.config_reader import ConfigReader, deepseek_router, norm_epsilon, rotary_fields, softmax_router
from autoconfig.specs.models.model_numbers import RouterNumbers

Fields = dict[str, Any]
MAX_LAYERS = 10_000

_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu")
_ACTIVATIONS = dict.fromkeys(_GELU, "gelu") | {"relu": "relu", "relu2": "squared-relu", "silu": "silu", "swish": "silu"}


def unsupported(cfg: ConfigReader, text: str) -> UnsupportedError:
    """An error for what is understood and cannot be planned."""
    return UnsupportedError(f"{cfg.where}: {text}")


def activation_name(cfg: ConfigReader, key: str, default: str, gated: bool) -> str:
    """ModelSpec's name for the activation function, gated (`silu` -> swiglu, `gelu` -> geglu) or not."""
    given = cfg.text(key, default)
    plain = _ACTIVATIONS.get(given)
    named = {"silu": "swiglu", "gelu": "geglu"}.get(plain or "") if gated else (plain if plain != "silu" else None)
    if named is None:
        raise unsupported(
            cfg,
            f"{key}={given[:40]!r} in a{' gated' if gated else 'n ungated'} MLP cannot be planned; "
            f"known are {'silu and gelu' if gated else 'gelu, relu and relu2'}",
        )
    return named


def layer_count(cfg: ConfigReader, key: str = "num_hidden_layers", default: int | None = None) -> int:
    """A number of layers, at most MAX_LAYERS."""
    return cfg.integer(key, high=MAX_LAYERS) if default is None else cfg.integer(key, default, high=MAX_LAYERS)


def _head_dim(cfg: ConfigReader, hidden: int, heads: int, key: str = "head_dim") -> int:
    if key in cfg:
        return cfg.integer(key)
    if hidden % heads:
        raise cfg.fail(f"hidden size {hidden} is not a multiple of {heads} attention heads, and no {key} is given")
    return hidden // heads


def sliding(cfg: ConfigReader, layers: int, window: int | None, pattern: list[bool]) -> Fields:
    """window_size and window_attn_skip_freq for a pattern of sliding layers: one number where every n-th layer is full."""
    if window is None or not any(pattern):
        return {}
    if all(pattern):
        return {"window_size": window}
    first_full = pattern.index(False) + 1
    if first_full > 1 and all(slides == bool((i + 1) % first_full) for i, slides in enumerate(pattern)):
        return {"window_size": window, "window_attn_skip_freq": first_full}
    return {"window_size": window, "window_attn_skip_freq": tuple(int(slides) for slides in pattern)}


def layer_types(cfg: ConfigReader, layers: int) -> list[bool] | None:
    """True for each sliding layer, from `layer_types`; None where it is absent."""
    types = cfg.items("layer_types", str)
    if types is None:
        return None
    if len(types) != layers:
        raise cfg.fail(f"layer_types has {len(types)} entries for {layers} layers")
    other = sorted(set(types) - {"full_attention", "sliding_attention"})
    if other:
        raise unsupported(cfg, f"layer_types has {other[0][:40]!r}; only full_attention and sliding_attention can be planned")
    return [kind == "sliding_attention" for kind in types]


def every_nth_full(cfg: ConfigReader, layers: int, every: int) -> list[bool]:
    """Which layers slide, by `layer_types`, else by `sliding_window_pattern`: all but every n-th, or letters L and G over and
    over."""
    given = cfg.values().get("sliding_window_pattern", every)
    if isinstance(given, str) and given and not set(given) - {"L", "G"}:
        usual = [given[i % len(given)] == "L" for i in range(layers)]
    else:
        number = cfg.integer("sliding_window_pattern", every)
        usual = [(i + 1) % number != 0 for i in range(layers)]
    return layer_types(cfg, layers) or usual


def decoder(
    cfg: ConfigReader,
    *,
    tied: bool = False,
    activation_key: str = "hidden_act",
    activation: str = "silu",
    kv_default: int | None = None,
    gated: bool = True,
    rotary_base: int = 10_000,
) -> Fields:
    """What the Llama-like families share: RMSNorm, rotary positions, gated MLP, no biases."""
    hidden, heads = cfg.integer("hidden_size"), cfg.integer("num_attention_heads")
    return {
        "num_layers": layer_count(cfg),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": cfg.integer("vocab_size"),
        "ffn_hidden_size": cfg.integer("intermediate_size"),
        "num_query_groups": cfg.integer("num_key_value_heads", kv_default or heads),
        "kv_channels": _head_dim(cfg, hidden, heads),
        "max_position_embeddings": cfg.integer("max_position_embeddings", 4096),
        "gated_linear_unit": gated,
        "activation": activation_name(cfg, activation_key, activation, gated),
        "normalization": "RMSNorm",
        "norm_epsilon": norm_epsilon(cfg),
        "add_bias_linear": False,
        "untie_embeddings_and_output_weights": not cfg.boolean("tie_word_embeddings", tied),
        **rotary_fields(cfg, rotary_base),
    }


def biases(cfg: ConfigReader) -> Fields:
    """`attention_bias` (query, key, value and output) and `mlp_bias` of Llama."""
    attention, mlp = cfg.boolean("attention_bias", False), cfg.boolean("mlp_bias", False)
    if mlp:
        return {"add_bias_linear": True} if attention else {"add_mlp_bias": True}
    return {"add_qkv_bias": True, "add_attention_output_bias": True} if attention else {}


def _llama(cfg: ConfigReader) -> Fields:
    return decoder(cfg) | biases(cfg)


def mistral(cfg: ConfigReader, rotary_base: int = 10_000) -> Fields:
    """Llama with grouped queries, all layers sliding where a window is given, or those of `layer_types`."""
    fields = decoder(cfg, kv_default=None if "num_key_value_heads" in cfg else 8, rotary_base=rotary_base)
    slides = layer_types(cfg, fields["num_layers"]) or [True] * fields["num_layers"]
    return fields | sliding(cfg, fields["num_layers"], cfg.optional_integer("sliding_window"), slides)


def _mixtral(cfg: ConfigReader) -> Fields:
    fields = mistral(cfg, rotary_base=1_000_000)
    return fields | {
        "num_moe_experts": cfg.integer("num_local_experts", 8),
        "moe_ffn_hidden_size": fields["ffn_hidden_size"],
        "moe_router_topk": cfg.integer("num_experts_per_tok", 2),
        **softmax_router(cfg, True),
    }


def _phi3(cfg: ConfigReader) -> Fields:
    fields = decoder(cfg)
    return fields | sliding(cfg, fields["num_layers"], cfg.optional_integer("sliding_window"), [True] * fields["num_layers"])


def _qwen_sliding(cfg: ConfigReader, layers: int) -> Fields:
    """Qwen: layers from max_window_layers on slide, only where use_sliding_window is true."""
    if not cfg.boolean("use_sliding_window", False):
        return {}
    first = cfg.integer("max_window_layers", 28, low=0)
    slides = layer_types(cfg, layers) or [i >= first for i in range(layers)]
    return sliding(cfg, layers, cfg.integer("sliding_window", 4096), slides)


def _qwen2(cfg: ConfigReader) -> Fields:
    fields = decoder(cfg) | {"add_qkv_bias": True}
    return fields | _qwen_sliding(cfg, fields["num_layers"])


def qwen3(cfg: ConfigReader) -> Fields:
    """Llama with norms over the channels of each head."""
    fields = decoder(cfg) | {"qk_layernorm": True} | biases(cfg)
    return fields | {"kv_channels": cfg.integer("head_dim", 128)} | _qwen_sliding(cfg, fields["num_layers"])


def _sparse_step(cfg: ConfigReader, layers: int) -> Fields:
    """Which layers are mixtures of experts in Qwen: every decoder_sparse_step-th, less those of mlp_only_layers."""
    step = cfg.integer("decoder_sparse_step", 1)
    dense = set(cfg.items("mlp_only_layers", int) or [])
    pattern = tuple(int(i not in dense and (i + 1) % step == 0) for i in range(layers))
    return {"moe_layer_freq": 1 if all(pattern) else pattern}


def _qwen_moe(cfg: ConfigReader, fields: Fields, experts: int, topk: int, width: int) -> Fields:
    return (
        fields
        | _sparse_step(cfg, fields["num_layers"])
        | {
            "num_moe_experts": cfg.integer("num_experts" if "num_experts" in cfg else "num_local_experts", experts),
            "moe_router_topk": cfg.integer("num_experts_per_tok", topk),
            "moe_ffn_hidden_size": cfg.integer("moe_intermediate_size", width),
            **softmax_router(cfg, None),
        }
    )


def _qwen2_moe(cfg: ConfigReader) -> Fields:
    fields = decoder(cfg) | {"add_qkv_bias": cfg.boolean("qkv_bias", True)}
    shared = cfg.integer("shared_expert_intermediate_size", 5632)
    return (
        _qwen_moe(cfg, fields, 60, 4, 1408)
        | _qwen_sliding(cfg, fields["num_layers"])
        | {"moe_shared_expert_intermediate_size": shared, "moe_shared_expert_gate": True}
    )


def qwen3_moe(cfg: ConfigReader) -> Fields:
    """Qwen3 with experts."""
    fields = decoder(cfg) | {"qk_layernorm": True} | biases(cfg)
    slides = {"window_size": cfg.integer("sliding_window", 4096)} if cfg.boolean("use_sliding_window", False) else {}
    return _qwen_moe(cfg, fields, 128, 8, 768) | slides


def deepseek(cfg: ConfigReader) -> Fields:
    """DeepSeek-V2 and V3: multi-latent attention, the first layers dense, shared experts, V3 with MTP and correction biases.
    Kimi K2 is built as V3 is (moonshotai/Kimi-K2-Instruct, modeling_deepseek.py)."""
    if cfg.boolean("attention_bias", False) or cfg.boolean("mlp_bias", False):
        raise unsupported(cfg, "attention_bias or mlp_bias with multi-latent attention cannot be planned; both must be false")
    v3 = cfg.text("model_type") in ("deepseek_v3", "kimi_k2")
    heads, layers = cfg.integer("num_attention_heads"), layer_count(cfg)
    value_dim = cfg.integer("v_head_dim", 128)
    q_rank = cfg.optional_integer("q_lora_rank") if cfg.has_key("q_lora_rank") else 1536
    common = {
        "num_layers": layers,
        "hidden_size": cfg.integer("hidden_size"),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": value_dim,
        "vocab_size": cfg.integer("vocab_size"),
        "ffn_hidden_size": cfg.integer("intermediate_size"),
        "max_position_embeddings": cfg.integer("max_position_embeddings", 4096),
        "gated_linear_unit": True,
        "activation": activation_name(cfg, "hidden_act", "silu", True),
        "normalization": "RMSNorm",
        "norm_epsilon": norm_epsilon(cfg),
        **rotary_fields(cfg),
        "add_bias_linear": False,
        "untie_embeddings_and_output_weights": not cfg.boolean("tie_word_embeddings", False),
        "multi_latent_attention": True,
        "q_lora_rank": q_rank,
        "kv_lora_rank": cfg.integer("kv_lora_rank", 512),
        "qk_head_dim": cfg.integer("qk_nope_head_dim", 128),
        "qk_pos_emb_head_dim": cfg.integer("qk_rope_head_dim", 64),
        "v_head_dim": value_dim,
        "mtp_num_layers": cfg.integer("num_nextn_predict_layers", 0, low=0, high=MAX_LAYERS) if v3 else 0,
    }
    return common | _deepseek_experts(cfg, layers, v3)


def _deepseek_experts(cfg: ConfigReader, layers: int, v3: bool) -> Fields:
    if "n_routed_experts" not in cfg:
        return {}
    dense, freq = cfg.integer("first_k_dense_replace", 3 if v3 else 0, low=0), cfg.integer("moe_layer_freq", 1)
    pattern = tuple(int(i >= dense and i % freq == 0) for i in range(layers))
    width = cfg.integer("moe_intermediate_size")
    shared = cfg.integer("n_shared_experts", 0, low=0, high=10_000) * width
    return {
        "num_moe_experts": cfg.integer("n_routed_experts"),
        "moe_router_topk": cfg.integer("num_experts_per_tok"),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": shared,
        "moe_layer_freq": pattern,
        "moe_router_enable_expert_bias": v3,
        **deepseek_router(cfg),
    }


def _gpt_oss(cfg: ConfigReader) -> Fields:
    fields = decoder(cfg, kv_default=None if "num_key_value_heads" in cfg else 8, rotary_base=150_000)
    layers = fields["num_layers"]
    slides = layer_types(cfg, layers) or [bool((i + 1) % 2) for i in range(layers)]
    bias = cfg.boolean("attention_bias", True)
    return (
        fields
        | sliding(cfg, layers, cfg.integer("sliding_window", 128), slides)
        | {
            "kv_channels": cfg.integer("head_dim", 64),
            "add_qkv_bias": bias,
            "add_attention_output_bias": bias,
            "attention_sinks": True,
            "num_moe_experts": cfg.integer("num_local_experts", 128),
            "moe_router_topk": cfg.integer("num_experts_per_tok", 4),
            "moe_ffn_hidden_size": fields["ffn_hidden_size"],
            "moe_router_bias": True,
            "moe_expert_bias": True,
            "router": RouterNumbers(score_function="softmax"),
        }
    )


def _nemotron(cfg: ConfigReader) -> Fields:
    fields = decoder(cfg, activation="relu2", gated=False) | {"normalization": "LayerNorm"} | biases(cfg)
    return fields | rotary_fields(cfg, percent=0.5)


def gemma(cfg: ConfigReader) -> Fields:
    """Llama with GELU, wider heads and tied embeddings."""
    key = "hidden_activation" if "hidden_activation" in cfg else "hidden_act"
    fields = decoder(cfg, tied=True, activation_key=key, activation="gelu_pytorch_tanh") | biases(cfg)
    return fields | {"kv_channels": cfg.integer("head_dim", 256)}


def _gemma2(cfg: ConfigReader) -> Fields:
    """Gemma 2: norms before and after both halves of the layer, every second layer slides."""
    fields = gemma(cfg)
    layers = fields["num_layers"]
    slides = layer_types(cfg, layers) or [bool((i + 1) % 2) for i in range(layers)]
    return fields | sliding(cfg, layers, cfg.integer("sliding_window", 4096), slides) | {"num_layernorms_per_layer": 4}


def gpt_like(cfg: ConfigReader, layers: int, hidden: int, heads: int, ffn: int, positions: int, tied: bool = True) -> Fields:
    """What the GPT-2-like families share: LayerNorm, biases, ungated MLP, multi-head attention."""
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": _head_dim(cfg, hidden, heads, "head_dim"),
        "ffn_hidden_size": ffn,
        "max_position_embeddings": positions,
        "vocab_size": cfg.integer("vocab_size"),
        "activation": "gelu",
        "normalization": "LayerNorm",
        "add_bias_linear": True,
        "untie_embeddings_and_output_weights": not cfg.boolean("tie_word_embeddings", tied),
    }


def _gpt2(cfg: ConfigReader) -> Fields:
    if cfg.boolean("add_cross_attention", False):
        raise unsupported(cfg, "add_cross_attention is true; only decoder-only models can be planned")
    hidden = cfg.integer("n_embd")
    return gpt_like(
        cfg,
        layer_count(cfg, "n_layer"),
        hidden,
        cfg.integer("n_head"),
        cfg.integer("n_inner", 4 * hidden),
        cfg.integer("n_positions", 1024),
    ) | {
        "position_embedding_type": "learned_absolute",
        "activation": activation_name(cfg, "activation_function", "gelu_new", False),
    }


def _gpt_neox(cfg: ConfigReader) -> Fields:
    biased = cfg.boolean("attention_bias", True)
    return gpt_like(
        cfg,
        layer_count(cfg),
        cfg.integer("hidden_size"),
        cfg.integer("num_attention_heads"),
        cfg.integer("intermediate_size"),
        cfg.integer("max_position_embeddings", 2048),
        tied=False,
    ) | {
        **rotary_fields(cfg, percent=0.25),
        "activation": activation_name(cfg, "hidden_act", "gelu", False),
        "parallel_attention": cfg.boolean("use_parallel_residual", True),
        **({} if biased else {"add_bias_linear": False, "add_mlp_bias": True}),
    }


def _falcon(cfg: ConfigReader) -> Fields:
    hidden, heads = cfg.integer("hidden_size"), cfg.integer("num_attention_heads")
    new, parallel = cfg.boolean("new_decoder_architecture", False), cfg.boolean("parallel_attn", True)
    groups = cfg.integer("num_kv_heads", heads) if new else 1 if cfg.boolean("multi_query", True) else heads
    two_norms = not parallel or cfg.integer("num_ln_in_parallel_attn", 2 if new else 1, high=2) == 2
    return gpt_like(
        cfg,
        layer_count(cfg),
        hidden,
        heads,
        cfg.integer("ffn_hidden_size", 4 * hidden),
        cfg.integer("max_position_embeddings", 2048),
    ) | {
        "num_query_groups": groups,
        "add_bias_linear": cfg.boolean("bias", False),
        "parallel_attention": parallel,
        "num_layernorms_per_layer": 2 if two_norms else 1,
        "activation": activation_name(cfg, "activation", "gelu", False),
        **({"position_embedding_type": "alibi"} if cfg.boolean("alibi", False) else rotary_fields(cfg)),
    }


def _bloom(cfg: ConfigReader) -> Fields:
    hidden = cfg.integer("hidden_size" if "hidden_size" in cfg else "n_embed")
    layers = layer_count(cfg, "n_layer" if "n_layer" in cfg else "num_hidden_layers")
    heads = cfg.integer("n_head" if "n_head" in cfg else "num_attention_heads")
    return gpt_like(cfg, layers, hidden, heads, 4 * hidden, cfg.integer("seq_length", 2048)) | {
        "position_embedding_type": "alibi",
        "embedding_layernorm": True,
    }


def _opt(cfg: ConfigReader) -> Fields:
    hidden = cfg.integer("hidden_size")
    if not cfg.boolean("do_layer_norm_before", True) or cfg.integer("word_embed_proj_dim", hidden) != hidden:
        raise unsupported(cfg, "norms after the sublayers or a projected embedding (OPT-350m) cannot be planned")
    if not cfg.boolean("layer_norm_elementwise_affine", True) or cfg.boolean("_remove_final_layer_norm", False):
        raise unsupported(cfg, "norms without weights, or no final norm, cannot be planned")
    # modeling_opt.py: OPTLearnedPositionalEmbedding holds two rows more than max_position_embeddings
    return gpt_like(
        cfg,
        layer_count(cfg),
        hidden,
        cfg.integer("num_attention_heads"),
        cfg.integer("ffn_dim"),
        cfg.integer("max_position_embeddings", 2048) + 2,
    ) | {
        "default_seq_length": cfg.integer("max_position_embeddings", 2048),
        "position_embedding_type": "learned_absolute",
        "activation": activation_name(cfg, "activation_function", "relu", False),
        "add_bias_linear": cfg.boolean("enable_bias", True),
    }


MPT_EXPANSION = 4


def _mpt(cfg: ConfigReader) -> Fields:
    """MPT as transformers builds it: no biases, norms without bias either, ALiBi."""
    attention = cfg.section("attn_config")
    if attention.boolean("qk_ln", False) or not attention.boolean("alibi", True):
        raise unsupported(cfg, "only MPT with ALiBi and without qk_ln can be planned (as transformers' modeling_mpt.py)")
    hidden, heads = cfg.integer("d_model"), cfg.integer("n_heads")
    kind = attention.text("attn_type", "multihead_attention")
    if attention.integer("kv_n_heads", heads) != heads or kind != "multihead_attention":
        raise unsupported(cfg, "only MPT with multihead_attention can be planned")
    if cfg.integer("expansion_ratio", 4, high=1000) != MPT_EXPANSION:
        raise unsupported(cfg, f"only MPT with expansion_ratio {MPT_EXPANSION} can be planned (modeling_mpt.py knows no other)")
    most, layers = cfg.integer("max_seq_len", 2048), layer_count(cfg, "n_layers")
    fields = {"position_embedding_type": "alibi", "add_bias_linear": False, "layernorm_bias": False}
    return gpt_like(cfg, layers, hidden, heads, MPT_EXPANSION * hidden, most) | fields


_NAMED_ALIKE = (
    *(_bloom, _falcon, gemma, _gemma2, _gpt2, _gpt_neox, _gpt_oss, _llama, mistral, _mixtral, _mpt, _nemotron, _opt, _phi3),
    *(_qwen2, _qwen2_moe, qwen3, qwen3_moe),
)
FAMILIES: dict[str, Callable[[ConfigReader], Fields]] = {
    **{function.__name__.lstrip("_"): function for function in _NAMED_ALIKE},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), deepseek),
}
"""`model_type` -> the function that reads that family's keys."""
