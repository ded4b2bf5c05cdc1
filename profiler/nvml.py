"""NVML beside a GPU job: memory, power, clocks, throttling and ECC errors of every GPU, one JSON line a sample (nvidia-ml-
py).
"""

from __future__ import annotations

import importlib
import json
import threading
import time
from pathlib import Path
from typing import Any

PERIOD_S = 1.0


class Sampler:
    """A thread that samples until `stop`. Does nothing where nvidia-ml-py or the driver is missing."""

    def __init__(self, path: Path, period_s: float = PERIOD_S) -> None:
        """Samples go to `path`."""
        self._path = path
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception:  # not installed, no driver, no GPU: the job is measured without samples
            return
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample and end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._nvml.nvmlShutdown()

    def _run(self) -> None:
        n = self._nvml
        devices = [n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount())]
        with self._path.open("a", encoding="utf-8") as file:
            while True:
                for index, device in enumerate(devices):
                    file.write(json.dumps({"time": time.time(), "gpu": index, **sample(n, device)}) + "\n")
                file.flush()
                if self._stop.wait(self._period_s):
                    return


def sample(nvml: Any, device: Any) -> dict[str, float | int]:
    """One GPU now: bytes, watts, MHz, throttle reasons (NVML's bit mask), uncorrected ECC errors since boot."""
    readings: dict[str, Any] = {
        "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used,
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device),
        "ecc_uncorrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(
            device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    }
    found: dict[str, float | int] = {}
    for name, read in readings.items():
        try:
            found[name] = read()
        except nvml.NVMLError:  # this GPU does not report it
            continue
    return found
