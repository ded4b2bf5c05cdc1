"""Decoder families of Hugging Face that are Llama, GPT-2, Mixtral or DeepSeek but for a few traits.

Defaults for absent keys are those of `transformers` 5.23, models/*/configuration_*.py; tests/judge/test_families.py holds the
counts to its classes.
"""

from __future__ import annotations

from typing import Any

from autoconfig.specs.models.config_reader import ConfigReader, norm_epsilon
from autoconfig.specs.models.huggingface_families import deepseek, extra_depths, gemma, mistral, qwen3, qwen3_moe
from autoconfig.specs.models.huggingface_hybrids import granite_hybrid, nemotron_h, qwen_hybrid
from autoconfig.specs.models.huggingface_traits import (
    ALL_BIASES,
    CORRECTION,
    DECODER_ONLY,
    FOUR_NORMS,
    LAYER_NORM,
    LEARNED_POSITIONS,
    MAX_LAYERS,
    NO_QK_NORM,
    ONE_NORM_FOR_BOTH,
    QK_NORM,
    QK_NORM_OF_ALL,
    QKV_BIAS,
    TOPK,
    Family,
    Fields,
    biases,
    decoder,
    experts,
    family,
    gpt_like,
    heads_as_wide_as_the_model,
    keys,
    layer_count,
    needs,
    padded_positions,
    sliding,
    softmax_scores,
    sparse_layers,
    unsupported,
    windows,
    windows_but_every,
    windows_from,
)

SINKS: Fields = {"attention_sinks": True}
"""One learned logit a head."""


def three_of_four(layer: int) -> bool:
    """All layers slide but the first of each four."""
    return layer % 4 > 0


def _ernie_layers(cfg: ConfigReader, fields: Fields) -> Fields:
    """Experts from one layer to another, every n-th."""
    layers = fields["num_layers"]
    first, step = cfg.integer("moe_layer_start_index", 1, low=0), cfg.integer("moe_layer_interval", 1)
    last = cfg.integer("moe_layer_end_index", layers - 1, low=0)
    return {"moe_layer_freq": tuple(int(first <= i <= last and (i + 1) % step == 0) for i in range(layers))}


def _glm4_moe_layers(cfg: ConfigReader, fields: Fields) -> Fields:
    dense = cfg.integer("first_k_dense_replace", 1, low=0)
    return {"moe_layer_freq": tuple(int(i >= dense) for i in range(fields["num_layers"]))}


def _stablelm_norms(cfg: ConfigReader, _fields: Fields) -> Fields:
    parallel = cfg.boolean("use_parallel_residual", False)
    return {"parallel_attention": parallel, "num_layernorms_per_layer": 1 if parallel else 2}


def _gptj_rotary(cfg: ConfigReader, fields: Fields) -> Fields:
    width = fields["kv_channels"]
    rotating = min(cfg.integer("rotary_dim", 64), width)
    return {"position_embedding_type": "rope", "rotary_base": 10_000, "rotary_percent": rotating / width}


def _repeated(cfg: ConfigReader, row: list[Any]) -> list[str]:
    """One [kinds of layers, times] of GPT-Neo's `attention_types`."""
    if len(row) != 2 or not isinstance(row[0], list) or type(row[1]) is not int or not 0 < row[1] <= MAX_LAYERS:
        raise cfg.fail("attention_types must be a list of [kinds of layers, times]")
    return [str(kind) for kind in row[0]] * row[1]


def _gpt_neo_windows(cfg: ConfigReader, fields: Fields) -> Fields:
    """By `attention_types`, [[[kinds of layers], times], ...]."""
    layers = fields["num_layers"]
    said = [kind for row in cfg.items("attention_types", list) or [] for kind in _repeated(cfg, row)]
    kinds = cfg.items("attention_layers", str) or said or (["global", "local"] * layers)[:layers]
    if len(kinds) != layers or set(kinds) - {"global", "local"}:
        raise cfg.fail(f"attention_layers must be {layers} of global and local")
    return sliding(cfg.integer("window_size", 256), [kind == "local" for kind in kinds])


def _latent_attention(cfg: ConfigReader) -> Fields:
    """DeepSeek's latent attention and a dense MLP; MiniCPM's values are as wide as a head where the file does not say it."""
    if cfg.text("model_type") == "minicpm3" and "v_head_dim" not in cfg:
        cfg = cfg.replaced(v_head_dim=cfg.integer("hidden_size") // cfg.integer("num_attention_heads"))
    return deepseek(cfg) | {"untie_embeddings_and_output_weights": not cfg.boolean("tie_word_embeddings", True)}


def _sparse_attention(cfg: ConfigReader) -> Fields:
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
    return fields | sparse_layers(3)(cfg, {"num_layers": layer_count(cfg)}) | indexer


def _glm4_moe_lite(cfg: ConfigReader) -> Fields:
    """DeepSeek-V3 whose leading dense layers are said layer by layer (`mlp_layer_types`)."""
    layers = layer_count(cfg)
    types = cfg.items("mlp_layer_types", str) or ["dense", *["sparse"] * (layers - 1)]
    dense = types.index("sparse") if "sparse" in types else len(types)
    if len(types) != layers or set(types[dense:]) - {"sparse"} or set(types[:dense]) - {"dense"}:
        raise cfg.fail(f"mlp_layer_types must be {layers} of dense, and behind them sparse")
    return deepseek(cfg.replaced(model_type="deepseek_v3", first_k_dense_replace=dense))


def _solar_open(cfg: ConfigReader) -> Fields:
    """Attention of Llama; experts in every layer, as wide as their own key says: there is no dense MLP."""
    fields = decoder(cfg.replaced(intermediate_size=cfg.integer("moe_intermediate_size", 1280)))
    return fields | {"moe_layer_freq": (1,) * fields["num_layers"]}


def _one_shared_mlp(cfg: ConfigReader, _fields: Fields) -> Fields:
    if cfg.integer("num_shared_experts", 1, low=0) < 1:
        raise unsupported(cfg, "num_shared_experts must be at least 1")
    return {}


def _hunyuan_experts(cfg: ConfigReader, fields: Fields) -> Fields:
    """As wide as `intermediate_size`, and one shared MLP as wide."""
    topk = "moe_topk" if "moe_topk" in cfg else TOPK
    routed = experts(("num_experts", 1), (topk, 1))(cfg, fields)
    return routed | {"moe_shared_expert_intermediate_size": fields["ffn_hidden_size"]}


def _eurobert(cfg: ConfigReader, fields: Fields) -> Fields:
    """Llama as an encoder; `mlp_bias` is of the output layer too."""
    output = cfg.boolean("mlp_bias", False)
    return {"encoder_num_layers": fields["num_layers"], "norm_epsilon": norm_epsilon(cfg), "output_layer_bias": output}


_WIDTH = ("moe_intermediate_size", None)
_LLAMA_LIKE = family(decoder, biases, windows())
_ERNIE = family(decoder, keys(add_bias_linear=("use_bias", False)), tied=True)
_OLMO2 = (biases, QK_NORM_OF_ALL)
_GRANITE_MOE = family(
    decoder,
    biases,
    experts(("num_local_experts", 8), (TOPK, 2)),
    keys(moe_shared_expert_intermediate_size=("shared_intermediate_size", 0)),
)
_COHERE = (
    needs("norms of single heads are not modelled", use_qk_norm=False),
    LAYER_NORM | ONE_NORM_FOR_BOTH | {"layernorm_bias": False},
    keys(add_qkv_bias=("attention_bias", False), add_attention_output_bias=("attention_bias", False)),
)
_GPTJ = family(
    gpt_like,
    _gptj_rotary,
    ONE_NORM_FOR_BOTH | {"add_bias_linear": False, "add_mlp_bias": True, "output_layer_bias": True},
    layers="n_layer",
    hidden="n_embd",
    heads="n_head",
    ffn="n_inner",
    positions=("n_positions", 2048),
    activation=("activation_function", "gelu_new"),
    tied=False,
)
"""GPT-J and CodeGen: biases in the MLP and behind the output layer, none in attention; one norm for both halves."""
_OLMOE = family(
    decoder,
    *_OLMO2,
    windows(),
    experts(("num_experts", 64), (TOPK, 8)),
    softmax_scores(),
    heads_as_wide_as_the_model,
)
_NO_GATED_BIAS = needs("biases of gated attention are not modelled", attention_bias=False)
_NO_BIASES = "biases of hybrids are not modelled"
_CONVOLUTION = "the convolution's bias is counted"

LATER: dict[str, Family] = {
    **dict.fromkeys(("granite", "internlm3", "iquestcoder", "ministral3"), _LLAMA_LIKE),
    **dict.fromkeys(("olmoe", "flex_olmo"), _OLMOE),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), _GRANITE_MOE),
    **dict.fromkeys(("codegen", "gptj"), _GPTJ),
    **dict.fromkeys(("youtu", "minicpm3"), _latent_attention),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _sparse_attention),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), family(qwen_hybrid, _NO_GATED_BIAS)),
    "arcee": family(decoder, biases, gated=False, activation="relu2"),
    "biogpt": family(
        gpt_like,
        padded_positions,
        LEARNED_POSITIONS,
        ffn="intermediate_size",
        positions=("max_position_embeddings", 1024),
        activation=("hidden_act", "gelu"),
    ),
    "cohere": family(decoder, *_COHERE, tied=True),
    "cohere2": family(decoder, *_COHERE, windows_but_every(4, 4096), tied=True),
    "cwm": family(decoder, keys(add_mlp_bias=("mlp_bias", False)), windows(slides=three_of_four)),
    "dots1": family(
        decoder,
        QK_NORM,
        biases,
        windows_from(62),
        experts(("n_routed_experts", None), (TOPK, 8), wide=_WIDTH, shared=("n_shared_experts", 1)),
        sparse_layers(0),
        CORRECTION,
    ),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": family(
        _ERNIE,
        needs("biases of experts are not read", use_bias=False),
        experts(
            ("moe_num_experts", 64), ("moe_k", 6), wide=("moe_intermediate_size", 1536), shared=("moe_num_shared_experts", 2)
        ),
        _ernie_layers,
        CORRECTION,
    ),
    "eurobert": family(decoder, biases, _eurobert),
    "exaone4": family(decoder, QK_NORM, windows_but_every(4)),
    "exaone_moe": family(
        decoder,
        QK_NORM,
        windows_but_every(4),
        experts(("num_experts", None), (TOPK, 8), wide=_WIDTH, shared=("num_shared_experts", 1)),
        sparse_layers(1),
        CORRECTION,
    ),
    "gemma3_text": family(
        gemma,
        needs("an encoder", use_bidirectional_attention=False),
        QK_NORM | FOUR_NORMS,
        windows_but_every(6, 4096),
    ),
    "glm": family(decoder, QKV_BIAS, rotary_percent=0.5),
    "glm4": family(decoder, QKV_BIAS, FOUR_NORMS, rotary_percent=0.5),
    "glm4_moe": family(
        decoder,
        QKV_BIAS,
        keys(qk_layernorm=("use_qk_norm", False)),
        experts(("n_routed_experts", 128), (TOPK, 8), wide=("moe_intermediate_size", 1408), shared=("n_shared_experts", 1)),
        _glm4_moe_layers,
        CORRECTION,
        extra_depths,
        rotary_percent=0.5,
    ),
    "glm4_moe_lite": _glm4_moe_lite,
    "gpt_bigcode": family(
        gpt_like,
        DECODER_ONLY,
        lambda cfg, _: {"num_query_groups": 1} if cfg.boolean("multi_query", True) else {},
        LEARNED_POSITIONS,
        layers="n_layer",
        hidden="n_embd",
        heads="n_head",
        ffn="n_inner",
        positions=("n_positions", 1024),
        activation=("activation_function", "gelu_pytorch_tanh"),
    ),
    "gpt_neo": family(
        gpt_like,
        LEARNED_POSITIONS,
        {"add_bias_linear": False, "add_attention_output_bias": True, "add_mlp_bias": True},
        _gpt_neo_windows,
        layers="num_layers",
        heads="num_heads",
        ffn="intermediate_size",
        activation=("activation_function", "gelu_new"),
    ),
    "granite_swa": family(decoder, biases, SINKS, windows(128, three_of_four), tied=True),
    "granitemoe_swa": family(_GRANITE_MOE, SINKS, windows(128, three_of_four)),
    "granitemoehybrid": family(
        granite_hybrid,
        needs(_NO_BIASES, attention_bias=False, mamba_proj_bias=False),
        needs(_CONVOLUTION, mamba_conv_bias=True),
    ),
    "helium": family(decoder, QKV_BIAS, keys(add_mlp_bias=("mlp_bias", False)), heads_as_wide_as_the_model),
    "hunyuan_v1_dense": qwen3,
    "hunyuan_v1_moe": family(decoder, QK_NORM, biases, _hunyuan_experts),
    "hy_v3": family(
        decoder,
        needs("biases of shared experts beside plain ones are not read", mlp_bias=False),
        _one_shared_mlp,
        QK_NORM,
        biases,
        experts(("num_experts", None), (TOPK, 8), wide=_WIDTH, shared=("num_shared_experts", 1)),
        sparse_layers(1, None),
        CORRECTION,
    ),
    "hyperclovax": family(decoder, biases, lambda cfg, _: FOUR_NORMS if cfg.boolean("use_post_norm", True) else {}),
    "jais2": family(
        decoder,
        needs("as in the MLP", attention_bias=True),
        needs("as in attention", mlp_bias=True),
        LAYER_NORM | ALL_BIASES,
        gated=False,
        activation="relu2",
    ),
    "mellum": family(qwen3_moe, windows(), sparse_layers(0, None)),
    "minimax_m2": family(decoder, experts(("num_local_experts", 256), (TOPK, 8)), QK_NORM_OF_ALL | CORRECTION),
    "ministral": mistral,
    "nemotron_h": family(
        nemotron_h,
        needs(_NO_BIASES, use_bias=False, mamba_proj_bias=False, attention_bias=False, mlp_bias=False),
        needs(_CONVOLUTION, use_conv_bias=True, mamba_conv_bias=True),
        needs("transformers never ties them", tie_word_embeddings=False),
    ),
    "olmo2": family(decoder, *_OLMO2, windows()),
    "olmo3": family(decoder, *_OLMO2, windows_but_every(4)),
    "persimmon": family(
        decoder,
        lambda _, fields: {"num_query_groups": fields["num_attention_heads"]},
        keys(qk_layernorm=("qk_layernorm", True)),
        LAYER_NORM | ALL_BIASES,
        gated=False,
        activation="relu2",
        rotary_percent=0.5,
    ),
    "phi": family(
        decoder,
        NO_QK_NORM,
        LAYER_NORM | ALL_BIASES | ONE_NORM_FOR_BOTH | {"output_layer_bias": True},
        gated=False,
        activation="gelu_new",
        rotary_percent=0.5,
    ),
    "phimoe": family(
        decoder,
        biases,
        LAYER_NORM,
        experts(("num_local_experts", 16), (TOPK, 2)),
        keys(output_layer_bias=("lm_head_bias", False)),
        windows(),
    ),
    "seed_oss": family(
        decoder,
        keys(
            add_qkv_bias=("attention_bias", True),
            add_attention_output_bias=("attention_out_bias", False),
            add_mlp_bias=("mlp_bias", False),
        ),
    ),
    "smollm3": family(
        decoder,
        needs("which layers slide is not read", use_sliding_window=False),
        biases,
        tied=True,
    ),
    "solar_open": family(
        _solar_open,
        QKV_BIAS,
        experts(("n_routed_experts", None), (TOPK, 8), wide=_WIDTH, shared=("n_shared_experts", 1)),
        CORRECTION,
    ),
    "stablelm": family(
        decoder,
        NO_QK_NORM,
        LAYER_NORM,
        keys(add_qkv_bias=("use_qkv_bias", False)),
        _stablelm_norms,
        rotary_percent=0.25,
    ),
    "starcoder2": family(
        decoder,
        LAYER_NORM,
        keys(add_bias_linear=("use_bias", True)),
        windows(),
        tied=True,
        gated=False,
        activation="gelu_pytorch_tanh",
    ),
    "vaultgemma": family(gemma, windows_but_every(2, 4096)),
    "xglm": family(
        gpt_like,
        DECODER_ONLY,
        {"position_embedding_type": "none"},
        layers="num_layers",
        hidden="d_model",
        heads="attention_heads",
        ffn="ffn_dim",
        activation=("activation_function", "gelu"),
    ),
}
"""`model_type` -> what reads that family's keys. Positions of xglm are by sines, which are no parameters."""
