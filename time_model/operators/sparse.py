"""Attention over the keys that an indexer chooses (DSA), operator by operator, with fused kernels and the indexer's loss on the
chosen keys. Source: DeepSeek-V3.2 (arXiv:2512.02556), section 2.1; megatron-core 0.19.2, experimental_attention_variant/dsa.py.
No published training step stands behind it. Symbols: specs/models/model.py.
"""

from __future__ import annotations

import numpy as np
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.collectives import collective_seconds
from autoconfig.time_model.job import Shapes, TrainingJob
from autoconfig.time_model.operators.kernels import attended_pairs
from autoconfig.time_model.operators.operator import GemmShape, Operator, memory_bound

SCORE_BYTES = 8.0
"""Of one query and key: its fp32 score written, and read once to choose from."""


HOPPER, BLACKWELL = 0.46, 0.354


def share_of_peak(gpu: GpuSpec) -> float:
    """Share of the 16-bit peak of attention over chosen keys and of the indexer's scores: 0.46 on Hopper, 0.354 on Blackwell.
    Source: operator tables of aiconfigurator-core 0.12.0, the whole module of DeepSeek-V3.2 over 8,192 tokens (14.6 ms on H100,
    7.4 on GB200), less its linear layers."""
    return HOPPER if (gpu.compute_capability or 0.0) < 10.0 else BLACKWELL


def indexer_gemm_shapes(job: TrainingJob, x: Shapes) -> list[GemmShape]:
    """The indexer's linear layers, whole on every tensor-parallel rank; their inputs are detached: no gradient leaves them."""
    model, t = job.model, x.tokens
    heads, dim, h, zero = model.dsa_indexer_n_heads, model.dsa_indexer_head_dim, float(model.hidden_size), 0.0 * t
    columns = {"linear_wq_b": (heads * dim, model.q_lora_rank or 0), "linear_wk": (dim, h), "linear_weights_proj": (heads, h)}
    return [
        GemmShape(name=f"indexer.{name}", m=t, n=n + zero, k=k + zero, modules=("core_attn",), input_gradient=False)
        for name, (n, k) in columns.items()
    ]


def sparse_attention_seconds(flops: Number, *, flops_per_s: float) -> Number:
    """FLOPs over `share_of_peak` of the 16-bit peak."""
    return flops / flops_per_s


def sparse_attention_operators(job: TrainingJob, x: Shapes) -> list[Operator]:
    """Core attention over the chosen keys, 2 a (2 kv_r + d_r) FLOPs a pair of query and chosen key; the indexer's scores,
    2 n_I d_I FLOPs a pair of query and key before it, and the choice; the indexer's loss: attention's scores of the chosen keys
    once more, summed over the ranks' heads, and backward the gradients of queries and keys. With sequence parallelism the
    indexer's inputs are gathered on every rank."""
    model, samples = job.model, x.tokens / job.scenario.workload.seq_length
    length = float(job.scenario.workload.attended_length)
    packed = job.scenario.workload.seq_length / length * samples
    chosen, before = (packed * attended_pairs(length, limit) for limit in (float(model.dsa_indexer_topk), None))
    heads, latent = model.num_attention_heads / x.tp, model.kv_lora_rank
    index = 2.0 * model.dsa_indexer_n_heads * model.dsa_indexer_head_dim
    scores = 2.0 * heads * (latent + model.qk_pos_emb_head_dim) * chosen
    core = scores + 2.0 * heads * latent * chosen
    inputs = x.tokens * (model.hidden_size + (model.q_lora_rank or 0)) * job.activation_bytes
    exchange = collective_seconds("all_reduce", 4.0 * chosen, x.tensor_group, job.links)
    exchange = exchange + np.where(x.sp, collective_seconds("all_gather", inputs, x.tensor_group, job.links), 0.0)
    return [
        _at_rate(job, "core attention", core, 2.5 / job.gpu.attention.backward * core),
        _at_rate(job, "indexer scores", index * before, 2.0 * index * chosen),
        memory_bound(job, "choice of keys", (SCORE_BYTES * before, 0.0 * before), modules=("core_attn",)),
        _at_rate(job, "indexer loss", scores, 0.0 * scores),
        Operator(name="indexer communication", formula="collective_seconds", modules=("core_attn",), forward=exchange),
    ]


def _at_rate(job: TrainingJob, name: str, flops: Number, backward: Number) -> Operator:
    rate = job.flops_per_s * share_of_peak(job.cluster.gpu)
    return Operator(
        name=name,
        formula="sparse_attention_seconds",
        modules=("core_attn",),
        forward=sparse_attention_seconds(flops, flops_per_s=rate),
        dgrad=sparse_attention_seconds(backward, flops_per_s=rate),
        flops=flops,
        peak_flops_per_s=job.flops_per_s,
    )
