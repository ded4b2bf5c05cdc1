"""Memory-bound operators (copies, norms, pointwise chains) and what a launch costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def copy_call(torch: Any, device: Any, num_bytes: int) -> tuple[Callable[[], object], float]:
    """(copy of a buffer of `num_bytes`, bytes that it moves): each byte is read and written."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2.0 * num_bytes


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
