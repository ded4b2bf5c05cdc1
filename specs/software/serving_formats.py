"""Number formats of a served checkpoint: which module is stored how, and how many bytes a weight or a cached number takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.errors import UnknownNameError
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
SPELLINGS = {
    "float16": "bf16",
    "bfloat16": "bf16",
    "half": "bf16",
    "fp8_e4m3": "fp8",
    "e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "e5m2": "fp8",
    "w8a8_fp8": "fp8",
    "w8a8": "int8",
    "w8a8_int8": "int8",
    "int8_sq": "int8",
    "w8a8_sq_per_channel": "int8",
    "int4_awq": "int4",
    "w4a16_awq": "int4",
    "w4a16": "int4",
    "w4a8_awq": "int4",
    "w4a8": "int4",
    "awq": "int4",
    "gptq": "int4",
    "int4_gptq": "int4",
    "block_fp8": "fp8_block",
}
"""Names of checkpoints and of engines' quantization options (TensorRT-LLM's QuantAlgo, vLLM's and SGLang's --quantization and
--kv-cache-dtype), read too. w8a8 alone is SmoothQuant's int8; w4a8 multiplies in 8 bits, which is priced as weights only."""
KV_NAMES = {"bf16": "bf16", "fp16": "bf16", "auto": "bf16", "fp8": "fp8", "int8": "int8", "fp4": "nvfp4", "nvfp4": "nvfp4"}
MIN_CAPABILITY = {"fp8": 8.9, "fp8_block": 8.9, "nvfp4": 10.0}
"""CUDA compute capability whose matrix unit multiplies the format (NVIDIA CUDA programming guide, arithmetic by capability)."""


@dataclass(frozen=True, kw_only=True)
class ModuleFormats:
    """Format of each kind of module. Embedding, router, norms and output layer stay in 16 bits."""

    attention: str
    mlp: str
    experts: str


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


def supports(gpu: GpuSpec, weights: str) -> bool:
    """Whether the GPU multiplies in this format (weight-only formats run everywhere)."""
    return (gpu.compute_capability or 0.0) >= MIN_CAPABILITY.get(weights, 0.0)


def module_formats(model: ModelSpec, weights: str, gpu: GpuSpec) -> ModuleFormats:
    """What a checkpoint published as `weights` stores where (catalogue/checkpoints.json by model name; else all alike).

    mxfp4 is weight-only where the GPU has no block-scaled fp4 unit (before compute capability 10).
    """
    formats = {"attention": weights, "mlp": weights, "experts": weights}
    for prefix, by_format in _checkpoints().items():
        if model.name.startswith(prefix) and weights in by_format:
            formats.update(by_format[weights])
    if (gpu.compute_capability or 0.0) < 10.0:
        formats = {k: "mxfp4_weight_only" if v == "mxfp4" else v for k, v in formats.items()}
    return ModuleFormats(**formats)


@cache
def _checkpoints() -> dict[str, Any]:
    text = (resources.files("autoconfig.specs") / "catalogue" / "checkpoints.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)["checkpoints"]
    return data
