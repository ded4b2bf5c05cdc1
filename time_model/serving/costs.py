"""Seconds of an iteration's attention and output layer, from the serving tables (`rows.py`: of what every row passes)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number, kv_heads_per_rank, padded_vocab_size
from autoconfig.time_model.hardware.efficiency import GridTable
from autoconfig.time_model.serving import ideal, recurrent, sparse
from autoconfig.time_model.serving.rows import ServingJob, beyond_roofline, linear_seconds, reduce_seconds


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
