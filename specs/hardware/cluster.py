"""ClusterSpec: how many GPUs of which type, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.gpu import GpuSpec

MAX_GPUS = 1_000_000
MAX_BYTES = 1e20
"""Of a rate or a memory: beyond, products of them leave the range of a float; no machine comes near."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The hardware of one run. Bandwidths are per GPU and per direction, in bytes per second."""

    gpu: GpuSpec
    num_gpus: int
    gpus_per_node: int
    link_domain_size: int
    """GPUs that reach each other at `link_bytes_per_s`; a multiple or a divisor of gpus_per_node."""
    link_bytes_per_s: float
    nic_bytes_per_s: float
    memory_bytes: int
    """Memory of one GPU that a run may use before margins; the GPU's own unless the cluster file says less."""
    name: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.num_gpus <= MAX_GPUS:
            raise InputError(f"{self.num_gpus} GPUs: give a whole number from 1 to {MAX_GPUS:,}")
        if self.gpus_per_node < 1 or self.link_domain_size < 1:
            raise InputError(
                f"gpus_per_node={self.gpus_per_node} and link_domain_size={self.link_domain_size} must be at least 1"
            )
        if self.num_gpus > self.gpus_per_node and self.num_gpus % self.gpus_per_node:
            nearest = self.num_gpus // self.gpus_per_node * self.gpus_per_node
            raise InputError(
                f"{self.num_gpus} GPUs in nodes of {self.gpus_per_node} leave a node partly used; "
                f"use {nearest} or {nearest + self.gpus_per_node}, or say {option('gpus_per_node')}"
            )
        if self.num_nodes > 1 and self.link_domain_size % self.gpus_per_node and self.gpus_per_node % self.link_domain_size:
            raise InputError(
                f"link_domain_size={self.link_domain_size} is neither a multiple nor a divisor of "
                f"gpus_per_node={self.gpus_per_node}; give whole nodes or equal parts of a node"
            )
        if not all(0 < value <= MAX_BYTES for value in (self.link_bytes_per_s, self.nic_bytes_per_s, self.memory_bytes)):
            raise InputError(f"link, network bandwidth and memory must be positive and at most {MAX_BYTES:g} bytes (a second)")

    @property
    def num_nodes(self) -> int:
        """Nodes in use (at least one)."""
        return max(1, self.num_gpus // self.gpus_per_node)


def cluster_of(
    gpu: GpuSpec,
    num_gpus: int,
    *,
    gpus_per_node: int | None = None,
    link_domain_size: int | None = None,
    link_bytes_per_s: float | None = None,
    nic_bytes_per_s: float | None = None,
    memory_bytes: int | None = None,
    name: str = "",
) -> ClusterSpec:
    """The usual server of `gpu`, with what the caller knows better. Raises InputError as ClusterSpec does."""
    per_node = min(gpu.gpus_per_node, max(1, num_gpus)) if gpus_per_node is None else gpus_per_node
    domain = link_domain_size
    if domain is None:
        domain = gpu.link_domain_size if gpus_per_node is None else _domain_with_nodes_of(gpu, gpus_per_node)
    return ClusterSpec(
        gpu=gpu,
        num_gpus=num_gpus,
        gpus_per_node=per_node,
        link_domain_size=domain,
        link_bytes_per_s=gpu.link_bytes_per_s if link_bytes_per_s is None else link_bytes_per_s,
        nic_bytes_per_s=gpu.nic_bytes_per_s if nic_bytes_per_s is None else nic_bytes_per_s,
        memory_bytes=gpu.memory_bytes if memory_bytes is None else memory_bytes,
        name=name,
    )


def _domain_with_nodes_of(gpu: GpuSpec, gpus_per_node: int) -> int:
    """Link domain when nodes differ from the usual server's: a rack keeps its whole nodes, bridged pairs stay pairs."""
    if gpu.link_domain_size > gpu.gpus_per_node:
        return max(gpus_per_node, gpu.link_domain_size // max(1, gpus_per_node) * gpus_per_node)
    if gpu.link_domain_size < gpu.gpus_per_node:
        return min(gpus_per_node, gpu.link_domain_size)
    return gpus_per_node
