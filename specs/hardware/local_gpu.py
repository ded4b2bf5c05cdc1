"""`--gpu local`: the GPU of this machine, or its CPU where that was measured, priced with what was measured here."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from autoconfig.specs.errors import InputError, UnknownNameError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import (
    DEFAULT_GPU,
    LOCAL_MEMORY_TOLERANCE,
    GpuSpec,
    load_gpu,
    match_reported_gpu,
    reported_gpu,
)
from autoconfig.specs.hardware.operator_table import COMMAND, gpu_of_table, local_tables, read_operator_table

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


def local_gpu() -> tuple[GpuSpec, str]:
    """(this machine's GPU, how it is known): by its own operator table where there is one in `local_folder`, else as the
    catalogue's; without a GPU its CPU, which only a table describes. Raises InputError naming the command that makes a table.
    """
    tried: list[str] = []
    found = reported_gpu(tried)
    for path, data in local_tables():
        device = data["device"]
        if found is None:
            mine = device["type"] == "cpu" and device["reported_name"] == cpu_name()
        else:
            same = abs(found[1] / device["memory_bytes"] - 1.0) <= LOCAL_MEMORY_TOLERANCE
            mine = device["type"] == "cuda" and device["reported_name"] == found[0] and same
        if mine:
            gpu = gpu_of_table(data, path)
            return gpu, f"operators measured on this machine ({path})"
    if found is None:
        raise InputError(
            f"no GPU was found on this machine ({'; '.join(tried)}); name one with {option('gpu')}, "
            f"for example {option('gpu')} {DEFAULT_GPU}, or "
            f"measure this machine's CPU once: {COMMAND}"
        )
    try:
        gpu = match_reported_gpu(*found)
    except InputError as error:
        raise InputError(f"{error}, or measure this one: {COMMAND}") from error
    return gpu, f"{gpu.id} by its published numbers; {COMMAND} measures this one"


def gpu_of_file(path: str) -> tuple[GpuSpec, str]:
    """(the GPU that an operator table is about, how it is known). Raises FileError or InputError."""
    gpu = gpu_of_table(read_operator_table(path), path)
    return gpu, f"operators from {path}"


def find_gpu(name: str) -> GpuSpec:
    """`load_gpu`, or by its id a device that the catalogue lacks and that was measured here. Raises as load_gpu."""
    try:
        return load_gpu(name)
    except (UnknownNameError, UnsupportedError):
        for path, data in local_tables():
            if data["gpu"] == name:
                return gpu_of_table(data, path)
        raise
