"""What one process of the training core may take of this machine: threads and memory, so that a runaway ends as an error.

On CUDA nothing is bounded here: the driver maps more than it uses, and torch's allocator has its own limit.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoconfig.specs.hardware.local_gpu import memory_bytes
from autoconfig.specs.job import Job

MACHINE_SHARE = 0.8
LIBRARIES_BYTES = 4 * 2**30
"""Beside the tensors of a job with a memory limit: torch, thread stacks, buffers of gloo, which are mapped and not all used."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def limit_process(job: Job) -> None:
    """Bound this process's share of a CPU job. Call before torch is imported: OpenMP reads its threads then."""
    if job.device != "cpu":
        return
    if job.num_processes > 1 or job.plan.world_size > 1:  # ranks are one core each, emulated ones too
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    largest = None if job.device_memory_bytes is None else job.device_memory_bytes + LIBRARIES_BYTES
    limit_memory(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), largest)


def limit_memory(processes: int, most_bytes: int | None = None) -> int:
    """Private memory (RLIMIT_DATA) of this process: its share of the machine among `processes`, at most `most_bytes`; a tighter
    limit that is there already stays. Beyond it an allocation fails with torch's `can't allocate memory` or a MemoryError.
    RLIMIT_AS would count the libraries' files and the address space that threads reserve too, several GiB that nobody uses."""
    share = int(MACHINE_SHARE * machine_bytes() / max(1, processes))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [value for value in (share, most_bytes, soft, hard) if value is not None and value != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    return min(bounds)


def leave_out_compiler() -> None:
    """megatron-core decorates with torch.compile as it is imported, which loads dynamo and inductor: two fifths of a start. On
    a CPU and on fake tensors nothing compiled is run: this process's torch.compile gives a function back as it is. Call before
    megatron-core is imported. Raises ImportError where torch is not there."""
    import torch

    torch.compile = _as_it_is


def _as_it_is(model: Callable[..., Any] | None = None, *_: object, **__: object) -> Callable[..., Any]:
    return (lambda function: function) if model is None else model


def machine_bytes() -> int:
    """Physical memory, or what this container may take of it."""
    try:
        container = int(_CGROUP_LIMIT.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no cgroup v2, or `max`
        return memory_bytes()
    return min(container, memory_bytes())
