"""What share of a GPU's published rates kernels and collectives reach: constants of the closed forms
(`data/gpu_efficiency.json`) and, where the GPU was measured, its operator tables; a machine's own file goes before both."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.hardware.gpu import GpuSpec
from autoconfig.specs.hardware.operator_table import read_operator_table
from autoconfig.time_model.hardware.operator_tables import OperatorTables, measured_over, operator_tables_of, tables_from

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


@dataclass(frozen=True, kw_only=True)
class GemmEfficiency:
    """Constants of gemm.gemm_seconds; docs/time_model.md explains each."""

    e: float
    k0_elements: float
    t0_s: float
    eb: float
    r1: float
    r2: float


@dataclass(frozen=True, kw_only=True)
class Fp8Efficiency:
    """GEMM rate in fp8 over bf16, by recipe; traffic of casts per activation element."""

    over_bf16: float
    backward: float
    """Rate of both backward GEMMs over the forward one: where the tensor cores accumulate fast in fewer bits, training
    stacks switch that off in backward."""
    cast_delayed_bytes: float
    cast_tensorwise_bytes: float
    cast_blockwise_bytes: float
    cast_mxfp8_bytes: float
    recipe_delayed: float
    recipe_tensorwise: float
    recipe_blockwise: float
    recipe_mxfp8: float

    def recipe(self, name: str) -> float:
        """GEMM rate of this recipe over per-tensor scaling."""
        return float(getattr(self, f"recipe_{name}"))

    def cast_bytes(self, name: str) -> float:
        """Traffic of one cast per element with this recipe."""
        return float(getattr(self, f"cast_{name}_bytes"))

    def rate(self, name: str) -> float:
        """GEMM rate over bf16 with this recipe, where no table says it."""
        return self.over_bf16 * self.recipe(name)


@dataclass(frozen=True, kw_only=True)
class AttentionEfficiency:
    """Rates of fused and unfused attention; `flashN_e` and `flashN_s0` per kernel generation."""

    flash1_e: float
    flash1_s0: float
    flash2_e: float
    flash2_s0: float
    flash3_e: float
    flash3_s0: float
    backward: float
    head_dim_half: float
    flash1_share: float
    flash2_share: float
    flash3_share: float
    """Rate of a kernel generation over the one that the GPU's table measured."""
    unfused_gemm: float
    unfused_head_dim_half: float

    def flash(self, generation: str) -> tuple[float, float]:
        """(e, s0) of one generation."""
        return float(getattr(self, f"{generation}_e")), float(getattr(self, f"{generation}_s0"))

    def share(self, generation: str) -> float:
        """Rate of one generation over the measured one."""
        return float(getattr(self, f"{generation}_share"))


@dataclass(frozen=True, kw_only=True)
class CollectiveEfficiency:
    """t = alpha + ring factor x bytes / bandwidth + sqrt_s sqrt(bytes); bandwidth = link_share x the GPU's link rate."""

    alpha_s: float
    link_share: float
    sqrt_s: float


@dataclass(frozen=True, kw_only=True)
class GpuEfficiency:
    """All constants of one GPU type. `level` is `calibrated` where operator tables of this family stand behind it."""

    level: str
    origin: str
    """Which entries of the data file were merged, for example `default + hopper`."""
    gemm: GemmEfficiency
    fp8: Fp8Efficiency
    attention: AttentionEfficiency
    collectives: dict[str, CollectiveEfficiency]
    size_ranks: tuple[float, ...]
    """Group sizes at which the next two are given; between them linear in log2."""
    size_alpha: tuple[float, ...]
    size_bandwidth: tuple[float, ...]
    grouped_rows_half: float
    hbm_pointwise: float
    launch_s: float
    accumulate_exposed: float
    nic_efficiency: float
    nic_hop_s: float
    fsdp_interference: float
    host_bytes_per_s: float
    cpu_memory_bytes_per_s: float
    same_chip: str = ""
    """The measured GPU whose chip this one has, where it is not measured itself."""
    tables: OperatorTables = field(default_factory=OperatorTables, hash=False)


@cache
def _file() -> dict[str, Any]:
    text = (resources.files("autoconfig.time_model") / "data" / "gpu_efficiency.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def formula_efficiency_of(gpu: GpuSpec) -> GpuEfficiency:
    """Constants of this GPU's closed forms: the default, then its architecture, then the longest id prefix of the data file."""
    return _efficiency(gpu.id, gpu.architecture, gpu.link)


def efficiency_of(gpu: GpuSpec) -> GpuEfficiency:
    """The closed forms with the operator tables of this GPU, or of the one whose chip it has (`operators` in the data file).

    What was measured on this very machine (`gpu.operator_tables`) goes before both. Raises FileError or InputError where
    that file cannot be used.
    """
    if not gpu.operator_tables:
        return _with_tables(gpu.id, gpu.architecture, gpu.link)
    return _with_measured(gpu, read_operator_table(gpu.operator_tables))


def _with_measured(gpu: GpuSpec, data: dict[str, Any]) -> GpuEfficiency:
    """The machine's own constants and tables over those that ship."""
    shipped = _with_tables(gpu.id, gpu.architecture, gpu.link)
    merged, origin = _merged(gpu.id, gpu.architecture, gpu.link)
    for group, values in data.get("constants", {}).items():
        target = merged["nccl"] if group == "p2p" else merged
        target[group] = _merge(target[group], values)
    own = tables_from(data)
    origin = "; ".join(filter(None, (origin, shipped.tables.origin, f"measured on this machine: {own.origin}")))
    return replace(_build(merged, origin), level="calibrated", tables=measured_over(own, shipped.tables))


@cache
def _with_tables(gpu_id: str, architecture: str, link: str) -> GpuEfficiency:
    constants = _efficiency(gpu_id, architecture, link)
    same_chip = constants.same_chip
    tables = operator_tables_of(same_chip, with_links=False) if same_chip else operator_tables_of(gpu_id)
    return replace(constants, tables=tables, origin="; ".join(filter(None, (constants.origin, tables.origin))))


@cache
def _efficiency(gpu_id: str, architecture: str, link: str) -> GpuEfficiency:
    return _build(*_merged(gpu_id, architecture, link))


def _merged(gpu_id: str, architecture: str, link: str) -> tuple[dict[str, Any], str]:
    """(one entry with every constant, names of the entries behind it); a new object every time."""
    data = _file()
    prefix = max((p for p in data["gpus"] if gpu_id == p or gpu_id.startswith(p + "-")), key=len, default=None)
    layers = [("default", data["default"])]
    if architecture in data["architectures"]:
        layers.append((architecture, data["architectures"][architecture]))
    if prefix is not None:
        layers.append((prefix, data["gpus"][prefix]))
    merged: dict[str, Any] = {}
    for _, entry in layers:
        for key, value in entry.items():
            merged[key] = _merge(merged.get(key), value)
    if link == "pcie":
        merged["nccl"] = data["default"]["nccl"]
    merged["nccl"] = dict(merged["nccl"])
    return merged, " + ".join(name for name, _ in layers)


def _merge(base: Any, value: Any) -> Any:
    return {**base, **value} if isinstance(base, dict) and isinstance(value, dict) else value


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in group.items() if key not in ("source", "range")}


def _build(data: dict[str, Any], origin: str) -> GpuEfficiency:
    nccl, sizes = data["nccl"], data["nccl"]["by_size"]
    return GpuEfficiency(
        level=data["level"],
        origin=origin,
        gemm=GemmEfficiency(**_numbers(data["gemm"])),
        fp8=Fp8Efficiency(**_numbers(data["fp8"])),
        attention=AttentionEfficiency(**_numbers(data["attention"])),
        collectives={name: CollectiveEfficiency(**_numbers(nccl[name])) for name in COLLECTIVES},
        size_ranks=tuple(sizes["ranks"]),
        size_alpha=tuple(sizes["alpha"]),
        size_bandwidth=tuple(sizes["bandwidth"]),
        grouped_rows_half=float(data["grouped_gemm"]["rows_half"]),
        hbm_pointwise=float(data["hbm"]["pointwise"]),
        launch_s=float(data["hbm"]["launch_s"]),
        accumulate_exposed=float(data["hbm"]["accumulate_exposed"]),
        nic_efficiency=float(data["nic"]["efficiency"]),
        nic_hop_s=float(data["nic"]["hop_s"]),
        fsdp_interference=float(data["fsdp"]["interference"]),
        host_bytes_per_s=float(data["host_link"]["bytes_per_s"]),
        cpu_memory_bytes_per_s=float(data["host_link"]["cpu_memory_bytes_per_s"]),
        same_chip=data.get("operators", ""),
    )
