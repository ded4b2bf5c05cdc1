"""Hugging Face model families by `model_type`: rows of traits, and functions where a family has rules of its own.

Defaults for absent keys are those of `transformers` 4.57, models/*/configuration_*.py; of those with an encoder (T5, mT5, UMT5;
BERT, RoBERTa and what is built as they are) 5.23, and tests/judge/test_families.py holds their counts to its classes.
"""

from __future__ import annotations

from autoconfig.specs.models.config_reader import ConfigReader, deepseek_router, norm_epsilon, rotary_fields, softmax_router
from autoconfig.specs.models.huggingface_traits import (
    DECODER_ONLY,
    FOUR_NORMS,
    LAYER_NORM,
    LEARNED_POSITIONS,
    MAX_LAYERS,
    QK_NORM,
    TOPK,
    Family,
    Fields,
    Trait,
    activation_name,
    biases,
    decoder,
    experts,
    family,
    gpt_like,
    keys,
    layer_count,
    needs,
    padded_positions,
    sliding,
    softmax_scores,
    unsupported,
    windows,
    windows_from,
)
from autoconfig.specs.models.model_numbers import RouterNumbers

QKV: Fields = {"add_qkv_bias": True}


def every_second(layer: int) -> bool:
    """The first layer slides, the second does not, and so on."""
    return layer % 2 == 0


def _qwen_windows(cfg: ConfigReader, fields: Fields) -> Fields:
    """Layers slide only where use_sliding_window is true."""
    return windows_from(28, 4096)(cfg, fields) if cfg.boolean("use_sliding_window", False) else {}


def _one_window(cfg: ConfigReader, _fields: Fields) -> Fields:
    return {"window_size": cfg.integer("sliding_window", 4096)} if cfg.boolean("use_sliding_window", False) else {}


def _qwen_experts(number: int, topk: int, width: int) -> Trait:
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


def _gemma(cfg: ConfigReader) -> Fields:
    key = "hidden_activation" if "hidden_activation" in cfg else "hidden_act"
    return decoder(cfg, tied=True, activation_key=key, activation="gelu_pytorch_tanh")


def _neox_biases(cfg: ConfigReader, _fields: Fields) -> Fields:
    return {} if cfg.boolean("attention_bias", True) else {"add_bias_linear": False, "add_mlp_bias": True}


def _falcon(cfg: ConfigReader, fields: Fields) -> Fields:
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


def _bloom(cfg: ConfigReader) -> Fields:
    fields = gpt_like(
        cfg,
        hidden="hidden_size" if "hidden_size" in cfg else "n_embed",
        layers="n_layer" if "n_layer" in cfg else "num_hidden_layers",
        heads="n_head" if "n_head" in cfg else "num_attention_heads",
        ffn=None,
        positions=("seq_length", 2048),
    )
    return fields | {"position_embedding_type": "alibi", "embedding_layernorm": True}


def _opt(cfg: ConfigReader) -> Fields:
    hidden = cfg.integer("hidden_size")
    if not cfg.boolean("do_layer_norm_before", True) or cfg.integer("word_embed_proj_dim", hidden) != hidden:
        raise unsupported(cfg, "norms after the sublayers or a projected embedding (OPT-350m) cannot be planned")
    if not cfg.boolean("layer_norm_elementwise_affine", True) or cfg.boolean("_remove_final_layer_norm", False):
        raise unsupported(cfg, "norms without weights, or no final norm, cannot be planned")
    return gpt_like(cfg, ffn="ffn_dim", times=None, activation=("activation_function", "relu"))


MPT_EXPANSION = 4


def _mpt(cfg: ConfigReader, fields: Fields) -> Fields:
    """MPT as transformers builds it: no biases, norms without bias either, ALiBi."""
    attention, heads = cfg.section("attn_config"), fields["num_attention_heads"]
    if attention.boolean("qk_ln", False) or not attention.boolean("alibi", True):
        raise unsupported(cfg, "only MPT with ALiBi and without qk_ln can be planned (as transformers' modeling_mpt.py)")
    kind = attention.text("attn_type", "multihead_attention")
    if attention.integer("kv_n_heads", heads) != heads or kind != "multihead_attention":
        raise unsupported(cfg, "only MPT with multihead_attention can be planned")
    if cfg.integer("expansion_ratio", 4, high=1000) != MPT_EXPANSION:
        raise unsupported(cfg, f"only MPT with expansion_ratio {MPT_EXPANSION} can be planned (modeling_mpt.py knows no other)")
    return {"position_embedding_type": "alibi", "add_bias_linear": False, "layernorm_bias": False}


gemma = family(_gemma, biases, keys(kv_channels=("head_dim", 256)))
"""Llama with GELU, wider heads and tied embeddings."""
mistral = family(decoder, windows(slides=lambda _: True), kv_default=8)
"""Llama with grouped queries, all layers sliding where a window is given, or those of `layer_types`."""
qwen3 = family(decoder, QK_NORM, biases, keys(kv_channels=("head_dim", 128)), _qwen_windows)
qwen3_moe = family(decoder, QK_NORM, biases, _qwen_experts(128, 8, 768), _one_window)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), deepseek),
    "bloom": _bloom,
    "falcon": family(gpt_like, _falcon, ffn="ffn_hidden_size", activation=("activation", "gelu")),
    "gemma": gemma,
    "gemma2": family(gemma, windows(4096, every_second), FOUR_NORMS),
    "gpt2": family(
        gpt_like,
        DECODER_ONLY,
        LEARNED_POSITIONS,
        layers="n_layer",
        hidden="n_embd",
        heads="n_head",
        ffn="n_inner",
        positions=("n_positions", 1024),
        activation=("activation_function", "gelu_new"),
    ),
    "gpt_neox": family(
        gpt_like,
        lambda cfg, _: rotary_fields(cfg, percent=0.25),
        keys(parallel_attention=("use_parallel_residual", True)),
        _neox_biases,
        ffn="intermediate_size",
        times=None,
        activation=("hidden_act", "gelu"),
        tied=False,
    ),
    "gpt_oss": family(
        decoder,
        windows(128, every_second),
        keys(
            kv_channels=("head_dim", 64),
            add_qkv_bias=("attention_bias", True),
            add_attention_output_bias=("attention_bias", True),
        ),
        experts(("num_local_experts", 128), (TOPK, 4)),
        {"attention_sinks": True, "moe_router_bias": True, "moe_expert_bias": True},
        {"router": RouterNumbers(score_function="softmax")},
        kv_default=8,
        rotary_base=150_000,
    ),
    "llama": family(decoder, biases),
    "mistral": mistral,
    "mixtral": family(
        decoder,
        windows(slides=lambda _: True),
        experts(("num_local_experts", 8), (TOPK, 2)),
        softmax_scores(normalises=True),
        kv_default=8,
        rotary_base=1_000_000,
    ),
    "mpt": family(
        gpt_like,
        _mpt,
        layers="n_layers",
        hidden="d_model",
        heads="n_heads",
        ffn=None,
        times=MPT_EXPANSION,
        positions=("max_seq_len", 2048),
    ),
    "nemotron": family(decoder, LAYER_NORM, biases, activation="relu2", gated=False, rotary_percent=0.5),
    "opt": family(_opt, keys(add_bias_linear=("enable_bias", True)), padded_positions, LEARNED_POSITIONS),
    "phi3": family(decoder, lambda cfg, fields: sliding(cfg.optional_integer("sliding_window"), [True] * fields["num_layers"])),
    "qwen2": family(decoder, QKV, _qwen_windows),
    "qwen2_moe": family(
        decoder,
        keys(
            add_qkv_bias=("qkv_bias", True),
            moe_shared_expert_intermediate_size=("shared_expert_intermediate_size", 5632),
        ),
        {"moe_shared_expert_gate": True},
        _qwen_experts(60, 4, 1408),
        _qwen_windows,
    ),
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
}
"""`model_type` -> what reads that family's keys."""

T5_HEAD, BERT_HEADS = "ForConditionalGeneration", ("ForMaskedLM", "ForPreTraining", "LMHeadModel", "ForCausalLM")


def _architecture(cfg: ConfigReader, known: tuple[str, ...]) -> str:
    """The end of the class's name in `architectures`; the first known one where the file does not say it."""
    named = cfg.items("architectures", str) or []
    if not named:
        return known[0]
    found = next((end for end in known if named[0].endswith(end)), None)
    if found is None:
        raise unsupported(
            cfg, f"architectures is {named[0][:40]!r}; parameters are counted of classes ending in {', '.join(known)}"
        )
    return found


def _t5(cfg: ConfigReader) -> Fields:
    """No biases, RMS norms, one table of relative positions in each stack (UMT5: in each layer). The embeddings are tied
    whatever the file says (configuration_t5.py, configuration_mt5.py, configuration_umt5.py)."""
    _architecture(cfg, (T5_HEAD,))
    encoder = layer_count(cfg, "num_layers", 6)
    decoder = layer_count(cfg, "num_decoder_layers", encoder)
    heads, own = cfg.integer("num_heads", 8), cfg.text("model_type")
    feed = cfg.text("feed_forward_proj", "relu" if own == "t5" else "gated-gelu")
    gated = cfg.boolean("is_gated_act", feed.startswith("gated-"))
    if cfg.text("dense_act_fn", "") == "xielu":
        raise unsupported(cfg, "dense_act_fn=xielu cannot be planned: its parameters in each layer are not modelled")
    if feed.removeprefix("gated-") not in ("relu", "gelu"):
        raise unsupported(cfg, f"feed_forward_proj={feed[:40]!r} cannot be planned; known are relu, gelu and gated-gelu")
    if gated and not feed.endswith("gelu"):
        raise unsupported(cfg, f"feed_forward_proj={feed[:40]!r} cannot be planned; of gated ones gated-gelu")
    return {
        "num_layers": encoder + decoder,
        "encoder_num_layers": encoder,
        "hidden_size": cfg.integer("d_model", 512),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": cfg.integer("d_kv", 64),
        "ffn_hidden_size": cfg.integer("d_ff", 2048 if own == "t5" else 1024),
        "vocab_size": cfg.integer("vocab_size"),
        "max_position_embeddings": cfg.integer("n_positions", 512),
        "gated_linear_unit": gated,
        "activation": "geglu" if gated else feed.removeprefix("gated-"),
        "normalization": "RMSNorm",
        "norm_epsilon": norm_epsilon(cfg),
        "position_embedding_type": "relative",
        "relative_attention_num_buckets": cfg.integer("relative_attention_num_buckets", 32),
        "relative_attention_in_every_layer": own == "umt5",
        "add_bias_linear": False,
    }


def _bert(cfg: ConfigReader) -> Fields:
    """Learned positions, token types, biases, a norm behind each half of a layer and behind the embedding, and none behind the
    last layer; a linear layer with a norm and one bias for each word before the output."""
    head = _architecture(cfg, BERT_HEADS)
    if cfg.boolean("add_cross_attention", False) or cfg.boolean("use_task_id", False):
        raise unsupported(cfg, "add_cross_attention and use_task_id cannot be planned; both must be false")
    if cfg.text("position_embedding_type", "absolute") != "absolute":
        raise unsupported(cfg, "position_embedding_type must be absolute")
    hidden, heads = cfg.integer("hidden_size", 768), cfg.integer("num_attention_heads", 12)
    if hidden % heads:
        raise cfg.fail(f"hidden_size {hidden} is not a multiple of {heads} attention heads")
    if not cfg.boolean("tie_word_embeddings", True):
        raise unsupported(cfg, "tie_word_embeddings must be true: transformers holds two biases of each word otherwise")
    count = layer_count(cfg, "num_hidden_layers", 12)
    return {
        "num_layers": count,
        "encoder_num_layers": count,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": hidden // heads,
        "ffn_hidden_size": cfg.integer("intermediate_size", 4 * hidden),
        "vocab_size": cfg.integer("vocab_size"),
        "max_position_embeddings": cfg.integer("max_position_embeddings", 512),
        "activation": activation_name(cfg, "hidden_act", "gelu", False),
        "normalization": "LayerNorm",
        "norm_epsilon": norm_epsilon(cfg),
        "embedding_layernorm": True,
        "final_layernorm": False,
        "num_tokentypes": cfg.integer("type_vocab_size", 2),
        "output_layer_bias": True,
        "masked_lm_head": True,
        "bert_binary_head": head == "ForPreTraining",
    }


def _roberta(_cfg: ConfigReader, fields: Fields) -> Fields:
    """As BERT; positions start behind the padding token's, so two rows are no positions."""
    return {"bert_binary_head": False, "default_seq_length": max(1, fields["max_position_embeddings"] - 2)}


def _distilbert(cfg: ConfigReader) -> Fields:
    """BERT without token types, by other names of its keys."""
    names = {
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "activation": "hidden_act",
    }
    usual = {"dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12}
    values = {**usual, **cfg.values()}
    return _bert(ConfigReader({names.get(key, key): value for key, value in values.items()}, cfg.where)) | {"num_tokentypes": 0}


LIKE_MEGATRON: Fields = {"embedding_layernorm": False, "final_layernorm": True}
"""Norms before each half of a layer, one behind the last, none behind the embedding (Megatron-LM's BERT)."""

ENCODERS: dict[str, Family] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _t5),
    **dict.fromkeys(("bert", "ernie"), _bert),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text"), family(_bert, _roberta)),
    "distilbert": family(_distilbert, needs(sinusoidal_pos_embds=False)),
    "megatron-bert": family(_bert, LIKE_MEGATRON),
    "xlm-roberta-xl": family(_bert, _roberta, LIKE_MEGATRON),
    "roberta-prelayernorm": family(_bert, _roberta, {"final_layernorm": True}),
}
"""`model_type` -> what reads that family's keys."""
