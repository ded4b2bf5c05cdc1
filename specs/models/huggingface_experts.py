"""Families of Hugging Face that are attention of Llama or Qwen3 with experts as DeepSeek-V3 has them, some layers dense.

Defaults for absent keys are those of `transformers` 5.23, models/*/configuration_*.py; tests/judge/test_families.py holds the
counts to its classes.
"""

from __future__ import annotations

from collections.abc import Callable

from autoconfig.specs.models.config_reader import ConfigReader
from autoconfig.specs.models.huggingface_families import (
    Fields,
    biases,
    decoder,
    deepseek,
    every_nth_full,
    layer_types,
    sliding,
    unsupported,
)
from autoconfig.specs.models.huggingface_hybrids import needs

MAX_EXPERTS = 100_000


def sparse_layers(cfg: ConfigReader, layers: int, leading: int) -> tuple[int, ...]:
    """1 for each layer with experts, from `mlp_layer_types`; without it, the `leading` first ones are dense."""
    types = cfg.items("mlp_layer_types", str)
    if types is None:
        return tuple(int(i >= leading) for i in range(layers))
    if len(types) != layers or set(types) - {"dense", "sparse"}:
        raise cfg.fail(f"mlp_layer_types must be {layers} of dense and sparse")
    return tuple(int(kind == "sparse") for kind in types)


def _with_experts(cfg: ConfigReader, fields: Fields, experts: str, shared: str, pattern: tuple[int, ...]) -> Fields:
    """`experts` and `shared`: the keys of their numbers. A correction bias is published among the weights."""
    width = cfg.integer("moe_intermediate_size")
    return fields | {
        "num_moe_experts": cfg.integer(experts),
        "moe_router_topk": cfg.integer("num_experts_per_tok", 8),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width * cfg.integer(shared, 1, low=0, high=MAX_EXPERTS),
        "moe_layer_freq": pattern,
        "moe_router_enable_expert_bias": True,
    }


def _dots1(cfg: ConfigReader) -> Fields:
    """Attention of Qwen3, layers from max_window_layers on sliding."""
    fields = decoder(cfg) | {"qk_layernorm": True} | biases(cfg)
    layers, first = fields["num_layers"], cfg.integer("max_window_layers", 62, low=0)
    slides = layer_types(cfg, layers) or [i >= first for i in range(layers)]
    fields |= sliding(cfg, layers, cfg.optional_integer("sliding_window"), slides)
    if "n_routed_experts" not in cfg:
        raise cfg.fail("has no n_routed_experts: a dots1 model has experts")
    leading = cfg.integer("first_k_dense_replace", 0, low=0)
    return _with_experts(cfg, fields, "n_routed_experts", "n_shared_experts", sparse_layers(cfg, layers, leading))


def _solar_open(cfg: ConfigReader) -> Fields:
    """Attention of Llama, `attention_bias` of queries, keys and values only; experts in every layer, as wide as their own
    key says: there is no dense MLP."""
    values = {**cfg.values(), "intermediate_size": cfg.integer("moe_intermediate_size", 1280)}
    fields = decoder(ConfigReader(values, cfg.where)) | {"add_qkv_bias": cfg.boolean("attention_bias", False)}
    every = (1,) * fields["num_layers"]
    return _with_experts(cfg, fields, "n_routed_experts", "n_shared_experts", every)


def _exaone_moe(cfg: ConfigReader) -> Fields:
    """Norms over the channels of each head, sliding layers by `layer_types`."""
    fields = decoder(cfg) | {"qk_layernorm": True}
    layers = fields["num_layers"]
    fields |= sliding(cfg, layers, cfg.optional_integer("sliding_window"), every_nth_full(cfg, layers, 4))
    pattern = sparse_layers(cfg, layers, cfg.integer("first_k_dense_replace", 1, low=0))
    return _with_experts(cfg, fields, "num_experts", "num_shared_experts", pattern)


def _hy_v3(cfg: ConfigReader) -> Fields:
    """Norms over the channels of each head; one shared MLP."""
    needs(cfg, "mlp_bias", False, False, "biases of shared experts beside plain ones are not read")
    if cfg.integer("num_shared_experts", 1, low=0) < 1:
        raise unsupported(cfg, "num_shared_experts must be at least 1")
    fields = decoder(cfg) | {"qk_layernorm": True} | biases(cfg)
    return _with_experts(cfg, fields, "num_experts", "num_shared_experts", sparse_layers(cfg, fields["num_layers"], 1))


def _hunyuan_moe(cfg: ConfigReader) -> Fields:
    """Every layer has experts as wide as `intermediate_size` and one shared MLP as wide."""
    fields = decoder(cfg) | {"qk_layernorm": True} | biases(cfg)
    width = fields["ffn_hidden_size"]
    return fields | {
        "num_moe_experts": cfg.integer("num_experts", 1),
        "moe_router_topk": cfg.integer("moe_topk" if "moe_topk" in cfg else "num_experts_per_tok", 1),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width,
    }


def _sparse_attention(cfg: ConfigReader) -> Fields:
    """DeepSeek-V3 whose queries attend to keys that an indexer chooses, each layer with its own (DSA: DeepSeek-V3.2, GLM-5)."""
    glm, layers = cfg.text("model_type") == "glm_moe_dsa", cfg.integer("num_hidden_layers", high=10_000)
    shares = cfg.integer("index_topk_freq", 1) > 1 or "S" in str(cfg.values().get("index_topk_pattern") or "")
    if shares or "shared" in (cfg.items("indexer_types", str) or []):
        raise unsupported(
            cfg,
            "layers that take over the keys chosen by a layer before them (indexer_types, index_topk_freq) are not modelled",
        )
    if set(cfg.items("layer_types", str) or []) - {"indexed_attention"}:
        raise unsupported(cfg, "layer_types: every layer must have indexed_attention")
    fields = deepseek(ConfigReader({"n_routed_experts": 256, **cfg.values(), "model_type": "deepseek_v3"}, cfg.where))
    return fields | {
        "moe_layer_freq": sparse_layers(cfg, layers, cfg.integer("first_k_dense_replace", 3, low=0)),
        "dsa_indexer_n_heads": cfg.integer("index_n_heads", 32 if glm else 64),
        "dsa_indexer_head_dim": cfg.integer("index_head_dim", 128),
        "dsa_indexer_topk": cfg.integer("index_topk", 2048),
        "dsa_indexer_rope_interleaved": glm,
    }


WITH_EXPERTS: dict[str, Callable[[ConfigReader], Fields]] = {
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _sparse_attention),
    "dots1": _dots1,
    "exaone_moe": _exaone_moe,
    "hunyuan_v1_moe": _hunyuan_moe,
    "hy_v3": _hy_v3,
    "solar_open": _solar_open,
}
"""`model_type` -> the function that reads that family's keys."""
