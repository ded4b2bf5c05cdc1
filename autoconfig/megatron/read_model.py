"""The model that Megatron-LM builds from its arguments; what they leave out takes Megatron's own default. T5 and BERT as
megatron-core 0.19 builds them from the arguments of examples/t5/pretrain_t5.py and examples/bert/pretrain_bert.py."""

from __future__ import annotations

import ast
from typing import Any, cast

from autoconfig.megatron.argument_list import Arguments, refused_arguments
from autoconfig.megatron.flag_table import missing, read_fields
from autoconfig.megatron.read_vocabulary import vocabulary
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_numbers import RopeScaling
from autoconfig.specs.models.pattern import parse_pattern, pattern_letters
from autoconfig.specs.remarks import Effect, Remark

ROTARY = (
    "--use-rotary-position-embeddings",
    "--rope-scaling-factor",
    "--use-llama2-rotary-position-embeddings",
    "--use-mistral-rotary-position-embeddings",
)
"""Switches of rotary positions: Megatron-LM's, its forks' and Pai-Megatron-Patch's."""
UNLEARNED = ("--no-position-embedding", "--use-alibi-mask")
_POSITIONS = {"rotary": "rope", "absolute": "learned_absolute", "mrope": "rope"}
ACTIVATIONS = {
    "--swiglu": ("swiglu", True),
    "--t5-swiglu": ("swiglu", True),
    "--squared-relu": ("squared-relu", False),
    "--geglu": ("geglu", True),
    "--gelu-tanh": ("geglu", True),  # MindSpeed-LLM, core/transformer/mlp.py: gated, with a GELU by tanh
    "--quick-geglu": ("geglu", True),
}
"""Switch -> (activation, whether it is gated)."""
_GLU = {"swiglu": ("swiglu", True), "geglu": ("geglu", True), "reglu": ("swiglu", True), "liglu": ("swiglu", True)}
_GATED_FAMILIES = ("llama", "mistral", "mixtral", "qwen", "baichuan")
"""In a program's name: a fork whose own code decides activation, norm and embeddings."""
MAX_PATTERN = 10_000


def read_model(a: Arguments, assumed: list[Remark], program: str = "") -> ModelSpec:
    """Return the architecture; `program`: the file that is started, where it is known. Raises InputError for a missing size,
    UnsupportedError for what is neither a transformer of like layers nor a hybrid."""
    shared = a.count("--num-unique-layers")
    if shared is not None and shared != a.count("--num-layers"):
        raise UnsupportedError("--num-unique-layers: layers that share their weights cannot be checked")
    for name, kind in refused_arguments("model").items():
        if a.has(name):
            raise UnsupportedError(f"{name}: {kind} cannot be checked; only decoder-only transformers of like layers can")
    hybrid = _hybrid(a)
    layers = hybrid.get("num_layers") or _needed(a, "--num-layers", "--encoder-num-layers") - len(idle_layers(a))
    values = read_fields(a, "model")
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    activation, gated = _activation(a, program)
    # Megatron's default: 4 h; with SwiGLU 8/3 h, down to a multiple of 64
    usual = max(64, int(4 * hidden * 2 / 3) // 64 * 64) if gated else 4 * hidden
    values |= {
        "num_layers": layers,
        "activation": activation,
        "gated_linear_unit": gated,
        "kv_channels": values["kv_channels"] or _head_size(hidden, heads),
        "num_query_groups": _query_groups(a, heads, assumed),
        "ffn_hidden_size": values["ffn_hidden_size"] or usual,
        **_norm_and_positions(a, values["multi_latent_attention"], assumed),
        "attention_sinks": a.text("--softmax-type") == "learnable",
    }
    if values["multi_latent_attention"]:  # the latents' own norms, which every such model has, are no norms of q and k
        values |= {"qk_layernorm": False, "num_query_groups": heads, **read_fields(a, "latent")}
    values |= _indexer(a, values["multi_latent_attention"], assumed)
    values |= _experts(a, values, assumed)
    values |= _window(a)
    values |= hybrid
    if (stacks := _encoder_kind(a, program)) is not None:
        values |= _stacks(a, stacks, values, assumed)
    padded = a.count("--padded-vocab-size", "--pad-vocab-size-to")
    whole = a.has("--disable-pad-vocab-size", "--no-pad-vocab-size") or padded is not None
    values["make_vocab_size_divisible_by"] = 1 if whole else a.count("--make-vocab-size-divisible-by") or 128
    values["vocab_size"] = padded or vocabulary(a, values, assumed)
    return ModelSpec(name="model of the file", **values)


PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")


def _hybrid(a: Arguments) -> dict[str, Any]:
    """Return pattern and recurrent sizes of a hybrid; empty without a pattern. --num-layers, if given, must be the
    pattern's."""
    text = a.text(*PATTERNS)
    if text is None:
        if a.has("--is-hybrid-model"):
            raise InputError("--is-hybrid-model without --hybrid-layer-pattern: add the pattern of the layers")
        return {}
    a.has("--is-hybrid-model", "--spec")
    depths, behind = a.whole("--mtp-num-layers") or 0, a.text("--mtp-hybrid-override-pattern")
    if "/" not in text and behind:
        text += f"/{behind}" * depths
    pattern = parse_pattern(text)
    count = a.count("--num-layers")
    if count is not None and count != len(pattern.layers):
        raise InputError(f"--num-layers {count}, but --hybrid-layer-pattern has {len(pattern.layers)} layers; drop the number")
    if depths not in (0, pattern.depths):
        raise InputError(f"--mtp-num-layers {depths}, but --hybrid-layer-pattern has {pattern.depths} depths behind its /")
    main, mtp = pattern_letters(pattern.layers), f"/{pattern_letters(pattern.mtp)}" * pattern.depths
    values: dict[str, Any] = {
        "hybrid_layer_pattern": main + mtp,
        "num_layers": len(pattern.layers),
        "mtp_num_layers": pattern.depths,
    }
    for kind in ("mamba", "gdn"):
        if kind in (*pattern.layers, *pattern.mtp):
            values |= read_fields(a, kind)
    if values.get("mamba_num_heads") == 0:  # twice the hidden size over the head's width
        values["mamba_num_heads"] = 2 * _needed(a, "--hidden-size") // values["mamba_head_dim"]
    return values


def idle_layers(a: Arguments) -> frozenset[int]:
    """Return MindSpeed's --noop-layers: numbers from 0 of layers that do nothing. Raises InputError for other text."""
    text = a.text("--noop-layers") or ""
    words = [word for word in text.replace(" ", "").split(",") if word]
    total = a.count("--num-layers") or 0
    if not all(word.isdigit() and len(word) < 7 and int(word) < total for word in words):
        raise InputError(f"--noop-layers {text[:40]!r}: write numbers of layers below --num-layers, with commas: 61,62")
    return frozenset(map(int, words))


def _needed(a: Arguments, *names: str) -> int:
    number = a.count(*names)
    if number is None:
        raise missing(names[0])
    return number


def _head_size(hidden: int, heads: int) -> int:
    """Return the channels of a head where they are not given. Raises InputError where they are no whole number."""
    if hidden % heads:
        raise InputError(
            f"--hidden-size {hidden} is not a multiple of --num-attention-heads {heads}; change one or give --kv-channels"
        )
    return hidden // heads


def _activation(a: Arguments, program: str) -> tuple[str, bool]:
    """Return the activation, and whether it is gated. Raises UnsupportedError for a program that brings one of its own."""
    chosen = {meaning for name, meaning in ACTIVATIONS.items() if a.has(name)}
    clamped = a.has("--activation-func-clamp-value", "--glu-linear-offset")  # gpt-oss: ModelSpec calls it swiglu
    if clamped and a.has("--quick-geglu"):
        chosen = {*(chosen - {ACTIVATIONS["--quick-geglu"]}), ACTIVATIONS["--swiglu"]}
    if glu := a.text("--glu-activation"):
        if glu not in _GLU:
            raise InputError(f"--glu-activation {glu[:40]!r}: use one of {', '.join(_GLU)}")
        chosen.add(_GLU[glu])
    if len(chosen) > 1:
        raise InputError("contradictory activations: give one of --swiglu, --squared-relu, --quick-geglu, --glu-activation")
    name = program.rsplit("/", 1)[-1]
    if not chosen and (own := next((family for family in _GATED_FAMILIES if family in name.lower()), None)):
        raise UnsupportedError(
            f"{name[:60]} builds a {own} model by itself, and the file gives no --swiglu: what it "
            "builds cannot be read from the arguments; name the model with --model (see `autoconfig models`), or add --swiglu"
        )
    return chosen.pop() if chosen else ("gelu", False)


def _query_groups(a: Arguments, heads: int, assumed: list[Remark]) -> int:
    if (kind := a.text("--attention-head-type")) is not None:
        if kind not in ("multihead", "multiquery"):
            raise InputError(f"--attention-head-type {kind[:40]!r}: use multihead or multiquery")
        return 1 if kind == "multiquery" else heads
    groups = a.count("--num-query-groups", "--num-key-value-heads", "--num-attention-heads-kv", "--n-head-kv")
    if a.has("--group-query-attention"):
        return groups or 1
    if groups and groups != heads and a.has("--num-query-groups"):
        assumed.append(Remark("--num-query-groups", groups, "no effect without --group-query-attention, as in Megatron-LM"))
        return heads
    return groups or heads


def _norm_and_positions(a: Arguments, latent: bool, assumed: list[Remark]) -> dict[str, Any]:
    norm = (a.text("--normalization") or ("RMSNorm" if a.has("--use-rms-norm") else "LayerNorm")).lower()
    names = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
    if norm not in names:
        raise InputError(f"--normalization {norm[:40]!r}: use LayerNorm or RMSNorm")
    position = a.text("--position-embedding-type") or "learned_absolute"
    if a.has(*ROTARY):
        position = "rope"
    elif a.has(*UNLEARNED) and position == "learned_absolute":
        position = "none"
    position = _POSITIONS.get(position.removeprefix("PositionEmbeddingType."), position)
    if latent and position == "rope":
        position = a.text("--rope-type") or "yarn"
    most = a.count("--max-position-embeddings")
    if most is None:
        most = a.count("--seq-length", "--encoder-seq-length") or 4096
        assumed.append(Remark("--max-position-embeddings", most, "the sequence length"))
    return {
        "normalization": names[norm],
        "position_embedding_type": position,
        **_rotary(a, position),
        "max_position_embeddings": most,
    }


def _rotary(a: Arguments, position: str) -> dict[str, Any]:
    values, scaling = read_fields(a, "rotary"), _rope_scaling(a, position)
    if position not in ("rope", "yarn"):
        return {}
    return values | {"rotary_base": int(values["rotary_base"]), "rope_scaling": scaling}


def _rope_scaling(a: Arguments, position: str) -> RopeScaling | None:
    llama3, stretch = a.has("--use-rope-scaling"), a.number("--rope-scaling-factor")
    interpolated, yarn = a.number("--rotary-seq-len-interpolation-factor"), read_fields(a, "yarn")
    a.has("--yarn-correction-range-round-to-int", "--yarn-beta-fast", "--yarn-beta-slow")
    if position == "yarn":
        return RopeScaling(type="yarn", **yarn)
    if llama3:
        return RopeScaling(type="llama3", factor=8.0 if stretch is None else stretch)
    return RopeScaling(type="linear", factor=interpolated) if interpolated else None


def _indexer(a: Arguments, latent: bool, assumed: list[Remark]) -> dict[str, Any]:
    """Return sparse attention. Raises UnsupportedError for another variant, and for layers that take over chosen keys."""
    variant = a.text("--experimental-attention-variant")
    if variant is None:
        return {}
    if variant != "dsa" or not latent:
        raise UnsupportedError(
            f"--experimental-attention-variant {variant[:40]}: an experimental attention cannot be checked; dsa with "
            "--multi-latent-attention can"
        )
    if (a.count("--dsa-indexer-topk-freq") or 1) > 1:
        raise UnsupportedError("--dsa-indexer-topk-freq above 1: layers that take over the chosen keys are not modelled")
    if a.text("--dsa-kernel-backend") not in ("cudnn", "tilelang") or not a.has("--dsa-indexer-use-sparse-loss"):
        why = "priced with cudnn or tilelang, and with --dsa-indexer-use-sparse-loss"
        without = "without them every score of sparse attention is kept, and memory and time are far larger"
        assumed.append(Remark("--dsa-kernel-backend", None, f"{why}: {without}", Effect.MORE_MEMORY))
    return read_fields(a, "sparse")


def _experts(a: Arguments, values: dict[str, Any], assumed: list[Remark]) -> dict[str, Any]:
    texts = set(a.texts("--num-experts"))
    if len(texts) > 1:
        raise UnsupportedError("--num-experts with several numbers: a pyramid of experts cannot be checked")
    experts = a.whole("--num-experts", "--moe-num-experts", "--num-moe-experts") or 0
    if experts <= 0 or (experts == 1 and a.has("--deepspeed", "--expert-interval")):  # 1 is DeepSpeed's word for none
        return {}
    deepspeed = a.has("--topk", "--expert-interval", "--moe-expert-parallel-size")
    one = deepspeed or a.has("--moe-num-experts")
    fields = read_fields(a, "experts")
    width = fields["moe_ffn_hidden_size"] or values["ffn_hidden_size"]
    freq = _layer_frequency(a, values["num_layers"], deepspeed)
    return fields | {
        "num_moe_experts": experts,
        "moe_router_topk": fields["moe_router_topk"] or (1 if one else 2),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": _shared_width(a, width, assumed),
        "moe_layer_freq": freq,
        **(_expert_biases(freq) if values["add_bias_linear"] else {}),
    }


def _shared_width(a: Arguments, width: int, assumed: list[Remark]) -> int:
    """Return channels of the experts that every token passes: Megatron's argument, Pai's and MindSpeed's number of experts, the
    residual MLP of DeepSpeed (an expert beside the chosen one, `use_residual` of deepspeed/moe/layer.py)."""
    whole = a.whole("--moe-shared-expert-intermediate-size", "--shared-moe-ffn-hidden-size")
    count = a.whole("--num-shared-experts", "--n-shared-experts")
    if whole is not None:
        return whole
    if a.has("--enable-shared-expert") and not count:
        text = "the width of the shared expert is not known: --enable-shared-expert does not say it, and forks differ"
        raise InputError(f"{text}; add --moe-shared-expert-intermediate-size N to the arguments")
    if a.text("--mlp-type") == "residual":
        assumed.append(Remark("--mlp-type", "residual", "the dense MLP beside the experts is read as a shared expert"))
        return width
    return (count or 0) * width


def _expert_biases(freq: int | tuple[int, ...]) -> dict[str, Any]:
    """Return the biases of experts and router, which have them where linear layers have; without any dense MLP, ModelSpec says
    the rest one by one."""
    biases: dict[str, Any] = {"moe_expert_bias": True, "moe_router_bias": True}
    if freq == 1:
        biases |= {"add_bias_linear": False, "add_qkv_bias": True, "add_attention_output_bias": True}
    return biases


def _layer_frequency(a: Arguments, layers: int, deepspeed: bool) -> int | tuple[int, ...]:
    text, dense = a.text("--moe-layer-freq"), a.whole("--first-k-dense-replace")
    if dense is not None:  # MindSpeed: the first layers are dense, of the others every so many is not
        every = abs(a.whole("--moe-layer-freq") or 1)  # -1, as MindSpeed's scripts have it, divides what 1 does
        idle = idle_layers(a)
        return tuple(int(i >= dense and i % every == 0) for i in range(layers + len(idle)) if i not in idle)
    if text is None:
        every = a.count("--expert-interval") or (2 if deepspeed else 1)
        return every if every == 1 else tuple(int(i % every == every - 1) for i in range(layers))
    pattern = read_pattern("1" if text == "-1" else text, "--moe-layer-freq")  # every layer's number modulo -1 is 0
    return pattern if isinstance(pattern, int) else tuple(pattern)


def read_pattern(text: str, name: str) -> int | list[int]:
    """Return a whole number, or the list of Megatron's pattern like `([0]*3+[1]*58)`: lists of numbers, +, *. Never evaluated
    as Python."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        value = _pattern(tree)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"{name} {text[:60]!r} is neither a whole number nor a pattern like ([0]*3+[1]*58)") from None
    return value


def _pattern(node: ast.expr) -> int | list[int]:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool) and 0 <= number <= MAX_PATTERN:
            return number
        case ast.List(elts=elements):
            values = [_pattern(element) for element in elements]
            if all(isinstance(value, int) for value in values):
                return cast("list[int]", values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _pattern(left), _pattern(right)
            if isinstance(first, list) and isinstance(second, list):
                return first + second
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            items, times = sorted((_pattern(left), _pattern(right)), key=lambda value: isinstance(value, int))
            if isinstance(items, list) and isinstance(times, int) and len(items) * times <= MAX_PATTERN:
                return items * times
    raise ValueError(f"not a pattern: {ast.dump(node)[:60]}")


def _window(a: Arguments) -> dict[str, Any]:
    texts = a.texts("--window-size")
    if not texts:
        return {}
    numbers = [part for part in ",".join(texts).strip("()").replace(" ", "").split(",") if part]
    if not numbers or not all(part.lstrip("-").isdigit() for part in numbers):
        raise InputError(f"--window-size {' '.join(texts)[:40]!r} is not like 128,0")
    skip = a.text("--window-attn-skip-freq")
    pattern = read_pattern(skip, "--window-attn-skip-freq") if skip else None
    size = int(numbers[0])
    frequency = tuple(pattern) if isinstance(pattern, list) else pattern
    return {"window_size": size if size > 0 else None, "window_attn_skip_freq": frequency if size > 0 else None}


def _encoder_kind(a: Arguments, program: str) -> str | None:
    """Return which of T5 and BERT a run trains, by its program, or by the arguments that only it has; None for neither. Raises
    InputError for both."""
    name = program.rsplit("/", 1)[-1]
    t5, bert = name == "pretrain_t5.py", name == "pretrain_bert.py"
    stacks = a.has("--decoder-num-layers", "--decoder-seq-length")
    if (bert or name == "pretrain_gpt.py") and stacks:
        raise InputError(f"{name} with --decoder-num-layers or --decoder-seq-length, which are T5's; drop them")
    if t5 or stacks:
        return "t5"
    return "bert" if bert or a.has("--bert-no-binary-head") else None


def _stacks(a: Arguments, kind: str, values: dict[str, Any], assumed: list[Remark]) -> dict[str, Any]:
    """Return fields of ModelSpec that T5Model and BertModel of megatron-core set, beside those of any transformer in `values`.

    Raises InputError where T5 has no length of its decoder, UnsupportedError for depths that pretrain_t5.py does not build.
    """
    layers = values["num_layers"]
    if kind == "bert":
        a.has("--spec")
        binary = not a.has("--bert-no-binary-head")
        return {
            "encoder_num_layers": layers,
            "num_tokentypes": 2 if binary else 0,
            "output_layer_bias": True,
            "masked_lm_head": True,
            "bert_binary_head": binary,
        }
    decoder = a.count("--decoder-num-layers")
    if decoder not in (None, layers):
        raise UnsupportedError(
            f"--decoder-num-layers {decoder} with {layers} layers of the encoder: pretrain_t5.py builds as many of both; give "
            "one number"
        )
    if decoder is None:
        assumed.append(Remark("--decoder-num-layers", layers, "as many as of the encoder (pretrain_t5.py)"))
    relative = values["position_embedding_type"] == "relative"
    return {
        "num_layers": 2 * layers,
        "encoder_num_layers": layers,
        "output_layer_bias": True,
        "relative_attention_num_buckets": (a.count("--relative-attention-num-buckets") or 32) if relative else 0,
    }


def read_decoder_length(a: Arguments, model: ModelSpec) -> int | None:
    """Return tokens of a decoder behind an encoder; None without one. Raises InputError where the file does not say it."""
    if not model.is_encoder_decoder:
        return None
    length = a.count("--decoder-seq-length")
    if length is None:
        raise InputError("--decoder-seq-length is not in the file, and T5's decoder needs it; add it")
    return length
