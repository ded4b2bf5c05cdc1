"""What is timed: GEMMs as a linear layer runs them (weight stored [n, k]), memory-bound operators, launches, attention."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    """One GEMM on random operands. `fast`: fp8 accumulates in fewer bits where the GPU can (forward passes do). Raises what
    torch raises where the device cannot, RuntimeError (also for too little memory) or NotImplementedError: the caller names the
    point in the file's `skipped`."""
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


def copy_call(torch: Any, device: Any, num_bytes: int) -> Callable[[], object]:
    """Copy of a buffer of `num_bytes`."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


POINTWISE = ("residual", "gelu", "silu", "layernorm", "rmsnorm", "softmax")


def pointwise_call(
    torch: Any, device: Any, name: str, shape: tuple[int, int], dtype: Any
) -> tuple[Callable[[], object], float]:
    """(one-kernel operator over [tokens, hidden], bytes that it must move): inputs read once, result written once."""
    functional, hidden = torch.nn.functional, shape[1]
    x, y = (torch.randn(*shape, device=device, dtype=dtype) for _ in range(2))
    weight, out = torch.ones(hidden, device=device, dtype=dtype), torch.empty_like(x)
    calls: dict[str, Callable[[], object]] = {
        "residual": lambda: torch.add(x, y, out=out),
        "gelu": lambda: functional.gelu(x, approximate="tanh"),
        "silu": lambda: functional.silu(x),
        "layernorm": lambda: functional.layer_norm(x, (hidden,), weight, weight),
        "rmsnorm": lambda: functional.rms_norm(x, (hidden,), weight),
        "softmax": lambda: torch.softmax(x, dim=-1),
    }
    passes = 3.0 if name == "residual" else 2.0
    return calls[name], passes * float(x.element_size()) * x.numel()


CHAIN = ("residual", "gelu", "silu", "layernorm")
"""Operators whose mean (geometric) is the share of memory bandwidth that memory-bound chains reach."""


def launch_seconds(torch: Any, device: Any, count: int) -> dict[str, float]:
    """`host_s`: host seconds per launch of a tiny operator; `device_s`: seconds per launch until the device is done; with CUDA
    graphs also `graph_host_s` (per replay of the graph) and `graph_device_s` (per kernel)."""
    x = torch.zeros(1, device=device)
    synchronize = torch.cuda.synchronize if x.is_cuda else lambda: None

    def loop() -> None:
        for _ in range(count):
            x.add_(1.0)

    def timed(run: Callable[[], object]) -> tuple[float, float]:
        run()
        synchronize()
        start = time.perf_counter()
        run()
        host = time.perf_counter() - start
        synchronize()
        return host, time.perf_counter() - start

    host, whole = min((timed(loop) for _ in range(5)), key=lambda pair: pair[1])
    found = {"host_s": host / count, "device_s": whole / count}
    if x.is_cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loop()
        host, whole = min((timed(graph.replay) for _ in range(5)), key=lambda pair: pair[1])
        found |= {"graph_host_s": host, "graph_device_s": whole / count}
    return found


@dataclass(frozen=True)
class Kernel:
    """One way to run fused attention here."""

    name: str
    generation: str
    """flash2 or flash3: which kernels of the software stacks these are (specs.software)."""
    run: Callable[[Any, Any, Any], Any]
    """(q, k, v), each [batch, heads, length, head_dim] -> output of the same shape."""


def attention_flops(parallel: int, length: int, head_dim: int) -> float:
    """Causal forward pass: 2 x 2 d FLOPs for s^2/2 pairs of each head and sample."""
    return 2.0 * parallel * float(length) ** 2 * head_dim


def attention_kernels(torch: Any, device_type: str) -> Iterator[Kernel]:
    """Every fused kernel that might run here, torch's own and those of the flash-attention packages."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def sdpa(backend: Any) -> Callable[[Any, Any, Any], Any]:
        def run(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return run

    yield Kernel("torch SDPA flash", "flash2", sdpa(SDPBackend.FLASH_ATTENTION))
    if device_type != "cuda":
        return
    yield Kernel("torch SDPA cuDNN", "flash3", sdpa(SDPBackend.CUDNN_ATTENTION))
    for module, generation in (("flash_attn_interface", "flash3"), ("flash_attn", "flash2")):
        try:
            call = __import__(module).flash_attn_func
        except (ImportError, AttributeError):
            continue
        yield Kernel(module, generation, _package_call(call))


def _package_call(call: Any) -> Callable[[Any, Any, Any], Any]:
    """The packages take [batch, length, heads, head_dim]."""

    def run(q: Any, k: Any, v: Any) -> Any:
        out = call(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return run


def attention_calls(
    torch: Any, device: Any, kernel: Kernel, parallel: int, length: int, head_dim: int, dtype: Any
) -> tuple[Callable[[], object], Callable[[], object]]:
    """(forward, backward) on random operands of `parallel` heads. Raises RuntimeError where the kernel does not run."""
    q, k, v = (torch.randn(1, parallel, length, head_dim, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    out = kernel.run(q, k, v)
    gradient = torch.randn_like(out)
    still = [x.detach() for x in (q, k, v)]

    def forward() -> object:
        with torch.no_grad():
            return kernel.run(*still)

    return forward, lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def score_gemm_call(torch: Any, device: Any, parallel: int, length: int, head_dim: int, dtype: Any) -> Callable[[], object]:
    """The scores' batched GEMM of unfused attention: `parallel` times [s, d] x [d, s]."""
    q, k = (torch.randn(parallel, length, head_dim, device=device, dtype=dtype) for _ in range(2))
    scores = torch.empty(parallel, length, length, device=device, dtype=dtype)
    return lambda: torch.bmm(q, k.transpose(1, 2), out=scores)
