"""Grouped GEMM tables: efficiency by rows of one expert, width of its matrices and number of local experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.time_model.hardware.efficiency import GpuEfficiency
from autoconfig.time_model.operators.kernels import grouped_gemm_seconds

from tools.distil.grid_fit import Vector, error_of, evaluate_grid, fit_grid, held_out, rounded
from tools.distil.wheel import Wheel

AXES = {
    "rows": (16, 64, 128, 256, 512, 1024, 2048, 4096),
    "width": (1024, 2048, 4096, 8192),
    "groups": (1, 4, 16, 64),
}
TUNED = 0.75
KERNEL = "moe_torch_flow_cutlass"
"""Gated experts by grouped CUTLASS GEMMs: the kernels of the collection that are nearest to a training stack's."""


def moe_rows(wheel: Wheel, system: str, framework: str, precision: str) -> tuple[pd.DataFrame, list[str]]:
    """Gated experts under balanced routing: rows of one local expert, local experts, h, f, seconds, without memory-bound work.

    A row times the whole fused layer: expansion (and quantisation) of the tokens, first GEMM, gated activation, second
    GEMM, weighted sum. The memory-bound parts are taken off by their bytes (`memory_bound_bytes`). Imbalance is not in the
    table: the time model gives it the rows of the busiest rank.
    """
    name, rows = "bfloat16" if precision == "bf16" else precision, pd.DataFrame()
    for member in wheel.versions(system, "moe", framework, "moe_perf"):
        rows = wheel.table(member)
        rows = rows[(rows.moe_dtype == name) & (rows.kernel_source == KERNEL) & (rows.distribution == "balanced")]
        if len(rows):
            break
    if rows.empty:
        return pd.DataFrame(), []
    keys = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    rows = rows.groupby(keys, sort=True).latency.min().reset_index()
    rows = rows.assign(
        groups=rows.num_experts / rows.moe_ep_size,
        ffn=rows.inter_size / rows.moe_tp_size,
        rows=rows.num_tokens * rows.topk / rows.num_experts,
    )
    rows = rows[tuned(rows) & (rows.rows >= AXES["rows"][0]) & (rows.groups >= 1) & (rows.ffn >= 256)]
    return rows.reset_index(drop=True), [member]


def tuned(rows: pd.DataFrame) -> pd.Series:
    """Whether more tokens keep the rate that fewer of the same layer had reached, within a quarter.

    Where they do not (up to 5 x slower at once), the framework's autotuner fell back to an untuned kernel: no property of
    the GPU, and no training stack is bound to that choice.
    """
    rate = rows.num_tokens / rows.latency
    layer = [rows[key] for key in ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")]
    return rate >= TUNED * rate.groupby(layer).cummax()


def memory_bound_bytes(rows: pd.DataFrame, precision: str) -> Vector:
    """Traffic beside the GEMMs: tokens read, expert rows written; 2 f read and f written.

    The weighted sum of the outputs is part of the second GEMM (TensorRT-LLM's fused finalize, its default since Hopper).
    """
    size = 1.0 if precision == "fp8" else 2.0
    local = rows.rows * rows.groups
    tokens = np.minimum(rows.num_tokens, local)
    return np.asarray((2.0 * tokens + size * local) * rows.hidden_size + local * rows.ffn * (4.0 + size), dtype=np.float64)


def distil_moe(
    wheel: Wheel, system: str, framework: str, gpu: GpuSpec, constants: GpuEfficiency, precision: str
) -> dict[str, Any] | None:
    """One table as it is written."""
    rows, files = moe_rows(wheel, system, framework, precision)
    if rows.empty or precision not in gpu.flops_per_s:
        return None
    peak = gpu.flops_per_s[precision]
    m, groups, h, f = (rows[name].to_numpy(dtype=np.float64) for name in ("rows", "groups", "hidden_size", "ffn"))
    flops, whole = 6.0 * m * groups * h * f, rows.latency.to_numpy() / 1e3
    beside = memory_bound_bytes(rows, precision) / (gpu.hbm_bytes_per_s * constants.hbm_pointwise) + 2 * constants.launch_s
    seconds = whole - beside
    sound = seconds > 0.3 * whole
    axes = [np.log(values) for values in AXES.values()]
    points = [np.log(x[sound]) for x in (m, np.sqrt(h * f), groups)]
    share = np.log(flops / peak / np.where(sound, seconds, 1.0))[sound]
    held = held_out(int(sound.sum()))
    learned = rising(fit_grid([p[~held] for p in points], share[~held], axes))
    table = (flops / peak)[sound] / np.exp(evaluate_grid(points, axes, learned)) + beside[sound]
    formula = _formula(m, groups, h, f, gpu, constants, precision)[sound] + beside[sound]
    big = held & (m[sound] >= 64)
    return {
        "framework": framework,
        "files": files,
        "kernels": [KERNEL],
        "rows": int(sound.sum()),
        "peak_flops_per_s": peak,
        "axes": {name: list(values) for name, values in AXES.items()},
        "efficiency": rounded(np.exp(rising(fit_grid(points, share, axes)))),
        "held_out": {
            "rows": int(big.sum()),
            "table": error_of(table[big], whole[sound][big]),
            "formula": error_of(formula[big], whole[sound][big]),
        },
    }


def rising(grid: Vector) -> Vector:
    """Rising with the rows: mean of the running maximum from below and the running minimum from above.

    Many rows for many experts were not measured (16,384 tokens are the most): there the smooth fit would wander.
    """
    below, above = np.maximum.accumulate(grid, axis=0), np.minimum.accumulate(grid[::-1], axis=0)[::-1]
    return np.asarray(0.5 * (below + above))


def _formula(m: Vector, groups: Vector, h: Vector, f: Vector, gpu: GpuSpec, constants: GpuEfficiency, precision: str) -> Vector:
    """fc1 and fc2 by the closed form."""
    ratio = constants.quantised[precision].over_bf16 if precision in constants.quantised else 1.0
    return np.asarray(
        sum(
            grouped_gemm_seconds(
                m,
                n,
                k,
                groups,
                rows=m,
                rows_half=constants.grouped_rows_half,
                flops_per_s=gpu.flops_per_s["bf16"] * ratio,
                hbm_bytes_per_s=gpu.hbm_bytes_per_s,
                num_sms=gpu.num_sms,
                constants=constants.gemm,
                element_bytes=1.0 if precision == "fp8" else 2.0,
            )
            for n, k in ((2.0 * f, h), (h, f))
        )
    )
