"""Seconds by phase of a step, through the timer interface that megatron-core's schedules call (`config.timers`), and of one
layer and micro-batch, from hooks on modules and on their tensors.

On CUDA phases are bracketed by events, so that timing adds no synchronisation. Passes of a layer: forward, backward, recompute
(a forward that runs inside a backward). Kinds: `dense` and `moe` layers, `embedding`, and `head`, which is the output layer and
the loss. Backward of a layer is from the gradient of its output to that of its input, less the recomputation in between.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_layer import TransformerLayer

PHASES = {"forward-compute": "forward", "backward-compute": "backward"}


class PhaseTimers:
    """Called as megatron-core's Timers: `timers("forward-compute", log_level=2).start()` ... `.stop()`."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._spans: dict[str, list[tuple[Any, Any]]] = {}
        self.running: dict[str, Any] = {}

    def __call__(self, name: str, log_level: int = 0) -> _Timer:
        return _Timer(self, PHASES.get(name, ""))

    def phase(self, name: str) -> _Timer:
        return _Timer(self, name)

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start: Any, end: Any) -> None:
        self._spans.setdefault(name, []).append((start, end))

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks. On CUDA the device must be synchronised."""
        return float(start.elapsed_time(end) / 1000 if self._cuda else end - start)

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call. On CUDA the device must be synchronised."""
        spans, self._spans = self._spans, {}
        return {name: sum(self.seconds(*span) for span in pairs) for name, pairs in spans.items()}


class _Timer:
    def __init__(self, owner: PhaseTimers, name: str) -> None:
        self._owner, self._name = owner, name

    def start(self, barrier: bool = False) -> None:
        if self._name:
            self._owner.running[self._name] = self._owner.mark()

    def stop(self, barrier: bool = False) -> None:
        if self._name:
            self._owner.add(self._name, self._owner.running.pop(self._name), self._owner.mark())

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()


class Apart:
    """Spans of work that only emulation does: no part of a layer's time."""

    def __init__(self) -> None:
        self.mark: Callable[[], Any] | None = None
        """Set while layers are timed."""
        self.spans: list[tuple[Any, Any]] = []

    @contextlib.contextmanager
    def span(self) -> Iterator[None]:
        """What runs inside is noted."""
        start = self.mark() if self.mark else None
        yield
        if self.mark:
            self.spans.append((start, self.mark()))


Span = tuple[Any, Any, int, int]
"""(start, end) of a pass, and which spans apart lie in it."""
RECOMPUTED = ("core_attention", "mlp", "input_layernorm", "pre_mlp_layernorm")
"""Modules of a layer that selective recomputation runs again on their own."""


class LayerTimers:
    """Attach to model chunks for the steps to be timed; `medians` afterwards."""

    def __init__(self, mark: Callable[[], Any], seconds: Callable[[Any, Any], float], apart: Apart) -> None:
        """`mark` notes this moment on the device's clock, `seconds` is the time between two marks."""
        self._mark, self._seconds, self._apart = mark, seconds, apart
        self._spans: dict[str, list[Span]] = defaultdict(list)
        self._backwards: list[tuple[str, Span, int, int]] = []
        self._parts: list[Span] = []
        self._depth = 0
        self._hooks: list[Any] = []

    def attach(self, chunks: list[Any]) -> None:
        """Time these chunks' layers from now on."""
        self._apart.mark = self._mark
        for chunk in chunks:
            for name, module in chunk.named_modules():
                if isinstance(module, TransformerLayer):
                    self._time(module, "moe" if isinstance(module.mlp, MoELayer) else "dense")
                    for part in RECOMPUTED:
                        if hasattr(module, part):
                            self._time_again(getattr(module, part))
                elif name.endswith("embedding") and hasattr(module, "word_embeddings"):
                    self._time(module, "embedding")
                elif name.endswith("output_layer"):
                    self._time(module, "head")

    def detach(self) -> None:
        """Take all hooks away."""
        self._apart.mark = None
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def medians(self) -> dict[str, float]:
        """`dense.forward` and so on -> median seconds. On CUDA the device must be synchronised."""
        samples = {name: [self._net(span) for span in spans] for name, spans in self._spans.items()}
        for kind, span, first, last in self._backwards:
            again = sum(self._net(part) for part in self._parts[first:last])
            samples.setdefault(f"{kind}.backward", []).append(self._net(span) - again)
            if last > first:
                samples.setdefault(f"{kind}.recompute", []).append(again)
        return {name: statistics.median(values) for name, values in samples.items()}

    def _start(self) -> tuple[Any, int]:
        return self._mark(), len(self._apart.spans)

    def _span(self, start: tuple[Any, int]) -> Span:
        return start[0], self._mark(), start[1], len(self._apart.spans)

    def _net(self, span: Span) -> float:
        start, end, first, last = span
        return self._seconds(start, end) - sum(self._seconds(*apart) for apart in self._apart.spans[first:last])

    def _time(self, module: torch.nn.Module, kind: str) -> None:
        """A tensor between two layers has hooks of both, so that every call keeps its own start."""
        calls: list[dict[str, Any]] = []

        def before(module: Any, arguments: Any, named: Any) -> None:
            self._depth += 1
            call: dict[str, Any] = {}
            calls.append(call)
            for tensor in (*arguments[:1], named.get("hidden_states")):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    tensor.register_hook(lambda _: self._end(kind, call))
            call["forward"] = self._start()

        def after(module: Any, arguments: Any, output: Any) -> None:
            self._depth -= 1
            call = calls.pop()
            in_backward = torch._C._current_graph_task_id() != -1
            self._spans[f"{kind}.{'recompute' if in_backward else 'forward'}"].append(self._span(call["forward"]))
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor) and first.requires_grad:
                first.register_hook(lambda _: self._begin(call))

        self._hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(after))

    def _begin(self, call: dict[str, Any]) -> None:
        call["backward"], call["parts"] = self._start(), len(self._parts)

    def _end(self, kind: str, call: dict[str, Any]) -> None:
        if "backward" in call:
            self._backwards.append((kind, self._span(call.pop("backward")), call.pop("parts"), len(self._parts)))

    def _time_again(self, module: torch.nn.Module) -> None:
        """A part that is run again outside of its layer's forward."""
        started: list[Any] = []

        def before(*_: Any) -> None:
            started.append(self._start() if self._depth == 0 else None)

        def after(*_: Any) -> None:
            start = started.pop()
            if start is not None:
                self._parts.append(self._span(start))

        self._hooks.append(module.register_forward_pre_hook(before))
        self._hooks.append(module.register_forward_hook(after))
