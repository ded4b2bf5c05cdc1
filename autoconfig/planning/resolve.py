"""Names to specs: the model, the GPUs and the software that a question of either lane names, with what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import CPU_ARCHITECTURE, ClusterSpec, GpuSpec, cluster_of, load_gpu
from autoconfig.specs.hardware.cluster_file import cluster_from_mapping, load_cluster
from autoconfig.specs.hardware.local_gpu import find_gpu, gpu_of_file, local_gpu
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import DEFAULT_STACK, SoftwareStack, load_stack

DEFAULT_GPU = "h100-sxm-80gb"
OLDER_STACK = "megatron-lm-2022"
"""Runs on GPUs that the default stack does not run on."""
CPU_STACK = "megatron-local"
"""Runs where there is no GPU."""
INLINE_MODEL = "inline"
"""Name of a model that came as JSON in the question."""


class HardwareNames(Protocol):
    """What a request says of its hardware; None where it says nothing."""

    @property
    def gpus(self) -> int | None: ...
    @property
    def gpus_at_most(self) -> int | None: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def gpu_table(self) -> str | None: ...
    @property
    def cluster(self) -> str | Mapping[str, Any] | None: ...
    @property
    def gpus_per_node(self) -> int | None: ...
    @property
    def local_files(self) -> bool: ...
    @property
    def measured_here(self) -> bool: ...


def read_model(model: str | Mapping[str, Any], *, local_files: bool) -> tuple[ModelSpec, list[str]]:
    """The model of this name, or with these fields, with the assumptions made. Raises InputError."""
    if isinstance(model, str):
        return resolve_model(model, paths=local_files)
    return model_from_mapping(model, "model", INLINE_MODEL), []


def read_cluster(asked: HardwareNames, assumed: list[str]) -> ClusterSpec:
    """The hardware that a request names; what it leaves out is added to `assumed`. Raises InputError."""
    gpus = asked.gpus if asked.gpus is not None else asked.gpus_at_most
    if gpus is not None and gpus < 1:
        field = "gpus" if asked.gpus is not None else "gpus_at_most"
        raise InputError(f"{option(field)} {gpus}: give a whole number of at least 1")
    if asked.cluster is not None:
        if asked.gpu is not None or asked.gpu_table is not None or asked.gpus_per_node is not None:
            raise InputError(
                f"give either {option('cluster')} FILE or {option('gpu')}, {option('gpu_table')} and "
                f"{option('gpus_per_node')}, not both"
            )
        if asked.gpus_at_most is not None:
            node = _described_cluster(asked, 1).gpus_per_node
            gpus = asked.gpus_at_most if asked.gpus_at_most < node else asked.gpus_at_most // node * node
        return _described_cluster(asked, gpus)
    if gpus is None:
        raise InputError(
            f"how many GPUs? say {option('gpus')} N, for example {option('gpus')} 64 (or {option('gpus_at_most')} N)"
        )
    gpu = _gpu(asked, assumed)
    node = asked.gpus_per_node if asked.gpus_per_node is not None else gpu.gpus_per_node
    if asked.gpus_at_most is not None and gpus > node > 0:
        gpus -= gpus % node  # N or fewer: whole nodes
    return cluster_of(gpu, gpus, gpus_per_node=asked.gpus_per_node)


def _described_cluster(asked: HardwareNames, gpus: int | None) -> ClusterSpec:
    """The cluster of a file, or of the JSON in the question."""
    if not isinstance(asked.cluster, str):
        return cluster_from_mapping(dict(asked.cluster or {}), gpus)
    if not asked.local_files:
        raise InputError("cluster must be a JSON object (the keys of docs/examples/cluster.json), not the name of a file")
    return load_cluster(asked.cluster, gpus)


def _gpu(asked: HardwareNames, assumed: list[str]) -> GpuSpec:
    """The GPU by name, by its file of measured operators, or of this machine. Raises InputError."""
    if not asked.local_files and not asked.measured_here:
        if asked.gpu is None or asked.gpu_table is not None:
            raise InputError(f"say {option('gpu')}: the name of a GPU type")
        return load_gpu(asked.gpu)
    local = asked.gpu is not None and asked.gpu.strip().lower() == "local"
    if asked.gpu_table is not None:
        gpu, source = gpu_of_file(asked.gpu_table)
        if asked.gpu is not None and not local and find_gpu(asked.gpu).id != gpu.id:
            raise InputError(
                f"{option('gpu')} {asked.gpu} is not what {option('gpu_table')} is about ({gpu.id}); leave {option('gpu')} out"
            )
    elif local:
        gpu, source = local_gpu()
    elif asked.gpu is not None:
        return find_gpu(asked.gpu)
    else:
        gpu = load_gpu(DEFAULT_GPU)
        source = f"{gpu.id} (say --gpu to name another)"
    assumed.append(f"GPU {source}" if asked.gpu is None and asked.gpu_table is None else source)
    return gpu


def read_stack(name: str | None, gpu: GpuSpec, assumed: list[str]) -> SoftwareStack:
    """The stack asked for, else the default; on GPUs that it does not run on, the last one that does."""
    if name is not None:
        return load_stack(name)
    if gpu.architecture == CPU_ARCHITECTURE:
        assumed.append(f"software {CPU_STACK}, which runs on CPUs (--software)")
        return load_stack(CPU_STACK)
    stack = load_stack(DEFAULT_STACK)
    if gpu.compute_capability is not None and gpu.compute_capability < stack.least_compute_capability:
        older = load_stack(OLDER_STACK)
        assumed.append(f"software {older.name}, because {stack.name} does not run on {gpu.id} (--software)")
        return older
    return stack


def check_runs(gpu: GpuSpec, numerics: Numerics, stack: SoftwareStack) -> None:
    """The stack runs on the GPU in this precision. Raises InputError with what to change."""
    gpu.peak_flops_per_s(numerics.gemm_precision)
    capability = gpu.compute_capability
    if capability is not None and capability < stack.least_compute_capability:
        raise InputError(
            f"software {stack.name} needs compute capability {stack.least_compute_capability:g}; {gpu.id} has "
            f"{capability:g}: say {option('software')} megatron-lm-2022 or megatron-local"
        )
    if numerics.format.quantised and not stack.supports_fp8:
        raise InputError(
            f"software {stack.name} has no fp8; say {option('precision')} bf16, or {option('software')} {DEFAULT_STACK}"
        )
    least = numerics.format.least_compute_capability
    if capability is not None and capability < least:
        raise InputError(
            f"the {numerics.fp8_recipe} recipe needs compute capability {least:g} (Blackwell); {gpu.id} has "
            f"{capability:g}: say {option('fp8_recipe')} delayed, tensorwise or blockwise"
        )
