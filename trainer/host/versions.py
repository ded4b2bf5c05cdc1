"""What ran: versions and device name."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    """Of python, torch, megatron-core, transformer-engine, cuda, nccl and driver: those that are there."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("megatron-core", "transformer-engine"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda and torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found |= _driver()
    return found


def _driver() -> dict[str, str]:
    try:
        import pynvml

        pynvml.nvmlInit()
        return {"driver": str(pynvml.nvmlSystemGetDriverVersion())}
    except Exception:  # nvidia-ml-py is not there, or no NVML in this container
        return {}


def device_name(device: str) -> str:
    """The GPU's name, or the CPU's with the number of threads that torch uses."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads a rank"
