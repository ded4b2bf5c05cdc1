"""EngineSpec: a generation of a serving engine, as data (specs/catalogue/engines). Fitted constants are in time_model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from operator import itemgetter
from typing import Any

from autoconfig.specs.errors import CatalogueError, UnknownNameError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec

WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4.0 / (128 * 128),
    "nvfp4": 0.5 + 1.0 / 16,
    "mxfp4": 0.5 + 1.0 / 32,
    "mxfp4_weight_only": 0.5 + 1.0 / 32,
    "int8": 1.0,
    "int4": 0.5 + 2.0 / 128,
}
"""Bytes of one weight with its scales. fp8_block: one fp32 per 128 x 128 (DeepSeek-V3, arXiv:2412.19437, section 3.3); nvfp4:
one e4m3 per 16 (NVIDIA, Introducing NVFP4); mxfp4: one e8m0 per 32 (OCP Microscaling Formats 1.0); int4: one fp16 per group of
128 (AWQ, arXiv:2306.00978); fp8 and int8: one scale per tensor or column, not counted."""

KV_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5 + 1.0 / 16}
"""Bytes of one cached number."""

WEIGHT_NAMES = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int8": "int8",
    "int4": "int4",
    "fp8_block": "fp8_block",
}
"""Words that people use -> our format. fp16 and bf16 cost the same."""
_FOLDER = resources.files("autoconfig.specs") / "catalogue"
_CHECKPOINTS = json.loads((_FOLDER / "checkpoints.json").read_text(encoding="utf-8"))
SPELLINGS = {name: kind for kind, names in _CHECKPOINTS["spellings"].items() for name in names}
"""Names of checkpoints and of engines' quantization options (TensorRT-LLM's QuantAlgo, vLLM's and SGLang's --quantization and
--kv-cache-dtype), read too. w8a8 alone is SmoothQuant's int8; w4a8 multiplies in 8 bits, which is priced as weights only."""
KV_NAMES = {"bf16": "bf16", "fp16": "bf16", "auto": "bf16", "fp8": "fp8", "int8": "int8", "fp4": "nvfp4", "nvfp4": "nvfp4"}
MIN_CAPABILITY = {"fp8": 8.9, "fp8_block": 8.9, "nvfp4": 10.0}
"""CUDA compute capability whose matrix unit multiplies the format (NVIDIA CUDA programming guide, arithmetic by capability)."""


@dataclass(frozen=True, kw_only=True)
class ModuleFormats:
    """Format of each kind of module. Embedding, router and norms stay in 16 bits."""

    attention: str
    mlp: str
    experts: str
    exact: tuple[tuple[str, float], ...] = ()
    """(part of memory_model.serving, bytes of one weight) of a checkpoint whose config says them; else its format's."""

    def bytes_of(self, part: str) -> float:
        """Of one weight of attention, mlp, experts, recurrent or output."""
        form = {"attention": self.attention, "mlp": self.mlp, "experts": self.experts, "recurrent": self.attention}.get(part)
        return dict(self.exact).get(part, WEIGHT_BYTES[form or "bf16"])

    def on(self, gpu: GpuSpec) -> ModuleFormats:
        """With mxfp4 as weights only where the GPU has no block-scaled fp4 unit (before compute capability 10)."""
        if (gpu.compute_capability or 0.0) >= 10.0:
            return self
        found = ("mxfp4_weight_only" if form == "mxfp4" else form for form in (self.attention, self.mlp, self.experts))
        attention, mlp, experts = found
        return replace(self, attention=attention, mlp=mlp, experts=experts)


def weight_format(text: str) -> str:
    """Our name of a weight format. Raises UnknownNameError naming what there is."""
    return _lookup("weight format", text, WEIGHT_NAMES)


def kv_format(text: str) -> str:
    """Our name of a KV cache format. Raises UnknownNameError naming what there is."""
    return _lookup("KV cache format", text, KV_NAMES)


def _lookup(kind: str, text: str, known: dict[str, str]) -> str:
    wanted = text.strip().lower().replace("-", "_")
    wanted = SPELLINGS.get(wanted, wanted)
    if wanted not in known:
        raise UnknownNameError(kind, text[:40], known, f"known: {', '.join(known)}")
    return known[wanted]


def require_sparse_kernels(model: ModelSpec, gpu: GpuSpec) -> None:
    """Raises UnsupportedError where nobody has kernels of the model's sparse attention (DSA) for the GPU: vLLM's and SGLang's,
    cuDNN's and DeepSeek's own are for compute capability 9 and 10."""
    if not 9.0 <= (gpu.compute_capability or 0.0) < 12.0:
        raise UnsupportedError(
            f"{model.name}: kernels of sparse attention (DSA) are there for Hopper and for Blackwell of data centres (compute "
            f"capability 9 and 10), not for {gpu.id}; say {option('gpu')} h100 or b200"
        )


def supports(gpu: GpuSpec, weights: str) -> bool:
    """Whether the GPU multiplies in this format (weight-only ones run everywhere); AMD's have fp8 from CDNA 3, no NVFP4."""
    if gpu.vendor == "amd" and weights in MIN_CAPABILITY:
        return weights != "nvfp4" and "fp8" in gpu.flops_per_s
    return (gpu.compute_capability or 0.0) >= MIN_CAPABILITY.get(weights, 0.0)


def cache_kernels(
    framework: str, gpu: GpuSpec, form: str, model: ModelSpec | None = None, release: tuple[int, ...] = ()
) -> str:
    """Why no attention kernel of the engine reads a cache in this format on this GPU; empty where one does.

    Below compute capability 8.9 FlashInfer's kernels turn fp8 into 16 bits themselves, from 8.0 on: SGLang's usual ones there
    (sgl-project/sglang#1204, measured on A100); vLLM takes them where the cache is in fp8 (v1/attention/backends/flashinfer.py
    from 0.11.1; platforms/cuda.py of 0.11.0 refuses, engine V0 before it served such starts). They have neither multi-latent
    attention nor sinks below 9.0.
    """
    if supports(gpu, form):
        return ""
    plain = model is None or not (model.multi_latent_attention or model.attention_sinks)
    by_engine = framework == "sglang" or (framework == "vllm" and release[:3] not in ((0, 11), (0, 11, 0)))
    converts = form == "fp8" and gpu.vendor == "nvidia" and (gpu.compute_capability or 0.0) >= 8.0
    return "" if converts and by_engine and plain else f"{gpu.id} has no kernels for a cache in {form}"


def module_formats(model: ModelSpec, weights: str, gpu: GpuSpec) -> ModuleFormats:
    """What a checkpoint published as `weights` stores where, as this GPU runs it."""
    return stored_formats(model, weights).on(gpu)


def stored_formats(model: ModelSpec, weights: str) -> ModuleFormats:
    """What a checkpoint published as `weights` stores where (catalogue/checkpoints.json by model name; else all alike)."""
    formats = {"attention": weights, "mlp": weights, "experts": weights}
    sizes: dict[str, float] = {}
    for prefix, by_format in _CHECKPOINTS["checkpoints"].items():
        if model.name.startswith(prefix) and weights in by_format:
            formats.update({part: form for part, form in by_format[weights].items() if part != "bytes"})
            sizes = by_format[weights].get("bytes", {})
    return ModuleFormats(**formats, exact=tuple(sizes.items()))


def published_format(model: ModelSpec) -> str:
    """The format in which its makers publish the model, where that is not 16 bits and known; else empty."""
    return next((form for prefix, form in _CHECKPOINTS["published"].items() if model.name.startswith(prefix)), "")


def published_formats(model: ModelSpec) -> list[str]:
    """Every format in which checkpoints of the model are known whose modules are not all stored alike (catalogue/
    checkpoints.json), its makers' first."""
    prefix = max((one for one in _CHECKPOINTS["checkpoints"] if model.name.startswith(one)), key=len, default="")
    return list(dict.fromkeys([*filter(None, [published_format(model)]), *_CHECKPOINTS["checkpoints"].get(prefix, ())]))


def stored_as(model: ModelSpec, weights: str, gpu: GpuSpec) -> str:
    """The format by whose name the checkpoint goes that is served where `weights` are asked for: the published one's where
    every module is stored as there (gpt-oss: fp8 and nvfp4 of benchmark tables are its MXFP4)."""
    published = published_format(model)
    alike = published and module_formats(model, published, gpu) == module_formats(model, weights, gpu)
    return published if alike else weights


def loads_checkpoint(framework: str, kind: str, gpu: GpuSpec) -> str:
    """Why the engine does not load a checkpoint of this kind (Checkpoint.kind) on this GPU; empty where it does."""
    if gpu.vendor == "amd":
        kinds: list[str] = _CHECKPOINTS["amd"].get(framework, [])
        loaded = f"on AMD's GPUs; it loads {', '.join(kinds) or 'none that are quantised'}"
        return "" if kind in kinds else f"{framework} does not load {kind} checkpoints {loaded}"
    known: dict[str, float] = _CHECKPOINTS["engines"].get(framework, {})
    if kind not in known:
        return f"{framework} does not load {kind} checkpoints; it loads {', '.join(known) or 'none that are quantised'}"
    if (gpu.compute_capability or 0.0) < known[kind]:
        has = f"{gpu.compute_capability:g}" if gpu.compute_capability else "none"
        return f"{framework} runs {kind} checkpoints from compute capability {known[kind]:g}; {gpu.id} has {has}"
    return ""


DEFAULT_ENGINE = "trtllm-1.2"


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """What decides memory and scheduling of one engine generation."""

    name: str
    description: str
    framework: str
    """tensorrt-llm, vllm, sglang, megatron: whose server config is written."""
    year: int
    parent: str | None = None
    """Generation whose constants stand in where this one was not measured (declared when: docs/accuracy/serving.md)."""
    aliases: tuple[str, ...] = ()
    """`backend` or `backend backend_version` of published tables."""
    kv_memory_ratio: float = 0.9
    """Share of the memory that is free after loading that becomes KV cache; of vLLM and SGLang of the whole device or of what
    is free before it, by release (specs.engines.releases)."""
    scheduler_policy: str = "no_evict"
    """A request is admitted when its whole cache is free (no_evict) or its prompt's (max_util: running ones may pause)."""
    kv_block_tokens: int = 32
    """Tokens of one cache block: a sequence's last block is half empty on average."""
    runtime_bytes: int = 0
    """CUDA context, libraries, communicators, graphs: what a process holds beside weights, cache and activations."""
    activation_live_buffers: float = 4.0
    """Buffers of hidden size alive at once per token of an iteration, beside the widest layer's."""
    reserves_slots: bool = False
    """Logits and decoding state are allocated for max_batch_size at the start (memory_model.serving.slot_bytes)."""
    keeps_window_only: bool = True
    """Sliding-window layers cache the window only; False: they keep every token."""
    reads_window_only: bool = True
    """Sliding-window layers read the window only; False: every cached token."""
    attention_dp: bool = True
    """Attention data parallelism is an option."""
    chunked_prefill: bool = True
    """Prompts are split over iterations by default."""
    eager_iterations: str = "none"
    """Iterations that the host launches operator by operator from Python: all, mixed (those with prompts), none."""
    graph_tokens: int = 0
    """Tokens up to which an iteration that carries prompts runs in piecewise CUDA graphs, as one that decodes."""
    max_num_tokens: int = 8192
    """Default tokens of one iteration."""
    max_batch_size: int = 2048
    """Default sequences of one iteration."""
    offline_limits: str = ""
    """How the published offline runs chose both (time_model.serving_benchmark): `trtllm-bench`, computed; `trtllm-bench table`,
    looked up; empty: the defaults."""
    offline_chunked: bool = False
    """The published offline runs split prompts (`chunking` of trtllm-bench)."""
    offline_batch_tuning: bool = False
    """The published offline runs rounded the batch down to what the cache holds (`dynamic_max_batch_size`)."""
    offline_graph_sizes: tuple[int, ...] = ()
    """Sequences of the CUDA graphs that the published offline runs captured (`cuda_graph_config.batch_sizes`)."""
    between: tuple[str, float] | None = None
    """(older generation, its share of the constants) of a release between two known ones; never in the catalogue."""
    submission: bool = False
    """Set up by the submitters of a benchmark: stands in for no other release."""
    sources: dict[str, str] = field(default_factory=dict, hash=False, compare=False)

    def is_release(self, version: str) -> bool:
        """Whether `version` (0.14.0, v0.17, empty for whichever) is this generation's."""
        return not version or (_release(version) is not None and _release(version) == _release(self.name))


def engine_names() -> list[str]:
    """Canonical names, sorted."""
    files = (entry.name for entry in (_FOLDER / "engines").iterdir())
    return sorted(name.removesuffix(".json") for name in files if name.endswith(".json"))


@cache
def load_engine(name: str) -> EngineSpec:
    """The engine with this name or alias. Raises UnknownNameError with the nearest names."""
    wanted = " ".join(name.strip().lower().split())
    for candidate in engine_names():
        spec = _load(candidate)
        if wanted == candidate or wanted in spec.aliases:
            return spec
    if named := re.fullmatch(r"(vllm|sglang)[ @:=_-]{1,2}v?([0-9]+(?:\.[0-9]+)+)", wanted):
        raise UnknownNameError(
            "engine", name[:40], [named[1]], f"say {option('engine')} {named[1]} {option('release')} {named[2]}", field="engine"
        )
    raise UnknownNameError("engine", name[:40], engine_names(), f"there are {', '.join(engine_names())}", field="engine")


RELEASED = {
    "0.12": "2024-08", "0.13": "2024-09", "0.14": "2024-11", "0.15": "2024-12", "0.16": "2024-12", "0.17": "2025-02",
    "0.18": "2025-03", "0.19": "2025-05", "0.20": "2025-06", "0.21": "2025-07", "1.0": "2025-09", "1.1": "2025-11",
    "1.2": "2025-12",
}  # fmt: skip
"""Month of TensorRT-LLM's releases (NVIDIA/TensorRT-LLM, releases; 1.2: of the main branch whose runs are known)."""


def nearest_release(backend: str, version: str) -> EngineSpec | None:
    """The generation of `backend` that stands for release `version`; None for an unknown backend.

    Between two known ones of the same runtime it is the newer one's (0.20's published runs lacked CUDA graphs by mistake) with
    `between`, by date; between runtimes, before the first and beyond the last the nearer one by date. Without a date of its
    own a version counts as the last release before it.
    """
    engine = _of_backend(backend)
    if engine is None:
        return None
    wanted, generations = _release(version), _generations(engine.framework)
    if wanted is None or not generations or engine.submission:
        return engine
    older = [one for one in generations if one[0] <= wanted]
    newer = [one for one in generations if one[0] >= wanted]
    (earlier, before), (later, after) = (older or newer[:1])[-1], (newer or older[-1:])[0]
    if before is after:
        return before
    first, at, last = map(_month, (earlier, wanted, later))
    if before.reserves_slots != after.reserves_slots:
        return before if at - first <= last - at else after
    return replace(after, between=(before.name, (last - at) / (last - first)))


def _of_backend(backend: str) -> EngineSpec | None:
    try:
        return load_engine(backend)
    except UnknownNameError:
        trt = re.match(r"(trt|tensorrt)[-_ ]?llm", backend.strip().lower())
        return load_engine("tensorrt-llm") if trt else None


def _generations(framework: str) -> list[tuple[int, EngineSpec]]:
    """Releases of a framework with their specifications, oldest first; submissions to MLPerf aside."""
    specs = [spec for name in engine_names() if (spec := _load(name)).framework == framework and not spec.submission]
    return sorted(((release, spec) for spec in specs if (release := _release(spec.name)) is not None), key=itemgetter(0))


def _month(release: int) -> int:
    """Months since year 0 of the last dated release up to this one."""
    dated = {_release(name) or 0: date for name, date in RELEASED.items()}
    year, month = dated[max((one for one in dated if one <= release), default=min(dated))].split("-")
    return 12 * int(year) + int(month)


def kernel_age(engine: EngineSpec) -> float:
    """Years from the release of a TensorRT-LLM generation to the last dated one, whose kernels the operator tables hold (1.3 of
    the month after); 0 of other engines, whose kernels are not known to be older."""
    release = _release(engine.name)
    if engine.framework != "tensorrt-llm" or release is None:
        return 0.0
    return (max(_month(_release(name) or 0) for name in RELEASED) - _month(release)) / 12.0


RELEASES_BEFORE_1 = 22
"""TensorRT-LLM counted 0.1 to 0.21, then 1.0 (NVIDIA/TensorRT-LLM, releases)."""


def _release(text: str) -> int | None:
    """Which release a name or version is, counted from the first; None where it holds no number."""
    found = re.search(r"(?<![0-9.])([0-9]{1,3})\.([0-9]{1,3})", text)
    return int(found[1]) * RELEASES_BEFORE_1 + int(found[2]) if found else None


@cache
def _load(name: str) -> EngineSpec:
    data: dict[str, Any] = json.loads((_FOLDER / "engines" / f"{name}.json").read_text(encoding="utf-8"))
    unknown = set(data) - {f.name for f in fields(EngineSpec)}
    if unknown or data.get("name") != name:
        raise CatalogueError(
            f"engines/{name}.json: {'unknown keys ' + ', '.join(sorted(unknown)) if unknown else 'another name inside'}"
        )
    return EngineSpec(**{**data, **{key: tuple(data.get(key, ())) for key in ("aliases", "offline_graph_sizes")}})
