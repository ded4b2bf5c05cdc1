"""Model state: weights, gradients and optimizer state of one rank.

Bytes per parameter follow Narayanan et al. 2021 (16-bit weights 2, fp32 main gradients 4, fp32 master weights and two
moments 12: 18 in all) and Rajbhandari et al. 2020 (ZeRO: what is divided over how many ranks). Megatron's distributed
optimizer is ZeRO-1 over dp x cp ranks for dense parameters and over the expert data-parallel ranks for experts
(megatron-core distributed/param_and_grad_buffer.py; measured: dividing by dp alone is 46-116 % high with cp).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.activations import Number
from autoconfig.specs.hardware.gpu import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import attention_gemms, mlp_gemms
from autoconfig.specs.numerics import TYPE_BYTES, Numerics
from autoconfig.specs.software.software import StackMemory


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Trained (or frozen) parameters of one rank that share one sharding."""

    parameters: Number
    """Of one rank, before data-parallel sharding."""
    gemm_weights: Number
    """Those that fp8 GEMMs read."""
    trainable: Number
    """Those with gradients and optimizer state; all of them unless LoRA."""
    shard: Number
    """Ranks over which data-parallel sharding divides."""


def weight_bytes(group: ParameterGroup, numerics: Numerics, gpu: GpuSpec, fsdp: Number, fp8_gather: Number) -> Number:
    """Weights: 2 bytes (4 in fp32), fp8 copies for GEMMs, divided over the group with FSDP (ZeRO-3).

    fp8 keeps the 16-bit weight and caches the fp8 one; with `fp8_gather` (specs.fp8_gather) the fp8 one replaces it.
    """
    wide = numerics.activation_bytes
    total = wide * group.parameters
    if numerics.format.quantised:
        cached = numerics.format.weight_copy_bytes(gpu.compute_capability)
        total = total + group.gemm_weights * np.where(fp8_gather, cached - 2, cached)
    return np.where(np.equal(fsdp, 3), total / group.shard, total)


def gradient_bytes(group: ParameterGroup, numerics: Numerics, fsdp: Number) -> Number:
    """The gradient buffer: 4 bytes with fp32 reduction, 2 with bf16; divided over the group from ZeRO-2 (fsdp 2, 3) on."""
    total = TYPE_BYTES[numerics.grad_reduce_dtype] * group.trainable
    return np.where(np.greater(fsdp, 0), total / group.shard, total)


def optimizer_bytes_per_parameter(numerics: Numerics) -> float:
    """Master weight and two moments: 12 in fp32; less with the precision-aware optimizer; 8 when weights are fp32 already."""
    master = 2 if numerics.store_param_remainders else TYPE_BYTES[numerics.main_params_dtype]
    if numerics.precision == "fp32":
        master = 0
    return float(master + TYPE_BYTES[numerics.exp_avg_dtype] + TYPE_BYTES[numerics.exp_avg_sq_dtype])


def optimizer_bytes(group: ParameterGroup, numerics: Numerics, dist_opt: Number, fsdp: Number, offload: Number) -> Number:
    """Optimizer state on the GPU: per-parameter bytes, divided over the group when sharded, less the share kept on the CPU."""
    total = optimizer_bytes_per_parameter(numerics) * group.trainable * (1 - np.asarray(offload))
    return np.where(np.logical_or(dist_opt, np.greater(fsdp, 0)), total / group.shard, total)


def optimizer_step_bytes(group: ParameterGroup, numerics: Numerics) -> Number:
    """Temporary of the optimizer step: 16-bit gradients of the shard are cast to fp32 (findings: + 4 P / shard)."""
    if numerics.grad_reduce_dtype == "fp32":
        return 0.0 * group.trainable
    return 4.0 * group.trainable / group.shard


def fsdp_unit_bytes(layer_parameters: Number, numerics: Numerics, fsdp: Number) -> Number:
    """Unsharded layers alive at once: two with prefetch, weights and gradients (ZeRO-3), gradients of two only (ZeRO-2)."""
    grad = TYPE_BYTES[numerics.grad_reduce_dtype]
    wide = numerics.activation_bytes
    return layer_parameters * np.where(np.equal(fsdp, 3), 2.0 * (wide + grad), np.where(np.equal(fsdp, 2), 2.0 * grad, 0.0))


def lora_parameters(model: ModelSpec, numerics: Numerics, moe: bool, tp: Number) -> Number:
    """Adapter parameters of one layer on one rank: rank x (in + out) per target matrix, the parallel side divided by tp.

    Source: Hu et al. 2021, section 4.1; adapters on experts are not modelled (MoE layers get attention adapters only).
    """
    tp = np.asarray(tp, float)
    h, rank = model.hidden_size, numerics.lora_rank
    attention, total = attention_gemms(model, 1), 0.0 * tp
    if "linear_qkv" in numerics.lora_target_modules:
        total = total + sum(rank * (h + w / h / tp) for name, w in attention.items() if name != "linear_proj")
    if "linear_proj" in numerics.lora_target_modules:
        total = total + rank * (attention["linear_proj"] / h / tp + h)
    if moe:
        return total
    mlp = mlp_gemms(model, model.ffn_hidden_size, 1)
    if "linear_fc1" in numerics.lora_target_modules:
        total = total + rank * (h + mlp["linear_fc1"] / h / tp)
    if "linear_fc2" in numerics.lora_target_modules:
        total = total + rank * (mlp["linear_fc2"] / h / tp + h)
    return total


def workspace_bytes(stack: StackMemory) -> int:
    """GEMM and attention workspaces that stay allocated among the tensors; a fact of the software stack."""
    return stack.workspace_bytes
