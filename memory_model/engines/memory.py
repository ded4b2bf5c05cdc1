"""engine_memory: what a start of a serving engine takes of a GPU, how many tokens it caches, and whether it starts.

Each engine by its own law: memory_model.engines.vllm, .sglang, .trtllm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoconfig.memory_model.engines import sglang, trtllm, vllm
from autoconfig.memory_model.engines.groups import STATE, BlockLayout
from autoconfig.memory_model.engines.held import stages
from autoconfig.memory_model.engines.vllm import GIB, PartBytes
from autoconfig.memory_model.serving import StageWeights
from autoconfig.specs.engines.releases import check_release, newest_release, settings, version_of
from autoconfig.specs.engines.start import AUTO_LENGTH, EngineMemory, EngineStart, MemoryPart
from autoconfig.specs.engines.towers import tower_of

BAND_TEXT, BAND_OTHER = 0.6, 1.5
"""GiB around the edge within which nobody can say whether it starts: text models of known releases, and others."""
CONTEXT_GIB = 0.5
"""CUDA's context, which is not free when an engine looks at the card."""


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Something that stops a start beyond a point."""

    margin: float
    """GiB to the point; negative beyond it."""
    message: str
    """The engine's words there."""
    band: float = BAND_OTHER
    """GiB within which nobody can say, at most."""


BAND_FREE = 0.25
"""Of what is free before anything is loaded."""


def engine_memory(start: EngineStart) -> EngineMemory:
    """Of one GPU of the stage that has least room. Raises UnsupportedError for a release whose memory is not modelled."""
    found = _reckon(start)
    return found if found.starts == "yes" else replace(found, changes=tuple(_changes(start, found)))


def _reckon(start: EngineStart) -> EngineMemory:
    release = start.release or newest_release(start.engine)
    check_release(start.engine, release)
    start = start.replace(release=release)
    laws: dict[str, Callable[[EngineStart], EngineMemory]] = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _trtllm}
    return laws[start.engine](start)


def band_gib(start: EngineStart) -> float:
    """Half of the width within which a verdict is uncertain."""
    known = version_of(start.release) <= (*version_of(newest_release(start.engine)), 999)
    recurrent = {"mamba", "gdn"} & set(start.model.layer_kinds)
    text = not recurrent and (tower_of(start.model) is None or start.language_only)
    return BAND_TEXT if known and text else BAND_OTHER


def _verdict(edges: Sequence[Edge], band: float) -> tuple[str, float, str]:
    """(yes, no or uncertain, GiB to the nearest edge, why): the worst of what every edge says."""
    found = []
    for edge in edges:
        within = min(band, edge.band)
        found.append((("no", "uncertain", "yes").index(_said(edge.margin, within)), edge.margin, edge.message))
    which, margin, why = min(found)
    if which == 1:
        why = f"{abs(margin):.2f} GiB {'above' if margin >= 0 else 'below'} the edge: {why}"
    return ("no", "uncertain", "yes")[which], margin, "" if which == 2 else why


def _said(margin: float, band: float) -> str:
    return "yes" if margin >= band else "uncertain" if margin > -band else "no"


def _parts(parts: Sequence[PartBytes], pool: float, source: str) -> tuple[MemoryPart, ...]:
    found = [MemoryPart(name=part.name, gib=part.bytes / GIB, source=part.source) for part in parts]
    return (*found, MemoryPart(name="KV cache", gib=pool / GIB, source=source))


def _weights_gib(parts: Sequence[PartBytes]) -> float:
    return sum(part.bytes for part in parts if part.name.startswith("weights")) / GIB


def _longest(blocks: int, most: int, fits: Callable[[int], bool]) -> int:
    """The longest sequence up to `most` tokens that fits, by halving, as the engines estimate it."""
    if not blocks or not fits(1):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _vllm(start: EngineStart) -> EngineMemory:
    release, found = settings("vllm", start.release), vllm.limits(start)
    flight = vllm.blocks_in_flight(start)
    tried = []
    for stage in stages(start):
        parts, pool = vllm.pool_parts(start, stage)
        layout = vllm.layout_of(start, stage)
        tried.append((layout.pool_blocks(int(pool)), pool, parts, layout, stage))
    blocks, pool, parts, layout, stage = min(tried, key=lambda one: one[:2])
    if start.num_gpu_blocks is not None:
        blocks = start.num_gpu_blocks
    usable = blocks - int(release["null_block"].value)
    most = max(found.length, start.own_length)
    longest = _longest(blocks, most, lambda length: bool(layout.blocks_of(length, flight) <= usable))
    length = max(longest, 1) if start.max_model_len == AUTO_LENGTH else found.length
    need = int(layout.blocks_of(length, flight))
    concurrency = blocks / need if need else 0.0
    tokens = int(concurrency * length)
    if not release["tokens_by_concurrency"].value:
        tokens = blocks // max(len(layout.groups), 1) * layout.smallest_block
    edges = _vllm_edges(start, found, stage, (pool, layout, blocks, need, length, longest), parts)
    starts, margin, why = _verdict(edges, band_gib(start))
    lacks = need * layout.block_bytes - pool
    least = found.fraction + lacks / start.gpu.memory_bytes
    room = 1.0 - CONTEXT_GIB * GIB / start.gpu.memory_bytes
    return EngineMemory(
        engine="vllm",
        release=start.release,
        parts=_parts(parts, pool, "what is left of the share" if start.kv_cache_bytes is None else "flag"),
        weights_gib=_weights_gib(parts),
        kv_pool_gib=pool / GIB,
        sequence_gib=need * layout.block_bytes / GIB,
        blocks=blocks,
        block_size=layout.smallest_block,
        groups=layout.words(),
        kv_tokens=tokens * start.attention_ranks,
        max_concurrency=concurrency,
        max_model_len=length,
        longest_max_model_len=longest,
        max_num_seqs=found.seqs,
        max_num_batched_tokens=found.tokens,
        memory_fraction=found.fraction,
        least_fraction=round(least + 0.0005, 3) if least <= room and start.kv_cache_bytes is None else None,
        starts=starts,
        margin_gib=margin,
        band_gib=band_gib(start),
        why=why,
        binds=_vllm_binds(found.seqs, blocks, concurrency, layout),
    )


def _vllm_binds(seqs: int, blocks: int, concurrency: float, layout: BlockLayout) -> str:
    states = sum(group.like.copies for group in layout.groups if group.like.kind == STATE)
    if states and blocks // (states + sum(group.like.kind != STATE for group in layout.groups)) < seqs:
        return "states"
    return "pool" if concurrency < seqs else "seqs"


def _vllm_edges(
    start: EngineStart,
    found: vllm.StartLimits,
    stage: StageWeights,
    cut: tuple[float, BlockLayout, int, int, int, int],
    parts: Sequence[PartBytes],
) -> list[Edge]:
    """Everything that can stop a start of vLLM."""
    pool, layout, blocks, need, length, longest = cut
    release = settings("vllm", start.release)
    available, needed = pool / GIB, need * layout.block_bytes / GIB
    if available <= 0:
        message = (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
        )
    else:
        message = (
            f"To serve at least one request with the models's max seq len ({length}), ({needed:.2f} GiB KV cache is needed, "
            f"which is larger than the available KV cache memory ({available:.2f} GiB). Based on the available memory, the "
            f"estimated maximum model length is {longest}. Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when "
            "initializing the engine."
        )
    short = available - needed if start.num_gpu_blocks is None else (blocks - need) * layout.block_bytes / GIB
    edges = [Edge(margin=short, message=message)]
    recurrent = any(group.like.kind == STATE for group in layout.groups)
    if recurrent and not start.eager and release["states_checked"].value:
        message = (
            f"max_num_seqs ({found.seqs}) exceeds available Mamba cache blocks ({blocks}). Each decode sequence requires one "
            f"Mamba cache block. Please lower max_num_seqs to at most {blocks} or increase gpu_memory_utilization."
        )
        edges.append(Edge(margin=(blocks - found.seqs) * layout.block_bytes / GIB, message=message))
    if start.kv_cache_bytes is None:
        free = start.gpu.memory_bytes / GIB - CONTEXT_GIB
        wanted = found.fraction * start.gpu.memory_bytes / GIB
        message = (
            f"Free memory on device ({free:.2f}/{start.gpu.memory_bytes / GIB:.2f} GiB) on startup is less than desired GPU "
            f"memory utilization ({found.fraction:g}, {wanted:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory "
            "used by other processes."
        )
        edges.append(Edge(margin=free - wanted, message=message, band=BAND_FREE))
    charged = release["charge_graphs"].value if start.charge_graphs is None else start.charge_graphs
    if not charged and not start.eager and start.kv_cache_bytes is None:
        peak = sum(part.bytes for part in parts if "profile run" in part.name) / GIB
        graphs = vllm.captured_graphs(start, found, stage) / GIB
        uncharged = CONTEXT_GIB if release["non_torch_one"].value < CONTEXT_GIB else 0.0
        left = (1.0 - found.fraction) * start.gpu.memory_bytes / GIB + peak - uncharged
        message = (
            f"CUDA out of memory while capturing CUDA graphs ({graphs:.1f} GiB, {left:.1f} GiB left beside the cache). "
            "Consider decreasing `gpu_memory_utilization` or switching to eager mode (--enforce-eager)"
        )
        edges.append(Edge(margin=left - graphs, message=message))
    return edges


def _sglang(start: EngineStart) -> EngineMemory:
    found = sglang.capacity(start)
    tried = []
    for stage in stages(start):
        parts, pool = sglang.pool_parts(start, stage)
        tried.append((sglang.pool_tokens(start, stage, pool).tokens, pool, parts, stage))
    _, pool, parts, stage = min(tried, key=lambda one: one[:2])
    held = sglang.pool_tokens(start, stage, pool)
    length = start.max_model_len or start.own_length
    fraction = start.memory_fraction or sglang.default_fraction(start)[0]
    each = held.kv_bytes / held.tokens if held.tokens else 0.0
    message = (
        f"Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static={fraction:g}"
    )
    edges = [Edge(margin=pool / GIB, message=message)]
    if not {"gdn", "mamba"}.isdisjoint(start.model.layer_kinds):
        words = f"max_mamba_cache_size={held.states} leaves max_num_reqs={held.running}"
        margin = (held.running - 0.5) * max(held.state_bytes, 1.0) / max(held.states, 1) / GIB
        edges.append(Edge(margin=margin, message=words))
    starts, margin, why = _verdict(edges, band_gib(start))
    before = start.gpu.memory_bytes - sglang.context_gib(start)[0] * GIB
    least = fraction - pool / before
    concurrency = held.tokens / length
    limited = held.states > 0 and held.running < (start.max_num_seqs or held.running + 1)
    binds = "pool" if concurrency < held.running else "states" if limited else "seqs"
    sizes = {"tokens, full attention": held.tokens, "tokens, sliding window": held.window_tokens, "states": held.states}
    return EngineMemory(
        engine="sglang",
        release=start.release,
        parts=_parts(parts, pool, "what is left of the share"),
        weights_gib=_weights_gib(parts),
        kv_pool_gib=pool / GIB,
        sequence_gib=each * length / GIB,
        blocks=held.tokens // held.page,
        block_size=held.page,
        groups=tuple(f"{size:,} {what}" for what, size in sizes.items() if size),
        kv_tokens=held.tokens * start.attention_ranks,
        max_concurrency=concurrency,
        max_model_len=length,
        longest_max_model_len=min(held.tokens, max(length, start.own_length)) if starts != "no" else 0,
        max_num_seqs=held.running,
        max_num_batched_tokens=found.chunk,
        memory_fraction=fraction,
        least_fraction=round(least + 0.0005, 3) if 0.0 < least < 1.0 else None,
        starts=starts,
        margin_gib=margin,
        band_gib=band_gib(start),
        why=why,
        binds=binds,
    )


def _trtllm(start: EngineStart) -> EngineMemory:
    found = min((trtllm.pool(start, stage) for stage in stages(start)), key=lambda one: one.tokens)
    length = start.max_model_len or start.own_length
    message = "Impossible to fit in the KV cache: no free GPU memory is left for it (free_gpu_memory_fraction)"
    starts, margin, why = _verdict([Edge(margin=found.pool / GIB, message=message)], band_gib(start))
    concurrency = found.tokens / length
    return EngineMemory(
        engine="tensorrt-llm",
        release=start.release,
        parts=_parts(found.parts, found.pool, "its share of what is free"),
        weights_gib=_weights_gib(found.parts),
        kv_pool_gib=found.pool / GIB,
        sequence_gib=found.token_bytes * length / GIB,
        blocks=found.tokens // found.block,
        block_size=found.block,
        groups=(f"{found.tokens:,} tokens",),
        kv_tokens=found.tokens * start.attention_ranks,
        max_concurrency=concurrency,
        max_model_len=length,
        longest_max_model_len=min(found.tokens, max(length, start.own_length)),
        max_num_seqs=found.seqs,
        max_num_batched_tokens=found.batched,
        memory_fraction=found.fraction,
        least_fraction=None,
        starts=starts,
        margin_gib=margin,
        band_gib=band_gib(start),
        why=why,
        binds="pool" if concurrency < found.seqs else "seqs",
    )


_VLLM = "--max-model-len|--gpu-memory-utilization|--kv-cache-dtype fp8|--max-num-seqs|--enforce-eager|--tensor-parallel-size"
_SGLANG = (
    "--context-length|--mem-fraction-static|--kv-cache-dtype fp8_e4m3|--max-running-requests|--disable-cuda-graph|--tp-size"
)
_TRTLLM = (
    "--max_seq_len|--kv_cache_free_gpu_memory_fraction|kv_cache_config.dtype: fp8|--max_batch_size|cuda_graph_config: null|"
    "--tp_size"
)
FLAGS = {name: text.split("|") for name, text in (("vllm", _VLLM), ("sglang", _SGLANG), ("tensorrt-llm", _TRTLLM))}
"""Flags of what _changes tries, in its order."""


def _changes(start: EngineStart, found: EngineMemory) -> Iterator[str]:
    """Flags with values, each of which alone moves the start beyond its edge."""
    length, share, cache, seqs, eager, ranks = FLAGS[start.engine]
    capable = (start.gpu.compute_capability or 0.0) >= 8.9
    tries: list[tuple[str, EngineStart | None]] = [
        (f"{length} {found.longest_max_model_len}", start.replace(max_model_len=found.longest_max_model_len or 1)),
        (
            f"{share} {found.least_fraction}",
            start.replace(memory_fraction=found.least_fraction) if found.least_fraction else None,
        ),
        (cache, start.replace(kv="fp8") if capable and start.plan.kv == "bf16" else None),
        *((f"{seqs} {value}", start.replace(max_num_seqs=value)) for value in (64, 16) if value < found.max_num_seqs),
        (eager, None if start.eager else start.replace(eager=True)),
    ]
    for text, changed in tries:
        if changed is not None and _moves(changed, found):
            yield text
    if (tp := _wider(start, found)) is not None:
        yield f"{ranks} {tp}"


def _wider(start: EngineStart, found: EngineMemory) -> int | None:
    """The least tp beyond the start's within a node that moves it beyond its edge."""
    most, heads = max(start.gpus_per_node or start.gpu.gpus_per_node, 2), start.model.num_attention_heads
    wider = (start.tp * times for times in (2, 4, 8) if start.tp * times <= most)
    return next((tp for tp in wider if heads % tp == 0 and _moves(start.replace(tp=tp), found)), None)


def _moves(changed: EngineStart, found: EngineMemory) -> bool:
    """Whether a changed start is beyond the edge that stopped the one that was `found`."""
    other = _reckon(changed)
    return other.starts == "yes" or (found.starts == "no" and other.margin_gib >= 0.0)
