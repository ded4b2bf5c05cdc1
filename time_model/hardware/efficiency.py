"""What share of a GPU's published rates kernels and collectives reach: constants of the closed forms
(`data/gpu_efficiency.json`) and, where the GPU was measured, its operator tables; a machine's own file goes before both.

Measured operators of one GPU: loads `data/operators/<gpu>.json` (written by `make tables`) or a machine's own file
(specs.operator_table, written by `python -m autoconfig.kernels.benchmark`) and interpolates in it.

Only tables that are in use are kept: a table is used where it is nearer to held-out operator rows than the closed form and
`data/operators/decisions.json` has no reason against it. No table: the closed form prices the operator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.hardware.operator_table import read_operator_table
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.scenario import FORMATS, POOL, Calibration, Entry, Factors, Scenario

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class GridTable:
    """A number over the logarithms of sizes: multilinear between grid points, the nearest edge outside."""

    axes: tuple[Vector, ...]
    """Grid points in logs, ascending."""
    logs: Vector
    """Log of the number at each grid point, flat, last axis fastest."""
    over_formula: bool = False
    """The number is the rate over the closed form's (whose tile waves stay), not a share of peak."""
    generation: str = ""
    """Attention: which kernels were measured (flash2, flash3)."""
    tails: Vector | None = None
    """Attention: seconds per length that the last wave leaves idle, by head dim."""

    def at(self, *sizes: Number) -> Number:
        """The number at each size (arrays of one shape)."""
        index, share = [], []
        for size, axis in zip(sizes, self.axes, strict=True):
            position = np.interp(np.log(size), axis, np.arange(len(axis), dtype=np.float64))
            whole = np.minimum(position.astype(np.int64), len(axis) - 2)
            index.append(whole)
            share.append(position - whole)
        return np.exp(_multilinear(self.logs, [len(axis) for axis in self.axes], index, share))

    def least(self, number: int) -> float:
        """Smallest size on axis `number`."""
        return float(np.exp(self.axes[number][0]))


def _multilinear(values: Vector, lengths: Sequence[int], index: Sequence[Any], share: Sequence[Any]) -> Number:
    """Sum over the corners of each cell of value x weight."""
    strides = [int(np.prod(lengths[i + 1 :])) for i in range(len(lengths))]
    base = sum(i * stride for i, stride in zip(index, strides, strict=True))
    total = 0.0
    for corner in product((0, 1), repeat=len(lengths)):
        weight: Any = 1.0
        for bit, f in zip(corner, share, strict=True):
            weight = weight * (f if bit else 1.0 - f)
        total = total + weight * values[base + sum(stride for bit, stride in zip(corner, strides, strict=True) if bit)]
    return total


@dataclass(frozen=True, kw_only=True)
class CollectiveTerms:
    """alpha, share of the link rate and square-root term of one collective, by number of ranks."""

    ranks: tuple[float, ...]
    alpha_s: tuple[float, ...]
    link_share: tuple[float, ...]
    sqrt_s: tuple[float, ...]

    def slower(self, factor: float) -> CollectiveTerms:
        """Start-up and square-root term `factor` times as long (the link rate is scaled beside them)."""
        alpha, sqrt = (tuple(factor * x for x in values) for values in (self.alpha_s, self.sqrt_s))
        return replace(self, alpha_s=alpha, sqrt_s=sqrt)


@dataclass(frozen=True, kw_only=True)
class OperatorTables:
    """The tables in use for one GPU, by precision (`bf16`, `fp8`) or kind of collective; empty where nothing was measured."""

    gpu: str = ""
    gemm: dict[str, GridTable] = field(default_factory=dict)
    attention: GridTable | None = None
    """16-bit inputs."""
    attention_fp32: GridTable | None = None
    grouped_gemm: dict[str, GridTable] = field(default_factory=dict)
    """Of this machine's own benchmark only."""
    collectives: dict[str, CollectiveTerms] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Which operators come from tables, for example `operator tables of h100-sxm-80gb: gemm bf16, attention`."""
        names = [f"gemm {p}" for p in self.gemm] + ["attention"] * (self.attention is not None)
        names += ["attention fp32"] * (self.attention_fp32 is not None)
        names += [f"grouped gemm {p}" for p in self.grouped_gemm] + sorted(self.collectives)
        return f"operator tables of {self.gpu}: {', '.join(names)}" if names else ""


@cache
def operator_tables_of(gpu_id: str, with_links: bool = True) -> OperatorTables:
    """Tables of the GPU that was measured; none where it was not. `with_links` False: without collectives (the same chip
    behind other links)."""
    path = resources.files("autoconfig.time_model") / "data" / "operators" / f"{gpu_id}.json"
    if not path.is_file():
        return OperatorTables()
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tables_from(data, with_links)


def tables_from(data: dict[str, Any], with_links: bool = True) -> OperatorTables:
    """The tables in use of a shipped or measured file (specs.operator_table says its keys)."""
    attention = _grids(data["attention"])
    collectives = data["collectives"] if with_links else None
    return OperatorTables(
        gpu=data["gpu"],
        gemm=_grids(data["gemm"]),
        attention=attention.get("bf16"),
        attention_fp32=attention.get("fp32"),
        grouped_gemm=_grids(data["grouped_gemm"]),
        collectives=_terms(collectives) if collectives else {},
    )


def measured_over(measured: OperatorTables, shipped: OperatorTables) -> OperatorTables:
    """A machine's own tables, and the shipped ones where it measured nothing."""
    return OperatorTables(
        gpu=measured.gpu,
        gemm={**shipped.gemm, **measured.gemm},
        attention=measured.attention or shipped.attention,
        attention_fp32=measured.attention_fp32 or shipped.attention_fp32,
        grouped_gemm=measured.grouped_gemm,
        collectives={**shipped.collectives, **measured.collectives},
    )


def _grids(tables: dict[str, Any]) -> dict[str, GridTable]:
    return {
        precision: GridTable(
            axes=tuple(np.log(np.array(axis, dtype=np.float64)) for axis in table["axes"].values()),
            logs=np.log(np.array(table["efficiency"], dtype=np.float64)).ravel(),
            over_formula=table.get("over") == "formula",
            generation=table.get("generation", ""),
            tails=np.array(table["tail_s_per_length"]) if "tail_s_per_length" in table else None,
        )
        for precision, table in tables.items()
        if table["use"]
    }


def _terms(table: dict[str, Any]) -> dict[str, CollectiveTerms]:
    ranks = tuple(float(n) for n in table["axes"]["ranks"])
    return {
        kind: CollectiveTerms(
            ranks=ranks, alpha_s=tuple(terms["alpha_s"]), link_share=tuple(terms["link_share"]), sqrt_s=tuple(terms["sqrt_s"])
        )
        for kind, terms in table["kinds"].items()
        if terms["use"]
    }


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")

QUANTISED = {form.peak for form in FORMATS.values() if form.quantised}


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
class QuantisedEfficiency:
    """GEMM rate in a quantised format over bf16; by recipe its rate over per-tensor scaling and the bytes of a cast element."""

    over_bf16: float
    backward: float
    """Rate of both backward GEMMs over the forward one: where the tensor cores accumulate fast in fewer bits, training
    stacks switch that off in backward."""
    recipe: dict[str, float]
    cast_bytes: dict[str, float]


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
class RecurrentEfficiency:
    """Mamba-2 and Gated DeltaNet: shares of the 16-bit peak and of HBM, and backward over forward."""

    scan: float
    """Of peak."""
    delta_rule: float
    """Of peak."""
    convolution: float
    """Of HBM."""
    backward: float


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
    quantised: dict[str, QuantisedEfficiency]
    """By key of GpuSpec.flops_per_s."""
    attention: AttentionEfficiency
    recurrent: RecurrentEfficiency
    collectives: dict[str, CollectiveEfficiency]
    size_ranks: tuple[float, ...]
    """Group sizes at which the next two are given; between them linear in log2."""
    size_alpha: tuple[float, ...]
    size_bandwidth: tuple[float, ...]
    hbm_pointwise: float
    launch_s: float
    accumulate_exposed: float
    nic_efficiency: float
    nic_hop_s: float
    fsdp_interference: float
    host_bytes_per_s: float
    cpu_memory_bytes_per_s: float
    tensor_watts: float | None = None
    """Dynamic power of matrix units that are always busy at the operator tables' clock (operators.kernels); None: not known."""
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
    tables = operator_tables_of(constants.same_chip or gpu_id, with_links=not constants.same_chip)
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
    merged["nccl"] = _merge(data["default"]["nccl"], data["pcie"]["nccl"]) if link == "pcie" else dict(merged["nccl"])
    return merged, " + ".join(name for name, _ in layers)


def _merge(base: Any, value: Any) -> Any:
    return {**base, **value} if isinstance(base, dict) and isinstance(value, dict) else value


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in group.items() if key not in ("source", "range")}


def _quantised(group: dict[str, Any]) -> QuantisedEfficiency:
    numbers = _numbers(group)
    recipe = {key.removeprefix("recipe_"): value for key, value in numbers.items() if key.startswith("recipe_")}
    casts = {key[len("cast_") : -len("_bytes")]: value for key, value in numbers.items() if key.startswith("cast_")}
    return QuantisedEfficiency(over_bf16=numbers["over_bf16"], backward=numbers["backward"], recipe=recipe, cast_bytes=casts)


def _build(data: dict[str, Any], origin: str) -> GpuEfficiency:
    nccl, sizes = data["nccl"], data["nccl"]["by_size"]
    return GpuEfficiency(
        level=data["level"],
        origin=origin,
        gemm=GemmEfficiency(**_numbers(data["gemm"])),
        quantised={key: _quantised(data[key]) for key in QUANTISED if key in data},
        attention=AttentionEfficiency(**_numbers(data["attention"])),
        recurrent=RecurrentEfficiency(**_numbers(data["recurrent"])),
        collectives={name: CollectiveEfficiency(**_numbers(nccl[name])) for name in COLLECTIVES},
        size_ranks=tuple(sizes["ranks"]),
        size_alpha=tuple(sizes["alpha"]),
        size_bandwidth=tuple(sizes["bandwidth"]),
        hbm_pointwise=float(data["hbm"]["pointwise"]),
        launch_s=float(data["hbm"]["launch_s"]),
        accumulate_exposed=float(data["hbm"]["accumulate_exposed"]),
        nic_efficiency=float(data["nic"]["efficiency"]),
        nic_hop_s=float(data["nic"]["hop_s"]),
        fsdp_interference=float(data["fsdp"]["interference"]),
        host_bytes_per_s=float(data["host_link"]["bytes_per_s"]),
        cpu_memory_bytes_per_s=float(data["host_link"]["cpu_memory_bytes_per_s"]),
        tensor_watts=data["power"]["tensor_watts"] if "power" in data else None,
        same_chip=data.get("operators", ""),
    )


def entry_of(calibration: Calibration, architecture: str, generation: str, *, moe: bool = False) -> Entry | None:
    """The entry of the generation on this architecture (for a mixture of experts its own, else the dense one), else of its
    nearest ancestor, else the architecture's pool; None for the documented defaults."""
    here = {(e.generation, e.kind): e for e in calibration.entries if e.architecture == architecture}
    wanted: str | None = generation
    while wanted is not None:
        for kind in ("moe", "dense") if moe else ("dense",):
            if (wanted, kind) in here:
                return here[wanted, kind]
        wanted = parents().get(wanted)
    return here.get((POOL, "dense"))


def entry_for(scenario: Scenario, *, moe: bool) -> Entry | None:
    """`entry_of` for a scenario's GPU and software."""
    return entry_of(scenario.calibration, scenario.cluster.gpu.architecture, scenario.software.generation, moe=moe)


def factors_for(scenario: Scenario) -> Factors:
    """What the scenario's calibration says of its GPU, software and kind of model; 1 where nothing was fitted."""
    entry = entry_for(scenario, moe=scenario.model.is_moe)
    return Factors() if entry is None else entry.factors


@cache
def parents() -> Mapping[str, str | None]:
    """Generation -> the generation that stands in for it."""
    text = (resources.files("autoconfig.time_model") / "data" / "generations.json").read_text(encoding="utf-8")
    table: dict[str, str | None] = json.loads(text)["parents"]
    return table
