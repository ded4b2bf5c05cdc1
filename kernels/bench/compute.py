"""Everything that one process measures on one device, in the order that makes an early end useful."""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from autoconfig.kernels.bench import operators
from autoconfig.kernels.bench.device import Clock, Timing, summary
from autoconfig.kernels.bench.state import Results
from autoconfig.kernels.bench.table import Key, coarse

MEMORY_SHARE = 0.5
FP8_LEAST_COMPUTE_CAPABILITY = 8.9
Task = tuple[str, Key, Callable[[], Timing]]
"""(group, sizes, how to measure it)."""


class ComputeBench:
    """The measurements of one process."""

    def __init__(self, torch: Any, device: Any, results: Results, precisions: tuple[str, ...]) -> None:
        """`precisions`: of the GEMMs; attention and experts run in the 16- or 32-bit ones among them."""
        self.torch, self.device, self.results = torch, device, results
        self.clock = Clock(torch, device, results.sizes)
        self.precisions, self.sizes = precisions, results.sizes
        self.kernels: dict[str, operators.Kernel | None] = {}

    def tasks(self) -> Iterator[Task]:
        """Every point: what all tables need first, then coarse grids, then the points between."""
        wide = [p for p in self.precisions if p != "fp8"]
        yield from self._memory(wide[0] if wide else "bf16")
        yield from (task for p in self.precisions for task in self._gemms(f"gemm.{p}", p, self._grid(only_coarse=True)))
        for precision in wide:
            yield from self._attention(precision)
            yield from self._score_gemms(precision)
        yield from (task for p in wide for task in self._grouped(p))
        for precision in self.precisions:
            yield from self._gemms(f"gemm.{precision}", precision, self._grid(only_coarse=False))
            yield from self._gemms(f"plan_gemm.{precision}", precision, self.sizes.plan_shapes)
        if "fp8" in self.precisions:
            largest = [axis[-1] for axis in map(coarse, (self.sizes.m, self.sizes.nk, self.sizes.nk))]
            shapes = [key for key in self._grid(only_coarse=True) if math.prod(key) * 4096 >= math.prod(largest)]
            yield from self._gemms("fp8_slow.fp8", "fp8", shapes, fast=False)

    def run(self, deadline: float, progress: Callable[[str, int, int], None]) -> bool:
        """Measure what is missing until `deadline` (time.monotonic); whether all of it is done. Raises FileError."""
        everything = [task for task in self.tasks() if not self.results.has(task[0], task[1])]
        for number, (group, key, measure) in enumerate(everything):
            if time.monotonic() >= deadline:
                self.results.missing = sorted({group for group, _, _ in everything[number:]})
                return False
            progress(group, number, len(everything))
            try:
                self.results.add(group, key, measure())
            except (RuntimeError, NotImplementedError) as error:
                # torch says so where a kernel is not there for this device or its memory is too small: the point is named in
                # the file's `skipped` and on the screen, a lost device is raised again, the other points are worth having
                if type(error).__name__ in ("AcceleratorError", "DeferredCudaCallError"):
                    raise  # the device is lost: later points would only repeat it
                said = str(error).splitlines()[0][:160] if str(error) else ""
                self.results.skip(f"{group}: {type(error).__name__}: {said} at {key}")
            self._free()
        self.results.missing = []
        return True

    def _free(self) -> None:
        if self.device.type == "cuda":
            gc.collect(0)
            if self.torch.cuda.memory_reserved() > MEMORY_SHARE * self.results.device.memory_bytes:
                self.torch.cuda.empty_cache()

    def _fits(self, operand_bytes: float) -> bool:
        if self.device.type == "cpu":
            return operand_bytes < MEMORY_SHARE * self.results.device.memory_bytes
        return operand_bytes < MEMORY_SHARE * float(self.torch.cuda.mem_get_info()[1])

    def _timed(self, make: Callable[[], Callable[[], object]]) -> Callable[[], Timing]:
        return lambda: self.clock.time(make())

    def _grid(self, *, only_coarse: bool) -> list[tuple[int, int, int]]:
        axes = (self.sizes.m, self.sizes.nk, self.sizes.nk)
        first = set(itertools.product(*map(coarse, axes)))
        return [key for key in itertools.product(*axes) if (key in first) == only_coarse]

    def _gemms(self, group: str, precision: str, shapes: Any, *, fast: bool = True) -> Iterator[Task]:
        for m, n, k in shapes:
            if precision == "fp8" and any(size % operators.FP8_MULTIPLE for size in (m, n, k)):
                continue
            if self._fits(operators.gemm_operand_bytes(m, n, k, precision)):
                make = partial(operators.gemm_call, self.torch, self.device, m, n, k, precision, fast=fast)
                yield group, (m, n, k), self._timed(make)

    def _memory(self, precision: str) -> Iterator[Task]:
        def launches() -> Timing:
            found = operators.launch_seconds(self.torch, self.device, self.sizes.launches)
            self.results.launch = found
            return summary([self.results.launch_s])

        yield "launch", ("launch",), launches
        for size in self.sizes.copy_bytes:
            if self._fits(2.0 * size):
                yield "copy", (size,), self._timed(partial(operators.copy_call, self.torch, self.device, size))
        for name in operators.POINTWISE:

            def measure(name: str = name) -> Timing:
                shape, dtype = self.sizes.pointwise_shape, operators.dtype_of(self.torch, precision)
                call, self.results.moved[name] = operators.pointwise_call(self.torch, self.device, name, shape, dtype)
                return self.clock.time(call)

            yield "pointwise", (name,), measure

    def _attention(self, precision: str) -> Iterator[Task]:
        dtype = operators.dtype_of(self.torch, precision)
        for head_dim, length in itertools.product(self.sizes.head_dims, self.sizes.lengths):
            for number, group in enumerate((f"attention.{precision}", f"attention_backward.{precision}")):

                def measure(d: int = head_dim, s: int = length, number: int = number, group: str = group) -> Timing:
                    kernel = self._kernel(precision)
                    calls = operators.attention_calls(self.torch, self.device, kernel, self.results.parallel(s), s, d, dtype)
                    self.results.kernels[group], self.results.generations[group] = kernel.name, kernel.generation
                    return self.clock.time(calls[number])

                yield group, (head_dim, length), measure

    def _kernel(self, precision: str) -> operators.Kernel:
        """The fastest fused kernel here, at the longest length and a middle head dim. Raises RuntimeError where none runs."""
        if precision not in self.kernels:
            length = self.sizes.lengths[-1]
            head_dim = self.sizes.head_dims[len(self.sizes.head_dims) // 2]
            parallel, dtype = self.results.parallel(length), operators.dtype_of(self.torch, precision)
            found: dict[float, operators.Kernel] = {}
            for kernel in operators.attention_kernels(self.torch, self.device.type):
                try:
                    calls = operators.attention_calls(self.torch, self.device, kernel, parallel, length, head_dim, dtype)
                    found[self.clock.time(calls[0]).seconds] = kernel
                except (RuntimeError, NotImplementedError) as error:
                    # a kernel that this device lacks is named in `skipped`; where none runs, the error below says so
                    self.results.skip(f"{kernel.name}, {precision}: {str(error).splitlines()[0][:120]}")
            self.kernels[precision] = found[min(found)] if found else None
        chosen = self.kernels[precision]
        if chosen is None:
            raise RuntimeError("no fused attention kernel runs here")
        return chosen

    def _score_gemms(self, precision: str) -> Iterator[Task]:
        for head_dim in self.sizes.head_dims:
            for length in self.sizes.lengths[: max(1, len(self.sizes.lengths) // 2 + 1)]:
                parallel, dtype = self.results.parallel(length), operators.dtype_of(self.torch, precision)
                make = partial(operators.score_gemm_call, self.torch, self.device, parallel, length, head_dim, dtype)
                yield f"score_gemm.{precision}", (head_dim, length, parallel), self._timed(make)

    def _grouped(self, precision: str) -> Iterator[Task]:
        group = f"grouped_gemm.{precision}"
        for rows, width, groups in itertools.product(self.sizes.rows, self.sizes.widths, self.sizes.groups):
            if not self._fits(operators.gemm_operand_bytes(rows, width, width, precision, groups)):
                continue

            def measure(rows: int = rows, width: int = width, groups: int = groups) -> Timing:
                call, name = operators.grouped_gemm_call(self.torch, self.device, rows, width, groups, precision)
                self.results.kernels[group] = name
                return self.clock.time(call)

            yield group, (rows, width, groups), measure


def default_precisions(device_type: str, compute_capability: float | None) -> tuple[str, ...]:
    """CPU: bf16 and fp32. GPU: bf16, and fp8 where the tensor cores have it."""
    if device_type == "cpu":
        return ("bf16", "fp32")
    return ("bf16", "fp8") if (compute_capability or 0.0) >= FP8_LEAST_COMPUTE_CAPABILITY else ("bf16",)
