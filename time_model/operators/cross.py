"""A decoder's attention over an encoder's output, and layers of the two stacks side by side.

Each stack is priced as a model of its own (`Scenario.stack`); what binds them is here. Source of the block: Raffel et al. 2020,
section 2.1; megatron-core models/T5/t5_spec.py (CrossAttention, pre_cross_attn_layernorm, cross_attn_bda).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from autoconfig.specs.models.parameters import kv_heads_per_rank
from autoconfig.time_model.job import Shapes, TrainingJob
from autoconfig.time_model.operators.kernels import norm_bytes, residual_bytes
from autoconfig.time_model.operators.layer import BlockCollectives, attention_over, block_communication
from autoconfig.time_model.operators.operator import (
    GemmShape,
    Operator,
    fp8_casts,
    gradient_accumulation,
    memory_bound,
    price_gemms,
    with_adapters,
)


def shapes_of_stack(job: TrainingJob, x: Shapes) -> Shapes:
    """The same rows with the tokens of this stack's sequence; `x` is of any other."""
    tokens = x.mbs * job.scenario.workload.seq_length / x.cp
    return replace(x, tokens=tokens, sharded_tokens=np.where(x.sp, tokens / x.tp, tokens))


def cross_gemm_shapes(job: TrainingJob, x: Shapes, encoder: Shapes) -> list[GemmShape]:
    """linear_q and linear_proj on the decoder's tokens, linear_kv on the encoder's."""
    h, q = job.model.hidden_size + 0.0 * x.tokens, job.model.query_size / x.tp
    keys = 2 * kv_heads_per_rank(job.model, x.tp) * job.model.kv_channels
    return [
        GemmShape(name="cross linear_q", m=x.tokens, n=q, k=h, layer="decoder"),
        GemmShape(name="cross linear_kv", m=encoder.tokens, n=keys, k=h, layer="decoder"),
        GemmShape(name="cross linear_proj", m=x.tokens, n=h, k=q, layer="decoder"),
    ]


def cross_attention_operators(job: TrainingJob, x: Shapes, encoder: Shapes) -> list[Operator]:
    """The whole block of a decoder layer: its linear layers, core attention over all of the encoder's tokens, norm, copies,
    residual and communication; with sequence parallelism the encoder's output is gathered once more for keys and values."""
    model, stack = job.model, job.software
    gemms = with_adapters(job, cross_gemm_shapes(job, x, encoder))
    priced = price_gemms(job, x, gemms)
    hidden, seen = (BlockCollectives(job, shape, float(model.hidden_size)) for shape in (x, encoder))
    residual = x.sharded_tokens * model.hidden_size
    q = model.num_attention_heads / x.tp * model.kv_channels
    copied = 2.0 * x.tokens * q + encoder.tokens * 2 * kv_heads_per_rank(model, x.tp) * model.kv_channels
    queries, keys = (float(np.max(shape.tokens / shape.mbs * shape.cp)) for shape in (x, encoder))
    gathered = np.where(x.sp, seen.gather, 0.0)
    return [
        *priced,
        *fp8_casts(job, "cross-attention casts", gemms, "decoder"),
        gradient_accumulation(job, "cross-attention gradient accumulation", gemms, "decoder"),
        replace(attention_over(job, x, queries * keys, keys), name="cross-attention core", layer="decoder"),
        memory_bound(job, "cross-attention norm", norm_bytes(residual, stack), layer="decoder"),
        memory_bound(
            job,
            "cross-attention copies",
            (stack.qkv_copy_forward_bytes * copied, stack.qkv_copy_backward_bytes * copied),
            layer="decoder",
        ),
        memory_bound(job, "cross-attention residual", residual_bytes(residual, stack, job.numerics), layer="decoder"),
        block_communication(job, x, "cross-attention communication", hidden, hidden, priced[:1], layer="decoder"),
        Operator(
            name="encoder output gather",
            formula="tp_communication_seconds",
            layer="decoder",
            forward=gathered,
            dgrad=gathered + np.where(x.sp, seen.scatter, np.where(x.tp > 1.0, seen.all_reduce, 0.0)),
        ),
    ]
