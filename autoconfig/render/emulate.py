"""The answer of `emulate` on the screen and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.core.emulate import PASSES, EmulateAnswer
from autoconfig.render.trace import Stack
from autoconfig.render.training import seconds_text
from autoconfig.render.training_json import AnswerJson, in_gib
from autoconfig.specs.json_record import Natural, NotNegative, Positive
from autoconfig.specs.plan_names import NamedPlan, named_plan
from autoconfig.specs.units import GIB


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
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for number, name in enumerate(("one micro-batch", *PASSES)):
        table.add_column(name, justify="left" if number == 0 else "right")
    for kind in dict.fromkeys(name.split(".")[0] for name in figures.layer_seconds):
        values = (figures.layer_seconds.get(f"{kind}.{name}") for name in PASSES)
        table.add_row(kind, *("" if value is None else seconds_text(value) for value in values))
    console.print(table)
    console.print(
        f"stage: {seconds_text(answer.measured_compute_seconds)} a micro-batch measured, "
        f"{seconds_text(answer.predicted_compute_seconds)} predicted for {scenario.cluster.gpu.id}; "
        f"optimizer {seconds_text(figures.phase_seconds.get('optimizer', 0.0))}"
    )
    console.print(
        f"step: {seconds_text(answer.step_seconds)} with the measured compute, "
        f"{seconds_text(answer.report.step_seconds)} predicted"
    )
