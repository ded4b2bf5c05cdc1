"""The CPU of this machine: its name and memory, for tables measured without a GPU."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """As the kernel reports it (`AMD EPYC 9654 96-Core Processor`), with the number of cores; never empty."""
    name = ""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        pass
    name = name or platform.processor() or platform.machine() or "unknown"
    return f"{name[:80]} {os.cpu_count() or 1} cores"


def memory_bytes() -> int:
    """Physical memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
