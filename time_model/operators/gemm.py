"""Seconds of matrix multiplications from their shape."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.hardware.efficiency import GemmEfficiency
from autoconfig.time_model.hardware.operator_tables import GridTable

TILES = ((256, 128, 0, 0), (128, 256, 0, 0), (128, 128, 1, 0), (128, 64, 1, 1), (64, 128, 1, 1), (64, 64, 1, 2))
"""Thread-block tiles (rows, columns) of cuBLAS, and how often the small-tile losses r1 and r2 apply to each."""


def gemm_seconds(
    m: Number,
    n: Number,
    k: Number,
    *,
    flops_per_s: Number,
    hbm_bytes_per_s: float,
    num_sms: int,
    constants: GemmEfficiency,
    element_bytes: Number = 2.0,
    groups: Number = 1.0,
    table: GridTable | None = None,
) -> Number:
    """C[m, n] = A[m, k] B[k, n], `groups` of them in one launch: by the GPU's table where given, else by the closed form
    start-up + max(best tile, traffic).

    Table: `flops_per_s` is the peak that its shares count from, or, where it corrects the closed form, what that takes.
    Tile (a, b): ceil(groups ceil(m/a) ceil(n/b) / SMs) waves, each SMs tiles of 2 a b k FLOPs at the rate
    P e k/(k + k0) r, r = r1^i r2^j for small tiles. Traffic: groups (m k + k n + m n) elements at eb of HBM. The waves are
    why a slightly larger matrix can take a whole wave longer; k/(k + k0) is the pipeline fill of one tile.
    Source: closed form of the project's findings on public measurements, section 2, fitted to operator tables of
    aiconfigurator-core 0.12.0 (median error 2-5 % for m >= 512 and n, k >= 256). Assumes one kernel at a time.
    """
    if table is not None and not table.over_formula:
        return groups * table_gemm_seconds(m, n, k, flops_per_s=flops_per_s, table=table)
    a, b, r = tile_table(constants, np.ndim(m))
    waves = np.ceil(np.ceil(m / a) * np.ceil(n / b) * groups / num_sms)
    waves *= a * b / r
    tiled = waves.min(axis=0) * (2.0 * num_sms) * k / (flops_per_s * constants.e * k / (k + constants.k0_elements))
    traffic = gemm_bytes(m, n, k, element_bytes) * groups / (constants.eb * hbm_bytes_per_s)
    seconds = constants.t0_s + np.maximum(tiled, traffic)
    return seconds if table is None else seconds / table.at(m, n, k)


def table_gemm_seconds(m: Number, n: Number, k: Number, *, flops_per_s: Number, table: GridTable) -> Number:
    """FLOPs over peak x measured efficiency. A size below the table costs as much as its smallest one; above, efficiency stays.

    Source: operator rows of aiconfigurator-core 0.12.0 (data/operators); held-out errors in docs/time_model.md.
    """
    m, n, k = (np.maximum(size, table.least(axis)) for axis, size in enumerate((m, n, k)))
    return gemm_flops(m, n, k) / (flops_per_s * table.at(m, n, k))


def tile_table(constants: GemmEfficiency, ndim: int) -> tuple[Number, Number, Number]:
    """Rows, columns and relative rate of each tile, shaped to broadcast in front of `ndim` axes."""
    shape = (len(TILES),) + (1,) * ndim
    table = np.array(TILES, dtype=np.float64)
    rate = constants.r1 ** table[:, 2] * constants.r2 ** table[:, 3]
    return table[:, 0].reshape(shape), table[:, 1].reshape(shape), rate.reshape(shape)


def grouped_gemm_share(m: Number, rows_half: float) -> Number:
    """Rate of a grouped GEMM over a dense one with as many tiles: m/(m + m0), m rows of one group.

    Source: fused MoE rows of aiconfigurator-core 0.12.0 (findings on public measurements, section 5): H100 .26 / .35 /
    .39 of peak at
    256 / 512 / 1,024 rows an expert, B200 .17 / .23 / .29; about a fifth of that time is permutation and activation.
    """
    return m / (m + rows_half)


def grouped_gemm_seconds(
    m: Number,
    n: Number,
    k: Number,
    groups: Number,
    *,
    rows: Number,
    rows_half: float,
    flops_per_s: Number,
    hbm_bytes_per_s: float,
    num_sms: int,
    constants: GemmEfficiency,
    element_bytes: Number = 2.0,
    table: GridTable | None = None,
    whole: Number = 0.0,
) -> Number:
    """`groups` GEMMs in one launch, `rows` the rows of one expert: by the GPU's table (efficiency by rows, sqrt of the weight
    matrix's size, and groups) where given, else gemm_seconds at the grouped share of the rate.

    `whole`: seconds of one dense GEMM with as many tiles, where the GPU has a dense table: grouping is never faster. The
    grouped table is what a fused layer leaves once activation and expansion are taken off, which overshoots at many rows.
    """
    if table is not None:
        width = np.sqrt(m * n * k / rows)
        return np.maximum(gemm_flops(m, n, k) * groups / (flops_per_s * table.at(rows, width, groups)), whole)
    return gemm_seconds(
        m,
        n,
        k,
        flops_per_s=flops_per_s * grouped_gemm_share(rows, rows_half),
        hbm_bytes_per_s=hbm_bytes_per_s,
        num_sms=num_sms,
        constants=constants,
        element_bytes=element_bytes,
        groups=groups,
    )


def gemm_flops(m: Number, n: Number, k: Number) -> Number:
    """2 m n k: one multiplication and one addition per product."""
    return 2.0 * m * n * k


def gemm_bytes(m: Number, n: Number, k: Number, element_bytes: Number = 2.0) -> Number:
    """Operands read and result written once: (m k + k n + m n) elements."""
    return element_bytes * (m * k + k * n + m * n)


def weight_gradient_seconds(weights: Number, *, grad_bytes: float, exposed: float, hbm_bytes_per_s: float) -> Number:
    """Accumulation of a weight gradient into the main gradient buffer, per micro-batch: read and write, 2 x grad_bytes
    a weight.

    `exposed` is the share that the GEMM's epilogue does not hide. Source: findings on public measurements, section 2 (fp32:
    8 bytes per weight, 70 % felt); Megatron's gradient accumulation fusion.
    """
    return 2.0 * grad_bytes * weights * exposed / hbm_bytes_per_s
