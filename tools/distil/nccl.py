"""Collective tables: start-up, bandwidth and square-root term by kind and number of ranks, inside one link domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.time_model.hardware.efficiency import GpuEfficiency
from autoconfig.time_model.network.collectives import Group, Links, collective_seconds, ring_factor
from scipy.optimize import nnls

from tools.distil.grid_fit import Vector, error_of, held_out
from tools.distil.wheel import Wheel

KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall"}
ELEMENT_BYTES = {"half": 2, "int8": 1}
"""message_size counts elements (half stops at half the message_size of int8: 512 MiB both)."""
LEAST_BYTES = 2**16


def nccl_rows(wheel: Wheel, system: str) -> tuple[pd.DataFrame, list[str]]:
    """kind, ranks, bytes, seconds of the newest NCCL version."""
    member = wheel.member(system, "comm", "nccl", "nccl_perf")
    if member is None:
        return pd.DataFrame(), []
    rows = wheel.table(member)
    rows = rows.assign(bytes=rows.message_size * rows.nccl_dtype.map(ELEMENT_BYTES), seconds=rows.latency / 1e3)
    rows = rows[(rows.bytes >= LEAST_BYTES) & (rows.seconds > 0)]
    return rows.sort_values(["op_name", "num_gpus", "nccl_dtype", "bytes"]).reset_index(drop=True), [member]


def fit_terms(total: Vector, seconds: Vector, factor: float) -> Vector:
    """[alpha s, bytes/s, s per sqrt byte] of alpha + factor bytes / bandwidth + c sqrt(bytes): relative least squares."""
    design = np.stack([np.ones_like(total), factor * total, np.sqrt(total)], axis=1) / seconds[:, None]
    scale, weight, solution = design.max(axis=0), np.ones_like(total), np.zeros(3)
    for _ in range(3):
        solution = nnls(design / scale * weight[:, None], weight)[0] / scale
        residual = np.abs(design @ solution - 1.0)
        weight = np.sqrt(np.minimum(1.0, 0.1 / np.maximum(residual, 1e-12)))
    return np.array([solution[0], 1.0 / max(solution[1], 1e-15), solution[2]])


def terms_seconds(total: Vector, factor: float, terms: Vector) -> Vector:
    """alpha + factor bytes / bandwidth + c sqrt(bytes)."""
    return np.asarray(terms[0] + factor * total / terms[1] + terms[2] * np.sqrt(total))


def distil_nccl(wheel: Wheel, system: str, gpu: GpuSpec, constants: GpuEfficiency, links: Links) -> dict[str, Any] | None:
    """One table per kind as it is written; link shares are over the link rate of the GPU that was measured."""
    rows, files = nccl_rows(wheel, system)
    if rows.empty:
        return None
    ranks = sorted(int(n) for n in rows.num_gpus.unique())
    result: dict[str, Any] = {"files": files, "axes": {"ranks": ranks}, "link_bytes_per_s": gpu.link_bytes_per_s, "kinds": {}}
    for kind, name in KINDS.items():
        terms, table, formula, measured = [], [], [], []
        for n in ranks:
            mine = rows[(rows.op_name == name) & (rows.num_gpus == n)]
            total, seconds = mine.bytes.to_numpy(dtype=np.float64), mine.seconds.to_numpy()
            factor, held = float(ring_factor(kind, n)), held_out(len(mine))
            table.append(terms_seconds(total, factor, fit_terms(total[~held], seconds[~held], factor))[held])
            group = Group(size=np.asarray(float(n)), local=np.asarray(float(n)))
            formula.append(np.asarray(collective_seconds(kind, total, group, links))[held])
            measured.append(seconds[held])
            terms.append(fit_terms(total, seconds, factor))
        alpha, bandwidth, sqrt = np.array(terms).T
        result["kinds"][kind] = {
            "rows": int((rows.op_name == name).sum()),
            "alpha_s": [float(f"{x:.4g}") for x in alpha],
            "link_share": [float(f"{x:.4g}") for x in bandwidth / gpu.link_bytes_per_s],
            "sqrt_s": [float(f"{x:.4g}") for x in sqrt],
            "held_out": {
                "rows": sum(len(x) for x in measured),
                "table": error_of(np.concatenate(table), np.concatenate(measured)),
                "formula": error_of(np.concatenate(formula), np.concatenate(measured)),
            },
        }
    return result
