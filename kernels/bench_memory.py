"""Memory-bound operators (copies, norms, pointwise chains) and what a launch costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any


def copy_call(torch: Any, device: Any, num_bytes: int) -> tuple[Callable[[], object], float]:
    """(copy of a buffer of `num_bytes`, bytes that it moves): each byte is read and written."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2.0 * num_bytes


def pointwise_calls(torch: Any, device: Any, tokens: int, hidden: int, dtype: Any) -> Iterator[tuple[str, Callable[[], object], float]]:
    """(name, call, bytes that it must move) of one-kernel operators over [tokens, hidden]: inputs read once, result written
    once."""
    F = torch.nn.functional
    x, y = (torch.randn(tokens, hidden, device=device, dtype=dtype) for _ in range(2))
    weight = torch.ones(hidden, device=device, dtype=dtype)
    size, out = float(x.element_size()) * x.numel(), torch.empty_like(x)
    yield "residual", lambda: torch.add(x, y, out=out), 3.0 * size
    yield "gelu", lambda: F.gelu(x, approximate="tanh"), 2.0 * size
    yield "silu", lambda: F.silu(x), 2.0 * size
    yield "layernorm", lambda: F.layer_norm(x, (hidden,), weight, weight), 2.0 * size
    if hasattr(F, "rms_norm"):
        yield "rmsnorm", lambda: F.rms_norm(x, (hidden,), weight), 2.0 * size
    yield "softmax", lambda: torch.softmax(x, dim=-1), 2.0 * size


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
