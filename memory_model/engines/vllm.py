"""vLLM's law: pool = share x total - weights - peak of the profile run - what is not torch's - graphs; and its layers' caches.

v1/worker/gpu_worker.py, determine_available_memory, and v1/worker/gpu_model_runner.py, profile_run (0.8 to 0.32);
worker/worker.py of the V0 engine before. Constants of a release: specs/catalogue/engine_releases.json.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.engines.groups import FULL, SLIDING, STATE, BlockLayout, LayerCache, block_layout
from autoconfig.memory_model.engines.held import held_weights, sublayers_of_layer
from autoconfig.memory_model.serving import StageWeights, attends, kv_layer_bytes
from autoconfig.specs.engines.releases import settings
from autoconfig.specs.engines.start import AUTO_LENGTH, EngineStart
from autoconfig.specs.engines.towers import tower_of
from autoconfig.specs.models.hybrid import (
    gdn_convolved,
    gdn_projected,
    gdn_values,
    mamba_convolved,
    mamba_inner,
    mamba_projected,
)
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number, kv_heads_per_rank, query_columns

GIB = 2.0**30
CHUNKED_RANK_TOKENS = 256
"""Tokens of a rank that experts take at once under data and expert parallelism (VLLM_MOE_DP_CHUNK_SIZE, envs.py)."""
EXPERT_CHUNK = 32768
"""Tokens that the experts' kernels take at once (VLLM_FUSED_MOE_CHUNK_SIZE, envs.py)."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MLA_BLOCK = 64
"""Tokens of a block of FlashMLA, the default of multi-latent attention on Hopper and Blackwell (platforms/cuda.py)."""


@dataclass(frozen=True, kw_only=True)
class StartLimits:
    """What the scheduler and the pool work with: said, or the default of the release."""

    length: int
    seqs: int
    tokens: int
    fraction: float
    block: int
    graph_batch: int
    sources: dict[str, str]


def limits(start: EngineStart) -> StartLimits:
    """Of a start of vLLM (engine/arg_utils.py)."""
    release = settings("vllm", start.release)
    explicit = start.max_model_len if start.max_model_len not in (None, AUTO_LENGTH) else None
    length = explicit or start.own_length
    seqs, tokens = _batch_limits(start, length)
    sources = {
        name: "flag" if value is not None else f"default of the release: {release[key].source}"
        for name, key, value in (
            ("seqs", "large_card_gib", start.max_num_seqs),
            ("tokens", "large_card_gib", start.max_num_batched_tokens),
            ("fraction", "fraction", start.memory_fraction),
        )
    }
    graphs = start.graph_max_batch or min(2 * seqs * (1 + start.draft_tokens), int(release["graph_max_batch"].value))
    block = start.block_size or int(release["block"].value)
    if start.block_size is None and start.model.multi_latent_attention and (start.gpu.compute_capability or 0) >= 9.0:
        block = MLA_BLOCK
    return StartLimits(
        length=length,
        seqs=seqs,
        tokens=tokens,
        fraction=start.memory_fraction if start.memory_fraction is not None else float(release["fraction"].value),
        block=block,
        graph_batch=min(graphs, tokens),
        sources=sources,
    )


def _batch_limits(start: EngineStart, length: int) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens): the first is at most the second where neither is said."""
    release, gib = settings("vllm", start.release), start.gpu.memory_bytes / GIB
    small_a100 = "a100" in start.gpu.id and not release["a100_is_large"].value
    large = gib >= release["large_card_gib"].value and not small_a100
    seqs, tokens = (1024, 8192) if large else (256, 2048)
    if gib >= release["huge_card_gib"].value:
        tokens = 16384
    if not release["v1"].value:
        tokens = 2048 if length > 32768 else max(length, 2048)  # chunked prefill of its own from 32K on
    if start.max_num_batched_tokens is None:
        tokens = min(tokens, (start.max_num_seqs or seqs) * length)
    tokens = start.max_num_batched_tokens or tokens
    return start.max_num_seqs or min(seqs, tokens), tokens


def forward_peak(start: EngineStart, tokens: Number) -> Number:
    """Bytes of the forward pass of the profile run: 2 T (c h + w), c buffers of hidden size, w the widest of a layer's others:
    (G + 1) f/t of a dense MLP, what attention projects, what a recurrent layer projects and puts out, or the experts'
    workspaces k (max(G f, h) + max(f, h)).

    Under data and expert parallelism experts take 256 tokens of a rank at once.
    """
    model, tp = start.model, start.attention_tp
    h, g = float(model.hidden_size), float(model.gate_factor)
    kinds = set(model.layer_kinds)
    projected = query_columns(model) / tp + 2.0 * float(kv_heads_per_rank(model, tp)) * model.kv_channels
    width = projected + model.query_size / tp
    if kinds & {"dense", "mlp"}:
        width = max(width, (g + 1.0) * model.ffn_hidden_size / tp)
    if "mamba" in kinds:
        width = max(width, (mamba_projected(model) + mamba_inner(model)) / tp)
    if "gdn" in kinds:
        width = max(width, (gdn_projected(model) + gdn_values(model)) / tp)
    total = tokens * width
    if model.is_moe:
        ranks = start.tp * (1 if start.attention_dp else start.dp)
        f, wide = model.moe_ffn_hidden_size * start.ep / ranks, float(model.expert_width)
        taken = np.minimum(tokens, EXPERT_CHUNK)
        if start.dp > 1:
            taken = start.dp * (np.minimum(tokens, CHUNKED_RANK_TOKENS) if start.ep > 1 else tokens)
        routed = taken * model.moe_router_topk * (max(g * f, wide) + max(f, wide))
        total = np.maximum(total, routed)
    return 2.0 * (tokens * float(settings("vllm", start.release)["live_buffers"].value) * h + total)


def sampler_peak(start: EngineStart, seqs: Number, tokens: Number) -> Number:
    """n V s + 2 h T: n dummy sequences sampled with top-k and top-p, s bytes a logit, beside the hidden states of the run."""
    vocabulary = -(-start.model.vocab_size // 64) * 64
    return np.minimum(seqs, tokens) * vocabulary * logit_bytes(start) + 2.0 * start.model.hidden_size * tokens


def logit_bytes(start: EngineStart) -> float:
    """s: with a sort, or without one (FlashInfer, Triton)."""
    release = settings("vllm", start.release)
    own = release["flashinfer_sampler"].value if start.flashinfer_sampler is None else start.flashinfer_sampler
    return min(float(release["logit_bytes"].value), FLASHINFER_BYTES) if own else float(release["logit_bytes"].value)


FLASHINFER_BYTES = 16.0
"""Bytes a logit without a sort: logits in 16 and 32 bits, probabilities, and a copy."""


def encoder_peak(start: EngineStart, tokens: Number) -> tuple[float, Number]:
    """(bytes of the vision tower's run on the largest picture, bytes of the encoder's cache, which stays while the model runs).

    Run: 2 P (f + 12 h_v) over P patches (measured: 2.33 GiB of Qwen3.5-27B's tower alone on a card); cache: 2 h max(T, tokens
    of the picture) (v1/worker/gpu_model_runner.py, profile_run).
    """
    tower = tower_of(start.model)
    if tower is None or start.language_only or start.skip_mm_profiling:
        return 0.0, 0.0
    run = 2.0 * tower.patches * (tower.ffn_hidden_size / start.tp + 12.0 * tower.hidden_size)
    return run, 2.0 * start.model.hidden_size * np.maximum(tokens, tower.tokens)


def non_torch(start: EngineStart) -> tuple[float, str]:
    """(GiB that the process holds beside torch's allocations and that were not there at the snapshot, source)."""
    release = settings("vllm", start.release)
    ranks = start.tp * start.pp * (start.dp if start.model.is_moe else 1)
    if ranks == 1:
        return float(release["non_torch_one"].value), release["non_torch_one"].source
    if start.gpu.link in ("nvlink", "xgmi"):
        two, more = release["non_torch_link"].value
        return float(two if ranks == 2 else more), release["non_torch_link"].source
    return float(release["non_torch_pcie"].value), release["non_torch_pcie"].source


GRAPH_BASE, GRAPH_SHARE = 0.3, 0.01
GRAPH_PIECE = {False: 0.31, True: 0.6}
"""MiB of one captured piece (a layer at one batch size), with dense MLPs and with experts."""


def charged_graphs(start: EngineStart, graph_batch: Number) -> Number:
    """Bytes that the profile run charges for graphs: 0.3 GiB and 0.01 of the card where 512 sequences are the largest.

    Measured, "Estimated CUDA graph memory" of public logs: 0.17 to 0.36 GiB where 16 sequences are the largest, 0.48 on
    16 GB, 0.6 to 0.9 on 24 to 32 GB, about 0.9 on 80 GB; more under data and expert parallelism.
    """
    release = settings("vllm", start.release)
    charged = release["charge_graphs"].value if start.charge_graphs is None else start.charge_graphs
    if start.eager or not charged:
        return 0.0 * np.asarray(graph_batch)
    return GRAPH_BASE * GIB + GRAPH_SHARE * start.gpu.memory_bytes * np.minimum(np.asarray(graph_batch) / 512.0, 1.0)


def captured_graphs(start: EngineStart, found: StartLimits, stage: StageWeights) -> float:
    """Bytes of graphs that are captured after the pool is made: sizes x (layers + 1) x GRAPH_PIECE.

    Measured, "Graph capturing finished, took": 0.67 GiB of 32 dense layers and 67 sizes, 2.4 of 48 layers with experts, 3.45
    of 94.
    """
    release = settings("vllm", start.release)
    layers = len(stage.layers) / sublayers_of_layer(start.model) + 1
    sizes = start.graph_count or int(release["graph_sizes"].value)
    return sizes * layers * GRAPH_PIECE[start.model.is_moe] * 2.0**20


@dataclass(frozen=True, kw_only=True)
class PartBytes:
    """Bytes of a part of a GPU's memory."""

    name: str
    bytes: float
    source: str


FORWARD, SAMPLING, ENCODING = (
    "forward pass of the profile run",
    "sampling in the profile run",
    "vision tower in the profile run",
)


def peaks(start: EngineStart, stage: StageWeights, seqs: Number, tokens: Number) -> dict[str, Number]:
    """Bytes of what the profile run does one after the other; the largest counts."""
    run, cache = encoder_peak(start, tokens) if stage.embedding else (0.0, 0.0)
    sampled = sampler_peak(start, seqs, tokens) + cache if stage.output else 0.0
    return {FORWARD: forward_peak(start, tokens) + cache, SAMPLING: sampled, ENCODING: run}


def pool_parts(start: EngineStart, stage: StageWeights) -> tuple[list[PartBytes], float]:
    """(parts of one GPU of a stage, bytes of its pool)."""
    release, found = settings("vllm", start.release), limits(start)
    weights = held_weights(start, stage)
    parts = [
        PartBytes(name=f"weights: {name}", bytes=size, source="the model's files as the engine holds them")
        for name, size in weights.items()
        if size
    ]
    held = sum(weights.values()) - start.cpu_offload_bytes
    if start.cpu_offload_bytes:
        parts.append(
            PartBytes(name="weights in CPU memory", bytes=-float(start.cpu_offload_bytes), source="flag: --cpu-offload-gb")
        )
    if start.kv_cache_bytes is not None and release["kv_cache_bytes"].value:
        return parts, float(start.kv_cache_bytes)
    found_peaks = peaks(start, stage, found.seqs, found.tokens)
    sources = {
        SAMPLING: f"{min(found.seqs, found.tokens):,} sequences, {logit_bytes(start):g} bytes a logit: "
        f"{release['logit_bytes'].source}",
        ENCODING: "formula: the largest picture",
        FORWARD: f"formula: {found.tokens:,} tokens",
    }
    name, peak = max(((name, float(size)) for name, size in found_peaks.items()), key=lambda one: one[1])
    source = sources[name]
    outside, outside_source = non_torch(start)
    parts += [
        PartBytes(name=name, bytes=peak, source=source),
        PartBytes(name="not torch's", bytes=outside * GIB, source=outside_source),
    ]
    graphs = float(charged_graphs(start, found.graph_batch))
    if graphs:
        parts.append(PartBytes(name="CUDA graphs", bytes=graphs, source=f"measured; {release['charge_graphs'].source}"))
    pool = found.fraction * start.gpu.memory_bytes - held - peak - outside * GIB - graphs
    return parts, pool


def layer_caches(start: EngineStart) -> tuple[list[LayerCache], list[int]]:
    """(cache of each layer of the model that has one, the sublayer that it is of)."""
    model, found, release = start.model, limits(start), settings("vllm", start.release)
    plan = start.plan
    token = kv_layer_bytes(model, plan.tp, plan.kv)
    block, state = found.block, state_bytes(start)
    if state:
        block = max(block, 16 * -(-int(state) // int(16 * token)))
    copies = 1 + start.draft_tokens
    cached = release["state_copies"].value > 1 if start.prefix_caching is None else start.prefix_caching
    if cached:
        copies += 1
    caches, places = [], []
    for layer, kind in enumerate(model.layer_kinds):
        if attends(model, kind):
            window = int(model.window_size or 0) if model.sliding_pattern[layer] else 0
            caches.append(LayerCache(kind=SLIDING if window else FULL, page=int(token * block), block=block, window=window))
        elif kind in ("mamba", "gdn"):
            caches.append(LayerCache(kind=STATE, page=int(block * token), block=block, copies=copies))
        else:
            continue
        places.append(layer)
    for _ in range(_draft_layers(start)):
        caches.append(LayerCache(kind=FULL, page=int(token * block), block=block))
        places.append(model.num_layers - 1)
    return caches, places


def _draft_layers(start: EngineStart) -> int:
    """Attention layers whose cache a draft adds to the pool."""
    if start.draft_method == "mtp":
        return 1
    return start.draft_model.attention_layers if start.draft_model is not None else 0


def state_bytes(start: EngineStart) -> float:
    """State of one sequence in a recurrent layer of one rank, in the state's format; 0 where the model has none.

    Mamba-2: H p n and (taps - 1)(d_i + 2 g n) in 16 bits; Gated DeltaNet: H_v d_k d_v and (taps - 1)(2 H_k d_k + H_v d_v)
    (model_executor/layers/mamba/mamba_utils.py).
    """
    model, tp = start.model, start.attention_tp
    each = DTYPE_BYTES.get(start.state_dtype or state_dtype(model), 4)
    taps = model.linear_conv_kernel_dim - 1 + start.draft_tokens
    sizes = [0.0]
    if "mamba" in model.layer_kinds:
        sizes.append(each * mamba_inner(model) * model.mamba_state_dim + 2.0 * taps * mamba_convolved(model))
    if "gdn" in model.layer_kinds:
        sizes.append(each * gdn_values(model) * model.linear_key_head_dim + 2.0 * taps * gdn_convolved(model))
    return max(sizes) / tp


def state_dtype(model: ModelSpec) -> str:
    """That of the published config.json: mamba_ssm_dtype of Qwen3.5 and mamba_ssm_cache_dtype of Nemotron 3 ask for float32;
    others have the model's own 16 bits (model_executor/models/config.py)."""
    return "float32" if model.name.startswith(("qwen3.5", "nemotron-3", "nemotron3")) else "bfloat16"


def blocks_in_flight(start: EngineStart) -> int:
    """Tokens that are scheduled and not yet settled: a step's, from 0.26 on those of all concurrent steps (config/vllm.py,
    max_in_flight_tokens: 2 with asynchronous scheduling, pp + 1 in a pipeline)."""
    tokens = limits(start).tokens
    return tokens * (start.pp + 1) if settings("vllm", start.release)["steps_in_flight"].value else tokens


def layout_of(start: EngineStart, stage: StageWeights) -> BlockLayout:
    """How one rank of a stage cuts its pool."""
    release = settings("vllm", start.release)
    caches, places = layer_caches(start)
    held = range(*_span([index for index, place in enumerate(places) if place in stage.layers]))
    hybrid = release["hybrid_manager"].value if start.hybrid_kv_manager is None else start.hybrid_kv_manager
    return block_layout(caches, held, hybrid=bool(hybrid), slack=float(release["group_slack"].value))


def _span(indices: list[int]) -> tuple[int, int]:
    return (indices[0], indices[-1] + 1) if indices else (0, 0)
