"""Cells of a row of training runs in our words, whatever others call them."""

from __future__ import annotations

import re

from autoconfig.runs.table import NO, WORDS, CellError, Row, cell, names_of
from autoconfig.specs.run_settings import GRAPH_SCOPES, read_graphs

LEFT_OUT = ("null", "nan", "n/a", "na", "-", "none")
"""What programs write into a cell that they leave empty."""
NONE_IS_A_WORD = (
    *("cuda_graph", "cuda_graph_scope", "loss_fusion", "master_weights", "offload"),
    *("optimizer_shard", "overlap", "peft", "recompute"),
)
"""Columns in which `none` is a choice, not an empty cell."""
FREE_TEXT = ("id", "source", "model")
_DATED = re.compile(r"(?:nemo|megatron[-_ ]bridge)?[-_: ]?v?([0-9]{2})\.([0-9]{1,2})((?:\.[0-9]{1,2})?)")


def in_our_words(row: Row) -> dict[str, str]:
    """Return the row with our spelling of software, task, dispatcher, graphs (Megatron's cuda_graph_impl) and no recomputation,
    and with cells empty that a program left out (nan). Raises CellError for a task or a loss that is not known."""
    ours = {column: "" if _is_left_out(column, text) else text for column, text in row.items()}
    if cell(ours, "software"):
        ours["software"] = _software(cell(ours, "software"))
    if graphs := cell(ours, "cuda_graph").lower():
        scopes = read_graphs(graphs)
        on, scope = ("1", graphs) if scopes and scopes <= {*GRAPH_SCOPES} else (graphs, "")  # scopes in the cell of on and off
        on, scope = names_of("cuda_graphs").get(graphs, (on, scope))
        ours |= {"cuda_graph": on} | ({"cuda_graph_scope": scope} if scope and not cell(ours, "cuda_graph_scope") else {})
    if task := cell(ours, "task").lower():
        ours["task"] = _task(names_of("tasks").get(task, task))
    if cell(ours, "zero_stage") and not cell(ours, "fsdp"):
        ours["fsdp"] = cell(ours, "zero_stage")
    if dispatcher := cell(ours, "moe_dispatcher").lower():
        ours["moe_dispatcher"] = names_of("dispatchers").get(dispatcher, dispatcher)
    if loss := cell(ours, "loss").lower():
        ours["loss"] = _loss(names_of("losses").get(loss, loss))
    if cell(ours, "recompute").lower() in (*NO, "none"):
        ours["recompute"] = "none"
    return ours


def _is_left_out(column: str, text: str) -> bool:
    word = (text or "").strip().lower()
    return word in LEFT_OUT and column not in FREE_TEXT and not (word == "none" and column in NONE_IS_A_WORD)


def _software(text: str) -> str:
    """Return a dated release of NVIDIA's as nemo-26.04 (also 26.04, v26.04, NeMo 26.4, nemo:26.04); our own name as it is, and
    either without the question mark of somebody who is not sure."""
    text = text.rstrip("? ")
    dated = None if text.lower().startswith("nemo-") else _DATED.fullmatch(text.lower())
    return f"nemo-{dated[1]}.{dated[2]:0>2}{dated[3]}" if dated else text


def _loss(loss: str) -> str:
    known = WORDS["loss"][0]
    if loss not in known:
        raise CellError(
            f"cell loss={loss[:40]!r} is none of {', '.join(known)}, nor another name of one (cce, liger, chunked_nll): what "
            "it holds of the logits is not known; leave the cell empty for the software's own"
        )
    return loss


def _task(task: str) -> str:
    known = WORDS["task"][0]
    if task not in known:
        raise CellError(
            f"cell task={task[:40]!r} is none of {', '.join(known)}: a run of another kind is not priced; say one "
            "of these, or leave the cell empty for pretraining"
        )
    return task
