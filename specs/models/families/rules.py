"""What single families of Hugging Face do by rules of their own: functions that rows of catalogue/families.toml name.

Sources: modeling_*.py and configuration_*.py of `transformers` 4.57 and 5.23, each under the family's name.
"""

from __future__ import annotations

from typing import Any

from autoconfig.specs.models.config_reader import ConfigReader, deepseek_router, norm_epsilon, rotary_fields, softmax_router
from autoconfig.specs.models.families.traits import (
    FOUR_NORMS,
    MAX_LAYERS,
    TOPK,
    Fields,
    Trait,
    activation_name,
    decoder,
    experts,
    gpt_like,
    layer_count,
    sliding,
    sparse_layers,
    unsupported,
    windows_from,
)
from autoconfig.specs.models.model_numbers import RouterNumbers


def qwen_windows(cfg: ConfigReader, fields: Fields) -> Fields:
    """Layers slide only where use_sliding_window is true."""
    return windows_from(28, 4096)(cfg, fields) if cfg.boolean("use_sliding_window", False) else {}


def one_window(cfg: ConfigReader, _fields: Fields) -> Fields:
    """One window for all layers where use_sliding_window is true."""
    return {"window_size": cfg.integer("sliding_window", 4096)} if cfg.boolean("use_sliding_window", False) else {}


def qwen_experts(number: int, topk: int, width: int) -> Trait:
    """Experts in every decoder_sparse_step-th layer, less those of mlp_only_layers."""

    def trait(cfg: ConfigReader, fields: Fields) -> Fields:
        step, dense = cfg.integer("decoder_sparse_step", 1), set(cfg.items("mlp_only_layers", int) or [])
        pattern = tuple(int(i not in dense and (i + 1) % step == 0) for i in range(fields["num_layers"]))
        key = "num_experts" if "num_experts" in cfg else "num_local_experts"
        routed = experts((key, number), (TOPK, topk), wide=("moe_intermediate_size", width))(cfg, fields)
        return routed | {"moe_layer_freq": 1 if all(pattern) else pattern} | softmax_router(cfg, None)

    return trait


def extra_depths(cfg: ConfigReader, _fields: Fields) -> Fields:
    """Depths of multi-token prediction."""
    return {"mtp_num_layers": cfg.integer("num_nextn_predict_layers", 0, low=0, high=MAX_LAYERS)}


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
        **(extra_depths(cfg, {}) if v3 else {"mtp_num_layers": 0}),
    }
    return common | (_deepseek_experts(cfg, layers, v3) if "n_routed_experts" in cfg else {})


def _deepseek_experts(cfg: ConfigReader, layers: int, v3: bool) -> Fields:
    dense, freq = cfg.integer("first_k_dense_replace", 3 if v3 else 0, low=0), cfg.integer("moe_layer_freq", 1)
    width = cfg.integer("moe_intermediate_size")
    return {
        "num_moe_experts": cfg.integer("n_routed_experts"),
        "moe_router_topk": cfg.integer("num_experts_per_tok"),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width * cfg.integer("n_shared_experts", 0, low=0, high=10_000),
        "moe_layer_freq": tuple(int(i >= dense and i % freq == 0) for i in range(layers)),
        "moe_router_enable_expert_bias": v3,
        **deepseek_router(cfg),
    }


def latent_attention(cfg: ConfigReader) -> Fields:
    """DeepSeek's latent attention and a dense MLP; MiniCPM's values are as wide as a head where the file does not say it."""
    if cfg.text("model_type") == "minicpm3" and "v_head_dim" not in cfg:
        cfg = cfg.replaced(v_head_dim=cfg.integer("hidden_size") // cfg.integer("num_attention_heads"))
    return deepseek(cfg) | {"untie_embeddings_and_output_weights": not cfg.boolean("tie_word_embeddings", True)}


def sparse_attention(cfg: ConfigReader) -> Fields:
    """DeepSeek-V3 whose queries attend to keys that an indexer chooses, each layer with its own (DSA: DeepSeek-V3.2, GLM-5)."""
    glm = cfg.text("model_type") == "glm_moe_dsa"
    shares = cfg.integer("index_topk_freq", 1) > 1 or "S" in str(cfg.values().get("index_topk_pattern") or "")
    if shares or "shared" in (cfg.items("indexer_types", str) or []):
        raise unsupported(
            cfg,
            "layers that take over the keys chosen by a layer before them (indexer_types, index_topk_freq) are not modelled",
        )
    if set(cfg.items("layer_types", str) or []) - {"indexed_attention"}:
        raise unsupported(cfg, "layer_types: every layer must have indexed_attention")
    number = cfg.values().get("n_routed_experts", 256)
    fields = deepseek(cfg.replaced(n_routed_experts=number, model_type="deepseek_v3"))
    indexer = {
        "dsa_indexer_n_heads": cfg.integer("index_n_heads", 32 if glm else 64),
        "dsa_indexer_head_dim": cfg.integer("index_head_dim", 128),
        "dsa_indexer_topk": cfg.integer("index_topk", 2048),
        "dsa_indexer_rope_interleaved": glm,
    }
    return fields | sparse_layers(3, "first_k_dense_replace")(cfg, {"num_layers": layer_count(cfg)}) | indexer


def glm4_moe_lite(cfg: ConfigReader) -> Fields:
    """DeepSeek-V3 whose leading dense layers are said layer by layer (`mlp_layer_types`)."""
    layers = layer_count(cfg)
    types = cfg.items("mlp_layer_types", str) or ["dense", *["sparse"] * (layers - 1)]
    dense = types.index("sparse") if "sparse" in types else len(types)
    if len(types) != layers or set(types[dense:]) - {"sparse"} or set(types[:dense]) - {"dense"}:
        raise cfg.fail(f"mlp_layer_types must be {layers} of dense, and behind them sparse")
    return deepseek(cfg.replaced(model_type="deepseek_v3", first_k_dense_replace=dense))


def glm4_moe_layers(cfg: ConfigReader, fields: Fields) -> Fields:
    """Experts behind the first dense layers."""
    dense = cfg.integer("first_k_dense_replace", 1, low=0)
    return {"moe_layer_freq": tuple(int(i >= dense) for i in range(fields["num_layers"]))}


def ernie_layers(cfg: ConfigReader, fields: Fields) -> Fields:
    """Experts from one layer to another, every n-th."""
    layers = fields["num_layers"]
    first, step = cfg.integer("moe_layer_start_index", 1, low=0), cfg.integer("moe_layer_interval", 1)
    last = cfg.integer("moe_layer_end_index", layers - 1, low=0)
    return {"moe_layer_freq": tuple(int(first <= i <= last and (i + 1) % step == 0) for i in range(layers))}


def solar_open(cfg: ConfigReader) -> Fields:
    """Attention of Llama; experts in every layer, as wide as their own key says: there is no dense MLP."""
    fields = decoder(cfg.replaced(intermediate_size=cfg.integer("moe_intermediate_size", 1280)))
    return fields | {"moe_layer_freq": (1,) * fields["num_layers"]}


def one_shared_mlp(cfg: ConfigReader, _fields: Fields) -> Fields:
    """Raises UnsupportedError where there is no shared expert."""
    if cfg.integer("num_shared_experts", 1, low=0) < 1:
        raise unsupported(cfg, "num_shared_experts must be at least 1")
    return {}


def hunyuan_experts(cfg: ConfigReader, fields: Fields) -> Fields:
    """As wide as `intermediate_size`, and one shared MLP as wide."""
    topk = "moe_topk" if "moe_topk" in cfg else TOPK
    routed = experts(("num_experts", 1), (topk, 1))(cfg, fields)
    return routed | {"moe_shared_expert_intermediate_size": fields["ffn_hidden_size"]}


def eurobert(cfg: ConfigReader, fields: Fields) -> Fields:
    """Llama as an encoder; `mlp_bias` is of the output layer too."""
    output = cfg.boolean("mlp_bias", False)
    return {"encoder_num_layers": fields["num_layers"], "norm_epsilon": norm_epsilon(cfg), "output_layer_bias": output}


def gemma(cfg: ConfigReader) -> Fields:
    """Llama with a gated GELU and tied embeddings."""
    key = "hidden_activation" if "hidden_activation" in cfg else "hidden_act"
    return decoder(cfg, tied=True, activation_key=key, activation="gelu_pytorch_tanh")


def stablelm_norms(cfg: ConfigReader, _fields: Fields) -> Fields:
    """Attention and MLP in parallel, with one norm for both, where use_parallel_residual is true."""
    parallel = cfg.boolean("use_parallel_residual", False)
    return {"parallel_attention": parallel, "num_layernorms_per_layer": 1 if parallel else 2}


def neox_biases(cfg: ConfigReader, _fields: Fields) -> Fields:
    """Biases everywhere, without those of attention where attention_bias is false."""
    return {} if cfg.boolean("attention_bias", True) else {"add_bias_linear": False, "add_mlp_bias": True}


def falcon(cfg: ConfigReader, fields: Fields) -> Fields:
    """Grouped or single keys and values, ALiBi or rotary positions, one or two norms (modeling_falcon.py)."""
    heads = fields["num_attention_heads"]
    new, parallel = cfg.boolean("new_decoder_architecture", False), cfg.boolean("parallel_attn", True)
    groups = cfg.integer("num_kv_heads", heads) if new else 1 if cfg.boolean("multi_query", True) else heads
    two_norms = not parallel or cfg.integer("num_ln_in_parallel_attn", 2 if new else 1, high=2) == 2
    return {
        "num_query_groups": groups,
        "add_bias_linear": cfg.boolean("bias", False),
        "parallel_attention": parallel,
        "num_layernorms_per_layer": 2 if two_norms else 1,
        **({"position_embedding_type": "alibi"} if cfg.boolean("alibi", False) else rotary_fields(cfg)),
    }


def bloom(cfg: ConfigReader) -> Fields:
    """GPT-2 with ALiBi and a norm behind the embedding, under either names of its keys."""
    fields = gpt_like(
        cfg,
        hidden="hidden_size" if "hidden_size" in cfg else "n_embed",
        layers="n_layer" if "n_layer" in cfg else "num_hidden_layers",
        heads="n_head" if "n_head" in cfg else "num_attention_heads",
        ffn=None,
        positions=("seq_length", 2048),
    )
    return fields | {"position_embedding_type": "alibi", "embedding_layernorm": True}


def opt(cfg: ConfigReader) -> Fields:
    """GPT-2 with norms before both halves of a layer. Raises UnsupportedError for OPT-350m."""
    hidden = cfg.integer("hidden_size")
    if not cfg.boolean("do_layer_norm_before", True) or cfg.integer("word_embed_proj_dim", hidden) != hidden:
        raise unsupported(cfg, "norms after the sublayers or a projected embedding (OPT-350m) cannot be planned")
    if not cfg.boolean("layer_norm_elementwise_affine", True) or cfg.boolean("_remove_final_layer_norm", False):
        raise unsupported(cfg, "norms without weights, or no final norm, cannot be planned")
    return gpt_like(cfg, ffn="ffn_dim", times=0, activation=("activation_function", "relu"))


def mpt(cfg: ConfigReader, fields: Fields) -> Fields:
    """MPT as transformers builds it: no biases, norms without bias either, ALiBi."""
    attention, heads = cfg.section("attn_config"), fields["num_attention_heads"]
    if attention.boolean("qk_ln", False) or not attention.boolean("alibi", True):
        raise unsupported(cfg, "only MPT with ALiBi and without qk_ln can be planned (as transformers' modeling_mpt.py)")
    kind = attention.text("attn_type", "multihead_attention")
    if attention.integer("kv_n_heads", heads) != heads or kind != "multihead_attention":
        raise unsupported(cfg, "only MPT with multihead_attention can be planned")
    if cfg.integer("expansion_ratio", 4, high=1000) != 4:
        raise unsupported(cfg, "only MPT with expansion_ratio 4 can be planned (modeling_mpt.py knows no other)")
    return {"position_embedding_type": "alibi", "add_bias_linear": False, "layernorm_bias": False}


def gptj_rotary(cfg: ConfigReader, fields: Fields) -> Fields:
    """Positions turn `rotary_dim` channels of each head."""
    width = fields["kv_channels"]
    rotating = min(cfg.integer("rotary_dim", 64), width)
    return {"position_embedding_type": "rope", "rotary_base": 10_000, "rotary_percent": rotating / width}


def _repeated(cfg: ConfigReader, row: list[Any]) -> list[str]:
    """One [kinds of layers, times] of GPT-Neo's `attention_types`."""
    if len(row) != 2 or not isinstance(row[0], list) or type(row[1]) is not int or not 0 < row[1] <= MAX_LAYERS:
        raise cfg.fail("attention_types must be a list of [kinds of layers, times]")
    return [str(kind) for kind in row[0]] * row[1]


def gpt_neo_windows(cfg: ConfigReader, fields: Fields) -> Fields:
    """By `attention_types`, [[[kinds of layers], times], ...]."""
    layers = fields["num_layers"]
    said = [kind for row in cfg.items("attention_types", list) or [] for kind in _repeated(cfg, row)]
    kinds = cfg.items("attention_layers", str) or said or (["global", "local"] * layers)[:layers]
    if len(kinds) != layers or set(kinds) - {"global", "local"}:
        raise cfg.fail(f"attention_layers must be {layers} of global and local")
    return sliding(cfg.integer("window_size", 256), [kind == "local" for kind in kinds])


def multi_query(cfg: ConfigReader, _fields: Fields) -> Fields:
    """One group of keys and values where multi_query is true, as it is by default."""
    return {"num_query_groups": 1} if cfg.boolean("multi_query", True) else {}


def multi_head(_cfg: ConfigReader, fields: Fields) -> Fields:
    """Each head has keys and values of its own."""
    return {"num_query_groups": fields["num_attention_heads"]}


def post_norms(cfg: ConfigReader, _fields: Fields) -> Fields:
    """Norms before and after both halves of the layer where use_post_norm is true, as it is by default."""
    return FOUR_NORMS if cfg.boolean("use_post_norm", True) else {}


def one_window_for_all(cfg: ConfigReader, fields: Fields) -> Fields:
    """All layers slide where the file gives a window."""
    return sliding(cfg.optional_integer("sliding_window"), [True] * fields["num_layers"])


def quarter_rotary(cfg: ConfigReader, _fields: Fields) -> Fields:
    """Positions turn a quarter of each head where the file does not say how much."""
    return rotary_fields(cfg, percent=0.25)


def scored_by_softmax(_cfg: ConfigReader, _fields: Fields) -> Fields:
    """The router's scores are a softmax of the chosen experts' logits."""
    return {"router": RouterNumbers(score_function="softmax")}
