"""Numerics and Workload: what is computed, in which types, on how much data. Inputs with printed defaults, never searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.gemm_formats import FORMATS, FP8_RECIPES, PRECISIONS, GemmFormat
from autoconfig.specs.json_record import AboveZero, Keywords, Positive

TYPE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
CHOICES: dict[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "fp8_recipe": FP8_RECIPES,
    "peft": ("none", "lora"),
    "grad_reduce_dtype": ("fp32", "bf16"),
    "main_params_dtype": ("fp32", "fp16"),
    "exp_avg_dtype": ("fp32", "bf16", "fp16", "fp8"),
    "exp_avg_sq_dtype": ("fp32", "bf16", "fp16", "fp8"),
}
"""What the fields of Numerics that name a type or recipe may be."""
Dropout = Annotated[float, Keywords(minimum=0, exclusiveMaximum=1)]


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Types of the run, in Megatron's words. Raises InputError for values that do not exist."""

    precision: Annotated[str, Keywords(enum=CHOICES["precision"])] = "bf16"
    """bf16, fp16, fp8 (GEMMs in fp8, the rest in bf16) or fp32."""
    fp8_recipe: Annotated[str, Keywords(enum=CHOICES["fp8_recipe"])] = "delayed"
    fp8_param_gather: bool = False
    """Weights kept and gathered in fp8."""
    grad_reduce_dtype: Annotated[str, Keywords(enum=CHOICES["grad_reduce_dtype"])] = "fp32"
    """Type of the gradient buffer and its reduction: fp32 (accumulate_allreduce_grads_in_fp32) or bf16."""
    main_params_dtype: Annotated[str, Keywords(enum=CHOICES["main_params_dtype"])] = "fp32"
    exp_avg_dtype: Annotated[str, Keywords(enum=CHOICES["exp_avg_dtype"])] = "fp32"
    exp_avg_sq_dtype: Annotated[str, Keywords(enum=CHOICES["exp_avg_sq_dtype"])] = "fp32"
    """Types of the optimizer's master weights and moments; other than fp32 means the precision-aware optimizer."""
    store_param_remainders: bool = False
    """Master weights kept as the 16 bits that the bf16 weight lacks."""
    attention_dropout: Dropout = 0.1
    hidden_dropout: Dropout = 0.1
    """Megatron's defaults are 0.1 and 0.1."""
    moe_capacity_factor: AboveZero | None = None
    """Experts drop and pad to this multiple of a balanced load; None: dropless."""
    moe_imbalance: Annotated[float, Keywords(minimum=1)] = 1.0
    """Dropless: rows of the busiest rank over a balanced load."""
    deterministic: bool = False
    """Megatron's --deterministic-mode: limits which attention kernels may run."""
    peft: Annotated[str, Keywords(enum=CHOICES["peft"])] = "none"
    lora_rank: Positive = 8
    lora_target_modules: tuple[str, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name in ("attention_dropout", "hidden_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(f"{name}={getattr(self, name)!r} must be at least 0 and below 1")
        if self.fp8_param_gather and not self.format.quantised:
            raise InputError(f"fp8_param_gather needs precision fp8 ({option('precision')} fp8)")
        if not 1 <= self.lora_rank <= 65_536:
            raise InputError(f"lora_rank={self.lora_rank} must be from 1 to 65,536")
        if not 1.0 <= self.moe_imbalance <= 1000.0:
            raise InputError(f"moe_imbalance={self.moe_imbalance!r} must be from 1 (balanced) to 1,000")
        if self.moe_capacity_factor is not None and not 0.0 < self.moe_capacity_factor <= 1000.0:
            raise InputError(f"moe_capacity_factor={self.moe_capacity_factor!r} must be above 0 and at most 1,000")

    @property
    def format(self) -> GemmFormat:
        """The number format of the layers' GEMMs."""
        return FORMATS[self.precision, self.fp8_recipe if self.precision == "fp8" else ""]

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation outside quantised GEMM inputs."""
        return self.format.activation_bytes

    @property
    def gemm_precision(self) -> str:
        """Key of GpuSpec.flops_per_s for the GEMMs of the layers."""
        return self.format.peak


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one step trains on."""

    seq_length: Positive
    """Tokens of one sample."""
    global_batch_size: Positive
    """Samples of one optimizer step over the whole cluster."""

    def __post_init__(self) -> None:
        for name, most in (("seq_length", 2**24), ("global_batch_size", 2**24)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise InputError(f"{name}={value!r} must be a whole number from 1 to {most:,}")

    @property
    def tokens_per_step(self) -> int:
        return self.seq_length * self.global_batch_size
