"""GpuSpec: facts about one GPU type. Every number in a catalogue file has a source beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoconfig.specs.errors import InputError

CPU_ARCHITECTURE = "cpu"
"""Architecture of a machine's own CPU, measured in place of a GPU (kernels.benchmark)."""


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU type. Rates are per GPU, dense (no sparsity) and per direction."""

    id: str
    """Canonical id, for example `h100-sxm-80gb`."""
    name: str
    vendor: str
    architecture: str
    """volta, ampere, ada, hopper, blackwell, cdna3 or cdna4; cpu or unknown where a machine's own device was measured."""
    compute_capability: float | None
    """CUDA compute capability; None for other vendors."""
    memory_bytes: int
    """Total device memory as the driver reports it to a process (`torch.cuda.get_device_properties().total_memory`)."""
    hbm_bytes_per_s: float
    flops_per_s: dict[str, float] = field(hash=False)
    """Dense peak by precision: fp32, tf32, bf16, fp16, fp8, fp4, int8 (those that the GPU has)."""
    num_sms: int
    """Streaming multiprocessors (compute units on AMD)."""
    link: str
    """nvlink, xgmi or pcie: how GPUs of one node talk."""
    link_bytes_per_s: float
    """All links of one GPU together, one direction."""
    link_domain_size: int
    """GPUs that reach each other over `link` in the usual server (8 in a DGX H100, 72 in an NVL72 rack)."""
    gpus_per_node: int
    """GPUs under one operating system in the usual server."""
    nic_bytes_per_s: float
    """Network bandwidth per GPU of the usual server, one direction."""
    aliases: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict, hash=False, compare=False)
    operator_tables: str = ""
    """File of operators measured on this very machine (specs.operator_table); empty: the tables that ship."""

    def peak_flops_per_s(self, precision: str) -> float:
        """Dense peak for a training precision; tf32 means fp32 where there is none. Raises InputError naming what there is."""
        if precision == "tf32" and "tf32" not in self.flops_per_s:
            precision = "fp32"
        if precision not in self.flops_per_s:
            raise InputError(f"{self.id} has no {precision} matrix unit; it has {', '.join(sorted(self.flops_per_s))}")
        return self.flops_per_s[precision]
