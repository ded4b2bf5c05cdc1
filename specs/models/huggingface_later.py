"""Decoder families of Hugging Face that are Llama, GPT-2, Mixtral or DeepSeek but for a few traits.

Defaults for absent keys are those of `transformers` 5.23, models/*/configuration_*.py; tests/judge/test_families.py holds the
counts to its classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoconfig.specs.models.config_reader import ConfigReader, norm_epsilon, rotary_fields, softmax_router
from autoconfig.specs.models.huggingface_experts import sparse_layers
from autoconfig.specs.models.huggingface_families import (
    MAX_LAYERS,
    Fields,
    activation_name,
    biases,
    decoder,
    deepseek,
    every_nth_full,
    gemma,
    gpt_like,
    layer_count,
    layer_types,
    mistral,
    qwen3,
    qwen3_moe,
    sliding,
)
from autoconfig.specs.models.huggingface_hybrids import granite_hybrid, needs, nemotron_h, qwen_hybrid

LAYER_NORM = {"normalization": "LayerNorm"}


def _windows(cfg: ConfigReader, fields: Fields, default: int | None = None, every: int | None = None) -> Fields:
    """Sliding layers by `layer_types`; where the file does not say them all but every n-th, or none."""
    layers = fields["num_layers"]
    slides = every_nth_full(cfg, layers, every) if every else layer_types(cfg, layers)
    return {} if slides is None else sliding(cfg, layers, cfg.optional_integer("sliding_window") or default, slides)


def _cwm(cfg: ConfigReader) -> Fields:
    """Llama without biases in attention, sliding where `layer_types` says, else in three of four layers."""
    fields = decoder(cfg) | {"add_mlp_bias": cfg.boolean("mlp_bias", False)}
    layers = fields["num_layers"]
    slides = layer_types(cfg, layers) or [i % 4 > 0 for i in range(layers)]
    return fields | sliding(cfg, layers, cfg.optional_integer("sliding_window"), slides)


def _granite_swa(cfg: ConfigReader) -> Fields:
    """Granite with one learned logit a head, and windows in three of four layers."""
    experts = cfg.text("model_type") == "granitemoe_swa"
    fields = (_granitemoe(cfg) if experts else decoder(cfg, tied=True) | biases(cfg)) | {"attention_sinks": True}
    layers = fields["num_layers"]
    slides = layer_types(cfg, layers) or [i % 4 > 0 for i in range(layers)]
    return fields | sliding(cfg, layers, cfg.integer("sliding_window", 128), slides)


def _llama_like(cfg: ConfigReader) -> Fields:
    fields = decoder(cfg) | biases(cfg)
    return fields | _windows(cfg, fields)


def _helium(cfg: ConfigReader) -> Fields:
    """`attention_bias`: of queries, keys and values only; the output projection is as wide as the model."""
    biased = {"add_qkv_bias": cfg.boolean("attention_bias", False), "add_mlp_bias": cfg.boolean("mlp_bias", False)}
    fields = decoder(cfg) | biased
    if fields["kv_channels"] * fields["num_attention_heads"] != fields["hidden_size"]:
        raise cfg.fail("head_dim x num_attention_heads must be hidden_size")
    return fields


def _tied_llama(cfg: ConfigReader) -> Fields:
    needs(cfg, "use_sliding_window", False, False, "which layers slide is not read")
    return decoder(cfg, tied=True) | biases(cfg)


def _arcee(cfg: ConfigReader) -> Fields:
    return decoder(cfg, gated=False, activation="relu2") | biases(cfg)


def _all_biases(cfg: ConfigReader) -> Fields:
    """`use_bias`: of every linear layer but the output's."""
    return {"add_bias_linear": cfg.boolean("use_bias", False)}


def _ernie(cfg: ConfigReader) -> Fields:
    return decoder(cfg, tied=True) | _all_biases(cfg)


def _ernie_moe(cfg: ConfigReader) -> Fields:
    """Experts from one layer to another, every n-th; shared ones; a correction bias among the parameters."""
    needs(cfg, "use_bias", False, False, "biases of experts are not read")
    fields = _ernie(cfg)
    layers, width = fields["num_layers"], cfg.integer("moe_intermediate_size", 1536)
    first, step = cfg.integer("moe_layer_start_index", 1, low=0), cfg.integer("moe_layer_interval", 1)
    last = cfg.integer("moe_layer_end_index", layers - 1, low=0)
    pattern = tuple(int(first <= i <= last and (i + 1) % step == 0) for i in range(layers))
    return fields | {
        "num_moe_experts": cfg.integer("moe_num_experts", 64),
        "moe_router_topk": cfg.integer("moe_k", 6),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width * cfg.integer("moe_num_shared_experts", 2, low=0),
        "moe_layer_freq": pattern,
        "moe_router_enable_expert_bias": True,
    }


def _exaone4(cfg: ConfigReader) -> Fields:
    """Norms behind attention and MLP, as many as others have before them."""
    fields = decoder(cfg) | {"qk_layernorm": True}
    return fields | _windows(cfg, fields, every=4)


def _glm(cfg: ConfigReader) -> Fields:
    """`attention_bias`: of queries, keys and values only."""
    return decoder(cfg) | rotary_fields(cfg, percent=0.5) | {"add_qkv_bias": cfg.boolean("attention_bias", False)}


def _glm4(cfg: ConfigReader) -> Fields:
    return _glm(cfg) | {"num_layernorms_per_layer": 4}


def _hyperclovax(cfg: ConfigReader) -> Fields:
    return decoder(cfg) | biases(cfg) | {"num_layernorms_per_layer": 4 if cfg.boolean("use_post_norm", True) else 2}


def _olmo2(cfg: ConfigReader) -> Fields:
    """Norms over all channels of queries and of keys; norms behind attention and MLP."""
    fields = decoder(cfg) | biases(cfg) | {"qk_layernorm_full": True}
    return fields | _windows(cfg, fields, every=4 if cfg.text("model_type") == "olmo3" else None)


def _experts(cfg: ConfigReader, fields: Fields, key: str, experts: int, topk: int) -> Fields:
    """Every layer is a mixture of experts as wide as `intermediate_size`."""
    return fields | {
        "num_moe_experts": cfg.integer(key, experts),
        "moe_router_topk": cfg.integer("num_experts_per_tok", topk),
        "moe_ffn_hidden_size": fields["ffn_hidden_size"],
    }


def _olmoe(cfg: ConfigReader) -> Fields:
    fields = _experts(cfg, _olmo2(cfg), "num_experts", 64, 8) | softmax_router(cfg, None)
    if fields["kv_channels"] * fields["num_attention_heads"] != fields["hidden_size"]:
        raise cfg.fail("says a head_dim other than hidden_size / num_attention_heads, as wide as the class's norms are")
    return fields


def _granitemoe(cfg: ConfigReader) -> Fields:
    fields = _experts(cfg, decoder(cfg) | biases(cfg), "num_local_experts", 8, 2)
    return fields | {"moe_shared_expert_intermediate_size": cfg.integer("shared_intermediate_size", 0, low=0)}


def _phimoe(cfg: ConfigReader) -> Fields:
    fields = _experts(cfg, decoder(cfg) | biases(cfg) | LAYER_NORM, "num_local_experts", 16, 2)
    return fields | {"output_layer_bias": cfg.boolean("lm_head_bias", False)} | _windows(cfg, fields)


def _minimax_m2(cfg: ConfigReader) -> Fields:
    fields = _experts(cfg, decoder(cfg), "num_local_experts", 256, 8)
    return fields | {"qk_layernorm_full": True, "moe_router_enable_expert_bias": True}


def _glm4_moe(cfg: ConfigReader) -> Fields:
    """The first layers dense, then experts chosen as DeepSeek-V3 does, and shared ones."""
    fields = decoder(cfg) | {"add_qkv_bias": cfg.boolean("attention_bias", False)} | rotary_fields(cfg, percent=0.5)
    layers, width = fields["num_layers"], cfg.integer("moe_intermediate_size", 1408)
    dense = cfg.integer("first_k_dense_replace", 1, low=0)
    return fields | {
        "qk_layernorm": cfg.boolean("use_qk_norm", False),
        "num_moe_experts": cfg.integer("n_routed_experts", 128),
        "moe_router_topk": cfg.integer("num_experts_per_tok", 8),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width * cfg.integer("n_shared_experts", 1, low=0),
        "moe_layer_freq": tuple(int(i >= dense) for i in range(layers)),
        "moe_router_enable_expert_bias": True,
        "mtp_num_layers": cfg.integer("num_nextn_predict_layers", 0, low=0, high=MAX_LAYERS),
    }


def _seed_oss(cfg: ConfigReader) -> Fields:
    qkv, out = cfg.boolean("attention_bias", True), cfg.boolean("attention_out_bias", False)
    mlp = cfg.boolean("mlp_bias", False)
    return decoder(cfg) | {"add_qkv_bias": qkv, "add_attention_output_bias": out, "add_mlp_bias": mlp}


def _stablelm(cfg: ConfigReader) -> Fields:
    needs(cfg, "qk_layernorm", False, False, "norms of single heads are not modelled")
    parallel = cfg.boolean("use_parallel_residual", False)
    return (
        decoder(cfg)
        | LAYER_NORM
        | rotary_fields(cfg, percent=0.25)
        | {
            "add_qkv_bias": cfg.boolean("use_qkv_bias", False),
            "parallel_attention": parallel,
            "num_layernorms_per_layer": 1 if parallel else 2,
        }
    )


def _starcoder2(cfg: ConfigReader) -> Fields:
    fields = decoder(cfg, tied=True, gated=False, activation="gelu_pytorch_tanh") | LAYER_NORM
    fields["add_bias_linear"] = cfg.boolean("use_bias", True)
    return fields | _windows(cfg, fields)


def _cohere(cfg: ConfigReader) -> Fields:
    """Attention and MLP in parallel behind one norm without bias."""
    needs(cfg, "use_qk_norm", False, False, "norms of single heads are not modelled")
    out = cfg.boolean("attention_bias", False)
    fields = (
        decoder(cfg, tied=True)
        | LAYER_NORM
        | {
            "layernorm_bias": False,
            "parallel_attention": True,
            "num_layernorms_per_layer": 1,
            "add_qkv_bias": out,
            "add_attention_output_bias": out,
        }
    )
    return fields | (_windows(cfg, fields, 4096, every=4) if cfg.text("model_type") == "cohere2" else {})


def _phi(cfg: ConfigReader) -> Fields:
    needs(cfg, "qk_layernorm", False, False, "norms of single heads are not modelled")
    fields = decoder(cfg, gated=False, activation="gelu_new") | LAYER_NORM | rotary_fields(cfg, percent=0.5)
    return fields | {
        "add_bias_linear": True,
        "parallel_attention": True,
        "num_layernorms_per_layer": 1,
        "output_layer_bias": True,
    }


def _persimmon(cfg: ConfigReader) -> Fields:
    fields = decoder(cfg, gated=False, activation="relu2") | LAYER_NORM | rotary_fields(cfg, percent=0.5)
    heads = fields["num_attention_heads"]
    return fields | {
        "num_query_groups": heads,
        "add_bias_linear": True,
        "qk_layernorm": cfg.boolean("qk_layernorm", True),
    }


def _jais2(cfg: ConfigReader) -> Fields:
    needs(cfg, "attention_bias", True, True, "as in the MLP")
    needs(cfg, "mlp_bias", True, True, "as in attention")
    return decoder(cfg, gated=False, activation="relu2") | LAYER_NORM | {"add_bias_linear": True}


def _gemma3(cfg: ConfigReader) -> Fields:
    needs(cfg, "use_bidirectional_attention", False, False, "an encoder")
    fields = gemma(cfg) | {"qk_layernorm": True, "num_layernorms_per_layer": 4}
    return fields | _windows(cfg, fields, 4096, every=6)


def _vaultgemma(cfg: ConfigReader) -> Fields:
    fields = gemma(cfg)
    return fields | _windows(cfg, fields, 4096, every=2)


def _gpt_bigcode(cfg: ConfigReader) -> Fields:
    needs(cfg, "add_cross_attention", False, False, "only decoder-only models of this family can be planned")
    hidden, heads = cfg.integer("n_embd"), cfg.integer("n_head")
    inner, positions = cfg.integer("n_inner", 4 * hidden), cfg.integer("n_positions", 1024)
    fields = gpt_like(cfg, layer_count(cfg, "n_layer"), hidden, heads, inner, positions)
    return fields | {
        "num_query_groups": 1 if cfg.boolean("multi_query", True) else heads,
        "position_embedding_type": "learned_absolute",
        "activation": activation_name(cfg, "activation_function", "gelu_pytorch_tanh", False),
    }


def _biogpt(cfg: ConfigReader) -> Fields:
    """Two rows of the table of positions are none."""
    layers, hidden, heads = layer_count(cfg), cfg.integer("hidden_size"), cfg.integer("num_attention_heads")
    positions = cfg.integer("max_position_embeddings", 1024)
    return gpt_like(cfg, layers, hidden, heads, cfg.integer("intermediate_size", 4 * hidden), positions + 2) | {
        "default_seq_length": positions,
        "position_embedding_type": "learned_absolute",
        "activation": activation_name(cfg, "hidden_act", "gelu", False),
    }


def _xglm(cfg: ConfigReader) -> Fields:
    """Positions by sines, which are no parameters."""
    needs(cfg, "add_cross_attention", False, False, "only decoder-only models of this family can be planned")
    layers, hidden, heads = layer_count(cfg, "num_layers"), cfg.integer("d_model"), cfg.integer("attention_heads")
    positions = cfg.integer("max_position_embeddings", 2048)
    return gpt_like(cfg, layers, hidden, heads, cfg.integer("ffn_dim", 4 * hidden), positions) | {
        "position_embedding_type": "none",
        "activation": activation_name(cfg, "activation_function", "gelu", False),
    }


def _gptj(cfg: ConfigReader) -> Fields:
    """GPT-J and CodeGen: biases in the MLP and behind the output layer, none in attention; one norm for both halves."""
    hidden, heads, positions = cfg.integer("n_embd"), cfg.integer("n_head"), cfg.integer("n_positions", 2048)
    layers, inner = layer_count(cfg, "n_layer"), cfg.integer("n_inner", 4 * hidden)
    fields = gpt_like(cfg, layers, hidden, heads, inner, positions, tied=False)
    rotating = min(cfg.integer("rotary_dim", 64), fields["kv_channels"])
    return fields | {
        "activation": activation_name(cfg, "activation_function", "gelu_new", False),
        "position_embedding_type": "rope",
        "rotary_base": 10_000,
        "rotary_percent": rotating / fields["kv_channels"],
        "add_bias_linear": False,
        "add_mlp_bias": True,
        "parallel_attention": True,
        "num_layernorms_per_layer": 1,
        "output_layer_bias": True,
    }


def _repeated(cfg: ConfigReader, row: list[Any]) -> list[str]:
    """One [kinds of layers, times] of GPT-Neo's `attention_types`."""
    if len(row) != 2 or not isinstance(row[0], list) or type(row[1]) is not int or not 0 < row[1] <= MAX_LAYERS:
        raise cfg.fail("attention_types must be a list of [kinds of layers, times]")
    return [str(kind) for kind in row[0]] * row[1]


def _gpt_neo(cfg: ConfigReader) -> Fields:
    """GPT-2 without biases of queries, keys and values; windows by `attention_types`, [[[kinds of layers], times], ...]."""
    hidden, heads, layers = cfg.integer("hidden_size"), cfg.integer("num_heads"), layer_count(cfg, "num_layers")
    positions = cfg.integer("max_position_embeddings", 2048)
    fields = gpt_like(cfg, layers, hidden, heads, cfg.integer("intermediate_size", 4 * hidden), positions)
    said = [kind for row in cfg.items("attention_types", list) or [] for kind in _repeated(cfg, row)]
    kinds = cfg.items("attention_layers", str) or said or (["global", "local"] * layers)[:layers]
    if len(kinds) != layers or set(kinds) - {"global", "local"}:
        raise cfg.fail(f"attention_layers must be {layers} of global and local")
    fields |= {
        "activation": activation_name(cfg, "activation_function", "gelu_new", False),
        "position_embedding_type": "learned_absolute",
        "add_bias_linear": False,
        "add_attention_output_bias": True,
        "add_mlp_bias": True,
    }
    return fields | sliding(cfg, layers, cfg.integer("window_size", 256), [kind == "local" for kind in kinds])


def _latent_attention(cfg: ConfigReader) -> Fields:
    """DeepSeek's latent attention and a dense MLP; MiniCPM's values are as wide as a head where the file does not say it."""
    if cfg.text("model_type") == "minicpm3" and "v_head_dim" not in cfg:
        width = cfg.integer("hidden_size") // cfg.integer("num_attention_heads")
        cfg = ConfigReader({**cfg.values(), "v_head_dim": width}, cfg.where)
    return deepseek(cfg) | {"untie_embeddings_and_output_weights": not cfg.boolean("tie_word_embeddings", True)}


def _mellum(cfg: ConfigReader) -> Fields:
    fields = qwen3_moe(cfg)
    return fields | _windows(cfg, fields) | {"moe_layer_freq": sparse_layers(cfg, fields["num_layers"], 0)}


def _glm4_moe_lite(cfg: ConfigReader) -> Fields:
    """DeepSeek-V3 whose leading dense layers are said layer by layer (`mlp_layer_types`)."""
    types = cfg.items("mlp_layer_types", str) or ["dense", *["sparse"] * (layer_count(cfg) - 1)]
    dense = types.index("sparse") if "sparse" in types else len(types)
    if len(types) != layer_count(cfg) or set(types[dense:]) - {"sparse"} or set(types[:dense]) - {"dense"}:
        raise cfg.fail(f"mlp_layer_types must be {layer_count(cfg)} of dense, and behind them sparse")
    return deepseek(ConfigReader({**cfg.values(), "model_type": "deepseek_v3", "first_k_dense_replace": dense}, cfg.where))


def _eurobert(cfg: ConfigReader) -> Fields:
    """Llama as an encoder; `mlp_bias` is of the output layer too."""
    fields = decoder(cfg) | biases(cfg)
    output = cfg.boolean("mlp_bias", False)
    return fields | {"encoder_num_layers": fields["num_layers"], "norm_epsilon": norm_epsilon(cfg), "output_layer_bias": output}


LATER: dict[str, Callable[[ConfigReader], Fields]] = {
    **dict.fromkeys(("granite", "internlm3", "iquestcoder", "ministral3"), _llama_like),
    **dict.fromkeys(("smollm3",), _tied_llama),
    **dict.fromkeys(("olmo2", "olmo3"), _olmo2),
    **dict.fromkeys(("olmoe", "flex_olmo"), _olmoe),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), _granitemoe),
    **dict.fromkeys(("cohere", "cohere2"), _cohere),
    **dict.fromkeys(("codegen", "gptj"), _gptj),
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), _granite_swa),
    **dict.fromkeys(("youtu", "minicpm3"), _latent_attention),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), qwen_hybrid),
    "arcee": _arcee,
    "biogpt": _biogpt,
    "cwm": _cwm,
    "ernie4_5": _ernie,
    "ernie4_5_moe": _ernie_moe,
    "eurobert": _eurobert,
    "exaone4": _exaone4,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "granitemoehybrid": granite_hybrid,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "helium": _helium,
    "hyperclovax": _hyperclovax,
    "jais2": _jais2,
    "glm4_moe_lite": _glm4_moe_lite,
    "hunyuan_v1_dense": qwen3,
    "mellum": _mellum,
    "ministral": mistral,
    "minimax_m2": _minimax_m2,
    "nemotron_h": nemotron_h,
    "persimmon": _persimmon,
    "phi": _phi,
    "phimoe": _phimoe,
    "seed_oss": _seed_oss,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "vaultgemma": _vaultgemma,
    "xglm": _xglm,
}
"""`model_type` -> the function that reads that family's keys."""
