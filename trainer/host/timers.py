"""Seconds by phase of a step, through the timer interface that megatron-core's schedules call (`config.timers`).

On CUDA phases are bracketed by events, so that timing adds no synchronisation.
"""

from __future__ import annotations

import time
from typing import Any

import torch

PHASES = {"forward-compute": "forward", "backward-compute": "backward"}
"""megatron-core's names -> ours; others are ignored."""


class PhaseTimers:
    """Called as megatron-core's Timers: `timers("forward-compute", log_level=2).start()` ... `.stop()`."""

    def __init__(self, cuda: bool) -> None:
        """`cuda`: measure with CUDA events."""
        self._cuda = cuda
        self._spans: dict[str, list[tuple[Any, Any]]] = {}
        self.running: dict[str, Any] = {}
        """Phase -> when it began."""

    def __call__(self, name: str, log_level: int = 0) -> _Timer:
        """The timer of this name."""
        return _Timer(self, PHASES.get(name, ""))

    def phase(self, name: str) -> _Timer:
        """A timer of one of our own phases; also a context manager."""
        return _Timer(self, name)

    def mark(self) -> Any:
        """This moment."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start: Any, end: Any) -> None:
        """Note one span."""
        self._spans.setdefault(name, []).append((start, end))

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks. On CUDA the device must be synchronised."""
        return float(start.elapsed_time(end) / 1000 if self._cuda else end - start)

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call. On CUDA the device must be synchronised."""
        spans, self._spans = self._spans, {}
        if self._cuda:
            return {name: sum(start.elapsed_time(end) for start, end in pairs) / 1000 for name, pairs in spans.items()}
        return {name: sum(end - start for start, end in pairs) for name, pairs in spans.items()}


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
