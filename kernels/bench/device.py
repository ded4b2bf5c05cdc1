"""The device that is measured: its name and memory, the GpuSpec of one that the catalogue lacks, its clocks."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoconfig.kernels import nvml
from autoconfig.kernels.bench.table import Sizes
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import CPU_ARCHITECTURE, match_reported_gpu
from autoconfig.specs.hardware.local_gpu import cpu_name, memory_bytes

ARCHITECTURES = {7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}
ASSUMED_NIC_BYTES_PER_S = 12.5e9
"""100 Gbit/s, where nothing is known of the network."""


@dataclass(frozen=True, kw_only=True)
class BenchDevice:
    """One device and what is known of it before measuring."""

    type: str
    reported_name: str
    memory_bytes: int
    count: int
    """Devices of this machine (CPU: ranks of `threads` cores)."""
    threads: int
    uuid: str | None = None
    compute_capability: float | None = None
    num_sms: int = 1
    vendor: str = "nvidia"

    @property
    def catalogue_id(self) -> str | None:
        """Id in the GPU catalogue; None where it has none by this name and memory."""
        if self.type == "cpu":
            return None
        try:
            return match_reported_gpu(self.reported_name, self.memory_bytes).id
        except InputError:
            return None

    @property
    def id(self) -> str:
        """Catalogue id, else one made of the reported name."""
        if found := self.catalogue_id:
            return found
        name = re.sub(r"[^a-z0-9]+", "-", self.reported_name.lower()).strip("-")[:60] or "unknown"
        size = f"{round(self.memory_bytes / 2**30)}gb"
        return f"cpu-{name}" if self.type == "cpu" else f"local-{name}" if size in name else f"local-{name}-{size}"

    def as_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "reported_name": self.reported_name,
            "memory_bytes": self.memory_bytes,
            "count": self.count,
            "threads": self.threads,
            "uuid": self.uuid,
        }


def find_device(torch: Any, wanted: str, threads: int) -> BenchDevice:
    """`auto` is a GPU where torch sees one, else the CPU. Raises InputError where `cuda` is wanted and not there."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"--device cuda: torch {torch.__version__} sees no GPU here; say --device cpu, or install a CUDA build"
        )
    if wanted == "cpu" or not torch.cuda.is_available():
        ranks = max(1, (os.cpu_count() or 1) // threads)
        return BenchDevice(
            type="cpu",
            reported_name=cpu_name(),
            memory_bytes=max(1, memory_bytes() // ranks),
            count=ranks,
            threads=threads,
            num_sms=threads,
            vendor="cpu",
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = getattr(properties, "uuid", None)
    return BenchDevice(
        type="cuda",
        reported_name=properties.name,
        memory_bytes=int(properties.total_memory),
        count=torch.cuda.device_count(),
        threads=threads,
        uuid=f"GPU-{uuid}" if uuid else None,
        compute_capability=float(f"{properties.major}.{properties.minor}"),
        num_sms=int(properties.multi_processor_count),
        vendor="amd" if getattr(torch.version, "hip", None) else "nvidia",
    )


def gpu_spec(device: BenchDevice, measured: dict[str, Any], driver: dict[str, Any]) -> dict[str, Any]:
    """Fields of GpuSpec for a device that the catalogue lacks; `sources` says which were measured. `measured`: `flops_per_s` by
    precision, `copy_bytes_per_s`, `link_bytes_per_s` (None where no collective ran)."""
    major = int(device.compute_capability or 0)
    architecture = "ada" if device.compute_capability == 8.9 else ARCHITECTURES.get(major, "unknown")
    peak, bandwidth = "best GEMM of this file", nvml.memory_bytes_per_s(driver)
    pcie = nvml.pcie_bytes_per_s(driver)
    link = measured["link_bytes_per_s"] or pcie or measured["copy_bytes_per_s"] / 4.0
    of_link = "PCIe slot (NVML)" if pcie else "assumed: a quarter of the copy bandwidth; run the collectives"
    spec = {
        "id": device.id,
        "name": device.reported_name,
        "vendor": device.vendor,
        "architecture": architecture,
        "compute_capability": device.compute_capability,
        "memory_bytes": device.memory_bytes,
        "hbm_bytes_per_s": bandwidth or measured["copy_bytes_per_s"],
        "flops_per_s": measured["flops_per_s"],
        "num_sms": device.num_sms,
        "link": "nvlink" if driver.get("nvlinks") else "pcie",
        "link_bytes_per_s": link,
        "link_domain_size": device.count,
        "gpus_per_node": device.count,
        "nic_bytes_per_s": ASSUMED_NIC_BYTES_PER_S,
    }
    sources = {
        "memory_bytes": "reported by torch",
        "hbm_bytes_per_s": "memory clock x bus width (NVML)" if bandwidth else "largest copy of this file, read and write",
        "flops_per_s": peak,
        "link_bytes_per_s": "best collective of this file" if measured["link_bytes_per_s"] else of_link,
        "nic_bytes_per_s": "assumed: 100 Gbit/s; say it in a --cluster file",
    }
    if device.type == "cpu":
        spec |= {"name": f"{device.reported_name}, {device.threads} threads a rank", "architecture": CPU_ARCHITECTURE}
        spec |= {"link": "shared memory", "nic_bytes_per_s": link}
        sources |= {"memory_bytes": "memory of the machine over its ranks", "nic_bytes_per_s": "as the links"}
    return {**spec, "sources": sources}


def software(torch: Any) -> dict[str, Any]:
    """Versions behind the numbers."""
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() and hasattr(torch.cuda, "nccl") else None
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


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


class Clock:
    """Times one operator within the limits of `sizes`. CPU: wall clock of this process; operands stay in the caches as
    repetitions leave them. CUDA: events around each repetition, L2 overwritten before it; the whole point is queued and read at
    its end."""

    def __init__(self, torch: Any, device: Any, sizes: Sizes) -> None:
        self.torch, self.sizes, self.cuda = torch, sizes, device.type == "cuda"
        if self.cuda:
            cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or 64 * 2**20
            self.flush = torch.empty(L2_FACTOR * cache, dtype=torch.uint8, device=device)

    def time(self, run: Callable[[], object]) -> Timing:
        """Seconds of one call."""
        start = time.perf_counter()
        for _ in range(WARM_UPS):
            run()
        if self.cuda:
            return self._on_cuda(run, start)
        samples: list[float] = []
        least, most, end = self.sizes.least_repetitions, self.sizes.most_repetitions, time.perf_counter() + self.sizes.cap_s
        while len(samples) < least or (len(samples) < most and time.perf_counter() < end):
            start = time.perf_counter()
            run()
            samples.append(time.perf_counter() - start)
        return summary(samples, shared=True)

    def _on_cuda(self, run: Callable[[], object], warm_up_began: float) -> Timing:
        self.torch.cuda.synchronize()
        once = (time.perf_counter() - warm_up_began) / WARM_UPS
        pairs = []
        for _ in range(self.sizes.repetitions(once)):
            self.flush.zero_()
            first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            pairs.append((first, last))
        self.torch.cuda.synchronize()
        return summary([first.elapsed_time(last) / 1e3 for first, last in pairs])
