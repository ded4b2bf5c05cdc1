"""Roofline times of a serving engine's operators: max(FLOPs / peak, bytes / HBM).

The serving tables (data/serving) hold the share of these times that was measured. Peaks and bandwidth are the catalogue's.
"""

from __future__ import annotations

import numpy as np
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.software.engine import KV_BYTES, WEIGHT_BYTES

INPUT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5625,
    "mxfp4": 1.0,
    "mxfp4_weight_only": 2.0,
    "int8": 2.0,
    "int4": 2.0,
}
"""Bytes of one element of the other operand: quantised like the weights, 16 bits beside weight-only formats, fp8 beside
mxfp4."""
UNIT = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp8"}
"""Which matrix unit multiplies; 16 bits where not named."""
LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
"""Widths of the measured multi-latent attention: DeepSeek-V2 and V3."""


def peak(gpu: GpuSpec, precision: str) -> float:
    """FLOP/s of the unit; the 16-bit one where the GPU lacks it."""
    return gpu.flops_per_s.get(UNIT.get(precision, "bf16"), gpu.sixteen_bit_flops_per_s)


def gemm_seconds(m: Number, n: Number, k: Number, precision: str, gpu: GpuSpec) -> Number:
    """C[m, n] = A[m, k] B[k, n]: weights n k once, inputs m k, 16-bit outputs m n."""
    traffic = WEIGHT_BYTES[precision] * n * k + INPUT_BYTES[precision] * m * k + 2.0 * m * n
    return np.maximum(2.0 * m * n * k / peak(gpu, precision), traffic / gpu.hbm_bytes_per_s)


def decode_attention_seconds(
    sequences: Number, heads: Number, kv_heads: Number, head_dim: Number, length: Number, kv: str, gpu: GpuSpec
) -> Number:
    """One token of each sequence against `length` cached ones: keys and values read once, queries and outputs in 16 bits."""
    traffic = 2.0 * kv_heads * length * head_dim * KV_BYTES[kv] + 4.0 * heads * head_dim
    return sequences * np.maximum(4.0 * heads * head_dim * length / gpu.sixteen_bit_flops_per_s, traffic / gpu.hbm_bytes_per_s)


def context_attention_seconds(
    sequences: Number, heads: Number, kv_heads: Number, head_dim: Number, length: Number, kind: str, gpu: GpuSpec
) -> Number:
    """Causal attention of `length` new tokens: 4 d pairs FLOPs a head, pairs = s (s + 1) / 2; q, k, v read, output written."""
    rate = gpu.flops_per_s.get("fp8" if kind == "fp8" else "bf16", gpu.sixteen_bit_flops_per_s)
    flops = 2.0 * heads * head_dim * length * (length + 1.0)
    traffic = length * head_dim * (4.0 * heads + 6.0 * kv_heads)
    return sequences * np.maximum(flops / rate, traffic / gpu.hbm_bytes_per_s)


def experts_bounds(
    rows: Number, experts: Number, active: Number, hidden: Number, ffn: Number, precision: str, gpu: GpuSpec
) -> tuple[Number, Number]:
    """(seconds of the matrix units, of the memory) of gated experts of one rank: `rows` tokens for each of `experts` local
    experts, `active` of them touched at all.

    6 h f FLOPs a row; the touched experts' 3 h f weights once, rows in and out in 16 bits.
    """
    weights = 3.0 * active * hidden * ffn * WEIGHT_BYTES[precision] / gpu.hbm_bytes_per_s
    passed = expert_rows_seconds(rows, experts, hidden, ffn, gpu)
    return 6.0 * rows * experts * hidden * ffn / peak(gpu, precision), weights + passed


def expert_rows_seconds(rows: Number, experts: Number, hidden: Number, ffn: Number, gpu: GpuSpec) -> Number:
    """Rows of gated experts in and out, hidden and inner width, once each in 16 bits."""
    return 4.0 * rows * experts * (hidden + ffn) / gpu.hbm_bytes_per_s


def experts_seconds(
    rows: Number, experts: Number, active: Number, hidden: Number, ffn: Number, precision: str, gpu: GpuSpec
) -> Number:
    """The longer of both."""
    return np.maximum(*experts_bounds(rows, experts, active, hidden, ffn, precision, gpu))


def latent_decode_seconds(sequences: Number, heads: Number, length: Number, kv: str, gpu: GpuSpec) -> Number:
    """One token of each sequence on the compressed cache (latent + rope, shared by all heads)."""
    flops = 2.0 * heads * length * (2.0 * LATENT + ROPE)
    traffic = length * (LATENT + ROPE) * KV_BYTES[kv] + 2.0 * heads * (2.0 * LATENT + ROPE)
    return sequences * np.maximum(flops / gpu.sixteen_bit_flops_per_s, traffic / gpu.hbm_bytes_per_s)


def latent_context_seconds(sequences: Number, heads: Number, length: Number, kv: str, gpu: GpuSpec) -> Number:
    """Causal attention of `length` new tokens on expanded heads."""
    flops = heads * length * (length + 1.0) * (NOPE + ROPE + VALUE)
    traffic = 2.0 * heads * length * (2.0 * (NOPE + ROPE) + 2.0 * VALUE) + KV_BYTES[kv] * length * (LATENT + ROPE)
    return sequences * np.maximum(flops / gpu.sixteen_bit_flops_per_s, traffic / gpu.hbm_bytes_per_s)
