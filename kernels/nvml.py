"""What the driver says of a GPU: versions, clocks, power, temperature, ECC, throttling (nvidia-ml-py).

Every value that the driver does not give is None; without the library or a driver there is one reason instead of values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

THROTTLE_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting"),
)
"""By the bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h, nvmlClocksThrottleReason*)."""
SLOWED = frozenset({"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})


def sample(uuid: str | None = None, index: int = 0, nvml: Any = None) -> dict[str, Any]:
    """Everything about one GPU now; `{"unavailable": reason}` where NVML cannot be asked. `nvml`: the module (for tests)."""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return {"unavailable": "nvidia-ml-py is not installed (pip install nvidia-ml-py)"}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"unavailable": f"NVML: {error}"}
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(index)
        return _values(nvml, handle)
    except nvml.NVMLError as error:
        return {"unavailable": f"NVML: {error}"}
    finally:
        nvml.nvmlShutdown()


def _values(nvml: Any, handle: Any) -> dict[str, Any]:
    def ask(call: Callable[[], Any]) -> Any:
        try:
            value = call()
        except (nvml.NVMLError, AttributeError):
            return None
        return value.decode() if isinstance(value, bytes) else value

    bits = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    ecc = ask(lambda: nvml.nvmlDeviceGetEccMode(handle))
    milliwatts = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return {
        "driver": ask(nvml.nvmlSystemGetDriverVersion),
        "name": ask(lambda: nvml.nvmlDeviceGetName(handle)),
        "sm_clock_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "max_sm_clock_mhz": ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "max_memory_clock_mhz": ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "memory_bus_bits": ask(lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle)),
        "power_w": None if milliwatts is None else milliwatts / 1e3,
        "power_limit_w": None if limit is None else limit / 1e3,
        "temperature_c": ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "ecc": None if ecc is None else bool(ecc[0]),
        "throttle_reasons": None if bits is None else [name for bit, name in enumerate(THROTTLE_REASONS) if bits & 1 << bit],
        "pcie_generation": ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "pcie_lanes": ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "nvlinks": _nvlinks(nvml, handle),
    }


def _nvlinks(nvml: Any, handle: Any) -> int | None:
    count = 0
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            count += bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except nvml.NVMLError:
            break
        except AttributeError:
            return None
    return count


def memory_bytes_per_s(values: dict[str, Any]) -> float | None:
    """Theoretical bandwidth: 2 transfers a clock x bus width / 8 (H100 SXM: 2,619 MHz, 5,120 bits: 3.35 TB/s)."""
    clock, bus = values.get("max_memory_clock_mhz"), values.get("memory_bus_bits")
    return 2.0 * clock * 1e6 * bus / 8.0 if clock and bus else None


def pcie_bytes_per_s(values: dict[str, Any]) -> float | None:
    """One direction of the slot: 0.25 GB/s a lane in generation 1, twice that per generation (rounded; encoding apart)."""
    generation, lanes = values.get("pcie_generation"), values.get("pcie_lanes")
    return 0.25e9 * 2.0 ** (generation - 1) * lanes if generation and lanes else None


def slowed(values: dict[str, Any]) -> list[str]:
    """Which reasons in a sample make measurements slower than the GPU can be."""
    return sorted(SLOWED & set(values.get("throttle_reasons") or ()))
