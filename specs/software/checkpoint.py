"""How a checkpoint stores its weights: `quantization_config` of a config.json, or ModelOpt's hf_quant_config.json beside it.

A weight's bytes hold its share of scales and zero points; scales of whole columns or tensors (under 0.1 %) are not counted. The
formats are those of AutoAWQ, GPTQ (AutoGPTQ's packing, which stores zero points of symmetric weights too), transformers' fp8,
fbgemm_fp8, mxfp4 and bitsandbytes, llm-compressor's compressed-tensors and NVIDIA ModelOpt. Routers, norms and embeddings stay
in 16 bits; so does the output layer unless the file says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.models.config_reader import ConfigReader, read_json_object
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import published_checkpoint
from autoconfig.specs.models.module_names import ModuleNames, linear_modules
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES
from autoconfig.specs.software.engine import ModuleFormats

QUANT_FILE = "hf_quant_config.json"
"""Beside config.json, where ModelOpt wrote the checkpoint."""
TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How one kind of weight is stored."""

    form: str
    """Our format, by which it is priced: a key of WEIGHT_BYTES."""
    bytes: float
    """Of one weight, its scales and zero points included."""
    group: int = 0
    """Weights of a row that share a scale; 0: a column or a tensor."""
    rows: int = 1
    """Columns that share it, too (blocks)."""


SIXTEEN_BITS = Stored(form="bf16", bytes=2.0)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A quantised checkpoint."""

    method: str
    """`quant_method`: awq, gptq, fp8, compressed-tensors, modelopt, mxfp4, bitsandbytes."""
    groups: tuple[tuple[ModuleNames, Stored], ...]
    """Modules by how they are stored: the first that has a module's name counts."""
    kept: ModuleNames
    """Modules in 16 bits, whatever `groups` says."""
    kv: str | None = None
    """Format of the cache that the checkpoint holds scales of."""

    @property
    def main(self) -> Stored:
        """How most of its weights are stored: the last group, which is the widest."""
        return self.groups[-1][1]

    @property
    def kind(self) -> str:
        """The key by which engines are asked whether they load it (catalogue/checkpoints.json)."""
        own = self.method in ("awq", "gptq", "mxfp4", "bitsandbytes")
        return self.method if own else f"{self.method} {self.main.form}"

    def stored(self, names: Sequence[str]) -> Stored:
        """How a linear layer of these names, such as `layers.0.self_attn.q_proj` or `lm_head`, is stored."""
        if any(self.kept.has(name) for name in names):
            return SIXTEEN_BITS
        return next((stored for group, stored in self.groups if any(group.has(name) for name in names)), SIXTEEN_BITS)

    def modules(self, model: ModelSpec) -> Iterator[tuple[str, float, Stored]]:
        """Of every linear layer of the model, multi-token prediction included: the part of memory_model.serving that it
        belongs to, its weights, and how they are stored."""
        by_expert = self.kept.by_expert or any(names.by_expert for names, _ in self.groups)
        for part, names, weights in linear_modules(model, by_expert=by_expert):
            yield part, weights, self.stored(names)

    def formats(self, model: ModelSpec) -> ModuleFormats:
        """By part the format that most of its weights have, and the mean bytes of one. The parts of a pipeline's stages are
        taken as alike."""
        return _formats(self, model)

    def __str__(self) -> str:
        main = self.main
        groups = f", groups of {main.group}" if main.group and main.rows == 1 else ""
        blocks = f", blocks of {main.rows} x {main.group}" if main.rows > 1 else ""
        return f"{self.method}: {main.form}{groups}{blocks}, {main.bytes:.4g} bytes a weight"


@lru_cache(maxsize=64)
def _formats(checkpoint: Checkpoint, model: ModelSpec) -> ModuleFormats:
    """`Checkpoint.formats`, which goes through every linear layer and is asked for by every plan."""
    weights: dict[str, dict[str, float]] = {}
    stored_bytes: dict[str, float] = {}
    for part, count, stored in checkpoint.modules(model):
        forms = weights.setdefault(part, {})
        forms[stored.form] = forms.get(stored.form, 0.0) + count
        stored_bytes[part] = stored_bytes.get(part, 0.0) + count * stored.bytes
    main = {part: max(forms, key=lambda form: forms[form]) for part, forms in weights.items()}
    exact = {part: stored_bytes[part] / sum(forms.values()) for part, forms in weights.items()}
    attention = main.get("attention") or main.get("recurrent", "bf16")
    mlp = main.get("mlp") or main.get("experts", "bf16")
    return ModuleFormats(attention=attention, mlp=mlp, experts=main.get("experts", mlp), exact=tuple(exact.items()))


@lru_cache(maxsize=256)
def checkpoint_named(name: str) -> Checkpoint | None:
    """Of a published id, such as `Qwen/Qwen3-30B-A3B-FP8` or `nvidia/...-NVFP4` (specs/catalogue/published.json); None where
    it is in 16 bits or the table knows no such id. `Checkpoint.formats(model)` says the format of each kind of module."""
    published = published_checkpoint(name)
    if published is None or not published.recipe:
        return None
    return checkpoint_of({"quantization_config": published.quantization_config}, name.strip()[:80])


def quantised_at_load(method: str) -> Checkpoint:
    """Of a checkpoint in 16 bits that an engine is told to quantise (`--quantization fp8`): all linear layers but the output
    layer, fp8 with a scale a tensor (vLLM layers/quantization/fp8.py, SGLang fp8.py) or NF4 in blocks of 64. Raises
    UnsupportedError for a method that needs a checkpoint in its own format."""
    word = method.strip().lower()
    if word not in AT_LOAD:
        raise UnsupportedError(
            f"{method[:40]!r} needs a checkpoint in that format: name one, such as ...-AWQ; one in 16 bits is quantised "
            f"at load with {', '.join(AT_LOAD)}"
        )
    return _METHODS[word](ConfigReader(AT_LOAD[word], method))


AT_LOAD: dict[str, dict[str, Any]] = {"fp8": {"modules_to_not_convert": []}, "bitsandbytes": {"load_in_4bit": True}}
"""Methods that quantise weights in 16 bits while they are loaded, with the settings of a config.json that they stand for."""


def checkpoint_of_file(path: Path) -> Checkpoint | None:
    """Of a config.json and the hf_quant_config.json beside it; None where nothing is quantised. Raises as `checkpoint_of`, and
    FileError."""
    beside = path.with_name(QUANT_FILE)
    return checkpoint_of(read_json_object(path), str(path), read_json_object(beside) if beside.is_file() else None)


def checkpoint_of(config: Mapping[str, Any], where: str, beside: Mapping[str, Any] | None = None) -> Checkpoint | None:
    """Of a config.json's values and those of hf_quant_config.json. Raises InputError for a wrong value, UnsupportedError for a
    method that is not read."""
    reader = ConfigReader(config, where)
    section = reader.section("quantization_config")
    for key in TEXT_SECTIONS:
        if not section.values():
            section = reader.section(key).section("quantization_config")
    if beside is not None and (not section.values() or section.text("quant_method", "modelopt") == "modelopt"):
        inner = ConfigReader(beside, f"{where}: {QUANT_FILE}").section("quantization")
        if inner.values():
            return _modelopt(inner)
    if not section.values():
        return None
    method = section.text("quant_method", "bitsandbytes" if "load_in_4bit" in section or "load_in_8bit" in section else "")
    read = _METHODS.get(method.lower().replace("_", "-"))
    if read is None:
        raise UnsupportedError(
            f"{section.where}: quant_method {method[:40]!r} is not read; read are {', '.join(sorted(_METHODS))}. Leave "
            "quantization_config out to plan the model in 16 bits"
        )
    return read(section)


def _names(cfg: ConfigReader, *keys: str) -> ModuleNames:
    """The lists of these keys together."""
    return ModuleNames([name for key in keys for name in cfg.items(key, str) or []], cfg.where)


def _layers(stored: Stored, cfg: ConfigReader, lm_head: bool = False) -> tuple[tuple[ModuleNames, Stored], ...]:
    """Linear layers of the stack, and the output layer where it is quantised too."""
    return ((ModuleNames(["layers", *(["lm_head"] if lm_head else [])], cfg.where), stored),)


def _integers(cfg: ConfigReader, bits: int, group: int, *, zeros: bool) -> Stored:
    """Whole numbers of `bits` bits with 16-bit scales: bits/8 + (2 + zero point) / group."""
    if bits not in (4, 8):
        raise UnsupportedError(f"{cfg.where}: bits={bits}: weights of 4 and of 8 bits are planned")
    shared = 2.0 + (bits / 8.0 if zeros else 0.0)
    size = bits / 8.0 + (shared / group if group > 0 else 0.0)
    return Stored(form=f"int{bits}", bytes=size, group=max(group, 0))


def _group_size(cfg: ConfigReader, default: int | None = 128) -> int:
    """-1 and null: a scale for each column."""
    key = "group_size" if cfg.has_key("group_size") else "q_group_size"
    value = cfg.integer(key, -1 if cfg.has_key(key) else default, low=-1)
    if value == 0:
        raise cfg.fail(f"{key} is 0: say how many weights share a scale, such as 128, or -1 for a scale a column")
    return value


def _awq(cfg: ConfigReader) -> Checkpoint:
    key = "bits" if cfg.has_key("bits") else "w_bit"
    if cfg.has_key(key) and key not in cfg:
        raise cfg.fail(f"{key} is null: say 4 or 8, or leave it out for 4")
    bits = cfg.integer(key, 4)
    stored = _integers(cfg, bits, _group_size(cfg), zeros=cfg.boolean("zero_point", True))
    return Checkpoint(method="awq", groups=_layers(stored, cfg), kept=_names(cfg, "modules_to_not_convert"))


def _gptq(cfg: ConfigReader) -> Checkpoint:
    stored = _integers(cfg, cfg.integer("bits"), _group_size(cfg), zeros=True)
    skipped = []
    for pattern, other in cfg.section("dynamic").values().items():
        if pattern.startswith("-:"):
            skipped.append("re:" + pattern[2:])
        elif not isinstance(other, Mapping) or other.get("bits", cfg.integer("bits")) != cfg.integer("bits"):
            raise UnsupportedError(f"{cfg.where}: dynamic {pattern[:60]!r} has other bits, which are not planned")
    kept = ModuleNames([*skipped, *(cfg.items("modules_to_not_convert", str) or [])], cfg.where)
    return Checkpoint(method="gptq", groups=_layers(stored, cfg, cfg.boolean("lm_head", False)), kept=kept)


def _block(cfg: ConfigReader, key: str) -> list[int]:
    """The two sides of the blocks that share a scale, or nothing."""
    sides = cfg.items(key, int) or []
    if sides and (len(sides) != 2 or min(sides) < 1):
        raise cfg.fail(f"{key} must be two whole numbers, such as [128, 128]")
    return sides


def _in_fp8(block: list[int]) -> Stored:
    """e4m3, with one fp32 scale a block where there are blocks."""
    if not block:
        return Stored(form="fp8", bytes=1.0)
    return Stored(form="fp8_block", bytes=1.0 + 4.0 / (block[0] * block[1]), group=block[1], rows=block[0])


def _fp8(cfg: ConfigReader) -> Checkpoint:
    kept = _names(cfg, "modules_to_not_convert", "ignored_layers")
    return Checkpoint(method="fp8", groups=_layers(_in_fp8(_block(cfg, "weight_block_size")), cfg), kept=kept)


NVFP4 = Stored(form="nvfp4", bytes=0.5 + 1.0 / 16, group=16)
MXFP4 = Stored(form="mxfp4", bytes=0.5 + 1.0 / 32, group=32)


def _mxfp4(cfg: ConfigReader) -> Checkpoint:
    """Routed experts only (transformers, quantizers/quantizer_mxfp4.py)."""
    names = ModuleNames(["experts"], cfg.where)
    return Checkpoint(method="mxfp4", groups=((names, MXFP4),), kept=_names(cfg, "modules_to_not_convert"))


def _bitsandbytes(cfg: ConfigReader) -> Checkpoint:
    four = cfg.boolean("load_in_4bit", cfg.boolean("_load_in_4bit", False))
    eight = cfg.boolean("load_in_8bit", cfg.boolean("_load_in_8bit", False))
    if four == eight:
        raise cfg.fail("load_in_4bit and load_in_8bit: one of them must be true")
    twice = cfg.boolean("bnb_4bit_use_double_quant", False)
    name = ("nf4" if twice else "nf4_single") if four else "int8"
    stored = Stored(form="int4" if four else "int8", bytes=FROZEN_BYTES[name])
    return Checkpoint(method="bitsandbytes", groups=_layers(stored, cfg), kept=_names(cfg, "llm_int8_skip_modules"))


def _compressed_tensors(cfg: ConfigReader) -> Checkpoint:
    sparse = cfg.section("sparsity_config").text("format", "dense")
    if sparse != "dense":
        raise UnsupportedError(f"{cfg.where}: sparsity_config format {sparse[:40]!r}: sparse weights are not planned")
    groups = []
    for name in cfg.section("config_groups").values():
        group = cfg.section("config_groups").section(name)
        targets = group.items("targets", str) or ["Linear"]
        if other := [target for target in targets if target[:1].isupper() and target != "Linear"]:
            raise UnsupportedError(f"{group.where}: target {other[0][:40]!r}: read are Linear, names of modules and re:")
        if "weights" not in group:  # its modules keep theirs in 16 bits; QuantizationScheme of compressed-tensors
            raise UnsupportedError(f"{group.where}: weights is null or missing: activations alone in 8 bits are not planned")
        names = ["layers" if target == "Linear" else target for target in targets]
        groups.append((ModuleNames(names, group.where), _compressed_weights(group)))
    if not groups:
        raise cfg.fail("config_groups is missing or empty")
    groups.sort(key=lambda one: one[0].has("layers"))
    cache = cfg.section("kv_cache_scheme")
    if cache.values() and (cache.integer("num_bits", 8), cache.text("type", "float")) != (8, "float"):
        raise UnsupportedError(f"{cache.where}: engines read caches of 8 bits of type float")
    kv = "fp8" if cache.values() else None
    return Checkpoint(method="compressed-tensors", groups=tuple(groups), kept=_names(cfg, "ignore"), kv=kv)


def _compressed_weights(group: ConfigReader) -> Stored:
    weights = group.section("weights")
    bits, kind = weights.integer("num_bits", 8), weights.text("type", "int")
    size = _group_size(weights, -1)
    if kind == "float" and bits == 8:
        return _in_fp8(_block(weights, "block_structure") if weights.text("strategy", "tensor") == "block" else [])
    if kind == "float" and bits == 4 and size in (16, 32):
        return NVFP4 if size == 16 else MXFP4
    if kind != "int":
        raise UnsupportedError(f"{weights.where}: {bits} bits of type {kind[:20]!r} in groups of {size} are not planned")
    return _integers(weights, bits, size, zeros=not weights.boolean("symmetric", True))


ALGORITHMS: dict[str, Stored] = {
    **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN"), Stored(form="fp8", bytes=1.0)),
    **dict.fromkeys(("FP8_BLOCK_SCALES", "FP8_PB_WO", "FP8_PB_REAL"), _in_fp8([128, 128])),
    **dict.fromkeys(("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8"), NVFP4),
    **dict.fromkeys(("MXFP4", "W4A16_MXFP4", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8"), MXFP4),
    **dict.fromkeys(("W4A16_AWQ", "W4A8_AWQ"), Stored(form="int4", bytes=0.5 + 2.0 / 128, group=128)),
    **dict.fromkeys(("W8A8_SQ_PER_CHANNEL", "INT8_SQ"), Stored(form="int8", bytes=1.0)),
}
"""ModelOpt's `quant_algo` (modelopt/torch/export, and TensorRT-LLM's QuantAlgo)."""


def _algorithm(cfg: ConfigReader) -> Stored:
    name = cfg.text("quant_algo")
    if name.upper() not in ALGORITHMS:
        raise UnsupportedError(f"{cfg.where}: quant_algo {name[:40]!r} is not read; read are {', '.join(ALGORITHMS)}")
    stored, group = ALGORITHMS[name.upper()], cfg.integer("group_size", 0, low=0)
    if stored.form == "int4" and group:
        return Stored(form="int4", bytes=0.5 + 2.0 / group, group=group)
    return stored


def _modelopt(cfg: ConfigReader) -> Checkpoint:
    """`quant_algo` for all, or with MIXED_PRECISION one a layer in `quantized_layers`."""
    kept = _names(cfg, "exclude_modules", "ignore")
    cache = cfg.text("kv_cache_quant_algo", "").upper() or ("FP8" if cfg.section("kv_cache_scheme").values() else "")
    kv = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}.get(cache)
    if cfg.text("quant_algo", "") != "MIXED_PRECISION":
        return Checkpoint(method="modelopt", groups=_layers(_algorithm(cfg), cfg, True), kept=kept, kv=kv)
    layers = cfg.section("quantized_layers")
    by: dict[Stored, list[str]] = {}
    for name in layers.values():
        by.setdefault(_algorithm(layers.section(name)), []).append(name)
    if not by:
        raise cfg.fail("quant_algo is MIXED_PRECISION and quantized_layers is missing")
    order = sorted(by, key=lambda stored: (sum("experts" in name for name in by[stored]), len(by[stored])))
    groups = tuple((ModuleNames(by[stored], cfg.where), stored) for stored in order)
    return Checkpoint(method="modelopt", groups=groups, kept=kept, kv=kv)


_METHODS: dict[str, Callable[[ConfigReader], Checkpoint]] = {
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "fbgemm-fp8": _fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
}
"""`quant_method`, with dashes -> what reads it."""
