"""Which decoder layers lie on which pipeline rank: layout strings, the account-for flags, uneven ends.

A layout lists the chunks in the order in which a token passes them, `|` between: E embedding, t decoder layer, m multi-token
prediction, L loss; `x*3` and `(xx|)*3` repeat, commas are decoration. Chunk c of a pipeline with p ranks lies on rank c mod p.
A TrainPlan says first and last stage only; a split whose other stages differ among themselves is priced by the nearest plan.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from autoconfig.specs.errors import InputError

MAX_LETTERS = 100_000
_GROUP = re.compile(r"\(([^()]+)\)\*([0-9]{1,6})")
_LETTER = re.compile(r"([EtmL])\*([0-9]{1,6})")
_WORDS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
OWN_RULES = frozenset({"NV024", "NV026", "NV044", "NV027"})
"""Rules about even and uneven stages that do not apply where a layout or the account-for flags place every layer."""


@dataclass(frozen=True, kw_only=True)
class PipelineSplit:
    """The decoder layers of every pipeline rank, and the rules that the split breaks by itself."""

    vpp: int
    layers: tuple[int, ...]
    broken: tuple[str, ...] = ()
    text: str = ""

    @property
    def even_inside(self) -> bool:
        """The ranks between the first and the last hold alike."""
        return len(set(self.layers[1:-1])) <= 1

    def ends(self, num_layers: int) -> tuple[int | None, int | None]:
        """(first, last) of the plan that stands for the split; None, None for even stages."""
        pp = len(self.layers)
        if len(set(self.layers)) == 1 or pp == 1 or sum(self.layers) != num_layers:
            return None, None
        if self.even_inside and min(self.layers) > 0:
            return self.layers[0], self.layers[-1]
        if num_layers % pp == 0 or num_layers < pp:
            return None, None
        for middle in (-(-num_layers // pp), num_layers // pp):
            rest = num_layers - middle * (pp - 2)
            if rest >= 2:
                first = min(max(self.layers[0], 1), rest - 1)
                return first, rest - first
        return None, None


def split_of_layout(text: str, pp: int, num_layers: int, mtp_layers: int) -> PipelineSplit:
    """The split that a layout gives. Raises InputError for text that is no layout; what Megatron refuses is in `broken`."""
    chunks = layout_chunks(text)
    broken = []
    if len(chunks) % pp:
        raise InputError(
            f"pipeline layout {_short(text)} has {len(chunks)} stages, no multiple of pp {pp} (NV030); add or remove stages (|)"
        )
    flat = "".join(chunks)
    right_ends = flat.startswith("E") and flat.endswith("L") and flat.count("E") == 1 and flat.count("L") == 1
    if not right_ends or flat.count("t") != num_layers or flat.count("m") not in (mtp_layers, 0):
        broken.append("NV031")
    layers = [0] * pp
    for position, chunk in enumerate(chunks):
        layers[position % pp] += chunk.count("t")
    return PipelineSplit(vpp=len(chunks) // pp, layers=tuple(layers), broken=tuple(broken), text=text)


def layout_chunks(text: str) -> list[str]:
    """The chunks of a layout string, or of a list of lists of words, as letters. Raises InputError naming what is odd."""
    if text.strip().startswith("["):
        return _chunks_of_list(text)
    letters = text.replace(",", "").replace(" ", "")
    for pattern in (_GROUP, _LETTER):
        if sum(len(m[1]) * int(m[2]) for m in pattern.finditer(letters)) > MAX_LETTERS:
            raise InputError(f"pipeline layout {_short(text)} repeats to more than {MAX_LETTERS:,} letters")
        letters = pattern.sub(lambda m: m[1] * int(m[2]), letters)
    odd = set(letters) - set("EtmL|")
    if odd or not letters:
        raise InputError(
            f"pipeline layout {_short(text)}: {''.join(sorted(odd)) or 'nothing'} cannot be read; use E, t, m, L, | between "
            "stages, and x*3 or (xx|)*3"
        )
    return letters.split("|")


def _chunks_of_list(text: str) -> list[str]:
    try:
        rows = ast.literal_eval(text)
        return ["".join(_WORDS[word] for word in row) for row in rows]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise InputError(f"pipeline layout {_short(text)} is no whole list of lists of {', '.join(_WORDS)}") from None


def split_by_accounting(num_layers: int, pp: int, vpp: int, *, embedding: bool, loss: bool) -> PipelineSplit:
    """Embedding and / or loss count as a layer of the first / last chunk (account_for_..._in_pipeline_split)."""
    counted = num_layers + int(embedding) + int(loss)
    broken = ("NV024",) if counted % pp else ("NV044",) if counted // pp % vpp else ()
    layers = [counted // pp] * pp
    layers[0] -= int(embedding)
    layers[-1] -= int(loss)
    return PipelineSplit(vpp=vpp, layers=tuple(layers), broken=broken)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
