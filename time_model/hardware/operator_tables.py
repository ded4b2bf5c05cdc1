"""Measured operators of one GPU: loads `data/operators/<gpu>.json` (written by `make tables`) or a machine's own file
(specs.operator_table, written by `python -m autoconfig.kernels.benchmark`) and interpolates in it.

Only tables that are in use are kept: a table is used where it is nearer to held-out operator rows than the closed form and
`data/operators/decisions.json` has no reason against it. No table: the closed form prices the operator.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.models.parameters import Number

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
        grouped_gemm={**shipped.grouped_gemm, **measured.grouped_gemm},
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
            ranks=ranks,
            alpha_s=tuple(terms["alpha_s"]),
            link_share=tuple(terms["link_share"]),
            sqrt_s=tuple(terms["sqrt_s"]),
        )
        for kind, terms in table["kinds"].items()
        if terms["use"]
    }
