"""Measured operators of a serving engine on one GPU: loads `data/serving/<gpu>.json` (written by `make tables`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from specs.errors import InputError
from specs.gpu import GpuSpec
from specs.parameters import Number
from time_model.operator_tables import GridTable

Vector = npt.NDArray[np.float64]
FOLDER = resources.files("time_model") / "data" / "serving"


@dataclass(frozen=True, kw_only=True, eq=False)
class AllReduceTable:
    """Seconds of the engine's one-node all-reduce: log-log between sizes, linear in log2 of the ranks, rate constant beyond."""

    ranks: Vector
    log_bytes: Vector
    log_seconds: Vector
    """[ranks, bytes]"""

    def seconds(self, ranks: int, total_bytes: Number) -> Number:
        """Time of one all-reduce of `total_bytes` over `ranks` GPUs of one node."""
        size = np.log(np.maximum(total_bytes, np.exp(self.log_bytes[0])))
        row = np.interp(np.log2(ranks), np.log2(self.ranks), np.arange(len(self.ranks), dtype=np.float64))
        low = int(row)
        high, share = min(low + 1, len(self.ranks) - 1), row - low
        logs = (1.0 - share) * self.log_seconds[low] + share * self.log_seconds[high]
        return np.exp(np.interp(size, self.log_bytes, logs) + np.maximum(size - self.log_bytes[-1], 0.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class ServingTables:
    """Shares of the roofline by operator and kind; all-reduce in seconds."""

    chip: str
    """GPU whose rows these are; another than the one asked for where the chip is the same or nearest."""
    gemm: dict[str, GridTable] = field(default_factory=dict)
    decode_attention: dict[str, GridTable] = field(default_factory=dict)
    context_attention: dict[str, GridTable] = field(default_factory=dict)
    experts: dict[str, GridTable] = field(default_factory=dict)
    latent_attention: dict[str, GridTable] = field(default_factory=dict)
    all_reduce: AllReduceTable


def serving_tables_of(gpu: GpuSpec) -> ServingTables:
    """Tables of the GPU, or of the chip that stands in for it (data/serving/chips.json). Raises InputError where there is
    none."""
    chips: dict[str, str] = json.loads((FOLDER / "chips.json").read_text(encoding="utf-8"))["chips"]
    chip = chips.get(gpu.id, gpu.id)
    if not (FOLDER / f"{chip}.json").is_file():
        known = sorted({*chips, *(p.name.removesuffix(".json") for p in FOLDER.iterdir())} - {"chips"})
        raise InputError(
            f"no serving operators were measured on {gpu.id} or a chip like it, but on "
            f"{', '.join(name for name in known if (FOLDER / f'{name}.json').is_file())} "
            "and cards with these chips; name the nearest"
        )
    return _load(chip)


def even_tables() -> ServingTables:
    """Every operator at its roofline and collectives free, for a device that nobody measured: its constants hold the rest."""

    def one(axes: int) -> GridTable:
        return GridTable(axes=(np.array([0.0, 1.0]),) * axes, logs=np.zeros(2**axes))

    free = AllReduceTable(ranks=np.array([2.0, 4.0]), log_bytes=np.array([0.0, 1.0]), log_seconds=np.full((2, 2), -100.0))
    return ServingTables(
        chip="none",
        gemm={"bf16": one(3)},
        decode_attention={"bf16:64": one(3), "bf16:128": one(3)},
        context_attention={"bf16:64": one(2), "bf16:128": one(2)},
        experts={"bf16": one(4)},
        latent_attention={"decode:bf16": one(3), "context:bf16": one(3)},
        all_reduce=free,
    )


@cache
def _load(chip: str) -> ServingTables:
    data: dict[str, Any] = json.loads((FOLDER / f"{chip}.json").read_text(encoding="utf-8"))
    reduce = data["all_reduce"]
    return ServingTables(
        chip=chip,
        **{
            name: {key: _grid(one) for key, one in data[name].items()}
            for name in ("gemm", "decode_attention", "context_attention", "experts", "latent_attention")
        },
        all_reduce=AllReduceTable(
            ranks=np.array(reduce["axes"]["ranks"], dtype=np.float64),
            log_bytes=np.log(np.array(reduce["axes"]["bytes"], dtype=np.float64)),
            log_seconds=np.log(np.array(reduce["microseconds"]) / 1e6),
        ),
    )


def _grid(data: dict[str, Any]) -> GridTable:
    return GridTable(
        axes=tuple(np.log(np.array(axis, dtype=np.float64)) for axis in data["axes"].values()),
        logs=np.log(np.array(data["share"], dtype=np.float64)).ravel(),
    )
