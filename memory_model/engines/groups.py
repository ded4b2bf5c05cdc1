"""Blocks of vLLM's cache: layers by kind of cache, groups of equal size, what one sequence takes.

Functions of whole numbers are exact (arrays may come in): tests/judge/test_engine_blocks.py holds them to vLLM's own
v1/core/kv_cache_utils.py and v1/kv_cache_interface.py, digit for digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from autoconfig.specs.models.parameters import Number

FULL, SLIDING, STATE = "full attention", "sliding window", "states"


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """The cache of one layer on one rank."""

    kind: str
    """FULL, SLIDING or STATE."""
    page: int
    """Bytes of a block."""
    block: int
    """Tokens of a block (of a state: of the attention that shares the pool)."""
    window: int = 0
    """Tokens that a sliding window keeps."""
    copies: int = 1
    """Blocks of a sequence's state: one, 2 where prefixes are cached, more with drafted tokens."""

    @property
    def unslid(self) -> LayerCache:
        """The same, a window kept as full attention."""
        return replace(self, kind=FULL, window=0) if self.kind == SLIDING else self

    def blocks(self, length: Number, in_flight: Number) -> Number:
        """Blocks of one sequence of `length` tokens, `in_flight` tokens being scheduled.

        ceil(length / block); of a window ceil(min(window - 1 + in flight, length) / block) + 1, since it may begin within a
        block; of a state its copies (v1/kv_cache_interface.py, max_memory_usage_bytes of each spec).
        """
        if self.kind == STATE:
            return self.copies
        if self.kind == SLIDING:
            return -(-np.minimum(self.window - 1 + in_flight, length) // self.block) + 1
        return -(-length // self.block)


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """Layers that share one table of blocks."""

    like: LayerCache
    layers: int
    """Of this pipeline stage; a group whose layers are all in another stage still has its table."""
    page: int
    """Bytes of one block of all its layers."""


@dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """How one rank's pool is cut."""

    groups: tuple[CacheGroup, ...]
    block_bytes: int
    """Of the pool for one block id: the widest group's pages."""

    def blocks_of(self, length: Number, in_flight: Number) -> Number:
        """Block ids of one sequence in all groups."""
        return sum(group.like.blocks(length, in_flight) for group in self.groups)

    def pool_blocks(self, pool: int) -> int:
        """Block ids of a pool of so many bytes; none where it is negative."""
        return max(pool // self.block_bytes, 0) if self.block_bytes else 0

    @property
    def smallest_block(self) -> int:
        """Tokens, of all groups."""
        return min((group.like.block for group in self.groups), default=1)

    def words(self) -> tuple[str, ...]:
        """Each group, such as `12 layers, sliding window 128, 16 tokens a block`."""
        found: dict[str, int] = {}
        for group in self.groups:
            window = f" {group.like.window:,}" if group.like.kind == SLIDING else ""
            text = f"{group.layers} layers, {group.like.kind}{window}, {group.like.block:,} tokens a block"
            found[text] = found.get(text, 0) + 1
        return tuple(f"{count} x {text}" if count > 1 else text for text, count in found.items())


def same_pages(layers: Sequence[LayerCache]) -> list[LayerCache]:
    """Layers with pages of one size: a smaller page of attention gets as many more tokens, or is padded where that does not
    divide; a state's page is padded (kv_cache_utils.py, unify_kv_cache_spec_page_size)."""
    largest = max(layer.page for layer in layers)
    found = []
    for layer in layers:
        if layer.page == largest:
            found.append(layer)
        elif layer.kind != STATE and largest % layer.page == 0:
            found.append(replace(layer, page=largest, block=layer.block * (largest // layer.page)))
        else:
            found.append(replace(layer, page=largest))
    return found


def block_layout(layers: Sequence[LayerCache], stage: range, *, hybrid: bool, slack: float) -> BlockLayout:
    """The layout of the layers of one pipeline stage, out of the caches of the whole model's layers that have one.

    Alike layers are one group. Without the hybrid manager windows are kept as full attention. Else layers are split by kind;
    a group has as many layers as the rarest kind, or as the commonest where that is less than `slack` times as many, and
    layer i of a kind goes to its group i mod n; shorter groups are padded (kv_cache_utils.py,
    _get_kv_cache_groups_uniform_page_size).
    """
    if not layers:
        return BlockLayout(groups=(), block_bytes=0)
    if not hybrid and len({layer.kind for layer in layers}) > 1:
        layers = [layer.unslid for layer in layers]
    if len({(layer.kind, layer.window, layer.copies, layer.block) for layer in layers}) == 1:
        page = sum(layers[index].page for index in stage)
        return BlockLayout(groups=(CacheGroup(like=layers[0], layers=len(stage), page=page),), block_bytes=page)
    kinds: dict[LayerCache, list[int]] = {}
    for index, layer in enumerate(same_pages(layers)):
        kinds.setdefault(layer, []).append(index)
    fewest, most = min(map(len, kinds.values())), max(map(len, kinds.values()))
    size = most if most < fewest * slack else fewest
    groups = []
    for layer, places in kinds.items():
        count = -(-len(places) // size)
        for first in range(count):
            held = sum(index in stage for index in places[first::count])
            groups.append(CacheGroup(like=layer, layers=held, page=layer.page * held))
    return BlockLayout(groups=tuple(groups), block_bytes=max(group.page for group in groups))
