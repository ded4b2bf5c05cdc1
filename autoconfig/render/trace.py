"""The answer of `trace` on the screen and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.core.trace import RankComparison, TraceAnswer
from autoconfig.render.training_json import AnswerJson, in_gib
from autoconfig.specs.job import SOFTWARE
from autoconfig.specs.json_record import Keywords, Natural, NotNegative, Positive, record_of
from autoconfig.specs.plan_names import NamedPlan, named_plan
from autoconfig.specs.trace import CATEGORIES
from autoconfig.specs.units import GIB

MIB = 2**20
MODULES_SHOWN = 12
STACK_TEXT = {
    "megatron-local": "megatron-core's local layers with torch's norms and attention, as their CUDA kernels save",
    "transformer-engine": "stand-ins that save what Transformer Engine saves",
}


Stack = Annotated[str, Keywords(enum=SOFTWARE)]
_BY_CATEGORY: dict[str, Any] = {"propertyNames": {"enum": CATEGORIES}}
SomeCategories = Annotated[dict[str, NotNegative], Keywords(**_BY_CATEGORY)]
"""GiB by why a byte is held (docs/memory_model.md); none where left out."""
Categories = Annotated[dict[str, NotNegative], Keywords(**_BY_CATEGORY, required=CATEGORIES)]


@dataclass(frozen=True, kw_only=True)
class SavedTensorJson:
    """Storages of one size and origin that one layer keeps."""

    module: str
    """Inside the layer."""
    operator: str
    """That made the tensor."""
    mib: NotNegative
    """Of each."""
    count: Positive


@dataclass(frozen=True, kw_only=True)
class DifferenceJson:
    """One category."""

    term: Annotated[str, Keywords(enum=CATEGORIES)]
    traced_gib: float
    formula_gib: float
    difference_gib: float
    """Formula less trace."""
    formula_parts_gib: dict[str, float]
    """Parts of the formula (docs/memory_model.md) in this category."""


@dataclass(frozen=True, kw_only=True)
class TracedRankJson:
    """One traced rank."""

    rank: Natural
    """Global rank, in Megatron's order tp-cp-ep-dp-pp."""
    pipeline_stage: Natural
    seconds: NotNegative
    """What tracing it took."""
    num_microbatches: Positive
    """Micro-batches that the trace ran: enough for the real number in flight."""
    peak_gib: NotNegative
    """Most bytes alive at any moment of the step."""
    peak_phase: Annotated[str, Keywords(enum=("forward", "backward", "between"))]
    """What ran at that moment; between: sends and receives."""
    by_category_gib: Categories
    by_module_gib: dict[str, SomeCategories]
    """Module (layer numbers left out) to GiB by category at the peak, largest first."""
    saved_tensors: tuple[SavedTensorJson, ...]
    """What one layer keeps from forward to backward, per micro-batch."""
    formula_gib: NotNegative
    """What the formula predicts for the stage."""
    formula_moment: str
    """Moment of the step in which the formula has its peak."""
    difference: tuple[DifferenceJson, ...]
    """Formula and trace by category."""


@dataclass(frozen=True, kw_only=True)
class TraceJson(AnswerJson):
    """Bytes that the real megatron-core code holds on chosen ranks, on tensors without data, beside the formula.

    Sizes are GiB unless the name says MiB, times seconds, names Megatron's.
    """

    stack: Stack
    """What ran: megatron-core's local layers, or stand-ins that save what Transformer Engine saves."""
    software: str
    """Software stack (`autoconfig software`) whose facts the formula and the stand-ins used."""
    versions: dict[str, str]
    """Versions of python, torch and megatron-core that ran."""
    model: str
    gpus: Positive
    """Of the whole job."""
    plan: NamedPlan
    short: str
    """The plan in its short form."""
    assumed: tuple[str, ...]
    """Defaults that were taken, each with its option."""
    ranks: tuple[TracedRankJson, ...]
    """In the order asked for."""


def trace_json(answer: TraceAnswer) -> TraceJson:
    """The whole answer."""
    scenario = answer.question.scenario
    return TraceJson(
        stack=answer.stack,
        software=scenario.software.name,
        versions=answer.versions,
        model=scenario.model.name,
        gpus=scenario.cluster.num_gpus,
        plan=named_plan(answer.plan, scenario.workload.global_batch_size),
        short=str(answer.plan),
        assumed=tuple(answer.question.assumed),
        ranks=tuple(_rank_json(rank) for rank in answer.ranks),
    )


def _rank_json(rank: RankComparison) -> TracedRankJson:
    trace = rank.trace
    return record_of(
        TracedRankJson,
        trace,
        peak_gib=trace.peak_bytes / GIB,
        by_category_gib=in_gib(trace.by_category),
        by_module_gib={module: in_gib(sizes) for module, sizes in trace.by_module.items()},
        saved_tensors=tuple(record_of(SavedTensorJson, s, mib=s.bytes / MIB) for s in trace.saved_tensors),
        formula_gib=rank.stage.peak_bytes / GIB,
        formula_moment=rank.stage.moment,
        difference=tuple(
            DifferenceJson(
                term=d.term,
                traced_gib=d.traced / GIB,
                formula_gib=d.formula / GIB,
                difference_gib=(d.formula - d.traced) / GIB,
                formula_parts_gib=in_gib(d.parts),
            )
            for d in rank.differences
        ),
    )


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
