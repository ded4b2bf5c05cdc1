"""Cells of a row in our words, whatever others call them, and switches that a dated release of NVIDIA did not have."""

from __future__ import annotations

import re

from autoconfig.runs.table import EP_OVERLAP, NO, WORDS, YES, CellError, Row, cell, degree, flag, names_of, overlap_words, whole
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.run_settings import (
    FULL,
    FULL_ITERATION,
    GivenSettings,
    model_switches,
    read_graphs,
    switches_known,
)
from autoconfig.specs.software.software import TP_OVERLAP, SoftwareStack

OLD_DISPATCHERS = ("alltoall", "allgather")
LEFT_OUT = ("null", "nan", "n/a", "na", "-", "none")
"""What programs write into a cell that they leave empty."""
NONE_IS_A_WORD = ("cuda_graph", "cuda_graph_scope", "loss_fusion", "offload", "optimizer_shard", "overlap", "peft", "recompute")
"""Columns in which `none` is a choice, not an empty cell."""
FREE_TEXT = ("id", "source", "model")


_DATED = re.compile(r"(?:nemo|megatron[-_ ]bridge)?[-_: ]?v?([0-9]{2})\.([0-9]{1,2})((?:\.[0-9]{1,2})?)")


def software_name(row: Row) -> str:
    """The cell `software`, of a dated release of NVIDIA's as nemo-26.04 (also 26.04, v26.04, NeMo 26.4, nemo:26.04); our own
    name as it is."""
    text = cell(row, "software")
    dated = None if text.lower().startswith("nemo-") else _DATED.fullmatch(text.lower())
    return f"nemo-{dated[1]}.{dated[2]:0>2}{dated[3]}" if dated else text


def in_our_words(row: Row) -> dict[str, str]:
    """The row with `cuda_graph` as 0 or 1 (Megatron's cuda_graph_impl says none, local, transformer_engine, full_iteration),
    `moe_dispatcher` and `task` in our spelling, `recompute` none for no, and cells empty that a program left out (nan). Raises
    CellError for a task that is not known."""
    found = {column: "" if _is_left_out(column, text) else text for column, text in row.items()}
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
        found["task"] = _known_task(names_of("tasks").get(task, task))
    if dispatcher := cell(found, "moe_dispatcher").lower():
        found["moe_dispatcher"] = names_of("dispatchers").get(dispatcher, dispatcher)
    if cell(found, "recompute").lower() in (*NO, "none"):
        found["recompute"] = "none"
    return found


def _is_left_out(column: str, text: str) -> bool:
    word = (text or "").strip().lower()
    return word in LEFT_OUT and column not in FREE_TEXT and not (word == "none" and column in NONE_IS_A_WORD)


def _known_task(task: str) -> str:
    known = WORDS["task"][0]
    if task not in known:
        raise CellError(
            f"cell task={task[:40]!r} is none of {', '.join(known)}: a run of another kind is not priced; say one "
            "of these, or leave the cell empty for pretraining"
        )
    return task


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
    """Leaves out scopes of CUDA graphs and EP overlap of a mixture that no recipe of its release had on such GPUs in this
    format: they are those of a later release's recipe, and the run had its own release's. The other switches stay as the row
    says; beside such a later one only where a recipe of this model has had them by then (all-to-all and all-gather are as old
    as Megatron's mixtures). Raises InputError for a scope or dispatcher that is not known."""
    if not stack.release or not model.is_moe:
        return
    where = gpu.id.split("-")[0]
    known = switches_known(where, form, stack.release, degree(row, "pp") > 1)
    if known is None:
        return
    graphs = read_graphs(cell(row, "cuda_graph_scope")) if flag(row, "cuda_graph") is not False else frozenset()
    dispatcher, words = cell(row, "moe_dispatcher"), overlap_words(cell(row, "overlap"))
    GivenSettings(dispatcher=dispatcher or None, cuda_graphs=graphs)
    odd, overlaps = graphs - known[0], EP_OVERLAP in words
    left_out = [f"graphs of {'+'.join(sorted(odd))}"] if odd else []
    left_out += ["EP overlap"] if overlaps and not known[1] else []
    if not left_out:
        return
    why = f"no recipe of {stack.name} on such GPUs in {form} has {' or '.join(left_out)}"
    mine = model_switches(model.name.rstrip("*"), where, stack.release)
    unlike = ["EP overlap"] if overlaps and known[1] and mine and not any(s.ep_overlap for s in mine) else []
    unlike += [dispatcher] if dispatcher not in ("", *OLD_DISPATCHERS, *(s.dispatcher for s in mine)) and mine else []
    if unlike:
        why += f", none of {model.name} has {' or '.join(unlike)}"
    if odd:
        row["cuda_graph_scope"] = " ".join(sorted(graphs - odd))
        row["cuda_graph"] = "1" if graphs - odd else ""
    kept = [word for word in words if word != EP_OVERLAP or not {"EP overlap"} & {*left_out, *unlike}]
    idle = [TP_OVERLAP] if degree(row, "tp") == 1 else []  # says nothing of a run, and a recipe copied whole has it
    row["overlap"] = "" if kept == idle else "+".join(kept)
    if dispatcher in unlike:
        row["moe_dispatcher"] = ""
    assumed.append(f"{why}: as in its own recipe, not as the row says")


def without_cut_layout(row: dict[str, str], assumed: list[str]) -> None:
    """Leaves out a pipeline layout whose list a table cut off."""
    layout = cell(row, "pipeline_layout")
    if layout.startswith("[[") and not layout.endswith("]]"):
        row["pipeline_layout"] = ""
        assumed.append("pipeline_layout as where none is said (the cell's list is cut off)")
