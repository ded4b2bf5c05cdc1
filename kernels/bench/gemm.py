"""GEMM and grouped GEMM: seconds of [m, k] x [k, n] as a linear layer runs it (weight stored [n, k])."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FP8_MULTIPLE = 16
"""torch._scaled_mm takes sizes that are multiples of 16."""


def dtype_of(torch: Any, precision: str) -> Any:
    """torch's type of the operands."""
    return {"bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32, "fp8": torch.float8_e4m3fn}[precision]


def gemm_operand_bytes(m: int, n: int, k: int, precision: str, groups: int = 1) -> float:
    """Bytes of operands and result: what must fit on the device. fp8 is made from 16 bits."""
    return groups * (m * k + k * n + m * n) * (4.0 if precision in ("fp32", "tf32") else 2.0 if precision == "bf16" else 3.0)


def gemm_call(torch: Any, device: Any, m: int, n: int, k: int, precision: str, *, fast: bool = True) -> Callable[[], object]:
    """One GEMM on random operands. `fast`: fp8 accumulates in fewer bits where the GPU can (forward passes do).

    Raises what torch raises where the device cannot, RuntimeError (also for too little memory) or NotImplementedError: the
    caller names the point in the file's `skipped`.
    """
    if precision == "fp8":
        x, w = (torch.randn(rows, k, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn) for rows in (m, n))
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)
    dtype = dtype_of(torch, precision)
    x, w = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    y = torch.empty(m, n, device=device, dtype=dtype)
    return lambda: torch.mm(x, w.t(), out=y)


def grouped_gemm_call(
    torch: Any, device: Any, rows: int, width: int, groups: int, precision: str
) -> tuple[Callable[[], object], str]:
    """(`groups` GEMMs of [rows, width] x [width, width], name of the kernel): torch._grouped_mm where it runs, else a loop."""
    dtype = dtype_of(torch, precision)
    x = torch.randn(groups * rows, width, device=device, dtype=dtype)
    w = torch.randn(groups, width, width, device=device, dtype=dtype)
    if precision == "bf16" and hasattr(torch, "_grouped_mm"):
        ends = torch.arange(rows, groups * rows + 1, rows, device=device, dtype=torch.int32)
        try:
            torch._grouped_mm(x, w, offs=ends)
        except (RuntimeError, NotImplementedError):
            pass  # not there for this device or these sizes: the loop below is measured instead, and the table names it
        else:
            return lambda: torch._grouped_mm(x, w, offs=ends), "torch._grouped_mm"
    parts = x.view(groups, rows, width)
    return lambda: [torch.mm(parts[i], w[i]) for i in range(groups)], "one GEMM per group"
