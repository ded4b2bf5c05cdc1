"""Cells of a table of runs that hold one of a few words: which words are known, and what another word is read as."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from autoconfig.runs.cells import Row, cell
from autoconfig.specs.software.options import (
    FLASH_GENERATION,
    GRAD_REDUCE,
    LOSS_BYTES,
    PARAM_GATHER,
    SOFTMAX_SLOWDOWN,
    TP_OVERLAP,
)

OF_SOFTWARE = "as the software has it"
WORDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "peak_rank": (("worst", "last"), "worst"),
    "peak_kind": (("allocated", "reserved", "unstated"), "allocated"),
    "attention_kernel": (("flash", *FLASH_GENERATION, *SOFTMAX_SLOWDOWN), "flash"),
    "norm_kernel": (("torch", "fused-rms"), OF_SOFTWARE),
    "loss_fusion": (tuple(LOSS_BYTES), OF_SOFTWARE),
    "transformer_impl": (("transformer_engine", "local"), OF_SOFTWARE),
    "moe_routing": (("tokendrop", "dropless"), "dropless"),
    "peft": (("none", "lora"), "none"),
    "offload": (("none", "optimizer"), "none"),
    "overlap": (
        ("none", GRAD_REDUCE, PARAM_GATHER, TP_OVERLAP, "overlap-moe-expert-parallel-comm"),
        "without it",
    ),
}
"""Column -> (words that are known, what another word is read as). Columns of one word but the last, whose words + joins."""


def odd_words(row: Row) -> tuple[str, ...]:
    """A remark for every cell whose word is not known: what it is read as, what was given, which words are known."""
    return _odd_words(tuple(cell(row, column) for column in WORDS))


@cache
def _odd_words(cells: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for (column, (words, read_as)), text in zip(WORDS.items(), cells, strict=True):
        parts = text.split("+") if column == "overlap" else [text]
        found += [
            f"{column} {read_as} ({part[:40]!r} is none of {', '.join(words)})"
            for part in parts
            if part and part.lower() not in {word.lower() for word in words}
        ]
    return tuple(found)
