"""The answer of `trace` on the screen and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.core.trace import RankComparison, TraceAnswer
from autoconfig.render.training_json import SCHEMA_VERSION
from autoconfig.specs.plan_names import plan_json
from autoconfig.specs.trace import CATEGORIES
from autoconfig.specs.units import GIB

MIB = 2**20
MODULES_SHOWN = 12
STACK_TEXT = {
    "megatron-local": "megatron-core's local layers with torch's norms and attention, as their CUDA kernels save",
    "transformer-engine": "stand-ins that save what Transformer Engine saves",
}


def trace_json(answer: TraceAnswer) -> dict[str, Any]:
    """The answer under the names of `autoconfig/schemas/trace.schema.json`."""
    scenario = answer.question.scenario
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": answer.stack,
        "software": scenario.software.name,
        "versions": answer.versions,
        "model": scenario.model.name,
        "gpus": scenario.cluster.num_gpus,
        "plan": plan_json(answer.plan, scenario.workload.global_batch_size),
        "short": str(answer.plan),
        "assumed": list(answer.question.assumed),
        "ranks": [_rank_json(rank) for rank in answer.ranks],
    }


def _rank_json(rank: RankComparison) -> dict[str, Any]:
    trace = rank.trace
    return {
        "rank": trace.rank,
        "pipeline_stage": trace.pipeline_stage,
        "seconds": trace.seconds,
        "num_microbatches": trace.num_microbatches,
        "peak_gib": trace.peak_bytes / GIB,
        "peak_phase": trace.peak_phase,
        "by_category_gib": {name: size / GIB for name, size in trace.by_category.items()},
        "by_module_gib": {
            module: {name: size / GIB for name, size in sizes.items()} for module, sizes in trace.by_module.items()
        },
        "saved_tensors": [
            {"module": s.module, "operator": s.operator, "mib": s.bytes / MIB, "count": s.count} for s in trace.saved_tensors
        ],
        "formula_gib": rank.stage.peak_bytes / GIB,
        "formula_moment": rank.stage.moment,
        "difference": [
            {
                "term": d.term,
                "traced_gib": d.traced / GIB,
                "formula_gib": d.formula / GIB,
                "difference_gib": (d.formula - d.traced) / GIB,
                "formula_parts_gib": {name: size / GIB for name, size in d.parts.items()},
            }
            for d in rank.differences
        ],
    }


def show_trace(console: Console, answer: TraceAnswer) -> None:
    """Ranks, then modules, saved tensors and differences of the rank that holds most."""
    versions = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
    console.print(f"{escape(answer.question.scenario.model.name)}  {escape(str(answer.plan))}")
    console.print(f"[dim]stack {answer.stack}: {STACK_TEXT[answer.stack]}; {versions}[/dim]")
    console.print(_rank_table(answer))
    worst = max(answer.ranks, key=lambda rank: rank.trace.peak_bytes)
    console.print(f"\nRank {worst.trace.rank}, stage {worst.trace.pipeline_stage}, by category: GiB")
    console.print(_difference_table(worst))
    console.print(f"\nRank {worst.trace.rank} by module at its peak ({worst.trace.peak_phase}): GiB")
    console.print(_module_table(worst))
    if worst.trace.saved_tensors:
        console.print("\nOne layer keeps from forward to backward, per micro-batch: MiB")
        console.print(_saved_table(worst))


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right")
    return table


def _rank_table(answer: TraceAnswer) -> Table:
    table = _table("rank", "stage", *CATEGORIES, "peak GiB", "formula", "difference", "seconds")
    for rank in answer.ranks:
        trace = rank.trace
        table.add_row(
            f"{trace.rank:,}",
            str(trace.pipeline_stage),
            *(f"{trace.by_category[name] / GIB:.2f}" for name in CATEGORIES),
            f"{trace.peak_bytes / GIB:.2f}",
            f"{rank.stage.peak_bytes / GIB:.2f}",
            f"{rank.ratio - 1:+.2%}",
            f"{trace.seconds:.1f}",
        )
    return table


def _difference_table(rank: RankComparison) -> Table:
    table = _table("category", "traced", "formula", "difference", "parts of the formula")
    for d in rank.differences:
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in d.parts.items() if abs(size) >= 0.005 * GIB)
        table.add_row(d.term, f"{d.traced / GIB:.2f}", f"{d.formula / GIB:.2f}", f"{(d.formula - d.traced) / GIB:+.2f}", parts)
    return table


def _module_table(rank: RankComparison) -> Table:
    table = _table("module", *CATEGORIES)
    items = list(rank.trace.by_module.items())
    for module, sizes in items[:MODULES_SHOWN]:
        table.add_row(escape(module), *(f"{sizes[name] / GIB:.2f}" if name in sizes else "" for name in CATEGORIES))
    rest = items[MODULES_SHOWN:]
    if rest:
        total = {name: sum(sizes.get(name, 0) for _, sizes in rest) / GIB for name in CATEGORIES}
        table.add_row(f"{len(rest)} others", *(f"{total[name]:.2f}" if total[name] else "" for name in CATEGORIES))
    return table


def _saved_table(rank: RankComparison) -> Table:
    table = _table("module", "made by", "MiB each", "count", "MiB")
    for s in rank.trace.saved_tensors:
        table.add_row(escape(s.module), s.operator, f"{s.bytes / MIB:,.2f}", str(s.count), f"{s.bytes * s.count / MIB:,.2f}")
    total = sum(s.bytes * s.count for s in rank.trace.saved_tensors)
    table.add_row("sum", "", "", "", f"{total / MIB:,.2f}")
    return table
