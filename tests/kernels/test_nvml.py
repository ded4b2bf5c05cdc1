"""What the driver says, through a stand-in of nvidia-ml-py: NVML itself is not on machines without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
from autoconfig.kernels import nvml


class NVMLError(Exception):
    pass


def fake(**changes: Any) -> Any:
    def refuse(*_: Any) -> Any:
        raise NVMLError("Not Supported")

    links = iter((1, 1, 0))
    calls: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_NVLINK_MAX_LINKS": 3,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: ("handle", uuid),
        "nvmlDeviceGetHandleByIndex": lambda index: ("handle", index),
        "nvmlSystemGetDriverVersion": lambda: b"570.1",
        "nvmlDeviceGetName": lambda _: "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1500, 2: 2619}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda _, kind: {1: 1980, 2: 2619}[kind],
        "nvmlDeviceGetMemoryBusWidth": lambda _: 5120,
        "nvmlDeviceGetPowerUsage": lambda _: 402_500,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
        "nvmlDeviceGetTemperature": lambda *_: 55,
        "nvmlDeviceGetEccMode": lambda _: [1, 1],
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x4 | 0x40,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 5,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetNvLinkState": lambda *_: next(links),
    }
    return SimpleNamespace(**{**calls, **{name: refuse if value is None else value for name, value in changes.items()}})


def test_values_are_named_with_their_units() -> None:
    found = nvml.sample("GPU-1", nvml=fake())
    assert (found["driver"], found["name"]) == ("570.1", "NVIDIA H100 80GB HBM3")
    assert (found["sm_clock_mhz"], found["max_sm_clock_mhz"], found["power_w"], found["power_limit_w"]) == (
        1500,
        1980,
        402.5,
        700.0,
    )
    assert found["throttle_reasons"] == ["sw_power_cap", "hw_thermal_slowdown"] == sorted(nvml.slowed(found), reverse=True)
    assert found["ecc"] is True and found["nvlinks"] == 2
    assert nvml.memory_bytes_per_s(found) == pytest.approx(3.352e12, rel=1e-3)
    assert nvml.pcie_bytes_per_s(found) == 64e9


def test_what_the_driver_does_not_give_is_none() -> None:
    found = nvml.sample(
        nvml=fake(
            nvmlDeviceGetEccMode=None,
            nvmlDeviceGetPowerUsage=None,
            nvmlDeviceGetNvLinkState=None,
            nvmlDeviceGetCurrentClocksThrottleReasons=None,
            nvmlDeviceGetMemoryBusWidth=None,
        )
    )
    assert found["ecc"] is found["power_w"] is found["throttle_reasons"] is None and found["nvlinks"] == 0
    assert nvml.memory_bytes_per_s(found) is None and nvml.slowed(found) == []


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_without_a_driver_there_is_a_reason(call: str) -> None:
    assert nvml.sample(nvml=fake(**{call: None})) == {"unavailable": "NVML: Not Supported"}
    assert nvml.memory_bytes_per_s({"unavailable": ""}) is nvml.pcie_bytes_per_s({}) is None
