"""The answers of `trace` and `emulate` on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.core.emulate import PASSES, EmulateAnswer
from autoconfig.core.trace import RankComparison, TraceAnswer
from autoconfig.render.question_json import AnswerJson
from autoconfig.render.screen import seconds_text, show_table, table_of
from autoconfig.render.training_json import in_gib
from autoconfig.specs.errors import GIB
from autoconfig.specs.job import CATEGORIES, SOFTWARE
from autoconfig.specs.json_record import Keywords, Natural, NotNegative, Positive, record_of
from autoconfig.specs.plan_names import NamedPlan, named_plan
from autoconfig.specs.remarks import AssumedJson, assumed_json

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
class TraceJson(AssumedJson, AnswerJson):
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
    stages_traced: tuple[Natural, ...]
    """Pipeline stages of which a rank was traced."""
    stages_left_out: tuple[Natural, ...]
    """Pipeline stages of which none was."""
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
        **assumed_json(answer.question.assumed),
        stages_traced=answer.stages,
        stages_left_out=answer.left_out,
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
    if answer.left_out:
        console.print(f"[dim]pipeline stages {_numbers(answer.stages)} of {answer.plan.pp} traced; left out: ", end="")
        console.print(f"[dim]{_numbers(answer.left_out)} (--stages all traces every one)[/dim]")
    ranks = [
        [
            f"{rank.trace.rank:,}",
            str(rank.trace.pipeline_stage),
            *(f"{rank.trace.by_category[name] / GIB:.2f}" for name in CATEGORIES),
            f"{rank.trace.peak_bytes / GIB:.2f}",
            f"{rank.stage.peak_bytes / GIB:.2f}",
            f"{rank.ratio - 1:+.2%}",
            f"{rank.trace.seconds:.1f}",
        ]
        for rank in answer.ranks
    ]
    names = ("rank", "stage", *CATEGORIES, "peak GiB", "formula", "difference", "seconds")
    show_table(console, names, ranks, spare=("seconds", "stage", *reversed(CATEGORIES)))
    worst = max(answer.ranks, key=lambda rank: rank.trace.peak_bytes)
    console.print(f"\nRank {worst.trace.rank}, stage {worst.trace.pipeline_stage}, by category: GiB")
    differences = [
        [
            d.term,
            *(f"{size / GIB:.2f}" for size in (d.traced, d.formula)),
            f"{(d.formula - d.traced) / GIB:+.2f}",
            ", ".join(f"{name} {size / GIB:.2f}" for name, size in d.parts.items() if abs(size) >= 0.005 * GIB),
        ]
        for d in worst.differences
    ]
    console.print(_table(("category", "traced", "formula", "difference", "parts of the formula"), differences))
    console.print(f"\nRank {worst.trace.rank} by module at its peak ({worst.trace.peak_phase}): GiB")
    state = ("optimizer", "gradients", "weights")
    show_table(console, ("module", *CATEGORIES), list(_module_rows(worst)), left=("module",), spare=state)
    if worst.trace.saved_tensors:
        console.print("\nOne layer keeps from forward to backward, per micro-batch: MiB")
        sizes = [(s, s.bytes / MIB, s.bytes * s.count / MIB) for s in worst.trace.saved_tensors]
        rows = [[escape(s.module), s.operator, f"{each:,.2f}", str(s.count), f"{all_:,.2f}"] for s, each, all_ in sizes]
        rows.append(["sum", "", "", "", f"{sum(all_ for _, _, all_ in sizes):,.2f}"])
        console.print(_table(("module", "made by", "MiB each", "count", "MiB"), rows))


def _numbers(stages: Sequence[int]) -> str:
    return ", ".join(map(str, stages))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return table_of(columns, rows, left=columns[:1])


def _module_rows(rank: RankComparison) -> Iterator[list[str]]:
    items = list(rank.trace.by_module.items())
    for module, sizes in items[:MODULES_SHOWN]:
        yield [escape(module), *(f"{sizes[name] / GIB:.2f}" if name in sizes else "" for name in CATEGORIES)]
    if rest := items[MODULES_SHOWN:]:
        total = {name: sum(sizes.get(name, 0) for _, sizes in rest) / GIB for name in CATEGORIES}
        yield [f"{len(rest)} others", *(f"{total[name]:.2f}" if total[name] else "" for name in CATEGORIES)]


@dataclass(frozen=True, kw_only=True)
class EmulateJson(AnswerJson):
    """One rank of a plan with real kernels on one device, its peers left out. Sizes are GiB, times seconds."""

    stack: Stack
    """What ran."""
    software: str
    """Software stack (`autoconfig software`) that the formulas used."""
    device: str
    """That the rank ran on."""
    versions: dict[str, str]
    model: str
    gpus: Positive
    """Of the whole job."""
    plan: NamedPlan
    short: str
    """The plan in its short form."""
    rank: Natural
    pipeline_stage: Natural
    peak_gib: NotNegative
    """Of allocated memory."""
    reserved_gib: float | None
    """What torch's CUDA allocator took; null on a CPU."""
    by_category_gib: dict[str, float]
    """GiB at the peak by why it is held, where it is counted (CPU)."""
    formula_gib: NotNegative
    """What the formula predicts for the stage."""
    layer_seconds: dict[str, float]
    """Kind of layer and pass (`dense.forward`) to median seconds of one micro-batch."""
    optimizer_seconds: NotNegative
    microbatch_compute_seconds: NotNegative
    """Measured compute of one micro-batch on the stage: forward, backward, recomputation."""
    predicted_microbatch_compute_seconds: NotNegative
    """The same by the time model, for the question's GPU."""
    step_seconds: float
    """Predicted step with the compute exchanged for the measured one."""
    predicted_step_seconds: NotNegative
    """Step by the time model alone."""


def emulate_json(answer: EmulateAnswer) -> EmulateJson:
    """The whole answer."""
    scenario, figures, measurement = answer.question.scenario, answer.figures, answer.measurement
    reserved = figures.peak_reserved_bytes
    return EmulateJson(
        stack=measurement.software,
        software=scenario.software.name,
        device=measurement.device,
        versions=measurement.versions,
        model=scenario.model.name,
        gpus=scenario.cluster.num_gpus,
        plan=named_plan(answer.plan, scenario.workload.global_batch_size),
        short=str(answer.plan),
        rank=answer.rank,
        pipeline_stage=figures.pipeline_stage,
        peak_gib=figures.peak_allocated_bytes / GIB,
        reserved_gib=None if reserved is None else reserved / GIB,
        by_category_gib=in_gib(figures.bytes_by_category),
        formula_gib=answer.stage.peak_bytes / GIB,
        layer_seconds=figures.layer_seconds,
        optimizer_seconds=figures.phase_seconds.get("optimizer", 0.0),
        microbatch_compute_seconds=answer.measured_compute_seconds,
        predicted_microbatch_compute_seconds=answer.predicted_compute_seconds,
        step_seconds=answer.step_seconds,
        predicted_step_seconds=answer.report.step_seconds,
    )


def show_emulate(console: Console, answer: EmulateAnswer) -> None:
    """Memory, then seconds by kind of layer, then the composed step."""
    scenario, figures, measurement = answer.question.scenario, answer.figures, answer.measurement
    where = f"rank {answer.rank}, stage {figures.pipeline_stage}"
    console.print(f"{escape(scenario.model.name)}  {escape(str(answer.plan))}  {where}")
    versions = ", ".join(f"{name} {version}" for name, version in measurement.versions.items())
    console.print(f"[dim]stack {measurement.software} on {escape(measurement.device)}; {escape(versions)}[/dim]")
    peak, formula = figures.peak_allocated_bytes / GIB, answer.stage.peak_bytes / GIB
    console.print(f"peak {peak:.3f} GiB measured, {formula:.3f} by the formula ({formula / peak - 1:+.1%})")
    if figures.bytes_by_category:
        console.print("  " + ", ".join(f"{name} {size / GIB:.3f}" for name, size in figures.bytes_by_category.items()) + " GiB")
    kinds = dict.fromkeys(name.split(".")[0] for name in figures.layer_seconds)
    times = [[figures.layer_seconds.get(f"{kind}.{name}") for name in PASSES] for kind in kinds]
    rows = [[kind, *("" if t is None else seconds_text(t) for t in row)] for kind, row in zip(kinds, times, strict=True)]
    console.print(_table(("one micro-batch", *PASSES), rows))
    console.print(
        f"stage: {seconds_text(answer.measured_compute_seconds)} a micro-batch measured, "
        f"{seconds_text(answer.predicted_compute_seconds)} predicted for {scenario.cluster.gpu.id}; "
        f"optimizer {seconds_text(figures.phase_seconds.get('optimizer', 0.0))}"
    )
    console.print(
        f"step: {seconds_text(answer.step_seconds)} with the measured compute, "
        f"{seconds_text(answer.report.step_seconds)} predicted"
    )
