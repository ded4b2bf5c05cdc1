"""`--gpu local`: the GPU of this machine, or its CPU where that was measured, priced with what was measured here."""

from __future__ import annotations

from autoconfig.specs.errors import InputError, UnknownNameError, option
from autoconfig.specs.hardware.gpu import (
    DEFAULT_GPU,
    LOCAL_MEMORY_TOLERANCE,
    GpuSpec,
    load_gpu,
    match_reported_gpu,
    reported_gpu,
)
from autoconfig.specs.hardware.local_cpu import cpu_name
from autoconfig.specs.hardware.operator_table import COMMAND, gpu_of_table, local_tables, read_operator_table


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
            return gpu, f"operators of {gpu.id} measured on this machine ({path})"
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
    return gpu, f"operators of {gpu.id} from {path}"


def find_gpu(name: str) -> GpuSpec:
    """`load_gpu`, or by its id a device that the catalogue lacks and that was measured here. Raises UnknownNameError."""
    try:
        return load_gpu(name)
    except UnknownNameError:
        for path, data in local_tables():
            if data["gpu"] == name:
                return gpu_of_table(data, path)
        raise


__all__ = ["find_gpu", "gpu_of_file", "local_gpu"]
