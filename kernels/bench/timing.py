"""How one operator is timed: warm-up, repetitions; events and a cold L2 cache on a GPU, the wall clock on a CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WARM_UPS = 2
L2_FACTOR = 4
"""Bytes written between repetitions over the size of the L2 cache."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One measurement and how far its repetitions lie apart."""

    seconds: float
    """Median; on a CPU the lower quartile."""
    spread: float
    """(third quartile - first quartile) / median."""
    repetitions: int


def summary(samples: list[float], *, shared: bool = False) -> Timing:
    """Median and quartile spread of a few samples (seconds). `shared`: the lower quartile in place of the median, for a CPU
    whose cores other processes take away."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    return Timing(
        seconds=low if shared else middle, spread=(high - low) / middle if middle > 0 else 0.0, repetitions=len(samples)
    )


class CpuClock:
    """Wall clock of this process. Operands stay in the caches as repetitions leave them."""

    type = "cpu"

    def __init__(self, *, cap_s: float, least: int, most: int) -> None:
        """`cap_s`: most seconds of one point; `least`, `most`: repetitions."""
        self.cap_s, self.least, self.most = cap_s, least, most

    def time(self, run: Callable[[], object]) -> Timing:
        """Seconds of one call."""
        for _ in range(WARM_UPS):
            run()
        samples: list[float] = []
        end = time.perf_counter() + self.cap_s
        while len(samples) < self.least or (len(samples) < self.most and time.perf_counter() < end):
            start = time.perf_counter()
            run()
            samples.append(time.perf_counter() - start)
        return summary(samples, shared=True)

    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""


class CudaClock:
    """CUDA events around each repetition, L2 overwritten before it; the whole point is queued and read at its end."""

    type = "cuda"

    def __init__(self, torch: Any, device: Any, *, cap_s: float, least: int, most: int) -> None:
        """As CpuClock's, with torch and the device to time on."""
        self.torch, self.cap_s, self.least, self.most = torch, cap_s, least, most
        cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or 64 * 2**20
        self.flush = torch.empty(L2_FACTOR * cache, dtype=torch.uint8, device=device)

    def time(self, run: Callable[[], object]) -> Timing:
        """Seconds of one call on the device."""
        start = time.perf_counter()
        for _ in range(WARM_UPS):
            run()
        self.synchronize()
        once = (time.perf_counter() - start) / WARM_UPS
        count = min(self.most, max(self.least, int(self.cap_s / max(once, 1e-6))))
        pairs = []
        for _ in range(count):
            self.flush.zero_()
            first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            pairs.append((first, last))
        self.synchronize()
        return summary([first.elapsed_time(last) / 1e3 for first, last in pairs])

    def synchronize(self) -> None:
        """Wait for the device."""
        self.torch.cuda.synchronize()
