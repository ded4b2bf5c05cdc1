"""What families of Hugging Face have in common: what Llama and GPT-2 read, and traits that others add to it, row by row.

Defaults for absent keys are those of `transformers` 5.23, models/*/configuration_*.py; tests/judge/test_families.py holds the
counts to its classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.models.config_reader import ConfigReader, norm_epsilon, rotary_fields, softmax_router

Fields = dict[str, Any]
"""Of ModelSpec."""
Trait = Callable[[ConfigReader, Fields], Fields]
"""(The file, the fields read so far) -> further fields, or other values for some of them."""
Key = Sequence[Any]
"""A key of a whole number and its default; alone the key is required."""
MAX_LAYERS = 10_000
MAX_EXPERTS = 100_000
TOPK = "num_experts_per_tok"

_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu")
_ACTIVATIONS = dict.fromkeys(_GELU, "gelu") | {"relu": "relu", "relu2": "squared-relu", "silu": "silu", "swish": "silu"}

FOUR_NORMS: Fields = {"num_layernorms_per_layer": 4}
"""Before and after both halves of the layer."""
ALL_BIASES: Fields = {"add_bias_linear": True}
NO_POSITIONS: Fields = {"position_embedding_type": "none", "rotary_base": None, "rope_scaling": None, "rotary_percent": 1.0}


def unsupported(cfg: ConfigReader, text: str) -> UnsupportedError:
    """An error for what is understood and cannot be planned."""
    return UnsupportedError(f"{cfg.where}: {text}")


def needs(why: str = "", **wanted: bool) -> Trait:
    """Raises UnsupportedError where a switch of the file is not as wanted, which is also its default."""

    def trait(cfg: ConfigReader, _fields: Fields) -> Fields:
        for key, value in wanted.items():
            if cfg.boolean(key, value) != value:
                raise unsupported(cfg, f"{key} must be {str(value).lower()}" + (f": {why}" if why else ""))
        return {}

    return trait


decoder_only = needs("only decoder-only models of this family can be planned", add_cross_attention=False)
no_qk_norm = needs("norms of single heads are not modelled", qk_layernorm=False)


def keys(**fields: Key) -> Trait:
    """Field = (key, default): a switch where the default is one, else a whole number from 1, or from a default of 0."""

    def trait(cfg: ConfigReader, _fields: Fields) -> Fields:
        return {
            field: cfg.boolean(key, usual) if isinstance(usual, bool) else cfg.integer(key, usual, low=min(usual, 1))
            for field, (key, usual) in fields.items()
        }

    return trait


attention_bias_of_qkv = keys(add_qkv_bias=("attention_bias", False))
"""`attention_bias`: of queries, keys and values only."""


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
    return cfg.integer(key, default, high=MAX_LAYERS)


def _head_dim(cfg: ConfigReader, hidden: int, heads: int) -> int:
    if "head_dim" in cfg:
        return cfg.integer("head_dim")
    if hidden % heads:
        raise cfg.fail(f"hidden size {hidden} is not a multiple of {heads} attention heads, and no head_dim is given")
    return hidden // heads


def decoder(
    cfg: ConfigReader,
    *,
    tied: bool = False,
    activation_key: str = "hidden_act",
    activation: str = "silu",
    kv_default: int | None = None,
    gated: bool = True,
    rotary_base: int = 10_000,
    rotary_percent: float = 1.0,
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
        **rotary_fields(cfg, rotary_base, rotary_percent),
    }


def gpt_like(
    cfg: ConfigReader,
    *,
    layers: str = "num_hidden_layers",
    hidden: str = "hidden_size",
    heads: str = "num_attention_heads",
    ffn: str | None = None,
    times: int = 4,
    positions: tuple[str, int] = ("max_position_embeddings", 2048),
    activation: tuple[str, str] | None = None,
    tied: bool = True,
) -> Fields:
    """What the GPT-2-like families share: LayerNorm, biases, ungated MLP, multi-head attention. The names of their keys;
    the MLP is `times` as wide as the model where the key `ffn` is absent (0: it is required) or the family has none."""
    width, count = cfg.integer(hidden), cfg.integer(heads)
    usual = times * width or None
    return {
        "num_layers": layer_count(cfg, layers),
        "hidden_size": width,
        "num_attention_heads": count,
        "num_query_groups": count,
        "kv_channels": _head_dim(cfg, width, count),
        "ffn_hidden_size": cfg.integer(ffn, usual) if ffn else usual,
        "max_position_embeddings": cfg.integer(*positions),
        "vocab_size": cfg.integer("vocab_size"),
        "activation": activation_name(cfg, *activation, gated=False) if activation else "gelu",
        "normalization": "LayerNorm",
        "add_bias_linear": True,
        "untie_embeddings_and_output_weights": not cfg.boolean("tie_word_embeddings", tied),
    }


def biases(cfg: ConfigReader, _fields: Fields) -> Fields:
    """`attention_bias` (query, key, value and output) and `mlp_bias` of Llama."""
    attention, mlp = cfg.boolean("attention_bias", False), cfg.boolean("mlp_bias", False)
    if mlp:
        return ALL_BIASES if attention else {"add_mlp_bias": True}
    return {"add_qkv_bias": True, "add_attention_output_bias": True} if attention else {}


def padded_positions(_cfg: ConfigReader, fields: Fields) -> Fields:
    """Two rows of the table of positions are none (modeling_opt.py: OPTLearnedPositionalEmbedding, modeling_biogpt.py)."""
    positions = fields["max_position_embeddings"]
    return {"max_position_embeddings": positions + 2, "default_seq_length": positions}


def heads_as_wide_as_the_model(cfg: ConfigReader, fields: Fields) -> Fields:
    """Raises InputError where all heads together are not as wide as the model."""
    if fields["kv_channels"] * fields["num_attention_heads"] != fields["hidden_size"]:
        raise cfg.fail("head_dim x num_attention_heads must be hidden_size, as wide as the class builds them")
    return {}


def sliding(window: int | None, pattern: list[bool]) -> Fields:
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


def every_layer(_layer: int) -> bool:
    """Each layer slides."""
    return True


def every_second(layer: int) -> bool:
    """The first layer slides, the second does not, and so on."""
    return layer % 2 == 0


def three_of_four(layer: int) -> bool:
    """All layers slide but the first of each four."""
    return layer % 4 > 0


_SLIDING = {one.__name__: one for one in (every_layer, every_second, three_of_four)}


def windows(default: int | None = None, slides: str | Callable[[int], bool] | None = None) -> Trait:
    """Sliding layers by `layer_types`; where the file does not say them, the layers (from 0) that `slides` (a function, or its
    name) is true of, or none. `default`: the width of the window, of families that have one where the file does not say it."""

    def trait(cfg: ConfigReader, fields: Fields) -> Fields:
        layers, rule = fields["num_layers"], _SLIDING[slides] if isinstance(slides, str) else slides
        pattern = layer_types(cfg, layers)
        if pattern is None and rule is not None:
            pattern = [rule(i) for i in range(layers)]
        return {} if pattern is None else sliding(cfg.optional_integer("sliding_window") or default, pattern)

    return trait


def windows_but_every(nth: int, default: int | None = None) -> Trait:
    """The same; without `layer_types` all but every n-th layer slide, or those that `sliding_window_pattern` says: another
    n, or letters L and G over and over."""

    def trait(cfg: ConfigReader, fields: Fields) -> Fields:
        letters = cfg.values().get("sliding_window_pattern", nth)
        if isinstance(letters, str) and letters and not set(letters) - {"L", "G"}:
            return windows(default, lambda i: letters[i % len(letters)] == "L")(cfg, fields)
        number = cfg.integer("sliding_window_pattern", nth)
        return windows(default, lambda i: (i + 1) % number != 0)(cfg, fields)

    return trait


def windows_from(first: int, default: int | None = None) -> Trait:
    """The same, where without `layer_types` the layers from `max_window_layers`, else from `first`, slide."""

    def trait(cfg: ConfigReader, fields: Fields) -> Fields:
        start = cfg.integer("max_window_layers", first, low=0)
        return windows(default, lambda i: i >= start)(cfg, fields)

    return trait


def experts(number: Key, topk: Key, *, wide: Key | None = None, shared: Key | None = None) -> Trait:
    """Keys of the numbers of experts, of those chosen and of shared ones; `wide`: of their width, else that of a dense MLP."""

    def trait(cfg: ConfigReader, fields: Fields) -> Fields:
        width = cfg.integer(*wide) if wide else fields["ffn_hidden_size"]
        routed = {
            "num_moe_experts": cfg.integer(*number),
            "moe_router_topk": cfg.integer(*topk),
            "moe_ffn_hidden_size": width,
        }
        if shared is None:
            return routed
        return routed | {"moe_shared_expert_intermediate_size": width * cfg.integer(*shared, low=0, high=MAX_EXPERTS)}

    return trait


def softmax_scores(normalises: bool | None = None) -> Trait:
    """`normalises`: whether the family normalises the chosen scores; None where norm_topk_prob says it."""
    return lambda cfg, _fields: softmax_router(cfg, normalises)


def sparse_layers(leading: int, key: str | None = None) -> Trait:
    """Layers with experts, from `mlp_layer_types`; without it, the first ones are dense, as many as `key` says or `leading`."""

    def trait(cfg: ConfigReader, fields: Fields) -> Fields:
        layers, dense = fields["num_layers"], cfg.integer(key, leading, low=0) if key else leading
        types = cfg.items("mlp_layer_types", str)
        if types is None:
            return {"moe_layer_freq": tuple(int(i >= dense) for i in range(layers))}
        if len(types) != layers or set(types) - {"dense", "sparse"}:
            raise cfg.fail(f"mlp_layer_types must be {layers} of dense and sparse")
        return {"moe_layer_freq": tuple(int(kind == "sparse") for kind in types)}

    return trait
