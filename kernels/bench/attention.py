"""Attention: the causal forward and backward pass of fused kernels, and the batched GEMMs of unfused attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


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
