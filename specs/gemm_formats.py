"""How the GEMMs of the layers are computed: one row for each precision and scaling recipe. A new one goes here.

What a GPU reaches in a format stands in `time_model/data/gpu_efficiency.json` under the format's `peak`, and what it casts
for a recipe under `cast_RECIPE_bytes` and `recipe_RECIPE`.
"""

from __future__ import annotations

from dataclasses import dataclass

MX_BYTES = 1 + 1 / 32
"""One byte and a shared scale per 32 elements (OCP Microscaling specification 1.0, section 5.2)."""
Flags = tuple[tuple[str, str | int | None], ...]


@dataclass(frozen=True, kw_only=True)
class GemmFormat:
    """One number format of the layers' GEMMs. Bytes are of one element."""

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
