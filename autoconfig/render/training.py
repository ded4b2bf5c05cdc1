"""Answers on the screen as rich tables, the whole ranking as a file; no arithmetic beyond units."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape

from autoconfig.render.plan_table import (
    adapters_text,
    cost_per_billion,
    plan_table,
    precision_text,
    show_included,
    show_varied,
    workload_text,
)
from autoconfig.render.screen import brief, seconds_text, show_assumptions, show_table
from autoconfig.specs.errors import GIB, chance_text
from autoconfig.specs.files import check_output_path, write_atomically
from autoconfig.specs.layouts import layout_text
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import SHORT_TO_LONG
from autoconfig.training.answer import Explanation, SearchAnswer, part_words
from autoconfig.training.confidence import evidence_text, record_for, record_text
from autoconfig.training.nearest import NO_LEGAL
from autoconfig.training.price import FLOPS_CONVENTION, SAFE_FIT, PlanReport
from autoconfig.training.question import Question
from autoconfig.training.rank import RESOLUTION, Ranking
from autoconfig.training.remedies import Remedy
from autoconfig.training.rules import RULE_TEXT

TABLE_SUFFIXES = (".parquet", ".csv")
COUNTS_SHOWN, LESS_SHOWN = 4, 3


def speed_text(report: PlanReport) -> str:
    """Step with its band, and throughput."""
    band = report.confidence
    return (
        f"Step {seconds_text(report.step_seconds)} (90 % band {seconds_text(band.step_seconds_p5)} to "
        f"{seconds_text(band.step_seconds_p95)}; {evidence_text(band)}), {report.tokens_per_second_per_gpu:,.0f} tokens/s/GPU, "
        f"{report.model_flops_per_second_per_gpu / 1e12:,.0f} TFLOPS ({FLOPS_CONVENTION}), MFU {report.mfu:.1%}"
    )


def show_money(console: Console, report: PlanReport) -> None:
    """Cost without a number of tokens; where the console is verbose what the GPUs draw at most."""
    if report.cost is None and report.cost_per_billion_tokens is not None:
        console.print(f"Cost: {cost_per_billion(report)} for a billion tokens, as --price; --tokens says days and cost of all.")
    if report.joules_per_token is not None and getattr(console, "verbose", False):
        whole = "" if report.energy_kwh is None else f", {report.energy_kwh:,.0f} kWh for --tokens"
        console.print(f"Energy: at most {report.joules_per_token:,.3g} J a token{whole} (GPUs at their power limit).")


def show_search(console: Console, answer: SearchAnswer, command: str = "autoconfig explain ...") -> None:
    """The whole answer of `search`; `command` explains a plan when its short form is put behind it."""
    show_question(console, answer.question)
    funnel = answer.ranking.funnel
    if not answer.plans:
        show_nothing_fits(console, answer)
    else:
        show_plans(console, answer)
    show_varied(console, answer.question)
    for included in answer.included:
        show_included(console, included, answer)
    if answer.gpus_tried:
        show_gpus_tried(console, answer)
    console.print(
        f"{funnel.enumerated:,} layouts enumerated -> {funnel.legal:,} legal -> {funnel.fit:,} fit -> "
        f"{funnel.priced:,} plans ranked in {funnel.seconds:.2f} s"
    )
    brief(console, "Rejected", [f"{count:,} {_rule_text(rule)}" for rule, count in funnel.rejected_by_rule.items()])
    show_assumed(console, answer.question)
    if answer.plans:
        console.print("[dim]Every number:[/dim]")
        console.print(f"{command} {answer.plans[0].report.plan}", markup=False, soft_wrap=True)


def show_gpus_tried(console: Console, answer: SearchAnswer) -> None:
    """The GPU counts of --gpus-at-most with their best step and cost in GPU-seconds."""
    done = [(gpus, step) for gpus, step in answer.gpus_tried if step is not None]
    best = {gpus for gpus, _ in sorted(done, key=lambda item: item[1])[:COUNTS_SHOWN]}
    best |= {gpus for gpus, _ in sorted(done, key=lambda item: item[0] * item[1])[:COUNTS_SHOWN]}
    chosen = answer.question.scenario.cluster.num_gpus
    console.print(f"Tried {len(answer.gpus_tried)} GPU counts, chose {chosen}. The fastest and the cheapest of them:")
    for gpus, step in sorted((item for item in done if item[0] in best), reverse=True):
        console.print(
            f"  {gpus:>8,} GPUs  {seconds_text(step):>10} a step  {gpus * step / 3600:,.2f} GPU-hours a step"
            f"{'  <- chosen' if gpus == chosen else ''}",
            highlight=False,
        )


def _rule_text(rule: str) -> str:
    return f"{rule}: {RULE_TEXT[rule]}" if rule in RULE_TEXT else ("by --fix, --max or --exclude" if rule == "wish" else rule)


def show_question(console: Console, question: Question) -> None:
    """Model, cluster and workload."""
    scenario = question.scenario
    model, cluster, numerics = scenario.model, scenario.cluster, scenario.numerics
    network = f"{cluster.link_bytes_per_s / 1e9:g} GB/s {cluster.gpu.link} in groups of {cluster.link_domain_size}"
    if cluster.hbm_bytes_per_s != cluster.gpu.hbm_bytes_per_s:
        network = f"{cluster.hbm_bytes_per_s / 1e12:g} TB/s of memory, {network}"
    if cluster.power_limit_watts is not None:
        network = f"{cluster.power_limit_watts:g} W, {network}"
    types = f"{precision_text(numerics)}{adapters_text(numerics)}"
    console.print(
        f"[bold]{escape(model.name)}[/bold] ({total_parameters(model) / 1e9:,.1f} B parameters) on "
        f"[bold]{cluster.num_gpus:,} x {escape(cluster.gpu.id)}[/bold] "
        f"({network}, {cluster.nic_bytes_per_s * 8 / 1e9:g} Gb/s network per GPU); {types}, {workload_text(scenario)}; "
        f"software {scenario.software.name}; calibration {escape(question.scenario.calibration.version)}"
    )


def show_assumed(console: Console, question: Question) -> None:
    """What was assumed."""
    show_assumptions(console, question.assumed)


LAYOUT = "--pipeline-model-parallel-layout"


def show_plans(console: Console, answer: SearchAnswer) -> None:
    """The ranked table, why the first is first, ties, the safe choice, and the Pareto set."""
    first = answer.plans[0].report
    if not answer.ranking.fit_chance_met:
        _show_unlikely(console, answer)
    plan_table(console, answer)
    _layouts(console, answer)
    riskier = answer.riskier
    saved = 0.0 if riskier is None else 1 - riskier.step_seconds / first.step_seconds
    if riskier is not None and round(saved, 3) > 0:
        console.print(
            f"[bold]{saved:.1%} faster if it fits[/bold] (chance "
            f"{chance_text(riskier.confidence.fit_probability)}, below --fit-chance "
            f"{answer.question.request.fit_chance * 100:.6g}%): {escape(str(riskier.plan))}"
        )
    if answer.switches:
        gains = "; ".join(f"{gain.change} {gain.ratio - 1:+.0%}" for gain in answer.switches)
        console.print(f"[bold]Switches that decide the step[/bold] (of the first plan as it is): {escape(gains)}")
    show_money(console, first)
    if answer.other_batch is not None:
        console.print(f"[bold]Another batch[/bold] (--global-batch-size): {escape(str(answer.other_batch))}")
    label = "Why the first" if answer.plans[0].rank == 1 else "The first, beside the fastest"
    console.print(f"[bold]{label}:[/bold] {escape(answer.plans[0].why)}.")
    if len(answer.plans) > 1:
        console.print(
            f"[bold]The next one[/bold] ({escape(str(answer.plans[1].report.plan))}) is {escape(answer.plans[1].why)}."
        )
    _show_ties_and_band(console, answer)
    if (safe := answer.safe) is not None and first.confidence.fit_probability < SAFE_FIT:
        console.print(
            f"[bold]Safe choice:[/bold] {escape(str(safe.plan))}, {seconds_text(safe.step_seconds)}, chance to fit "
            f"{chance_text(safe.confidence.fit_probability)}."
        )
    if less := _less_memory(answer):
        texts = (
            f"{escape(str(r.plan))} {r.peak_bytes / GIB:.1f} GiB at {seconds_text(r.step_seconds)}{' (=)' if tied else ''}"
            for r, tied in less
        )
        console.print("Less memory: " + "; ".join(texts))


def _less_memory(answer: SearchAnswer) -> list[tuple[PlanReport, bool]]:
    """Plans that need less memory than the first, each with whether the predictions cannot tell its step from the fastest."""
    first, tied = answer.plans[0].report, float(answer.ranking.step_seconds[0]) * (1.0 + RESOLUTION)
    return [(r, r.step_seconds <= tied) for r in answer.pareto if r.peak_bytes < first.peak_bytes][:LESS_SHOWN]


def _show_ties_and_band(console: Console, answer: SearchAnswer) -> None:
    """What the marks of the table mean, the first plan's band, and how such predictions fared."""
    first = answer.plans[0].report
    band = first.confidence
    some = "less memory at a step" if any(tied for _, tied in _less_memory(answer)) else ""
    alike = f"{answer.ties} plans are" if answer.ties > 1 else some
    closer = f"within {RESOLUTION:.0%} of the fastest, closer than the model can tell apart"
    tie = f"= marks a tie: {alike} {closer}. " if alike else ""
    edges = f"{seconds_text(band.step_seconds_p5)} to {seconds_text(band.step_seconds_p95)} ({evidence_text(band)})"
    console.print(
        f"[dim]{tie}90 % band of the first: {edges}. "
        "peak is torch's allocated memory on the worst stage and limit what it may be, GiB; fit the chance not to run out[/dim]"
    )
    if answer.plans[0].rank == 1 and (record := record_for(answer.question.scenario, first.confidence)) is not None:
        console.print(f"[dim]{escape(record_text(record, seconds_text(first.step_seconds * record.middle)))}[/dim]")


def _show_unlikely(console: Console, answer: SearchAnswer) -> None:
    """No plan has the asked chance to fit: how likely the first is, and what would help."""
    asked, likeliest = answer.question.request.fit_chance, answer.plans[0].report.confidence.fit_probability
    helps = next((str(remedy) for remedy in answer.remedies if remedy.fits), "")
    console.print(
        f"[bold]No plan has a chance to fit of {asked * 100:.6g}%; the likeliest comes first, with {chance_text(likeliest)}."
        "[/bold]" + (f" What would reach it: {escape(helps)}" if helps else "")
    )


def _layouts(console: Console, answer: SearchAnswer) -> None:
    """The pipeline layouts of the plans that have one, with the ranks of these plans."""
    ranks: dict[str, list[str]] = {}
    for ranked in answer.plans:
        if layout := layout_text(answer.question.scenario.model, ranked.report.plan):
            ranks.setdefault(layout, []).append(str(ranked.rank))
    for layout, numbers in ranks.items():
        console.print(f"Stages of {', '.join(numbers)}: {LAYOUT} {layout}", markup=False, soft_wrap=True)


def show_nothing_fits(console: Console, answer: SearchAnswer) -> None:
    """The nearest miss, by how much, and what would make it fit."""
    miss = answer.nearest_miss
    if answer.nothing_legal is not None:
        why = escape(str(answer.nothing_legal)).removeprefix(NO_LEGAL)
        console.print(f"[bold red]{NO_LEGAL.capitalize()}[/bold red]{why}.")
        if answer.other_batch is not None:
            console.print(f"[bold]Another batch[/bold] (--global-batch-size): {escape(str(answer.other_batch))}")
    if miss is None:
        return
    short = (miss.peak_bytes - miss.limit_bytes) / GIB
    console.print(
        f"[bold red]Nothing fits.[/bold red] The nearest miss is {escape(str(miss.plan))}: stage {miss.worst_stage.stage} "
        f"needs {miss.peak_bytes / GIB:.1f} GiB of {miss.limit_bytes / GIB:.1f}, {short:.1f} GiB too much."
    )
    console.print("What was tried to make it fit:")
    show_remedies(console, answer.remedies)


def show_remedies(console: Console, remedies: Iterable[Remedy]) -> None:
    """One line each: whether it fits, and with what plan."""
    for remedy in remedies:
        mark = "[green]fits[/green]" if remedy.fits else "[dim]no[/dim]  "
        console.print(f"  {mark} {escape(str(remedy))}")


def show_explain(console: Console, explanation: Explanation) -> None:
    """Memory per stage and part, time per part and operator, and what binds one plan, as tables."""
    question, included = explanation.question, explanation.included
    show_question(console, question)
    console.print(f"Plan [bold]{escape(str(included.plan))}[/bold]")
    if not included.legal:
        console.print("[bold red]Not legal:[/bold red]")
        for violation in included.violations:
            console.print(f"  {violation.rule}: {escape(violation.text)}")
        if explanation.nearest_legal is not None:
            console.print(f"The nearest legal plan is [bold]{escape(str(explanation.nearest_legal))}[/bold]")
        show_assumed(console, question)
        return
    report = included.report
    assert report is not None
    verdict = "fits" if report.fits else f"does not fit: {included.shortfall_gib:.1f} GiB too much"
    console.print(speed_text(report))
    console.print(
        f"Memory: {verdict}; chance to fit {chance_text(report.confidence.fit_probability)}; "
        f"limit {report.limit_bytes / GIB:.1f} GiB "
        f"of {question.scenario.cluster.memory_bytes / GIB:.1f} GiB (allocator, NCCL and CUDA context take the rest)"
    )
    show_money(console, report)
    for text in explanation.without_effect:
        console.print(f"Note: {text}", markup=False)
    _time_table(console, report)
    _operator_table(console, explanation)
    _show_memory(console, report)
    if explanation.gains_note:
        console.print(explanation.gains_note, markup=False)
    if explanation.gains:
        names = ("more", "tokens/s of this plan", "of the best plan", "which is")
        rows = [
            [gain.change, _gain(gain.same_plan_ratio), _gain(gain.best_plan_ratio), gain.best_plan or ""]
            for gain in explanation.gains
        ]
        left = ("more", "which is")
        show_table(console, names, rows, left=left, below=("which is",), title="What more of everything would buy")
    if explanation.switches:
        console.print("What switches would buy (step time of this plan):")
    for switch in explanation.switches:
        console.print(f"  {switch.change}: {switch.ratio - 1:+.1%}", markup=False)
    show_assumed(console, question)
    named = "Each formula of time and each part of memory is the name of a function and has"
    where = "its line in docs/memory_model.md or docs/time_model.md."
    verbose = bool(getattr(console, "verbose", False))
    console.print(
        f"{named} {where}" if verbose else f"--verbose names the formula of each part, which has {where}", style="dim"
    )


def _gain(ratio: float | None) -> str:
    return "not possible" if ratio is None else f"{ratio - 1:+.1%}"


LAYERS = {"all": "every layer", "dense": "dense layer", "moe": "layer of experts", "mtp": "multi-token prediction"}
"""Kinds of layers in words, where these are others than their names."""
SHORTER = {
    "gradient accumulation": "gradient sums",
    "shared experts communication": "shared communication",
    "shared_experts.": "shared experts ",
}
"""Names of operators -> how they are shown."""


def operator_words(name: str) -> str:
    """An operator's name without what a narrow screen has no room for."""
    for long, short in SHORTER.items():
        name = name.replace(long, short)
    return name


def _operator_table(console: Console, explanation: Explanation) -> None:
    """Milliseconds of every operator, below the layer that it is in; columns that hold nothing are left out."""
    rows: list[list[str]] = []
    layer = ""
    for row in explanation.operators:
        if row.layer != layer:
            layer = row.layer
            rows.append([f"[bold]{LAYERS.get(layer, layer)}[/bold]", *[""] * 6])
        times = (row.forward_seconds, row.dgrad_seconds, row.wgrad_seconds, row.recompute_seconds)
        flops = f"{row.forward_flops / 1e9:,.1f}" if row.forward_flops else ""
        share = "" if row.share_of_peak is None else f"{row.share_of_peak:.0%}"
        rows.append([operator_words(row.operator), *(f"{value * 1e3:.3f}" if value else "" for value in times), flops, share])
    columns = ("operator", "forward", "dgrad", "wgrad", "again", "GFLOP", "of peak")
    held = [place for place, name in enumerate(columns) if not place or any(row[place] for row in rows)]
    title = "Operators of one layer (and the ends), one micro-batch, ms"
    shown = [[row[place] for place in held] for row in rows]
    show_table(console, [columns[place] for place in held], shown, left=("operator",), title=title)


def _time_table(console: Console, report: PlanReport) -> None:
    """Seconds by part; with the name of each formula where the console is verbose."""
    parts = sorted(report.time_parts.items(), key=lambda item: -item[1])
    rows = [
        [part_words(name), f"{seconds:.4f}", f"{seconds / report.step_seconds:.1%}", name]
        for name, seconds in parts
        if seconds > 0
    ]
    rows.append(["[bold]step[/bold]", f"[bold]{report.step_seconds:.4f}[/bold]", "", ""])
    columns = ("part", "seconds", "share", "formula")
    shown = len(columns) if getattr(console, "verbose", False) else len(columns) - 1
    show_table(console, columns[:shown], [row[:shown] for row in rows], left=("part", "formula"), title="Time of one step")


STAGES_SHOWN = 8
"""All of up to so many; of more the worst, both ends and their neighbours, where the console is not verbose."""
STAGE_COLUMN = 10
PART_WORDS = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "optimizer_step_bytes": "optimizer's step",
    "mlp_inside": "inside the MLP",
    "mlp_backward": "MLP backward",
    "expert_inside": "inside the experts",
    "shared_experts_inside": "inside the shared experts",
    "fsdp_unit_bytes": "layers gathered by FSDP",
    "dummy_weight_gradients": "scratch of weight gradients",
}


def memory_words(name: str) -> str:
    """A part of memory, or the moment at which it is largest, in words; JSON has the name."""
    return PART_WORDS.get(name, name.removesuffix("_bytes").replace("_", " "))


def _shown_stages(report: PlanReport, *, whole: bool) -> Sequence[int]:
    """All stages, or of many the worst, the first and last with their neighbours."""
    count, worst = len(report.stages), report.worst_stage.stage
    if whole or count <= STAGES_SHOWN:
        return range(count)
    return sorted({worst, 0, 1, 2, count - 3, count - 2, count - 1})


def _show_memory(console: Console, report: PlanReport) -> None:
    """Parts of memory of the stages, as many beside each other as the screen holds, and when each stage is largest."""
    verbose = bool(getattr(console, "verbose", False))
    stages = _shown_stages(report, whole=verbose)
    names = dict.fromkeys(name for stage in stages for name in report.stages[stage].parts)
    ordered = sorted(names, key=lambda n: -max(report.stages[s].parts.get(n, 0.0) for s in stages))
    widest = max(len(memory_words(name)) + (len(name) + 2) * verbose for name in ordered) + 3
    beside = max(1, (console.width - widest) // STAGE_COLUMN)
    for start in range(0, len(stages), beside):
        chosen = stages[start : start + beside]
        sizes = {name: [f"{report.stages[s].parts.get(name, 0.0) / GIB:.3f}" for s in chosen] for name in ordered}
        rows = [[memory_words(name), *[name] * verbose, *cells] for name, cells in sizes.items() if set(cells) != {"0.000"}]
        peaks = (f"[bold]{report.stages[s].peak_bytes / GIB:.3f}[/bold]" for s in chosen)
        rows.append(["[bold]peak[/bold]", *[""] * verbose, *peaks])
        columns = ["part", *["name"] * verbose, *(f"stage {stage}" for stage in chosen)]
        show_table(console, columns, rows, left=("part", "name"), title="" if start else "Memory by pipeline stage, GiB")
    console.print(f"Largest moment: {_moments_text(report, stages)}")
    if len(stages) < len(report.stages):
        console.print(f"{len(report.stages) - len(stages)} stages between are not shown (--verbose)", style="dim")


def _moments_text(report: PlanReport, stages: Sequence[int]) -> str:
    """When each of the stages is largest, those of one moment together."""
    moments: dict[str, list[str]] = {}
    for stage in stages:
        moments.setdefault(report.stages[stage].moment, []).append(str(stage))
    return "; ".join(f"{memory_words(moment)} (stage {', '.join(where)})" for moment, where in moments.items())


def check_table_path(path: Path) -> None:
    """`check_output_path` for ranked tables; parquet needs packages that a plain install leaves out (ModuleNotFoundError)."""
    check_output_path(path, TABLE_SUFFIXES)
    if path.suffix.lower() == ".parquet":
        importlib.import_module("pandas")
        importlib.import_module("pyarrow")


def ranking_table(ranking: Ranking) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of every plan that fits, fastest first: Megatron's names, step seconds, memory."""
    layouts, scenario, count = ranking.space.layouts, ranking.scenario, len(ranking.row)
    columns: dict[str, npt.NDArray[Any]] = {"rank": np.arange(1, count + 1)}
    for short, long in SHORT_TO_LONG.items():
        if short == "recompute":
            columns[long] = np.array([str(option) for option in ranking.options], dtype=object)[ranking.option]
        else:
            columns[long] = getattr(layouts, short)[ranking.row]
    columns["global_batch_size"] = np.full(count, scenario.workload.global_batch_size)
    columns["step_seconds"] = ranking.step_seconds
    columns["tokens_per_second_per_gpu"] = scenario.workload.tokens_per_step / ranking.step_seconds / scenario.cluster.num_gpus
    columns["peak_gib"] = ranking.peak_bytes / GIB
    columns["limit_gib"] = ranking.limit_bytes / GIB
    return columns


def write_table(ranking: Ranking, path: Path) -> None:
    """The whole ranked table as .parquet or .csv. Raises FileError."""
    check_table_path(path)
    columns = ranking_table(ranking)
    if path.suffix.lower() == ".csv":
        write_atomically(path, lambda file: _write_csv(columns, file))
    else:
        import pandas as pd

        plans = pd.DataFrame(columns).astype({"recompute": "category"})
        write_atomically(path, lambda file: plans.to_parquet(file, index=False))


def _write_csv(columns: Mapping[str, npt.NDArray[Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
