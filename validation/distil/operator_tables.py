"""Distils the wheel of measured operators to `time_model/data/operators/<gpu>.json` and the table of errors in the docs.

    python -m validation.distil.operator_tables     (what `make tables` runs)

The wheel is downloaded with pip into build/wheels when it is not there; it is neither vendored nor a dependency. The same wheel
gives the same files, byte for byte. `decisions.json` beside them says which tables are not used although they fit better.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from autoconfig.specs.files import replace_section
from autoconfig.specs.hardware.cluster import GpuSpec, cluster_of, load_gpu
from autoconfig.time_model.collectives import Group, Links, collective_seconds, links_of, ring_factor
from autoconfig.time_model.hardware.efficiency import GpuEfficiency, formula_efficiency_of
from autoconfig.time_model.operators.kernels import attended_pairs, flash_attention_flops, flash_efficiency
from scipy.optimize import nnls

from validation.distil.gemm import POOLED, distil_gemm
from validation.distil.grid_fit import PACKAGE_OF_THE_FILES, ROOT, Vector, Wheel, errors_of, held_out, huber, rounded

SEQUENCES = (1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
HEAD_DIMS = (64, 128, 192, 256)
MIN_PARALLEL = 8
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
    rows = rows[rows.parallel >= MIN_PARALLEL]
    keys = ["head_dim", "isl", "batch_size", "num_heads", "num_key_value_heads"]
    return rows.sort_values([*keys, "seconds"]).drop_duplicates(keys).reset_index(drop=True), [member]


def nonnegative(design: Vector, limit: float | None = None) -> Vector:
    """x >= 0 for which design @ x is nearest to 1: least squares of the relative error, two passes more with Huber weights."""
    scale, weight = np.maximum(design.max(axis=0), 1e-30), np.ones(len(design))
    for _ in range(3):
        solution = nnls(design / scale * weight[:, None], weight)[0] / scale
        weight = huber(design @ solution - 1.0, limit)
    return np.asarray(solution)


def fit_lengths(length: Vector, flops: Vector, seconds: Vector, peak: float) -> tuple[Vector, Vector]:
    """Seconds = start + tail x length + FLOPs / (peak x efficiency of the length): ([start, tail], efficiency per SEQUENCES).
    Start is the wrapper's launch; tail what the last wave leaves idle (one block of rows against the whole sequence)."""
    columns = [np.ones_like(length), length] + [np.where(length == s, flops / peak, 0.0) for s in SEQUENCES]
    solution = nonnegative(np.stack(columns, axis=1) / seconds[:, None])
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
        "held_out": errors_of(seen, table, formula, seconds),
    }


KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall"}
ELEMENT_BYTES = {"half": 2, "int8": 1}
"""message_size counts elements (half stops at half the message_size of int8: 512 MiB both)."""
MIN_BYTES = 2**16


def nccl_rows(wheel: Wheel, system: str) -> tuple[pd.DataFrame, list[str]]:
    """kind, ranks, bytes, seconds of the newest NCCL version."""
    member = wheel.member(system, "comm", "nccl", "nccl_perf")
    if member is None:
        return pd.DataFrame(), []
    rows = wheel.table(member)
    rows = rows.assign(bytes=rows.message_size * rows.nccl_dtype.map(ELEMENT_BYTES), seconds=rows.latency / 1e3)
    rows = rows[(rows.bytes >= MIN_BYTES) & (rows.seconds > 0)]
    return rows.sort_values(["op_name", "num_gpus", "nccl_dtype", "bytes"]).reset_index(drop=True), [member]


def fit_terms(total: Vector, seconds: Vector, factor: float) -> Vector:
    """[alpha s, bytes/s, s per sqrt byte] of alpha + factor bytes / bandwidth + c sqrt(bytes)."""
    solution = nonnegative(np.stack([np.ones_like(total), factor * total, np.sqrt(total)], axis=1) / seconds[:, None], 0.1)
    return np.array([solution[0], 1.0 / max(solution[1], 1e-15), solution[2]])


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
            alpha, bandwidth, sqrt = fit_terms(total[~held], seconds[~held], factor)
            table.append((alpha + factor * total / bandwidth + sqrt * np.sqrt(total))[held])
            group = Group(size=np.asarray(float(n)), local=np.asarray(float(n)))
            formula.append(np.asarray(collective_seconds(kind, total, group, links))[held])
            measured.append(seconds[held])
            terms.append(fit_terms(total, seconds, factor))
        alphas, bandwidths, sqrts = np.array(terms).T
        result["kinds"][kind] = {
            "rows": int((rows.op_name == name).sum()),
            "alpha_s": [float(f"{x:.4g}") for x in alphas],
            "link_share": [float(f"{x:.4g}") for x in bandwidths / gpu.link_bytes_per_s],
            "sqrt_s": [float(f"{x:.4g}") for x in sqrts],
            "held_out": errors_of(slice(None), *map(np.concatenate, (table, formula, measured))),
        }
    return result


FOLDER = ROOT / "time_model" / "data" / "operators"
DOCUMENT = ROOT / "docs" / "time_model.md"
BEGIN, END = "<!-- operator tables: written by make tables -->", "<!-- end of operator tables -->"


@dataclass(frozen=True)
class Source:
    """Where the rows of one GPU are, and which framework's collection is taken per operator."""

    gpu: str
    system: str
    gemm: str = "trtllm"
    gemm_over: str = "peak"
    attention: str = "sglang"
    generation: str = "flash3"


SOURCES = (
    Source("a100-80gb", "a100_sxm", gemm=POOLED, gemm_over="formula", generation="flash2"),
    Source("h100-sxm-80gb", "h100_sxm"),
    Source("h200-sxm-141gb", "h200_sxm"),
    Source("b200-180gb", "b200_sxm"),
    Source("gb200-192gb", "gb200"),
    Source("b300-288gb", "b300_sxm"),
    Source("gb300-288gb", "gb300"),
    Source("l40s-48gb", "l40s"),
    Source("rtx-pro-6000-96gb", "rtx_pro_6000_server"),
)
"""GEMM: TensorRT-LLM, whose fp8 rows can be freed of quantisation, and whose level is between the others'. A100: all three
collections at their common level (12 % lie between them); tile waves are visible there, so its table is over the closed form.
Attention: SGLang, which runs FlashAttention 2 on A100, 3 on Hopper, TensorRT-LLM's generated kernels on data-centre Blackwell
and FlashInfer elsewhere."""


def distil(wheel: Wheel, source: Source) -> dict[str, Any]:
    """Everything of one GPU, as it is written."""
    gpu = load_gpu(source.gpu)
    constants = formula_efficiency_of(gpu)
    links = links_of(cluster_of(gpu, gpu.gpus_per_node), constants)
    result: dict[str, Any] = {
        "gpu": gpu.id,
        "package": PACKAGE_OF_THE_FILES,
        "gemm": {},
        "attention": {},
        "grouped_gemm": {},
    }
    for precision in ("bf16", "fp8"):
        result["gemm"][precision] = distil_gemm(wheel, source.system, source.gemm, gpu, constants, precision, source.gemm_over)
    result["attention"]["bf16"] = distil_attention(wheel, source.system, source.attention, gpu, constants, source.generation)
    result["collectives"] = distil_nccl(wheel, source.system, gpu, constants, links)
    for operator in ("gemm", "attention"):
        result[operator] = {precision: table for precision, table in result[operator].items() if table is not None}
    return result


def tables_of(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(`gemm.bf16`, table), ..., (`collectives.all_reduce`, table) of one GPU."""
    for operator in ("gemm", "attention"):
        for precision, table in data[operator].items():
            yield f"{operator}.{precision}", table
    for kind, table in (data["collectives"] or {"kinds": {}})["kinds"].items():
        yield f"collectives.{kind}", table


def decide(data: dict[str, Any], rejected: dict[str, str]) -> None:
    """Mark each table: used where it is nearer to the held-out rows than the formula, unless `decisions.json` says why not."""
    for name, table in tables_of(data):
        error = table["held_out"]
        better = error["table"]["median"] < error["formula"]["median"]
        reason = rejected.get(name, "" if better else "the formula is nearer to the held-out rows")
        table["use"] = not reason
        if reason:
            table["why_not"] = reason


def as_json(data: dict[str, Any]) -> str:
    """Indented, with lists of numbers on one line."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda match: re.sub(r"\s+", "", match[0]), text) + "\n"


def markdown(everything: list[dict[str, Any]]) -> str:
    """The table of held-out errors."""
    lines = [
        "| GPU | operator | rows | held out | table: median / p90 / bias % | closed form | used |",
        "|---|---|---|---|---|---|---|",
    ]
    for data in everything:
        for name, table in tables_of(data):
            error = table["held_out"]
            measured, formula = (
                " / ".join(f"{error[kind][key]:.1f}" for key in ("median", "p90", "bias")) for kind in ("table", "formula")
            )
            used = "yes" if table["use"] else f"no: {table['why_not']}"
            cells = (data["gpu"], name, f"{table['rows']:,}", f"{error['rows']:,}", measured, formula, used)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Write all files."""
    wheel = Wheel.fetched()
    rejected = json.loads((FOLDER / "decisions.json").read_text(encoding="utf-8"))["rejected"]
    everything = []
    for source in SOURCES:
        data = distil(wheel, source)
        decide(data, rejected.get(source.gpu, {}))
        (FOLDER / f"{source.gpu}.json").write_text(as_json(data), encoding="utf-8")
        everything.append(data)
    replace_section(DOCUMENT, BEGIN, END, markdown(everything))


if __name__ == "__main__":
    main()
