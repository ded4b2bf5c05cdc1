"""The model that Megatron-LM builds from its arguments; what they leave out takes Megatron's own default."""

from __future__ import annotations

import ast
import re
from typing import Any

from autoconfig.megatron.argument_list import Arguments
from autoconfig.megatron.read_encoders import kind_read, read_stacks
from autoconfig.megatron.read_vocabulary import vocabulary
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_numbers import YARN_ORIGINAL, RopeScaling
from autoconfig.specs.models.pattern import parse_pattern, pattern_letters
from autoconfig.specs.remarks import Effect, Remark

_KINDS = {
    "a hybrid whose layers are given by ratios": (
        "--hybrid-attention-ratio",
        "--hybrid-mlp-ratio",
        "--full-attention-interval",
    ),
    "a hybrid with sizes of MindSpeed's own": ("--mamba-expand", "--mamba-d-conv", "--mamba-d-ssm"),
    "a model with experts that do nothing (LongCat)": ("--num-zero-experts",),
    "attention that shares keys between layers": ("--cla-share-factor",),
    "differential attention": ("--differential-attention",),
    "a model that a Hugging Face checkpoint decides, and not these arguments,": ("--use-bridge", "--bridge-hf-model"),
    "a model whose layers differ": ("--heterogeneous-layers-config-path", "--heterogeneous-layers-config-encoded-json"),
    "a retrieval model": ("--retro-add-retriever",),
    "attention with a local filter or a router (Yuan 2.0)": ("--use-lf-gate", "--use-attention-router"),
    "compressed or multi-stream attention (DeepSeek-V4)": (
        "--kv-compress",
        "--enable-mhc",
        "--compress-ratios",
        "--csa-compress-ratios",
        "--o-groups",
        "--n-hash-layers",
    ),
    "a run whose arguments lie in a YAML file": ("--yaml-cfg",),
}
_REFUSED = {name: kind for kind, names in _KINDS.items() for name in names}
ROTARY_BASE = 10_000
"""Megatron-LM's default, like the others here."""
LATENT = ("--multi-latent-attention", "--multi-head-latent-attention", "--qk-nope-head-dim")
"""Megatron-LM's word, MindSpeed's older one, and a size that nothing else has (Pai-Megatron-Patch)."""
ROTARY = (
    "--use-rotary-position-embeddings",
    "--use-rope",
    "--rope-scaling-factor",
    "--use-llama2-rotary-position-embeddings",
    "--use-mistral-rotary-position-embeddings",
)
"""Switches of rotary positions: Megatron-LM's, its forks' and Pai-Megatron-Patch's."""
UNLEARNED = ("--no-position-embedding", "--no-learned-position-embeddings", "--use-alibi-mask")
_POSITIONS = {"rotary": "rope", "absolute": "learned_absolute", "mrope": "rope"}
_GLU = {"swiglu": ("swiglu", True), "geglu": ("geglu", True), "reglu": ("swiglu", True), "liglu": ("swiglu", True)}
_GATED_FAMILIES = re.compile("llama|mistral|mixtral|qwen|baichuan")
"""In a program's name: a fork whose own code decides activation, norm and embeddings."""
MAX_PATTERN = 10_000


def read_model(a: Arguments, assumed: list[Remark], program: str = "") -> ModelSpec:
    """The architecture; `program`: the file that is started, where it is known. Raises InputError for a missing size,
    UnsupportedError for what is neither a transformer of like layers nor a hybrid."""
    shared = a.count("--num-unique-layers")
    if shared is not None and shared != a.count("--num-layers"):
        raise UnsupportedError("--num-unique-layers: layers that share their weights cannot be checked")
    for name, kind in _REFUSED.items():
        if a.has(name):
            raise UnsupportedError(f"{name}: {kind} cannot be checked; only decoder-only transformers of like layers can")
    hybrid = _hybrid(a)
    layers = hybrid.get("num_layers") or _needed(a, "--num-layers", "--encoder-num-layers") - len(idle_layers(a))
    hidden = _needed(a, "--hidden-size")
    heads = _needed(a, "--num-attention-heads")
    activation, gated = _activation(a)
    if activation == "gelu" and (own := _GATED_FAMILIES.search(program.rsplit("/", 1)[-1].lower())):
        raise UnsupportedError(
            f"{program.rsplit('/', 1)[-1][:60]} builds a {own[0]} model by itself, and the file gives no --swiglu: what it "
            "builds cannot be read from the arguments; name the model with --model (see `autoconfig models`), or add --swiglu"
        )
    # Megatron's default: 4 h; with SwiGLU 8/3 h, down to a multiple of 64
    usual = max(64, int(4 * hidden * 2 / 3) // 64 * 64) if gated else 4 * hidden
    kv_channels = a.count("--kv-channels")
    if kv_channels is None and hidden % heads:
        raise InputError(
            f"--hidden-size {hidden} is not a multiple of --num-attention-heads {heads}; change one or give --kv-channels"
        )
    values: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "activation": activation,
        "gated_linear_unit": gated,
        "kv_channels": kv_channels or hidden // heads,
        "num_query_groups": _query_groups(a, heads, assumed),
        "ffn_hidden_size": a.count("--ffn-hidden-size", "--intermediate-size") or usual,
        **_norm_and_positions(a, assumed),
        **_biases(a),
    }
    if a.has(*LATENT):
        values |= _latent_attention(a, heads)
    values |= _indexer(a, assumed)
    values |= _experts(a, values, assumed)
    values |= _window(a)
    values["mtp_num_layers"] = a.whole("--mtp-num-layers") or 0
    values["mtp_use_repeated_layer"] = a.has("--mtp-use-repeated-layer")
    values["attention_output_gate"] = a.has("--attention-output-gate")
    values |= hybrid
    if (stacks := kind_read(a, program)) is not None:
        values |= read_stacks(a, stacks, values, assumed)
    padded = a.count("--padded-vocab-size", "--pad-vocab-size-to")
    whole = a.has("--disable-pad-vocab-size", "--no-pad-vocab-size") or padded is not None
    values["make_vocab_size_divisible_by"] = 1 if whole else a.count("--make-vocab-size-divisible-by") or 128
    values["vocab_size"] = padded or vocabulary(a, values, assumed)
    return ModelSpec(name="model of the file", **values)


PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
RECURRENT_SIZES = {
    "mamba": {"mamba_num_heads": 0, "mamba_head_dim": 64, "mamba_state_dim": 128, "mamba_num_groups": 8},
    "gdn": {
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
}
"""Sizes of recurrent layers with Megatron-LM's defaults; 0: 2 h over the head's width."""


def _hybrid(a: Arguments) -> dict[str, Any]:
    """Pattern and recurrent sizes of a hybrid; empty without a pattern. --num-layers, if given, must be the pattern's."""
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
    given = a.count("--num-layers")
    if given is not None and given != len(pattern.layers):
        raise InputError(f"--num-layers {given}, but --hybrid-layer-pattern has {len(pattern.layers)} layers; drop the number")
    if depths not in (0, pattern.depths):
        raise InputError(f"--mtp-num-layers {depths}, but --hybrid-layer-pattern has {pattern.depths} depths behind its /")
    main, mtp = pattern_letters(pattern.layers), f"/{pattern_letters(pattern.mtp)}" * pattern.depths
    values: dict[str, Any] = {
        "hybrid_layer_pattern": main + mtp,
        "num_layers": len(pattern.layers),
        "mtp_num_layers": pattern.depths,
    }
    for kind, sizes in RECURRENT_SIZES.items():
        if kind in (*pattern.layers, *pattern.mtp):
            values |= {name: a.count(f"--{name.replace('_', '-')}") or default for name, default in sizes.items()}
    if values.get("mamba_num_heads") == 0:
        values["mamba_num_heads"] = 2 * _needed(a, "--hidden-size") // values["mamba_head_dim"]
    return values


def idle_layers(a: Arguments) -> frozenset[int]:
    """MindSpeed's --noop-layers: numbers from 0 of layers that do nothing. Raises InputError for other text."""
    text = a.text("--noop-layers") or ""
    words = [word for word in text.replace(" ", "").split(",") if word]
    total = a.count("--num-layers") or 0
    if not all(word.isdigit() and len(word) < 7 and int(word) < total for word in words):
        raise InputError(f"--noop-layers {text[:40]!r}: write numbers of layers below --num-layers, with commas: 61,62")
    return frozenset(map(int, words))


def _needed(a: Arguments, *names: str) -> int:
    number = a.count(*names)
    if number is None:
        raise InputError(f"{names[0]} is not in the file; add it, or name the model with --model (see `autoconfig models`)")
    return number


def _activation(a: Arguments) -> tuple[str, bool]:
    chosen: list[tuple[str, bool]] = []
    clamped = a.has("--activation-func-clamp-value", "--glu-linear-offset")  # gpt-oss: ModelSpec calls it swiglu
    for name, meaning in (
        ("--swiglu", ("swiglu", True)),
        ("--t5-swiglu", ("swiglu", True)),
        ("--squared-relu", ("squared-relu", False)),
        ("--geglu", ("geglu", True)),
        ("--gelu-tanh", ("geglu", True)),  # MindSpeed-LLM, core/transformer/mlp.py: gated, with a GELU by tanh
        ("--quick-geglu", ("swiglu" if clamped else "geglu", True)),
    ):
        if a.has(name):
            chosen.append(meaning)
    if glu := a.text("--glu-activation"):
        if glu not in _GLU:
            raise InputError(f"--glu-activation {glu[:40]!r}: use one of {', '.join(_GLU)}")
        chosen.append(_GLU[glu])
    if len(set(chosen)) > 1:
        raise InputError("contradictory activations: give one of --swiglu, --squared-relu, --quick-geglu, --glu-activation")
    return chosen[0] if chosen else ("gelu", False)


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


def _norm_and_positions(a: Arguments, assumed: list[Remark]) -> dict[str, Any]:
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
    if a.has(*LATENT) and position == "rope":
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
        "embedding_layernorm": a.has("--embed-layernorm"),
        "parallel_attention": a.has("--parallel-attn"),
    }


def _rotary(a: Arguments, position: str) -> dict[str, Any]:
    given = a.number("--rotary-base", "--rope-theta", "--rotary-position-embeddings-theta")
    percent = a.number("--rotary-percent")
    scaling = _rope_scaling(a, position)
    if position not in ("rope", "yarn"):
        return {}
    return {
        "rotary_base": ROTARY_BASE if given is None else int(given),
        "rotary_percent": 1.0 if percent is None else percent,
        "rope_scaling": scaling,
    }


def _rope_scaling(a: Arguments, position: str) -> RopeScaling | None:
    llama3, stretch = a.has("--use-rope-scaling"), a.number("--rope-scaling-factor")
    interpolated = a.number("--rotary-seq-len-interpolation-factor")
    factor, original = a.number("--rotary-scaling-factor"), a.count("--yarn-original-max-position-embeddings")
    mscale, all_dim = a.number("--mscale"), a.number("--mscale-all-dim")
    truncate = not a.has("--no-yarn-correction-range-round-to-int")
    a.has("--yarn-correction-range-round-to-int", "--yarn-beta-fast", "--yarn-beta-slow")
    if position == "yarn":
        return RopeScaling(
            type="yarn",
            factor=1.0 if factor is None else factor,
            original_max_position_embeddings=original or YARN_ORIGINAL,
            mscale=1.0 if mscale is None else mscale,
            mscale_all_dim=all_dim or 0.0,
            truncate=truncate,
        )
    if llama3:
        return RopeScaling(type="llama3", factor=8.0 if stretch is None else stretch)
    return RopeScaling(type="linear", factor=interpolated) if interpolated else None


def _biases(a: Arguments) -> dict[str, Any]:
    linear = not a.has("--disable-bias-linear", "--no-add-bias-linear", "--disable-add-bias-linear")
    return {
        "add_bias_linear": linear,
        "add_qkv_bias": a.has("--add-qkv-bias"),
        "qk_layernorm": a.has("--qk-layernorm"),
        "untie_embeddings_and_output_weights": a.has("--untie-embeddings-and-output-weights", "--no-tie-embed-logits"),
        "attention_sinks": a.text("--softmax-type") == "learnable",
    }


def _latent_attention(a: Arguments, heads: int) -> dict[str, Any]:
    def size(default: int, *names: str) -> int:
        return a.count(*names) or default

    return {
        "multi_latent_attention": True,
        "qk_layernorm": False,  # the latents' own norms, which every such model has
        "num_query_groups": heads,
        "q_lora_rank": a.count("--q-lora-rank"),
        "kv_lora_rank": size(32, "--kv-lora-rank"),
        "qk_head_dim": size(128, "--qk-head-dim", "--qk-nope-head-dim"),
        "qk_pos_emb_head_dim": size(64, "--qk-pos-emb-head-dim", "--qk-rope-head-dim"),
        "v_head_dim": size(128, "--v-head-dim"),
    }


def _indexer(a: Arguments, assumed: list[Remark]) -> dict[str, Any]:
    """Sparse attention. Raises UnsupportedError for another variant, and for layers that take over keys chosen before them."""
    variant = a.text("--experimental-attention-variant")
    if variant is None:
        return {}
    if variant != "dsa" or not a.has(*LATENT):
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
    return {
        "dsa_indexer_n_heads": _needed(a, "--dsa-indexer-n-heads"),
        "dsa_indexer_head_dim": _needed(a, "--dsa-indexer-head-dim"),
        "dsa_indexer_topk": _needed(a, "--dsa-indexer-topk"),
        "dsa_indexer_rope_interleaved": a.has("--dsa-indexer-rope-interleaved"),
    }


def _experts(a: Arguments, values: dict[str, Any], assumed: list[Remark]) -> dict[str, Any]:
    texts = set(a.texts("--num-experts"))
    if len(texts) > 1:
        raise UnsupportedError("--num-experts with several numbers: a pyramid of experts cannot be checked")
    experts = a.whole("--num-experts", "--moe-num-experts", "--num-moe-experts") or 0
    if experts <= 0 or (experts == 1 and a.has("--deepspeed", "--expert-interval")):  # 1 is DeepSpeed's word for none
        return {}
    deepspeed = a.has("--topk", "--expert-interval", "--moe-expert-parallel-size")
    one = deepspeed or a.has("--moe-num-experts")
    freq = _layer_frequency(a, values["num_layers"], deepspeed)
    topk = a.count("--moe-router-topk", "--topk", "--moe-top-k", "--moe-topk") or (1 if one else 2)
    width = a.count("--moe-ffn-hidden-size", "--moe-intermediate-size") or values["ffn_hidden_size"]
    return {
        "num_moe_experts": experts,
        "moe_router_topk": topk,
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": _shared_width(a, width, assumed),
        "moe_shared_expert_gate": a.has("--moe-shared-expert-gate", "--moe-use-shared-expert-gate", "--shared-expert-gate"),
        "moe_router_enable_expert_bias": a.has("--moe-router-enable-expert-bias"),
        "moe_latent_size": a.count("--moe-latent-size"),
        "moe_layer_freq": freq,
        **(_expert_biases(freq) if values["add_bias_linear"] else {}),
    }


def _shared_width(a: Arguments, width: int, assumed: list[Remark]) -> int:
    """Channels of the experts that every token passes: Megatron's argument, Pai's and MindSpeed's number of experts, the
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
    """Experts and router have biases where linear layers have; without any dense MLP, ModelSpec says the rest one by one."""
    found: dict[str, Any] = {"moe_expert_bias": True, "moe_router_bias": True}
    if freq == 1:
        found |= {"add_bias_linear": False, "add_qkv_bias": True, "add_attention_output_bias": True}
    return found


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
    """A whole number, or Megatron's pattern like `([0]*3+[1]*58)`: lists of numbers, +, *. Never evaluated as Python."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        value = _pattern(tree)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"{name} {text[:60]!r} is neither a whole number nor a pattern like ([0]*3+[1]*58)") from None
    return value


def _pattern(node: ast.expr) -> int | list[int]:
    if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= MAX_PATTERN:
        return node.value
    if isinstance(node, ast.List):
        values = [_pattern(item) for item in node.elts]
        if all(isinstance(value, int) for value in values):
            return [value for value in values if isinstance(value, int)]
    if isinstance(node, ast.BinOp):
        left, right = _pattern(node.left), _pattern(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult):
            items, times = (left, right) if isinstance(left, list) else (right, left)
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
