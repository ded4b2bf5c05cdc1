"""SGLang's law: pool = what is free after loading - (1 - f) x what was free before; activations and graphs live in the 1 - f.

srt/model_executor/model_runner_kv_cache_mixin.py, profile_max_num_token (0.4.3 to 0.5.23); the default of f by generation:
srt/server_args.py, _handle_gpu_memory_settings (from 0.5.20 srt/arg_groups/memory_hook.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.memory_model.engines.held import held_weights
from autoconfig.memory_model.engines.vllm import GIB, PartBytes, state_bytes
from autoconfig.memory_model.serving import StageWeights, attends, kv_layer_bytes
from autoconfig.specs.engines.releases import driver_mib, settings
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.engines.towers import tower_of

SYMMETRIC_BYTES = 4 * 2**30
"""--enable-symm-mem, preallocated."""
STATES_OF_REQUEST = 3
"""States a running request takes where prefixes are cached (MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO)."""
SPARSE_PAGE = 64
"""PoolTokens of a page under sparse attention (DSA)."""


@dataclass(frozen=True, kw_only=True)
class CardDefaults:
    """Defaults by card: tokens of a prefill and the largest captured batch."""

    chunk: int
    graph_batch: int


def capacity(start: EngineStart) -> CardDefaults:
    """Said, or by nvidia-smi's MiB of the card (chunked_prefill_size, cuda_graph_max_bs)."""
    release, mib = settings("sglang", start.release), driver_mib(start.gpu)
    many = start.tp >= 4
    newer = release["fraction_law"].value == "working set"
    if mib < 20 * 1024:
        found = (2048, 8)
    elif mib < 35 * 1024:
        found = (int(release["small_chunk"].value), int(release["small_graphs"].value[many]))
    elif mib < 60 * 1024 and newer:
        found = (4096, 160 if many else 32)
    elif mib < 160 * 1024:
        found = (8192, (512 if many else 256) if newer else 160)
    else:
        found = (16384, 512)
    graphs = start.graph_max_batch or found[1]
    return CardDefaults(chunk=start.max_num_batched_tokens or found[0], graph_batch=graphs)


def prefill_graph_sizes(most: int) -> int:
    """How many token counts are captured for prefill: steps of 4, 16, 32, 64, 256 and 512
    (srt/arg_groups/cuda_graph_hook.py, generate_prefill_cuda_graph_batch_sizes)."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, most + 1, 512))
    return sum(size <= most for first, last, step in steps for size in range(first, last, step))


def default_fraction(start: EngineStart) -> tuple[float, str]:
    """(mem_fraction_static where it is not said, how it comes about)."""
    setting = settings("sglang", start.release)["fraction_law"]
    law = {"parallel": _by_parallel, "reserved": _by_reserve, "working set": _by_working_set}[str(setting.value)]
    value = law(start)
    tower = tower_of(start.model)
    if tower and not start.language_only:
        growth = tower.layers * tower.hidden_size**2 / (24 * 1024**2)
        value *= 0.9 if setting.value != "working set" else 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (growth - 1.0)))
    return value, f"default of the release: {setting.source}"


def _by_parallel(start: EngineStart) -> float:
    mib, ranks = driver_mib(start.gpu), start.tp * start.pp
    value = 0.88
    if mib <= 81920:
        value = next(share for least, share in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88)) if ranks >= least)
    if mib > 96 * 1024:
        value = min(value + 48 * 1024 * (1 - value) / mib, (mib - 1024 * 18) / mib)
    return value


def _by_reserve(start: EngineStart) -> float:
    mib, ranks = driver_mib(start.gpu), start.tp * start.pp
    if mib < 35 * 1024:
        reserved = 2.8 + ranks / 10
    elif mib < 90 * 1024:
        reserved = 9.5 + ranks / 2
    else:
        reserved = 12 + ranks / 2 if mib < 160 * 1024 else 32.0
    reserved += 2.0 * (start.draft_method != "") + 4.0 * start.attention_dp
    return round((mib - reserved * 1024) / mib, 3)


def _by_working_set(start: EngineStart) -> float:
    """Reserved MiB = 512 + 1.5 max(chunk, 2048) + 2 graph_bs + 1024 tp pp / 8, more under attention data parallelism, for
    graphs of prefill and for a draft; at least 10 GiB on cards above 60 GiB; 3 digits."""
    release, mib, found = settings("sglang", start.release), driver_mib(start.gpu), capacity(start)
    reserved = 512 + 1.5 * max(found.chunk, 2048) + 2.0 * found.graph_batch + start.tp * start.pp / 8 * 1024
    if start.attention_dp:
        reserved += (3.0 + (1.5 if found.graph_batch > 300 else 0.0)) * found.graph_batch * start.dp
    plain = not (start.draft_method or start.attention_dp or start.pp > 1 or start.eager)
    if release["prefill_graphs"].value and plain:
        reserved += 1.5 * 1024 if start.model.multi_latent_attention else 8.0 * prefill_graph_sizes(found.chunk)
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    if start.draft_method == "model":
        reserved += release["draft_model_mib"].value
    elif start.draft_method in ("eagle", "mtp"):
        reserved += release["draft_mib"].value
    return round((mib - reserved) / mib, 3)


def context_gib(start: EngineStart) -> tuple[float, str]:
    """(GiB that CUDA's context and NCCL hold before the model is loaded, source)."""
    release = settings("sglang", start.release)
    one, link, pcie = (release[f"context_{name}"] for name in ("one", "link", "pcie"))
    if start.tp * start.pp == 1:
        return float(one.value), one.source
    if start.gpu.link not in ("nvlink", "xgmi"):
        return float(pcie.value), pcie.source
    return (float(link.value) if start.tp > 2 else (one.value + link.value) / 2), link.source


def pool_parts(start: EngineStart, stage: StageWeights) -> tuple[list[PartBytes], float]:
    """(parts of one GPU of a stage, bytes of its pool, states included)."""
    weights = held_weights(start, stage)
    context, source = context_gib(start)
    before = start.gpu.memory_bytes - context * GIB
    fraction, why = (start.memory_fraction, "flag") if start.memory_fraction else default_fraction(start)
    held = sum(weights.values()) - start.cpu_offload_bytes
    parts = [
        PartBytes(name=f"weights: {name}", bytes=size, source="the model's files as the engine holds them")
        for name, size in weights.items()
        if size
    ]
    if start.cpu_offload_bytes:
        parts.append(
            PartBytes(name="weights in CPU memory", bytes=-float(start.cpu_offload_bytes), source="flag: --cpu-offload-gb")
        )
    parts.append(PartBytes(name="context and communicators", bytes=context * GIB, source=source))
    parts.append(
        PartBytes(name="kept free for activations and graphs", bytes=(1.0 - fraction) * before, source=f"{fraction:g}: {why}")
    )
    loading = settings("sglang", start.release)["loading"]
    parts.append(PartBytes(name="libraries while loading", bytes=float(loading.value) * GIB, source=loading.source))
    symmetric = SYMMETRIC_BYTES if start.symmetric_memory else 0
    if symmetric:
        parts.append(PartBytes(name="symmetric memory", bytes=symmetric, source="flag: --enable-symm-mem"))
    return parts, fraction * before - held - float(loading.value) * GIB - symmetric


@dataclass(frozen=True, kw_only=True)
class PoolTokens:
    """What a pool holds."""

    tokens: int
    """Of the full layers, which a sequence's length is counted in."""
    window_tokens: int
    states: int
    """Slots of recurrent states; 0 where the model has none."""
    cell: float
    """Bytes of a token in all layers, windows by their share."""
    kv_bytes: float
    state_bytes: float
    running: int
    """Requests that run at once at most."""
    page: int


def pool_tokens(start: EngineStart, stage: StageWeights, pool: float) -> PoolTokens:
    """How a pool is cut: states first (their share r / (1 + r), or as many as are asked for), the rest in tokens of full
    layers; windows hold `swa_ratio` as many."""
    model, plan, release = start.model, start.plan, settings("sglang", start.release)
    full, windows, recurrent = _cached_layers(start, stage)
    ranks = start.dp if start.attention_dp else 1
    asked = start.max_num_seqs or (int(release["drafting_running"].value) if start.draft_method else None)
    states, held = _states(start, recurrent, asked, ranks, pool)
    uniform = start.hybrid_kv_manager is False or not full
    ratio = 1.0 if uniform else start.swa_ratio or float(release["swa_ratio"].value)
    cell = kv_layer_bytes(model, plan.tp, plan.kv) * (full + ratio * windows)
    page = start.block_size or (SPARSE_PAGE if model.is_sparse else 1)
    tokens = int(max(pool - held, 0.0) // cell) if cell else 0
    tokens = min(tokens, start.max_total_tokens or tokens) // page * page
    least, most = release["max_running"].value
    usual = int(tokens / (start.max_model_len or start.own_length) * 512)
    running = asked // ranks if asked else min(max(usual, least), most)
    if recurrent:
        running = min(running, states // (1 if start.prefix_caching is False else STATES_OF_REQUEST))
    return PoolTokens(
        tokens=tokens,
        window_tokens=int(tokens * ratio * (windows > 0)),
        states=states,
        cell=cell,
        kv_bytes=tokens * cell,
        state_bytes=held,
        running=running,
        page=page,
    )


def _cached_layers(start: EngineStart, stage: StageWeights) -> tuple[int, int, int]:
    """(Layers whose attention reads all of the cache, layers that slide, layers with a state) of a stage and its drafts."""
    model = start.model
    full = windows = recurrent = 0
    for layer in stage.layers:
        kind = model.layer_kinds[layer]
        recurrent += kind in ("mamba", "gdn")
        if attends(model, kind):
            slides = bool(model.sliding_pattern[layer] and model.window_size)
            windows, full = windows + slides, full + (not slides)
    drafting = start.draft_model.attention_layers if start.draft_model else 0
    return full + (1 if start.draft_method == "mtp" else drafting), windows, recurrent


def _states(start: EngineStart, layers: int, asked: int | None, ranks: int, pool: float) -> tuple[int, float]:
    """(States of requests on so many layers, their bytes); `asked`: requests that run at once, where that is known."""
    if not layers:
        return 0, 0.0
    release = settings("sglang", start.release)
    each = layers * state_bytes(start.replace(state_dtype=start.state_dtype or "float32", draft_tokens=0))
    share = start.state_ratio if start.state_ratio is not None else float(release["state_ratio"].value)
    states = int(max(pool, 0.0) * share / (1.0 + share) // each)
    if start.max_state_slots is not None:
        states = start.max_state_slots // ranks
    elif start.prefix_caching is False and asked is not None:
        states = asked // ranks
    return states, states * each
