"""Distils the operators of a serving engine to `time_model/data/serving/<gpu>.json`.

    python -m validation.distil.serving     (what `make tables` runs)

The training tables (validation/distil/operator_tables.py) start at 128 rows and hold causal prefill only; a decode step
multiplies by a handful of rows and reads the KV cache. Every table here is a share of the roofline, `ideal / measured`, with
ideal = max(FLOPs / peak, bytes / HBM), so that it carries over to the same chip with other memory. Formulas of the ideal times:
time_model/serving/ideal.py, which the planner uses too. The same wheel gives the same files, byte for byte.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from autoconfig.specs.files import replace_section
from autoconfig.specs.hardware.cluster import GpuSpec, load_gpu
from autoconfig.time_model.serving import ideal
from autoconfig.time_model.serving.tables import MAX_SHARE

from validation.distil.grid_fit import (
    PACKAGE_OF_THE_FILES,
    ROOT,
    Vector,
    Wheel,
    error_of,
    evaluate_grid,
    fit_grid,
    held_out,
    rounded,
)
from validation.distil.operator_tables import SOURCES, as_json

FOLDER = ROOT / "time_model" / "data" / "serving"
DOCUMENT = ROOT / "docs" / "accuracy" / "serving.md"
BEGIN, END = "<!-- serving tables: written by make tables -->", "<!-- end of serving tables -->"
SYSTEMS = {source.gpu: source.system for source in SOURCES}
READ = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DYNAMIC = ("fp8",)
"""Formats whose rows find the scale of the activations first, 6 to 9 us and a pass over them. Engines know it beforehand
(ModelOpt's FP8 checkpoints hold an input scale per layer), so that its own rows (computescale_perf) are taken off; casting
stays. What is left is 0.88 to 0.97 of SGLang's rows, what was measured 1.32 to 1.47 of them (medians over 5,355 shapes of 2
to 64 rows, n and k from 1,024, on H100, H200, B200, GB200)."""


BALANCED, SKEWED = "balanced", {"bias": "power_law_1.01", "loss": "power_law_1.2"}
"""Routing of the rows: all experts alike, or shares that fall as a power law, by what balances the router (ServingTables.skew).
aiconfigurator takes 1.01 for the served models of DeepSeek, 1.2 for other mixtures (sdk/models, _power_law_alpha)."""
LAYER = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
"""Columns of a fused layer of experts, beside its tokens."""
TUNED = 0.75


def tuned(rows: pd.DataFrame) -> pd.Series:
    """Whether more tokens keep the rate that fewer of the same layer had reached, within a quarter.

    Where they do not (up to 5 x slower at once), the framework's autotuner fell back to an untuned kernel: no property of
    the GPU, and no training stack is bound to that choice.
    """
    rate = rows.num_tokens / rows.latency
    return rate >= TUNED * rate.groupby([rows[key] for key in LAYER]).cummax()


def table(axes: Mapping[str, Sequence[float]], points: Sequence[Vector], best: Vector, seconds: Vector) -> dict[str, Any]:
    """One table of shares of the roofline with its error on one row in five that the fit did not see."""
    logs, share = [np.log(np.array(a, dtype=np.float64)) for a in axes.values()], np.log(best / seconds)
    at = [np.log(np.maximum(p, 1e-9)) for p in points]
    held = held_out(len(seconds))
    seen = evaluate_grid(at, logs, fit_grid([p[~held] for p in at], share[~held], logs))
    return {
        "rows": len(seconds),
        "axes": axes,
        "share": rounded(np.minimum(np.exp(fit_grid(at, share, logs)), MAX_SHARE), 3),
        "held_out": {"rows": int(held.sum()), **error_of((best / np.exp(seen))[held], seconds[held])},
    }


def fastest(rows: pd.DataFrame, *keys: str) -> list[Vector]:
    """Columns of the shapes as floats, then the least seconds of each."""
    rows = rows.groupby(list(keys), sort=True).latency.min().reset_index()
    return [*(rows[name].to_numpy(dtype=np.float64) for name in keys), rows.latency.to_numpy() / 1e3]


def newest(
    wheel: Wheel, system: str, family: str, name: str, keep: Callable[[pd.DataFrame], Any], framework: str = READ["framework"]
) -> tuple[pd.DataFrame, str]:
    """Rows that `keep` selects from the newest version that has any, with the file's name."""
    for member in wheel.versions(system, family, framework, name):
        rows = wheel.table(member)
        rows = rows[keep(rows)]
        if len(rows):
            return rows, member
    return pd.DataFrame(), ""


def rows_with(least: Mapping[str, float] | None = None, without: str = "", **equals: object) -> Callable[[pd.DataFrame], Any]:
    """A filter: columns equal to a value, or text that starts with it (where the table has them), columns of at least a number,
    kernels whose name lacks a pattern."""

    def keep(rows: pd.DataFrame) -> Any:
        chosen = np.ones(len(rows), dtype=bool)
        for column, value in equals.items():
            if column in rows:
                same = rows[column].str.startswith(value) if column == "distribution" else rows[column] == value
                chosen &= same.to_numpy(dtype=bool)
        for column, number in (least or {}).items():
            chosen &= (rows[column] >= number).to_numpy()
        return chosen & ~rows.kernel_source.str.contains(without).to_numpy(dtype=bool) if without else chosen

    return keep


def gemms(wheel: Wheel, system: str, gpu: GpuSpec) -> dict[str, Any]:
    """Linear layers, quantisation of the activations included; of fp8 with static scales (DYNAMIC)."""
    result = {}
    for precision, name in READ["gemm"].items():
        rows, file = newest(wheel, system, "gemm", "gemm_perf", rows_with({"n": 256, "k": 256}, gemm_dtype=name))
        if rows.empty:
            continue
        rows, files = rows.groupby(["m", "n", "k"], sort=True).latency.min().reset_index(), {"file": file}
        if precision in DYNAMIC:
            scales, files["less"] = newest(wheel, system, "quantize", "computescale_perf", rows_with(quant_dtype=name))
            rows["latency"] -= rows.merge(scales.groupby(["m", "k"]).latency.min().rename("scale"), on=["m", "k"]).scale
        m, n, k, seconds = fastest(rows, "m", "n", "k")
        best = ideal.gemm_seconds(m, n, k, precision, gpu)
        result[precision] = {**files, **table(READ["axes"]["gemm"], (m, n, k), best, seconds)}
    return result


def attention(wheel: Wheel, system: str, gpu: GpuSpec, phase: str) -> dict[str, Any]:
    """decode: one query token per sequence against its cache; context: causal prefill, cache written."""
    decode, result = phase == "decode", {}
    name, size, least = ("generation_attention_perf", "step", 31) if decode else ("context_attention_perf", "isl", 16)
    framework = READ["decode_from"].get(system, READ["framework"]) if decode else READ["framework"]
    for kind, formats in READ[phase].items():
        for dim in (64, 128):
            keep = rows_with({size: least}, **formats, head_dim=dim, window_size=0)
            rows, file = newest(wheel, system, "attention", name, keep, framework)
            if rows.empty:
                continue
            b, a, groups, s, seconds = fastest(rows, "batch_size", "num_heads", "num_key_value_heads", size)
            s = s + 1.0 if decode else s
            price = ideal.decode_attention_seconds if decode else ideal.context_attention_seconds
            points = (b * groups, a / groups, s) if decode else (b * a, s)
            best = price(b, a, groups, dim, s, kind, gpu)
            result[f"{kind}:{dim}"] = {"file": file, **table(READ["axes"][phase], points, best, seconds)}
    return result


def expert_rows(wheel: Wheel, system: str, name: str) -> tuple[pd.DataFrame, list[str], str]:
    """Gated experts, balanced routing where it was measured; where two collections are read (experts_from), the faster one of
    every shape that both have."""
    parts, files, routing = [], [], ""
    for framework in READ["experts_from"].get(system, (READ["framework"],)):
        for spread in (BALANCED, "power_law"):
            keep = rows_with(without="nongated|min_latency", moe_dtype=name, distribution=spread)
            rows, file = newest(wheel, system, "moe", "moe_perf", keep, framework)
            if len(rows):
                parts.append(rows.groupby(["num_tokens", *LAYER], sort=True).latency.min())
                files.append(file)
                routing = spread
                break
    if not parts:
        return pd.DataFrame(), [], ""
    return pd.concat(parts, axis=1, join="inner").min(axis=1).rename("latency").reset_index(), files, routing


def experts(wheel: Wheel, system: str, gpu: GpuSpec) -> dict[str, Any]:
    """Fused gated experts: permutation, both GEMMs, activation, weighted sum."""
    result = {}
    for precision, name in READ["experts"].items():
        rows, files, routing = expert_rows(wheel, system, name)
        if rows.empty:
            continue
        tokens, h, f, topk, count, tp, ep, seconds = fastest(rows, "num_tokens", *LAYER)
        per_expert, local, f = tokens * topk / count, count / ep, f / tp
        active = np.minimum(local, np.maximum(np.round(local * np.minimum(per_expert, 1.0)), 1.0))
        best = ideal.experts_seconds(per_expert, local, active, h, f, precision, gpu)
        sound = (f >= 128) & (local >= 1) & tuned(rows).to_numpy()
        points = [x[sound] for x in (per_expert, h, f, local)]
        shares = table(READ["axes"]["experts"], points, best[sound], seconds[sound])
        skew = {}
        if routing == BALANCED:
            skew = {balance: skewed(wheel, system, rows, name, spread) for balance, spread in SKEWED.items()}
        shapes = curves(points, np.log(best[sound] / seconds[sound]))
        result[precision] = {"files": files, "routing": routing, **shares, "skew": skew, "shapes": shapes}
    return result


def curves(points: Sequence[Vector], share: Vector) -> dict[str, Any]:
    """Shares of the roofline of each measured shape, on the table's axis of rows: kernels are tuned shape by shape, so that the
    table, smooth over all of them, is 4 to 15 % off (median) where a shape was measured itself."""
    per_expert, shapes = np.log(points[0]), np.stack(points[1:], axis=1)
    axis, result = [np.log(np.array(READ["axes"]["experts"]["rows"], dtype=np.float64))], {}
    for shape in np.unique(shapes, axis=0):
        mine = (shapes == shape).all(axis=1)
        if mine.sum() >= len(axis[0]):
            shares = np.exp(fit_grid([per_expert[mine]], share[mine], axis))
            result["x".join(f"{size:.0f}" for size in shape)] = rounded(np.minimum(shares, MAX_SHARE), 3)
    return result


def skewed(wheel: Wheel, system: str, even: pd.DataFrame, name: str, spread: str) -> dict[str, Any]:
    """Seconds under routing of this spread over those under even routing, of the same shapes, by rows an expert and local
    experts: `one` rank that holds all experts, `many` that share them out, of which the busiest was timed."""
    keep = rows_with(without="nongated|min_latency", moe_dtype=name, distribution=spread)
    rows, _ = newest(wheel, system, "moe", "moe_perf", keep)
    if rows.empty:
        return {}
    keys = ["num_tokens", *LAYER]
    both = even.merge(rows.groupby(keys, sort=True).latency.min().rename("skewed").reset_index(), on=keys)
    axes, result = READ["axes"]["skew"], {}
    for where, chosen in (("one", both.moe_ep_size == 1), ("many", both.moe_ep_size > 1)):
        mine = both[chosen & (both.num_experts >= both.moe_ep_size)]
        if mine.empty:
            continue
        per_expert, local = mine.num_tokens * mine.topk / mine.num_experts, mine.num_experts / mine.moe_ep_size
        at = [np.log(x.to_numpy(dtype=np.float64)) for x in (per_expert, local)]
        logs = [np.log(np.array(axis, dtype=np.float64)) for axis in axes.values()]
        ratio = np.log((mine.skewed / mine.latency).to_numpy())
        result[where] = {"rows": len(mine), "axes": axes, "ratio": rounded(np.exp(fit_grid(at, ratio, logs)), 3)}
    return result


def latent_attention(wheel: Wheel, system: str, gpu: GpuSpec) -> dict[str, Any]:
    """Multi-latent attention of DeepSeek: decode on the compressed cache, prefill on expanded heads."""
    result = {}
    for phase, name, size, least, more, price in (
        ("decode", "generation_mla_perf", "step", 31, 1.0, ideal.latent_decode_seconds),
        ("context", "context_mla_perf", "isl", 16, 0.0, ideal.latent_context_seconds),
    ):
        for kv, formats in READ["decode"].items():
            rows, file = newest(wheel, system, "mla", name, rows_with(**formats, mla_dtype="bfloat16"))
            if rows.empty:
                continue
            b, a, s, seconds = fastest(rows[rows[size] >= least], "batch_size", "num_heads", size)
            s = s + more
            shares = table(READ["axes"][f"latent_{phase}"], (b, a, s), price(b, a, s, kv, gpu), seconds)
            result[f"{phase}:{kv}"] = {"file": file, **shares}
    return result


def all_reduce(wheel: Wheel, system: str) -> dict[str, Any]:
    """One-node all-reduce of the engine (custom kernels for small messages), 16 bits: the measured microseconds."""
    file = READ["all_reduce_from"].get(system) or wheel.versions(system, "comm", READ["framework"], "custom_allreduce_perf")[0]
    rows = wheel.table(file)
    grid = rows[rows.num_gpus > 1].groupby(["num_gpus", "message_size"]).latency.min().unstack()
    size = 2 if rows[rows.num_gpus > 1].allreduce_dtype.iloc[0] == "bfloat16" else 1
    return {
        "file": file,
        "axes": {"ranks": [int(n) for n in grid.index], "bytes": [int(x) * size for x in grid.columns]},
        "microseconds": rounded(grid.to_numpy() * 1e3, 4),
    }


def distil(wheel: Wheel, gpu_id: str) -> dict[str, Any]:
    """Everything of one GPU, as it is written."""
    gpu, system = load_gpu(gpu_id), SYSTEMS[gpu_id]
    return {
        "gpu": gpu_id,
        "package": PACKAGE_OF_THE_FILES,
        "gemm": gemms(wheel, system, gpu),
        "decode_attention": attention(wheel, system, gpu, "decode"),
        "context_attention": attention(wheel, system, gpu, "context"),
        "experts": experts(wheel, system, gpu),
        "latent_attention": latent_attention(wheel, system, gpu),
        "all_reduce": all_reduce(wheel, system),
    }


def markdown(everything: list[dict[str, Any]]) -> str:
    """The table of held-out errors."""
    lines = ["| GPU | operator | rows | held out | median / p90 / bias % |", "|---|---|---|---|---|"]
    for data in everything:
        for operator in ("gemm", "decode_attention", "context_attention", "experts", "latent_attention"):
            for key, one in data[operator].items():
                e = one["held_out"]
                lines.append(
                    f"| {data['gpu']} | {operator} {key} | {one['rows']:,} | {e['rows']:,} "
                    f"| {e['median']:.1f} / {e['p90']:.1f} / {e['bias']:.1f} |"
                )
    return "\n".join(lines)


def main() -> None:
    """Write all files and the table of errors in the docs."""
    wheel = Wheel.fetched()
    everything = [distil(wheel, gpu_id) for gpu_id in SYSTEMS]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for data in everything:
        (FOLDER / f"{data['gpu']}.json").write_text(as_json(data), encoding="utf-8")
    replace_section(DOCUMENT, BEGIN, END, markdown(everything))


if __name__ == "__main__":
    main()
