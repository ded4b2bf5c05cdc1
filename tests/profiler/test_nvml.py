"""Samples beside a GPU job, through a stand-in of nvidia-ml-py: NVML itself is not on machines without a GPU."""

import json
import sys
import time
from types import SimpleNamespace

import pytest
from autoconfig.profiler.supervise import Sampler


class NVMLError(Exception):
    pass


def refuse(*_):
    raise NVMLError("Not Supported")


def stand_in(**changes):
    calls = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=10**9 * (1 + device)),
        "nvmlDeviceGetPowerUsage": lambda device: 402_500,
        "nvmlDeviceGetClockInfo": lambda device, kind: {1: 1500, 2: 2619}[kind],
        "nvmlDeviceGetTemperature": lambda *_: 55,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda device: 0x4,
        "nvmlDeviceGetTotalEccErrors": refuse,
    }
    return SimpleNamespace(**{**calls, **changes})


def test_every_gpu_is_sampled_until_the_end(tmp_path, monkeypatch):
    """What a GPU does not report is left out."""
    monkeypatch.setitem(sys.modules, "pynvml", stand_in())
    sampler = Sampler(tmp_path / "nvml.jsonl", period_s=0.01)
    time.sleep(0.05)
    sampler.stop()
    lines = [json.loads(line) for line in (tmp_path / "nvml.jsonl").read_text().splitlines()]
    assert [line["gpu"] for line in lines] == [0, 1] * (len(lines) // 2) and len(lines) >= 2
    assert lines[1] == {
        "time": pytest.approx(time.time(), abs=60), "gpu": 1, "memory_used_bytes": 2 * 10**9, "power_watts": 402.5,
        "sm_mhz": 1500, "memory_mhz": 2619, "temperature_c": 55, "throttle_reasons": 4,
    }  # fmt: skip


@pytest.mark.parametrize("module", [None, stand_in(nvmlInit=refuse)])
def test_without_library_or_driver_there_are_no_samples(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    Sampler(tmp_path / "nvml.jsonl").stop()
    assert list(tmp_path.iterdir()) == []
