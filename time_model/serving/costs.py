"""Seconds of one iteration of a serving engine: operators from the serving tables, host and launches from the calibration.

An iteration of one attention rank runs D decode tokens (one per sequence, L tokens cached each) and prefill tokens of P
prompts of length s: T = D + P s rows go through every linear layer, each attention sees its own part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number, kv_heads_per_rank, padded_vocab_size
from autoconfig.time_model.hardware.efficiency import GridTable
from autoconfig.time_model.serving import ideal, recurrent, sparse
from autoconfig.time_model.serving.rows import ServingJob, beyond_roofline, linear_seconds, reduce_seconds, token_parts
from autoconfig.time_model.serving.tables import ARITHMETIC, EngineConstants, host_slowness

Vector = npt.NDArray[np.float64]
PARTS = (
    "linear",
    "output layer",
    "decode attention",
    "prefill attention",
    "communication",
    "pointwise",
    "experts",
    "sampling",
    "launches",
    "host",
)


def cache_table(tables: Mapping[str, GridTable], kv: str, dim: int) -> str:
    """Which decode attention prices a cache of this format: its own, else the nearest that was measured."""
    return next(key for key in (f"{kv}:{dim}", f"fp8:{dim}", f"bf16:{dim}", "fp8:128", "bf16:128") if key in tables)


def head_dim(model: ModelSpec) -> int:
    """The measured head size that stands for the model's."""
    return 64 if model.kv_channels <= 64 else 128


def _layer_kinds(job: ServingJob) -> tuple[int, int]:
    """(layers with full attention, layers that slide)."""
    slides = sum(job.model.sliding_pattern) if job.engine.reads_window_only else 0
    return job.model.attention_layers - slides, slides


def decode_attention_seconds(job: ServingJob, sequences: Number, length: Number) -> Number:
    """All layers: one token of each sequence against its cache; sliding layers read their window."""
    model, tp, kv = job.model, job.plan.tp, job.plan.kv
    d, terms = np.asarray(sequences, dtype=np.float64), job.constants.terms
    heads, many, factor = model.num_attention_heads / tp, np.maximum(d, 1.0), 1.0 if terms is None else terms.decode_attention
    if model.multi_latent_attention:
        size = np.maximum(np.minimum(length, model.dsa_indexer_topk) if model.is_sparse else length, 1.0) + 0.0 * d
        indexer = sparse.indexer_decode_seconds(model, d, np.maximum(length, 1.0), job.gpu) if model.is_sparse else 0.0
        table = job.tables.latent_attention.get(f"decode:{kv}") or job.tables.latent_attention["decode:bf16"]
        return np.where(
            d > 0,
            model.num_layers
            * (
                beyond_roofline(
                    ideal.latent_decode_seconds(d, heads, size, kv, job.gpu), table.at(many, heads + 0.0 * d, size), factor
                )
                + indexer
            ),
            0.0,
        )
    groups, total = float(kv_heads_per_rank(model, tp)), 0.0 * d
    tables = job.tables.decode_attention
    table = tables[cache_table(tables, kv, head_dim(job.model))]
    for layers, window in zip(_layer_kinds(job), (None, model.window_size), strict=True):
        if layers:
            size = np.maximum(length if window is None else np.minimum(length, window), 1.0) + 0.0 * d
            best = ideal.decode_attention_seconds(d, heads, groups, model.kv_channels, size, kv, job.gpu)
            share = table.at(many * groups, heads / groups + 0.0 * d, size)
            total = total + layers * beyond_roofline(best, share, factor)
    return np.where(d > 0, total + recurrent.decode_seconds(job, d), 0.0)


def prefill_kind(model: ModelSpec) -> str:
    """Which of tables.PREFILL_KINDS."""
    return "sparse" if model.is_sparse else "latent" if model.multi_latent_attention else "heads"


def prefill_attention_seconds(job: ServingJob, prompts: Number, length: Number) -> Number:
    """All layers: causal attention of whole prompts; sliding layers see at most window of each token's past."""
    terms = job.constants.terms
    factor = 1.0 if terms is None else terms.prefill_attention.get(prefill_kind(job.model), 1.0)
    return factor * _prefill_attention_seconds(job, prompts, length)


def _prefill_attention_seconds(job: ServingJob, prompts: Number, length: Number) -> Number:
    model, tp = job.model, job.plan.tp
    p = np.asarray(prompts, dtype=np.float64)
    heads, many, size = model.num_attention_heads / tp, np.maximum(p, 1.0), np.maximum(length, 1.0) + 0.0 * p
    if model.is_sparse:
        return np.where(p > 0, model.num_layers * sparse.sparse_prefill_seconds(model, p, heads, size, job.gpu), 0.0)
    if model.multi_latent_attention:
        table = job.tables.latent_attention.get(f"context:{job.plan.kv}") or job.tables.latent_attention["context:bf16"]
        best = ideal.latent_context_seconds(p, heads, size, job.plan.kv, job.gpu)
        return np.where(p > 0, model.num_layers * best / table.at(many, heads + 0.0 * p, size), 0.0)
    low = job.formats.attention in ("fp8", "nvfp4")
    kind = "bf16" if job.plan.kv == "bf16" else "fp8" if low else "bf16_fp8_cache"
    tables, dim = job.tables.context_attention, head_dim(job.model)
    kind, table = next(
        (name.split(":")[0], tables[name])
        for name in (f"{kind}:{dim}", f"bf16:{dim}", f"{kind}:128", "bf16:128")
        if name in tables
    )
    best = ideal.context_attention_seconds(
        p, heads, float(kv_heads_per_rank(model, tp)), model.kv_channels, size, kind, job.gpu
    )
    whole = best / table.at(many * heads, size)
    full, sliding = _layer_kinds(job)
    seen = np.minimum(1.0, 2.0 * (model.window_size or 1) / size) if sliding else 1.0
    return np.where(p > 0, whole * (full + sliding * seen) + recurrent.prefill_seconds(job, p * size), 0.0)


def output_seconds(job: ServingJob, sequences: Number) -> tuple[Number, Number]:
    """(output layer with the gathering of its logits, sampling's traffic per byte of logit) of the sequences of an
    iteration."""
    model, tp = job.model, job.plan.tp
    vocabulary, rows = float(padded_vocab_size(model, tp)), np.maximum(sequences, 1.0)
    gather = 0.5 * reduce_seconds(job, tp, 2.0 * sequences * vocabulary)
    return linear_seconds(
        job, rows, vocabulary / tp, float(model.hidden_size), "bf16"
    ) + gather, sequences * vocabulary / job.gpu.hbm_bytes_per_s


def graph_rows(sizes: tuple[int, ...], decode: Number) -> Number:
    """Sequences that the CUDA graph of an iteration computes: the next larger captured size, dummies filling it (TensorRT-LLM,
    cuda_graph_config.enable_padding); as many as there are beyond the largest, where the iteration runs without a graph."""
    if not sizes:
        return decode
    captured = np.append(np.array(sizes, dtype=np.float64), np.inf)
    found = captured[np.searchsorted(captured, np.asarray(decode, dtype=np.float64))]
    return np.where(np.isfinite(found), found, decode)


def operator_parts(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> dict[str, Number]:
    """Seconds of the operators of one iteration by part, all stages: D sequences of `length` tokens decode beside `prompts`
    prompts.

    `checked`: tokens that a decoding sequence computes, its drafts and the one that is due. Linear layers and logits take all
    of them; attention reads the cache of a sequence once for them together (speculative decoding, arXiv:2211.17192).
    """
    decode, length, prompts, prompt_length = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (decode, length, prompts, prompt_length))
    )
    rows: Number = np.where(np.asarray(prompts) > 0, decode, graph_rows(job.graph_sizes, decode))
    rows = rows * checked
    parts = token_parts(job, rows + prompts * prompt_length)
    parts["output layer"], _ = output_seconds(job, rows + prompts)
    parts["decode attention"] = decode_attention_seconds(job, decode, length)
    parts["prefill attention"] = prefill_attention_seconds(job, prompts, prompt_length)
    return parts


def iteration_features(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> Vector:
    """[..., 9]: seconds of operators without the next two, of routed experts, of communication, of reading one byte of each
    logit; layers; 1; sequences of all attention ranks; seconds of routed experts that the matrix units set; seconds that no
    factor scales. What StepTerms knows of the parts is in them already.

    Their product with `constant_vector` is the time of the iteration; nothing else enters it.
    """
    decode, prompts = np.broadcast_arrays(np.asarray(decode, dtype=np.float64), np.asarray(prompts, dtype=np.float64))
    sequences = decode * checked + prompts
    parts = operator_parts(job, decode, length, prompts, prompt_length, checked)
    c = job.constants
    fixed = 0.0 * prompts
    if c.terms is not None:
        eager = job.eager(prompts, decode * checked + prompts * np.asarray(prompt_length))
        fixed = job.launches_s - c.host_s - c.layer_s * job.layers + np.where(eager, job.prompts_s, 0.0)
        parts["experts"], parts[ARITHMETIC] = parts["experts"] + parts[ARITHMETIC], 0.0 * parts[ARITHMETIC]
    experts, arithmetic, communication = (parts.pop(name) for name in ("experts", ARITHMETIC, "communication"))
    _, sampled = output_seconds(job, sequences)
    beside = (sampled, job.layers, 1.0, sequences * job.plan.adp)
    columns = (sum(parts.values()), experts, communication, *beside, arithmetic, fixed)
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def constant_vector(constants: EngineConstants) -> Vector:
    """What each feature costs."""
    c = constants
    beside = (c.sampler_bytes, c.layer_s, c.host_s, c.sequence_s)
    return np.array([c.factor, c.experts_factor, c.communication_factor, *beside, c.experts_arithmetic, 1.0])


def floor_parts(job: ServingJob, prompts: Number, sequences: Number) -> tuple[Number, Number]:
    """(layers that the host launches one by one, sequences that a Python runtime walks through) of an iteration.

    `eager_iterations` of the engine: all, mixed (those that carry prompts; graphs are captured for decoding alone) or none (the
    runtime is compiled as well: TensorRT-LLM's C++ executor). A rank's own sequences: attention ranks schedule side by side.
    Both counted in an x86 host's: a slower host (data/serving/chips.json) has more.
    """
    prompts, sequences = np.broadcast_arrays(np.asarray(prompts, dtype=np.float64), np.asarray(sequences, dtype=np.float64))
    kind = job.engine.eager_iterations
    eager = np.full(prompts.shape, kind == "all") if kind != "mixed" else prompts > 0
    slow = host_slowness(job.gpu.id)
    return np.where(eager, slow * job.layers, 0.0), slow * sequences * (kind != "none")


def floor_seconds(job: ServingJob, prompts: Number, sequences: Number) -> Number:
    """Least time of an iteration: the host's work for it runs beside the GPU's work on the one before (overlap scheduler), so
    that the longer of both counts."""
    layers, own = floor_parts(job, prompts, sequences)
    each = job.constants.eager_layer_s or EAGER_LAYER_S * (job.engine.eager_iterations == "all")
    return each * layers + job.constants.eager_sequence_s * own


EAGER_LAYER_S = 5e-4
"""eager_layer_s of an engine whose constants are of runs with CUDA graphs, where it is started without them: that of
TensorRT-LLM's PyTorch runtime (vllm-project/vllm#20469: 20.6 ms a token over 40 layers on an A100)."""


def iteration_seconds(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> Number:
    """Time of one iteration: pipeline stages run after one another; at least the host's floor."""
    found = iteration_features(job, decode, length, prompts, prompt_length, checked) @ constant_vector(job.constants)
    return np.maximum(found, floor_seconds(job, prompts, decode + prompts))


def iteration_parts(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> dict[str, Number]:
    """The same by part (PARTS), for tables and plots; `host` holds what the floor adds."""
    c = job.constants
    operators = operator_parts(job, decode, length, prompts, prompt_length, checked)
    parts = {name: c.factor_of(name) * s for name, s in operators.items()}
    parts["experts"] = parts["experts"] + parts.pop(ARITHMETIC)
    features = iteration_features(job, decode, length, prompts, prompt_length, checked)
    parts["sampling"], parts["launches"] = c.sampler_bytes * features[..., 3], c.layer_s * features[..., 4] + features[..., 8]
    parts["host"] = c.host_s * features[..., 5] + c.sequence_s * features[..., 6]
    parts["host"] = parts["host"] + np.maximum(floor_seconds(job, prompts, decode + prompts) - sum(parts.values()), 0.0)
    return {name: parts[name] for name in PARTS if name in parts}
