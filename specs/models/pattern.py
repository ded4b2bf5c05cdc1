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


def published_layers(text: str) -> int:
    """Layers as checkpoints count them: two sublayers where every mixer has its MLP or experts behind it (Qwen3-Next)."""
    return len(_units(text.split("/")[0]))


def _units(letters: str) -> list[str]:
    pairs = [letters[start : start + 2] for start in range(0, len(letters), 2)]
    paired = all(len(pair) == 2 and LETTERS[pair[0]] in MIXERS and LETTERS[pair[1]] not in MIXERS for pair in pairs)
    return pairs if paired else list(letters)


def scaled_pattern(text: str, layers: int) -> str:
    """The pattern with so many `published_layers`, its order repeated or cut and its mix kept: each kind's share of them by
    largest remainders, at least one. Raises InputError where there are fewer layers than kinds."""
    main, slash, depths = text.partition("/")
    units = _units(main)
    counts = {unit: units.count(unit) for unit in dict.fromkeys(units)}
    if not len(counts) <= layers <= MAX_LAYERS:
        raise InputError(f"{layers} layers cannot hold the {len(counts)} kinds of hybrid_layer_pattern {main[:60]!r}")
    share = layers / len(units)
    quota = {unit: max(1, int(count * share)) for unit, count in counts.items()}
    while (missing := layers - sum(quota.values())) != 0:
        step = 1 if missing > 0 else -1
        able = [unit for unit in quota if quota[unit] + step > 0]
        unit = max(able, key=lambda unit: step * (counts[unit] * share - quota[unit]))
        quota[unit] += step
    found: list[str] = []
    while len(found) < layers:
        for unit in units:
            if quota[unit]:
                quota[unit] -= 1
                found.append(unit)
    return "".join(found) + slash + depths
