"""Distils the operators of a serving engine to `time_model/data/serving/<gpu>.json`.

    python -m tools.distil.serving [--wheel FOLDER]     (what `make tables` runs)

The training tables (tools/distil/operator_tables.py) start at 128 rows and hold causal prefill only; a decode step multiplies
by a handful of rows and reads the KV cache. Every table here is a share of the roofline, `ideal / measured`, with
ideal = max(FLOPs / peak, bytes / HBM), so that it carries over to the same chip with other memory. Formulas of the ideal times:
time_model/serving/ideal.py, which the planner uses too. The same wheel gives the same files, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from autoconfig.specs.files import replace_section
from autoconfig.specs.hardware.cluster import GpuSpec, load_gpu
from autoconfig.time_model.serving import ideal
from autoconfig.time_model.serving.tables import MAX_SHARE

from tools.distil.grid_fit import Vector, error_of, evaluate_grid, fit_grid, held_out, rounded
from tools.distil.moe import tuned
from tools.distil.operator_tables import ROOT, SOURCES, as_json, asked_wheel
from tools.distil.wheel import LICENCE, PACKAGE, VERSION, Wheel

FOLDER = ROOT / "time_model" / "data" / "serving"
DOCUMENT = ROOT / "docs" / "inference.md"
BEGIN, END = "<!-- serving tables: written by make tables -->", "<!-- end of serving tables -->"
SYSTEMS = {source.gpu: source.system for source in SOURCES}
FRAMEWORK = "trtllm"
"""Whose collection is taken: TensorRT-LLM's, as the published runs are TensorRT-LLM's."""
ATTENTION = {"a100_sxm": "vllm"}
"""Where another framework's decode attention is taken: TensorRT-LLM's rows on A100 read 2.9 TB/s, the memory gives 2.0."""
EXPERTS = {"a100_sxm": ("trtllm", "sglang")}
"""Where two collections of experts are read: TensorRT-LLM's on A100 has unbalanced routing only, SGLang's is untuned at some
shapes."""
ALL_REDUCE = {"l40s": "l40s/comm/sglang/0.5.12/custom_allreduce_perf.parquet"}
"""Where another collection is taken: the L40S machine of TensorRT-LLM's had no peer-to-peer access over PCIe (0.7 GB/s at 8
ranks against 20)."""
GEMMS = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int8": "int8_wo",
    "int4": "int4_wo",
}
MOES = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "mxfp4": "w4a8_mxfp4_mxfp8",
    "mxfp4_weight_only": "w4a16_mxfp4",
}
DYNAMIC = ("fp8",)
"""Formats whose rows find the scale of the activations first, 6 to 9 us and a pass over them. Engines know it beforehand
(ModelOpt's FP8 checkpoints hold an input scale per layer), so that its own rows (computescale_perf) are taken off; casting
stays. What is left is 0.88 to 0.97 of SGLang's rows, what was measured 1.32 to 1.47 of them (medians over 5,355 shapes of 2
to 64 rows, n and k from 1,024, on H100, H200, B200, GB200)."""
KV = {"bf16": "bfloat16", "fp8": "fp8"}
GEMM_AXES = {
    "m": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "n": (256, 1024, 2048, 4096, 8192, 16384, 65536),
    "k": (256, 1024, 2048, 4096, 8192, 16384, 65536),
}
DECODE_AXES = {
    "kv_sequences": (1, 8, 32, 128, 512, 2048, 8192),
    "group": (1, 4, 8, 16),
    "length": (32, 128, 256, 512, 1024, 2048, 8192, 32768),
}
CONTEXT_AXES = {"heads": (1, 8, 32, 128, 512, 2048, 8192), "length": (16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)}
MOE_AXES = {
    "rows": (0.01, 0.0625, 0.25, 1, 4, 16, 64, 128, 256, 1024, 4096),
    "hidden": (2048, 4096, 7168),
    "ffn": (192, 384, 768, 2048, 6144, 14336),
    "experts": (1, 4, 16, 64, 256),
}
EXPERT_KEYS = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
MLA_DECODE_AXES = {
    "sequences": (1, 8, 32, 128, 512, 1024),
    "heads": (1, 8, 16, 64, 128),
    "length": (32, 256, 1024, 4096, 16384, 131072),
}
MLA_CONTEXT_AXES = {
    "sequences": (1, 8, 64, 256),
    "heads": (1, 8, 16, 64, 128),
    "length": (16, 128, 512, 1024, 2048, 4096, 16384, 32768),
}


def table(
    axes: Mapping[str, Sequence[float]],
    points: Sequence[Vector],
    best: Vector,
    seconds: Vector,
    groups: npt.NDArray[Any] | None = None,
) -> dict[str, Any]:
    """One table of shares of the roofline with its error on one row in five that the fit did not see."""
    logs, share = [np.log(np.array(a, dtype=np.float64)) for a in axes.values()], np.log(best / seconds)
    at = [np.log(np.maximum(p, 1e-9)) for p in points]
    held = held_out(len(seconds))
    seen = evaluate_grid(at, logs, fit_grid([p[~held] for p in at], share[~held], logs))
    return {
        "rows": len(seconds),
        "axes": {name: list(values) for name, values in axes.items()},
        "share": rounded(np.minimum(np.exp(fit_grid(at, share, logs)), MAX_SHARE), 3),
        "held_out": {"rows": int(held.sum()), **error_of((best / np.exp(seen))[held], seconds[held])},
    }


def columns(rows: pd.DataFrame, *names: str) -> list[Vector]:
    """Columns as floats."""
    return [rows[name].to_numpy(dtype=np.float64) for name in names]


def newest(
    wheel: Wheel, system: str, family: str, name: str, keep: Callable[[pd.DataFrame], Any], framework: str = FRAMEWORK
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
    for precision, name in GEMMS.items():
        rows, file = newest(wheel, system, "gemm", "gemm_perf", rows_with({"n": 256, "k": 256}, gemm_dtype=name))
        if rows.empty:
            continue
        rows, found = rows.groupby(["m", "n", "k"], sort=True).latency.min().reset_index(), {"file": file}
        if precision in DYNAMIC:
            scales, found["less"] = newest(wheel, system, "quantize", "computescale_perf", rows_with(quant_dtype=name))
            rows["latency"] -= rows.merge(scales.groupby(["m", "k"]).latency.min().rename("scale"), on=["m", "k"]).scale
        m, n, k = columns(rows, "m", "n", "k")
        best = ideal.gemm_seconds(m, n, k, precision, gpu)
        result[precision] = {**found, **table(GEMM_AXES, (m, n, k), best, rows.latency.to_numpy() / 1e3)}
    return result


def decode_attention(wheel: Wheel, system: str, gpu: GpuSpec) -> dict[str, Any]:
    """One query token per sequence against its cache."""
    result = {}
    for kv, name in KV.items():
        for dim in (64, 128):
            rows, file = newest(
                wheel,
                system,
                "attention",
                "generation_attention_perf",
                rows_with({"step": 31}, kv_cache_dtype=name, head_dim=dim, window_size=0),
                ATTENTION.get(system, FRAMEWORK),
            )
            if rows.empty:
                continue
            keys = ["batch_size", "num_heads", "num_key_value_heads", "step"]
            rows = rows.groupby(keys, sort=True).latency.min().reset_index()
            b, a, groups, step = columns(rows, *keys)
            best = ideal.decode_attention_seconds(b, a, groups, dim, step + 1.0, kv, gpu)
            result[f"{kv}:{dim}"] = {
                "file": file,
                **table(DECODE_AXES, (b * groups, a / groups, step + 1.0), best, rows.latency.to_numpy() / 1e3),
            }
    return result


def context_attention(wheel: Wheel, system: str, gpu: GpuSpec) -> dict[str, Any]:
    """Causal prefill, cache written."""
    result = {}
    for kind, (compute, kv) in {
        "bf16": ("bfloat16", "bfloat16"),
        "bf16_fp8_cache": ("bfloat16", "fp8"),
        "fp8": ("fp8", "fp8"),
    }.items():
        for dim in (64, 128):
            rows, file = newest(
                wheel,
                system,
                "attention",
                "context_attention_perf",
                rows_with({"isl": 16}, attn_dtype=compute, kv_cache_dtype=kv, head_dim=dim, window_size=0),
            )
            if rows.empty:
                continue
            keys = ["batch_size", "num_heads", "num_key_value_heads", "isl"]
            rows = rows.groupby(keys, sort=True).latency.min().reset_index()
            b, a, groups, s = columns(rows, *keys)
            best = ideal.context_attention_seconds(b, a, groups, dim, s, kind, gpu)
            result[f"{kind}:{dim}"] = {"file": file, **table(CONTEXT_AXES, (b * a, s), best, rows.latency.to_numpy() / 1e3)}
    return result


def expert_rows(wheel: Wheel, system: str, precision: str) -> tuple[pd.DataFrame, list[str], str]:
    """Gated experts, balanced routing where it was measured; where two collections are read (EXPERTS), the faster one of every
    shape that both have."""
    parts, files, routing = [], [], ""
    for framework in EXPERTS.get(system, (FRAMEWORK,)):
        for spread in ("balanced", "power_law"):
            rows, file = newest(
                wheel,
                system,
                "moe",
                "moe_perf",
                rows_with(without="nongated|min_latency", moe_dtype=MOES[precision], distribution=spread),
                framework,
            )
            if len(rows):
                parts.append(rows)
                files.append(file)
                routing = spread
                break
    if not parts:
        return pd.DataFrame(), [], ""
    best = [rows.groupby(EXPERT_KEYS, sort=True).latency.min() for rows in parts]
    joined = pd.concat(best, axis=1, join="inner").min(axis=1).rename("latency")
    return joined.reset_index(), files, routing


def experts(wheel: Wheel, system: str, gpu: GpuSpec) -> dict[str, Any]:
    """Fused gated experts: permutation, both GEMMs, activation, weighted sum."""
    result = {}
    for precision in MOES:
        rows, files, routing = expert_rows(wheel, system, precision)
        if rows.empty:
            continue
        tokens, h, f, topk, count, tp, ep = columns(rows, *EXPERT_KEYS)
        per_expert, local, f = tokens * topk / count, count / ep, f / tp
        active = np.minimum(local, np.maximum(np.round(local * np.minimum(per_expert, 1.0)), 1.0))
        best = ideal.experts_seconds(per_expert, local, active, h, f, precision, gpu)
        sound = (f >= 128) & (local >= 1) & tuned(rows).to_numpy()
        points = [x[sound] for x in (per_expert, h, f, local)]
        result[precision] = {
            "files": files,
            "routing": routing,
            **table(MOE_AXES, points, best[sound], rows.latency.to_numpy()[sound] / 1e3),
        }
    return result


def latent_attention(wheel: Wheel, system: str, gpu: GpuSpec) -> dict[str, Any]:
    """Multi-latent attention of DeepSeek: decode on the compressed cache, prefill on expanded heads."""
    result = {}
    for phase, name, axes in (
        ("decode", "generation_mla_perf", MLA_DECODE_AXES),
        ("context", "context_mla_perf", MLA_CONTEXT_AXES),
    ):
        for kv, kv_name in KV.items():
            rows, file = newest(wheel, system, "mla", name, rows_with(kv_cache_dtype=kv_name, mla_dtype="bfloat16"))
            if rows.empty:
                continue
            size = "step" if phase == "decode" else "isl"
            rows = rows[rows[size] >= (31 if phase == "decode" else 16)]
            rows = rows.groupby(["batch_size", "num_heads", size], sort=True).latency.min().reset_index()
            b, a, s = columns(rows, "batch_size", "num_heads", size)
            s = s + 1.0 if phase == "decode" else s
            price = ideal.latent_decode_seconds if phase == "decode" else ideal.latent_context_seconds
            result[f"{phase}:{kv}"] = {
                "file": file,
                **table(axes, (b, a, s), price(b, a, s, kv, gpu), rows.latency.to_numpy() / 1e3),
            }
    return result


def all_reduce(wheel: Wheel, system: str) -> dict[str, Any]:
    """One-node all-reduce of the engine (custom kernels for small messages), 16 bits: the measured microseconds."""
    file = ALL_REDUCE.get(system) or wheel.versions(system, "comm", FRAMEWORK, "custom_allreduce_perf")[0]
    rows = wheel.table(file)
    rows = rows[rows.num_gpus > 1]
    grid = rows.groupby(["num_gpus", "message_size"]).latency.min().unstack()
    size = 2 if rows.allreduce_dtype.iloc[0] == "bfloat16" else 1
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
        "package": {"name": PACKAGE, "version": VERSION, "licence": LICENCE, "prefix": "aiconfigurator_core/systems/data/"},
        "gemm": gemms(wheel, system, gpu),
        "decode_attention": decode_attention(wheel, system, gpu),
        "context_attention": context_attention(wheel, system, gpu),
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
    wheel = asked_wheel(__doc__)
    everything = [distil(wheel, gpu_id) for gpu_id in SYSTEMS]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for data in everything:
        (FOLDER / f"{data['gpu']}.json").write_text(as_json(data), encoding="utf-8")
    replace_section(DOCUMENT, BEGIN, END, markdown(everything))


if __name__ == "__main__":
    main()
