"""Which sizes the benchmark measures, and the operator table that the time model reads (specs.operator_table) from them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from autoconfig.kernels.bench.operators import CHAIN, attention_flops


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Grids of one set of sizes.toml. Axes rise; a table is priced between their points."""

    m: tuple[int, ...]
    """GEMM rows: tokens of a micro-batch on one rank."""
    nk: tuple[int, ...]
    """GEMM columns and inner size: hidden size, ffn width over tp, vocabulary over tp."""
    plan_shapes: tuple[tuple[int, int, int], ...]
    """(m, n, k) beside the grid: how far the table is off between its points."""
    head_dims: tuple[int, ...]
    lengths: tuple[int, ...]
    attention_rows: int
    """Batch x heads x length of one attention call, at least `least_parallel` x length."""
    least_parallel: int
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    """Grouped GEMM: square root of n k; measured with n = k."""
    groups: tuple[int, ...]
    copy_bytes: tuple[int, ...]
    pointwise_shape: tuple[int, int]
    collective_bytes: tuple[int, ...]
    launches: int
    cap_s: float
    """Most seconds of one point, its warm-up not counted."""
    least_repetitions: int = 3
    most_repetitions: int = 20

    def repetitions(self, once_s: float) -> int:
        """How often to time what takes so long."""
        return min(self.most_repetitions, max(self.least_repetitions, int(self.cap_s / max(once_s, 1e-6))))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


SETS = {
    name: Sizes(**{key: _tuples(value) for key, value in sizes.items()})
    for name, sizes in tomllib.loads(Path(__file__).with_name("sizes.toml").read_text(encoding="utf-8")).items()
}


def coarse(axis: tuple[int, ...]) -> tuple[int, ...]:
    """Every second point of an axis, both ends kept: measured first, so that an early end leaves a whole table."""
    last = len(axis) - 1
    return tuple(value for i, value in enumerate(axis) if i == 0 or (last - i) % 2 == 0)


Key = tuple[float | str, ...]
Points = Mapping[Key, tuple[float, float, int]]
"""Sizes -> (median seconds, spread, repetitions)."""
DIGITS = 6
WHOLE, PART = 0.9, 0.75
"""Share of a grid (of every second point of it) that must be measured for a table; the rest takes the nearest point's rate."""
BEYOND = 4.0
BACKWARD_FLOPS = 2.5
"""Of the attention's backward pass over its forward pass (scores again, then four GEMMs for two)."""


def rounded(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.{DIGITS}g}")


def grid_of(points: Points, axes: Iterable[tuple[int, ...]]) -> tuple[list[list[int]], Points] | None:
    """(axes, every point of their grid) from what was measured: the whole grid, else every second point; None if too little is
    there. A missing point has key of its own and `inf` seconds."""
    full = [tuple(axis) for axis in axes]
    for chosen, least in ((full, WHOLE), ([coarse(axis) for axis in full], PART)):
        keys = list(product(*chosen))
        found = {key: points[key] for key in keys if key in points}
        if keys and len(found) >= least * len(keys):
            return [list(axis) for axis in chosen], {key: found.get(key, (math.inf, 0.0, 0)) for key in keys}
    return None


def efficiency_table(points: Points, axes: dict[str, tuple[int, ...]], ideal: Any, peak: float) -> dict[str, Any] | None:
    """A group's table: share of `peak`. `ideal(key)`: (FLOPs, seconds that are not the operator's) of one point."""
    grid = grid_of(points, axes.values())
    if grid is None:
        return None
    used, cells = grid
    share = {}
    for key, (seconds, _, _) in cells.items():
        flops, beside = ideal(key)
        if math.isfinite(seconds):
            share[key] = flops / peak / max(seconds - beside, 0.1 * seconds)
    missing = [key for key in cells if key not in share]
    near = np.log(np.array(list(share), dtype=np.float64))
    values = list(share.values())
    for key in missing:
        distance = ((near - np.log(np.array(key, dtype=np.float64))) ** 2).sum(axis=1)
        share[key] = values[int(distance.argmin())]
    nested = np.array([rounded(share[key]) for key in product(*used)]).reshape([len(axis) for axis in used]).tolist()
    return {
        "rows": len(points),
        "over": "peak",
        "peak_flops_per_s": peak,
        "axes": dict(zip(axes, used, strict=True)),
        "efficiency": nested,
        "filled": len(missing),
        "use": True,
    }


def held_out_error(points: Points, table: dict[str, Any]) -> dict[str, Any] | None:
    """How far the table is from shapes between its points: median, 90 % quantile and median with sign, % of measured time."""
    axes = [np.log(axis) for axis in table["axes"].values()]
    if not points or min(len(axis) for axis in axes) < 2:
        return None
    from scipy.interpolate import RegularGridInterpolator  # not in a plain install

    lookup = RegularGridInterpolator(axes, np.log(np.array(table["efficiency"])))
    keys = np.array(list(points), dtype=np.float64)
    inside = np.stack([np.clip(np.log(keys[:, i]), axis[0], axis[-1]) for i, axis in enumerate(axes)], axis=1)
    seconds = 2.0 * keys.prod(axis=1) / (table["peak_flops_per_s"] * np.exp(lookup(inside)))
    error = 100.0 * (seconds / np.array([t for t, _, _ in points.values()]) - 1.0)
    quantiles = {"median": np.median(abs(error)), "p90": np.quantile(abs(error), 0.9), "bias": np.median(error)}
    return {"rows": len(points), "table": {name: round(float(value), 2) for name, value in quantiles.items()}}


def gemm_flops(key: Key) -> tuple[float, float]:
    """2 m n k."""
    m, n, k = (float(x) for x in key)
    return 2.0 * m * n * k, 0.0


def grouped_flops(key: Key) -> tuple[float, float]:
    """2 rows width^2 groups."""
    rows, width, groups = (float(x) for x in key)
    return 2.0 * rows * width**2 * groups, 0.0


def best_rate(points: Points) -> float:
    """FLOPs per second of the fastest GEMM."""
    return max((gemm_flops(key)[0] / seconds for key, (seconds, _, _) in points.items()), default=0.0)


def attention_table(points: Points, sizes: Sizes, parallel: Any, launch_s: float, peak: float) -> dict[str, Any] | None:
    """Forward pass, its start-up (`launch_s`, which the time model adds again) taken off."""
    axes = {"head_dim": sizes.head_dims, "length": sizes.lengths}
    return efficiency_table(
        points, axes, lambda key: (attention_flops(parallel(int(key[1])), int(key[1]), int(key[0])), launch_s), peak
    )


def backward_rate(forward: Points, backward: Points, launch_s: float) -> float | None:
    """Rate of the attention's backward pass over its forward pass: median over the points of the longer half of the lengths."""
    ratios = []
    middle = np.median([float(key[1]) for key in backward]) if backward else 0.0
    for key, (seconds, _, _) in backward.items():
        if key in forward and float(key[1]) >= middle:
            ahead = max(forward[key][0] - launch_s, 0.1 * forward[key][0])
            ratios.append(BACKWARD_FLOPS * ahead / max(seconds - 2 * launch_s, 0.1 * seconds))
    return float(np.median(ratios)) if ratios else None


def score_gemm_rate(points: Points, peak: float) -> tuple[float, float] | None:
    """(u, d0) of rate u d / (d + d0) over peak, for the batched GEMMs of unfused attention: relative least squares of
    peak / rate = 1/u + d0/u / d over head dims d (median over lengths)."""
    dims: dict[float, list[float]] = {}
    for (head_dim, length, parallel), (seconds, _, _) in points.items():
        flops = 2.0 * float(parallel) * float(length) ** 2 * float(head_dim)
        dims.setdefault(float(head_dim), []).append(peak * seconds / flops)
    if not dims:
        return None
    from scipy.optimize import nnls

    d = np.array(list(dims))
    slowness = np.array([np.median(values) for values in dims.values()])
    solution = nnls(np.stack([np.ones_like(d), 1.0 / d], axis=1) / slowness[:, None], np.ones_like(d))[0]
    level = max(float(solution[0]), 0.1 * float(slowness.min()))
    return min(1.0 / level, 8.0), float(solution[1]) / level


def ring_factor(kind: str, ranks: int) -> float:
    """Bytes that each rank sends per byte of the whole buffer (Thakur et al. 2005); 1 for p2p."""
    return 1.0 if kind == "p2p" else (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1) / ranks


def collective_terms(points: Points, kind: str, ranks: int) -> tuple[float, float, float] | None:
    """(alpha s, bytes/s, s per sqrt byte) of t = alpha + ring factor bytes / bandwidth + c sqrt(bytes); None below two sizes.
    Relative least squares, nothing negative, two passes with Huber weights; no bandwidth beyond BEYOND times the best that was
    seen (short buffers do not show it)."""
    mine = [(float(key[2]), t) for key, (t, _, _) in points.items() if key[0] == kind and key[1] == ranks]
    if len(mine) < 2:
        return None
    from scipy.optimize import nnls

    total, seconds = np.array(sorted(mine)).T
    columns = [np.ones_like(total), ring_factor(kind, ranks) * total, np.sqrt(total)]
    if kind == "p2p" or len(mine) < 4:
        columns[2] = np.zeros_like(total)
    design = np.stack(columns, axis=1) / seconds[:, None]
    scale, weight, solution = np.maximum(design.max(axis=0), 1e-30), np.ones_like(total), np.zeros(3)
    for _ in range(3):
        solution = nnls(design / scale * weight[:, None], weight)[0] / scale
        residual = abs(design @ solution - 1.0)
        weight = np.sqrt(np.minimum(1.0, 0.1 / np.maximum(residual, 1e-12)))
    most = BEYOND * float((ring_factor(kind, ranks) * total / seconds).max())
    return float(solution[0]), 1.0 / max(float(solution[1]), 1.0 / most), float(solution[2])


def best_link(points: Points) -> float | None:
    """Bytes per second and rank of the best collective."""
    rates = [ring_factor(str(kind), int(ranks)) * float(size) / t for (kind, ranks, size), (t, _, _) in points.items()]
    return max(rates) if rates else None


def collective_tables(points: Points, link_bytes_per_s: float) -> tuple[dict[str, Any] | None, dict[str, float] | None]:
    """(the table's `collectives`, `constants.p2p`): every number of ranks at which all measured kinds have their sizes."""
    p2p = collective_terms(points, "p2p", 2)
    constants = p2p and {"alpha_s": rounded(p2p[0]), "link_share": rounded(p2p[1] / link_bytes_per_s), "sqrt_s": 0.0}
    return _collectives(points, link_bytes_per_s), constants


def _collectives(points: Points, link_bytes_per_s: float) -> dict[str, Any] | None:
    """The table of every number of ranks at which all measured kinds have their sizes; None without one."""
    measured = [(str(key[0]), int(key[1])) for key in points if key[0] != "p2p"]
    ranks = sorted({n for _, n in measured})
    fits = {kind: [collective_terms(points, kind, n) for n in ranks] for kind in dict(measured)}
    fits = {kind: terms for kind, terms in fits.items() if any(terms)}
    whole = [place for place in range(len(ranks)) if all(terms[place] for terms in fits.values())] if fits else []
    if not whole:
        return None
    kinds = {}
    for kind, fit in fits.items():
        columns = _columns([fit[place] or (0.0, 1.0, 0.0) for place in whole], link_bytes_per_s)
        kinds[kind] = {"rows": sum(key[0] == kind for key in points), **columns, "use": True}
    return {"axes": {"ranks": [ranks[place] for place in whole]}, "link_bytes_per_s": link_bytes_per_s, "kinds": kinds}


def _columns(terms: Sequence[tuple[float, float, float]], link_bytes_per_s: float) -> dict[str, list[float]]:
    return {
        "alpha_s": [rounded(alpha) for alpha, _, _ in terms],
        "link_share": [rounded(min(bandwidth / link_bytes_per_s, 1e3)) for _, bandwidth, _ in terms],
        "sqrt_s": [rounded(sqrt) for _, _, sqrt in terms],
    }


def pointwise_share(points: Points, moved: Mapping[str, float], bandwidth: float) -> float | None:
    """Share of memory bandwidth of a memory-bound chain: geometric mean over CHAIN of bytes / seconds / bandwidth."""
    shares = [moved[name] / points[name,][0] / bandwidth for name in CHAIN if (name,) in points]
    return math.exp(sum(map(math.log, shares)) / len(shares)) if shares else None
