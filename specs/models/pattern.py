"""The pattern of a hybrid model, as Megatron's --hybrid-layer-pattern writes it: one letter a layer, each layer one sublayer
with a norm before it and a residual around it.

M Mamba-2, G Gated DeltaNet, * attention, - MLP, E mixture of experts; `|` ends a pipeline segment, `/` starts a
multi-token-prediction depth (megatron-core 0.19.2, models/hybrid/hybrid_layer_allocation.py). D (sparse attention) and +
(latent attention) are known there and not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from autoconfig.specs.errors import InputError

LETTERS = {"M": "mamba", "G": "gdn", "*": "attention", "-": "mlp", "E": "moe"}
"""Letter -> kind of layer."""
KIND_LETTERS = {kind: letter for letter, kind in LETTERS.items()}
MIXERS = ("mamba", "gdn", "attention")
"""Kinds of hybrid layers that look at other tokens."""
NOT_MODELLED = {"D": "sparse attention (DSA)", "+": "multi-latent attention"}
MAX_LAYERS = 10_000


@dataclass(frozen=True, kw_only=True)
class HybridPattern:
    """One pattern, parsed."""

    segments: tuple[tuple[str, ...], ...]
    """Kinds of the layers of each pipeline segment (stage and model chunk), in order; one where no `|` is written."""
    mtp: tuple[str, ...] = ()
    """Kinds of the layers of one multi-token-prediction depth."""
    depths: int = 0

    @property
    def layers(self) -> tuple[str, ...]:
        """Kinds of all layers, multi-token prediction left out."""
        return tuple(kind for segment in self.segments for kind in segment)


@cache
def parse_pattern(text: str) -> HybridPattern:
    """Raises InputError for letters that are not known, empty segments, and depths that differ."""
    if len(text) > 2 * MAX_LAYERS:
        raise InputError(f"hybrid_layer_pattern is longer than {2 * MAX_LAYERS:,} letters")
    main, *depths = text.strip().split("/")
    segments = tuple(_kinds(segment) for segment in main.split("|"))
    if not all(segments):
        raise InputError(f"hybrid_layer_pattern {text!r}: every pipeline segment needs a layer")
    if len(set(depths)) > 1 or not all(depths):
        raise InputError(f"hybrid_layer_pattern {text!r}: every multi-token-prediction depth behind a / has the same layers")
    return HybridPattern(segments=segments, mtp=_kinds(depths[0]) if depths else (), depths=len(depths))


def _kinds(letters: str) -> tuple[str, ...]:
    for letter in letters:
        if letter in NOT_MODELLED:
            raise InputError(f"hybrid_layer_pattern: {letter} is {NOT_MODELLED[letter]}, which is not modelled in hybrids")
        if letter not in LETTERS:
            raise InputError(f"hybrid_layer_pattern: {letter!r} is not one of {' '.join(LETTERS)} | /")
    return tuple(LETTERS[letter] for letter in letters)


def pattern_letters(kinds: Sequence[str]) -> str:
    """The letters of these kinds of layers."""
    return "".join(KIND_LETTERS[kind] for kind in kinds)
