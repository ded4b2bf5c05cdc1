"""Cells of a row in our words, whatever others call them, and switches that a dated release of NVIDIA did not have."""

from __future__ import annotations

import re
from dataclasses import replace

from autoconfig.runs.table import EP_OVERLAP, NO, YES, Row, cell, degree, flag, names_of, overlap_words, whole
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.run_settings import (
    FULL,
    FULL_ITERATION,
    PLAN_COLUMNS,
    RunSettings,
    read_graphs,
    switches_known,
    usual_graphs,
)
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import SoftwareStack

COUNTS = (*PLAN_COLUMNS, "gbs", "etp", "dp", "layers", "fsdp", "packed_length", "lora_rank", "offload_layers")
LEFT_OUT = ("none", "null", "nan", "n/a", "na", "-")
SWITCHES = ("cuda_graph", "cuda_graph_scope", "moe_dispatcher", "overlap")
"""Columns of a recipe's switches: those of one recipe belong together."""


_DATED = re.compile(r"(?:nemo|megatron[-_ ]bridge)?[-_ ]?([0-9]{2}\.[0-9]{2}(?:\.[0-9]{1,2})?)")


def software_name(row: Row) -> str:
    """The cell `software`, of a dated release of NVIDIA's as nemo-26.04 (also 26.04, NeMo 26.04)."""
    text = cell(row, "software")
    dated = _DATED.fullmatch(text.lower())
    return f"nemo-{dated[1]}" if dated else text


def in_our_words(row: Row) -> dict[str, str]:
    """The row with `cuda_graph` as 0 or 1 (Megatron's cuda_graph_impl says none, local, transformer_engine, full_iteration),
    `moe_dispatcher` and `task` in our spelling, `recompute` none for no, and counts empty that a program left out (nan)."""
    found = dict(row)
    for column in COUNTS:
        if cell(found, column).lower() in LEFT_OUT:
            found[column] = ""
    if cell(found, "software"):
        found["software"] = software_name(found)
    graphs = cell(found, "cuda_graph").lower()
    if (scope := {FULL_ITERATION: FULL_ITERATION, "local": FULL}.get(graphs)) and not cell(found, "cuda_graph_scope"):
        found["cuda_graph_scope"] = scope
    if graphs:
        found["cuda_graph"] = {FULL_ITERATION: "1", "local": "1", "transformer_engine": "1", "none": "0"}.get(graphs, graphs)
    elif cell(found, "cuda_graph_scope"):
        found["cuda_graph"] = "0" if cell(found, "cuda_graph_scope").lower() == "none" else "1"
    if task := cell(found, "task").lower():
        found["task"] = names_of("tasks").get(task, task)
    if dispatcher := cell(found, "moe_dispatcher").lower():
        found["moe_dispatcher"] = names_of("dispatchers").get(dispatcher, dispatcher)
    if cell(found, "recompute").lower() in NO:
        found["recompute"] = "none"
    return found


def sharding_of_a_release(row: dict[str, str], assumed: list[str]) -> None:
    """`fsdp` of a table of NVIDIA's releases: Megatron-FSDP over so many GPUs, or none (0, and the distributed optimizer that
    every recipe has)."""
    text = cell(row, "fsdp").lower().removesuffix(".0")
    if text in NO:
        row["fsdp"] = "1"
    elif text in YES[1:] or (text not in ("", "hsdp") and whole(row, "fsdp") > 3):
        row["fsdp"] = "3"
        assumed.append(f"fsdp 3 (fsdp {text[:40]}: Megatron-FSDP)")


def without_later_switches(
    row: dict[str, str], model: ModelSpec, stack: SoftwareStack, gpu: GpuSpec, form: str, assumed: list[str]
) -> None:
    """Leaves out the switches of a mixture (SWITCHES) where the row says CUDA graphs or EP overlap that no recipe of its
    release had on such GPUs in this format: they are those of a later release's recipe, and the run had its own release's."""
    if not stack.release or not model.is_moe:
        return
    known = switches_known(gpu.id.split("-")[0], form, stack.release, degree(row, "pp") > 1)
    if known is None:
        return
    graphs = read_graphs(cell(row, "cuda_graph_scope")) if flag(row, "cuda_graph") is not False else frozenset()
    later = [f"graphs of {'+'.join(sorted(odd))}"] if (odd := graphs - known[0]) else []
    later += ["EP overlap"] if EP_OVERLAP in overlap_words(cell(row, "overlap")) and not known[1] else []
    if not later:
        return
    said = [column for column in SWITCHES if cell(row, column)]
    row.update(dict.fromkeys(said, ""))
    assumed.append(
        f"no recipe of {stack.name} on such GPUs in {form} has {' or '.join(later)}: {', '.join(said)} as in its own recipe, "
        "not as the row says"
    )


def without_cut_layout(row: dict[str, str], assumed: list[str]) -> None:
    """Leaves out a pipeline layout whose list a table cut off."""
    layout = cell(row, "pipeline_layout")
    if layout.startswith("[[") and not layout.endswith("]]"):
        row["pipeline_layout"] = ""
        assumed.append("pipeline_layout as where none is said (the cell's list is cut off)")


def with_usual_graphs(row: Row, scenario: Scenario, plan: TrainPlan) -> RunSettings:
    """A row that says graphs and no scope, where no recipe of its plan has graphs, has those of the usual scopes that recipes
    of its release had on such GPUs (switches_known)."""
    settings = scenario.settings(plan)
    if not flag(row, "cuda_graph") or cell(row, "cuda_graph_scope") or settings.cuda_graphs:
        return settings
    usual, gpu = usual_graphs(scenario.model), scenario.cluster.gpu.id.split("-")[0]
    known = switches_known(gpu, scenario.numerics.format.recipe, scenario.software.release, plan.pp > 1)
    return replace(settings, cuda_graphs=usual & known[0] if known and scenario.model.is_moe else usual)
