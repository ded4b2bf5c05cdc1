"""GEMM tables, log efficiency over (m, n, k)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.time_model.hardware.efficiency import GpuEfficiency
from autoconfig.time_model.operators.kernels import gemm_flops, gemm_seconds

from validation.distil.grid_fit import Vector, Wheel, errors_of, evaluate_grid, fit_grid, held_out, rounded

M_AXIS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
NK_AXIS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
FRAMEWORKS = ("sglang", "trtllm", "vllm")
POOLED = "pooled"
"""In place of a framework's name: all of them."""
TRAINING_FLOPS = 20e9
"""Held-out errors count shapes of training size: m >= 512, n, k >= 256, and as many FLOPs as this."""


def gemm_rows(wheel: Wheel, system: str, framework: str, precision: str) -> tuple[pd.DataFrame, list[str]]:
    """(m, n, k, seconds) of one precision, and the files they come from. fp8 rows of the wheel include the quantisation of the
    activations, whose time the wheel has too (compute_scale and scale_matrix over (m, k)): it is taken off, since the time
    model prices casts apart. Rows whose m is no multiple of 64 are left out (the collection has m + 1 beside many m)."""
    member = wheel.member(system, "gemm", framework, "gemm_perf")
    if member is None:
        return pd.DataFrame(), []
    rows, files = wheel.table(member), [member]
    rows = rows[rows.gemm_dtype == ("bfloat16" if precision == "bf16" else precision)]
    rows = rows[(rows.m % 64 == 0) & (rows.m >= M_AXIS[0]) & (rows.n >= NK_AXIS[0]) & (rows.k >= NK_AXIS[0])]
    rows = rows.groupby(["m", "n", "k"], sort=True).latency.min().reset_index()
    seconds = rows.latency.to_numpy() / 1e3
    if precision == "fp8":
        for table in ("computescale_perf", "scale_matrix_perf"):
            part = wheel.member(system, "quantize", framework, table)
            if part is None:
                return pd.DataFrame(), []
            files.append(part)
            cost = wheel.table(part).groupby(["m", "k"]).latency.min() / 1e3
            seconds = seconds - cost.reindex(pd.MultiIndex.from_frame(rows[["m", "k"]])).to_numpy()
    rows = rows.assign(seconds=seconds)[np.isfinite(seconds)]
    return rows[rows.seconds > 1e-6].reset_index(drop=True), files


def pooled_rows(wheel: Wheel, system: str, precision: str) -> tuple[pd.DataFrame, list[str]]:
    """Rows of all three frameworks' collections, brought to their common level. The same library kernels differ by 5 to 12 %
    between collections (clocks, cache state): each collection's time is scaled by its median over the geometric mean of all
    three on the shapes that all have."""
    parts = {name: gemm_rows(wheel, system, name, precision) for name in FRAMEWORKS}
    logs = pd.concat({name: np.log(rows.set_index(["m", "n", "k"]).seconds) for name, (rows, _) in parts.items()}, axis=1)
    common = logs.dropna()
    level = common.sub(common.mean(axis=1), axis=0).median()
    level -= level.mean()
    scaled = [rows.assign(seconds=rows.seconds / np.exp(level[name])) for name, (rows, _) in parts.items()]
    files = [file for _, names in parts.values() for file in names]
    return pd.concat(scaled, ignore_index=True).sort_values(["m", "n", "k", "seconds"], ignore_index=True), files


def rates(gpu: GpuSpec, constants: GpuEfficiency, precision: str) -> dict[str, Any]:
    """What the closed forms of time_model.operators.kernels take of a GPU."""
    ratio = constants.quantised[precision].over_bf16 if precision in constants.quantised else 1.0
    return {
        "flops_per_s": gpu.flops_per_s["bf16"] * ratio,
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "num_sms": gpu.num_sms,
        "constants": constants.gemm,
        "element_bytes": 1.0 if precision == "fp8" else 2.0,
    }


def distil_gemm(
    wheel: Wheel, system: str, framework: str, gpu: GpuSpec, constants: GpuEfficiency, precision: str, over: str
) -> dict[str, Any] | None:
    """One table as it is written. `over`: its numbers are shares of `peak`, or of the rate of the closed `formula`."""
    if precision not in gpu.flops_per_s:
        return None
    rows, files = (
        pooled_rows(wheel, system, precision) if framework == POOLED else gemm_rows(wheel, system, framework, precision)
    )
    if rows.empty:
        return None
    m, n, k = (rows[name].to_numpy(dtype=np.float64) for name in "mnk")
    seconds, flops = rows.seconds.to_numpy(), gemm_flops(m, n, k)
    formula = np.asarray(gemm_seconds(m, n, k, **rates(gpu, constants, precision)))
    ideal = flops / gpu.flops_per_s[precision] if over == "peak" else formula
    axes = [np.log([a for a in M_AXIS if a <= m.max()]), np.log(NK_AXIS), np.log(NK_AXIS)]
    points, share = [np.log(m), np.log(n), np.log(k)], np.log(ideal / seconds)
    shape = rows.groupby(["m", "n", "k"], sort=True).ngroup().to_numpy()
    held = held_out(int(shape.max()) + 1)[shape]
    learned = _shape(fit_grid([p[~held] for p in points], share[~held], axes), axes, over)
    table = ideal / np.exp(evaluate_grid(points, axes, learned))
    big = held & (m >= 512) & (n >= 256) & (k >= 256) & (flops >= TRAINING_FLOPS)
    return {
        "framework": framework,
        "files": files,
        "rows": len(rows),
        "over": over,
        "peak_flops_per_s": gpu.flops_per_s[precision],
        **({"formula_constants": asdict(constants.gemm)} if over == "formula" else {}),
        "axes": {name: [round(float(np.exp(x))) for x in axis] for name, axis in zip("mnk", axes, strict=True)},
        "efficiency": rounded(np.exp(_shape(fit_grid(points, share, axes), axes, over))),
        "held_out": errors_of(big, table, formula, seconds),
    }


def _shape(logs: Vector, axes: list[Vector], over: str) -> Vector:
    """Log efficiency such that no larger shape takes less time than a smaller one (grid points that noise had crossed). Shares
    of the closed form's rate are left as they are: that form has steps of its own."""
    if over == "formula":
        return logs
    sizes = axes[0][:, None, None] + axes[1][None, :, None] + axes[2][None, None, :]
    seconds = sizes - logs
    for axis in range(3):
        seconds = np.maximum.accumulate(seconds, axis=axis)
    return sizes - seconds
