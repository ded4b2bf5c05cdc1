"""Numerics and Workload: what is computed, in which types, on how much data. Inputs with printed defaults, never searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.json_record import AboveZero, Keywords, Positive

MX_BYTES = 1 + 1 / 32
"""One byte and a shared scale per 32 elements (OCP Microscaling specification 1.0, section 5.2)."""
Flags = tuple[tuple[str, str | int | None], ...]


@dataclass(frozen=True, kw_only=True)
class GemmFormat:
    """One number format of the layers' GEMMs: a new precision or scaling recipe is a new row of FORMATS. Bytes are of one
    element.

    What a GPU reaches in a format stands in `time_model/data/gpu_efficiency.json` under the format's `peak`, and what it casts
    for a recipe under `cast_RECIPE_bytes` and `recipe_RECIPE`.
    """

    peak: str
    """Key of GpuSpec.flops_per_s."""
    recipe: str = ""
    """How a quantised format is scaled."""
    activation_bytes: int = 2
    """Of what no GEMM quantises."""
    quantised: bool = False
    """Operands are cast from 16 bits; all that is no GEMM of a layer stays in 16 bits."""
    operand_bytes: float = 2.0
    """Of an operand that a GEMM reads, and of a weight that is gathered in this format."""
    saved_bytes: float = 2.0
    """Of a GEMM's input that is saved in this format, and of one orientation of a weight."""
    both_orientations: bool = False
    """A weight is kept along rows and columns on every GPU; else where GEMMs take one layout only (below Blackwell)."""
    least_compute_capability: float = 0.0
    flags: Flags = ()
    """Megatron-LM's arguments, without the dashes."""

    def weight_copy_bytes(self, compute_capability: float | None) -> float:
        """Bytes of a quantised weight with every orientation that the GPU needs. No measured row.

        Source: Transformer Engine's Float8Tensor, MXFP8Tensor.
        """
        return self.saved_bytes * (2.0 if self.both_orientations or (compute_capability or 0.0) < BLACKWELL else 1.0)


BLACKWELL = 10.0
"""Compute capability from which fp8 GEMMs read either layout, and microscaling formats exist (Transformer Engine)."""


def _fp8(recipe: str, form: str, *more: tuple[str, str | int], **changes: float) -> GemmFormat:
    flags: Flags = (("bf16", None), ("fp8-format", form), ("fp8-recipe", recipe), *more)
    values = {"operand_bytes": 1.0, "saved_bytes": 1.0, **changes}
    return GemmFormat(peak="fp8", recipe=recipe, quantised=True, flags=flags, **values)  # type: ignore[arg-type]


FORMATS: dict[tuple[str, str], GemmFormat] = {
    ("bf16", ""): GemmFormat(peak="bf16", flags=(("bf16", None),)),
    ("fp16", ""): GemmFormat(peak="fp16", flags=(("fp16", None),)),
    ("fp8", "delayed"): _fp8("delayed", "hybrid", ("fp8-amax-history-len", 1024), ("fp8-amax-compute-algo", "max")),
    ("fp8", "tensorwise"): _fp8("tensorwise", "hybrid"),
    ("fp8", "blockwise"): _fp8("blockwise", "e4m3"),
    ("fp8", "mxfp8"): _fp8("mxfp8", "e4m3", saved_bytes=MX_BYTES, both_orientations=True, least_compute_capability=BLACKWELL),
    ("fp32", ""): GemmFormat(peak="tf32", activation_bytes=4, operand_bytes=4.0, saved_bytes=4.0),
}
"""(precision, fp8 recipe; empty where there is none) -> format."""
PRECISIONS = tuple(dict.fromkeys(precision for precision, _ in FORMATS))
FP8_RECIPES = tuple(recipe for precision, recipe in FORMATS if precision == "fp8")
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
