"""Flash attention tables: efficiency of the causal forward pass by head dim and sequence length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.time_model.hardware.efficiency import GpuEfficiency
from autoconfig.time_model.operators.kernels import attended_pairs, flash_attention_flops, flash_efficiency
from scipy.optimize import nnls

from tools.distil.grid_fit import Vector, error_of, held_out, rounded
from tools.distil.wheel import Wheel

SEQUENCES = (1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
HEAD_DIMS = (64, 128, 192, 256)
LEAST_PARALLEL = 8
"""batch x heads from which rows are used: fewer leave most of the GPU idle."""
UNTUNED = "triton"
"""Fallback kernels of the serving frameworks, several times slower than the tuned ones: left out."""


def attention_rows(wheel: Wheel, system: str, framework: str) -> tuple[pd.DataFrame, list[str]]:
    """Causal prefill rows without window, 16 bits: head_dim, isl, parallel (batch x heads), seconds."""
    member = wheel.member(system, "attention", framework, "context_attention_perf")
    if member is None:
        return pd.DataFrame(), []
    rows = wheel.table(member)
    keep = (rows.attn_dtype == "bfloat16") & rows.isl.isin(SEQUENCES) & rows.head_dim.isin(HEAD_DIMS)
    keep &= rows.kernel_source != UNTUNED
    for column, plain in (("window_size", 0), ("step", 0), ("beam_width", 1)):
        if column in rows:
            keep &= rows[column] == plain
    if "kv_cache_dtype" in rows:
        keep &= rows.kv_cache_dtype.isin(("bfloat16", "auto"))
    rows = rows[keep].assign(parallel=rows.batch_size * rows.num_heads, seconds=rows.latency / 1e3)
    rows = rows[rows.parallel >= LEAST_PARALLEL]
    keys = ["head_dim", "isl", "batch_size", "num_heads", "num_key_value_heads"]
    return rows.sort_values([*keys, "seconds"]).drop_duplicates(keys).reset_index(drop=True), [member]


def fit_lengths(length: Vector, flops: Vector, seconds: Vector, peak: float) -> tuple[Vector, Vector]:
    """Seconds = start + tail x length + FLOPs / (peak x efficiency of the length): ([start, tail], efficiency per SEQUENCES).

    Start is the wrapper's launch; tail what the last wave leaves idle (one block of rows against the whole sequence). Least
    squares of the relative error, nothing negative; two passes with Huber weights.
    """
    columns = [np.ones_like(length), length] + [np.where(length == s, flops / peak, 0.0) for s in SEQUENCES]
    design, weight, solution = np.stack(columns, axis=1) / seconds[:, None], np.ones_like(length), np.zeros(len(columns))
    scale = np.maximum(design.max(axis=0), 1e-30)
    for _ in range(3):
        solution = nnls(design / scale * weight[:, None], weight)[0] / scale
        residual = np.abs(design @ solution - 1.0)
        limit = max(3 * 1.4826 * float(np.median(residual)), 0.03)
        weight = np.sqrt(np.minimum(1.0, limit / np.maximum(residual, 1e-12)))
    return solution[:2], 1.0 / np.maximum(solution[2:], 1e-6)


def distil_attention(
    wheel: Wheel, system: str, framework: str, gpu: GpuSpec, constants: GpuEfficiency, generation: str
) -> dict[str, Any] | None:
    """One table as it is written. `generation`: which kernels of the software stacks these are (flash2, flash3)."""
    rows, files = attention_rows(wheel, system, framework)
    if rows.empty:
        return None
    peak, held = gpu.flops_per_s["bf16"], held_out(len(rows))
    table, formula = np.zeros(len(rows)), np.zeros(len(rows))
    dims, efficiencies, starts, tails = [], [], [], []
    e, s0 = constants.attention.flash(generation)
    for dim in HEAD_DIMS:
        mine = (rows.head_dim == dim).to_numpy()
        if mine.sum() < 100:
            continue
        length, seconds = rows.isl.to_numpy(dtype=np.float64), rows.seconds.to_numpy()
        flops = flash_attention_flops(attended_pairs(length), rows.parallel.to_numpy(dtype=np.float64), 1.0, dim, dim)
        fit = mine & ~held
        start, learned = fit_lengths(length[fit], flops[fit], seconds[fit], peak)
        at = np.interp(np.log(length[mine]), np.log(SEQUENCES), np.log(learned))
        table[mine] = start[0] + start[1] * length[mine] + flops[mine] / (peak * np.exp(at))
        rate = flash_efficiency(length, dim, e=e, s0=s0, head_dim_half=constants.attention.head_dim_half)
        formula[mine] = constants.launch_s + flops[mine] / (peak * rate[mine])
        start, whole = fit_lengths(length[mine], flops[mine], seconds[mine], peak)
        dims.append(dim)
        efficiencies.append(whole)
        starts.append(float(start[0]))
        tails.append(float(start[1]))
    seen = held & np.isin(rows.head_dim, dims)
    seconds = rows.seconds.to_numpy()
    return {
        "framework": framework,
        "files": files,
        "kernels": sorted(rows.kernel_source.unique()),
        "rows": int(np.isin(rows.head_dim, dims).sum()),
        "generation": generation,
        "peak_flops_per_s": peak,
        "axes": {"head_dim": dims, "length": list(SEQUENCES)},
        "efficiency": rounded(np.array(efficiencies)),
        "start_s": [round(x, 8) for x in starts],
        "tail_s_per_length": [float(f"{x:.3g}") for x in tails],
        "held_out": {
            "rows": int(seen.sum()),
            "table": error_of(table[seen], seconds[seen]),
            "formula": error_of(formula[seen], seconds[seen]),
        },
    }
