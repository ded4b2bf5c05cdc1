"""Outside of the layers: embedding, output layer with cross entropy, multi-token-prediction depths."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number, padded_vocab_size
from autoconfig.time_model.job import Shapes, TrainingJob
from autoconfig.time_model.operators.kernels import activation_bytes, norm_bytes
from autoconfig.time_model.operators.layer import BlockCollectives
from autoconfig.time_model.operators.operator import GemmShape, Operator, memory_bound


def logits_gemm_shape(job: TrainingJob, x: Shapes) -> GemmShape:
    """The output layer: V / tp columns, 16 bits unless the run quantises it (fp8_output_proj); frozen under LoRA."""
    return GemmShape(
        name="logits",
        m=x.tokens,
        n=padded_vocab_size(job.model, x.tp) / x.tp,
        k=job.model.hidden_size + 0.0 * x.tokens,
        layer="head",
        layer_precision=job.settings.fp8_output,
        trainable=job.numerics.peft == "none",
    )


def masked_lm_gemm_shapes(job: TrainingJob, x: Shapes) -> list[GemmShape]:
    """BERT's linear layer before the output layer, whole on every rank; the pooler sees one token of a sample and is left
    out."""
    h = job.model.hidden_size + 0.0 * x.tokens
    shape = GemmShape(name="masked LM dense", m=x.sharded_tokens, n=h, k=h, layer="head", layer_precision=False)
    return [shape] if job.model.masked_lm_head else []


def masked_lm_operators(job: TrainingJob, x: Shapes) -> list[Operator]:
    """BERT's activation and norm before the output layer."""
    hidden = x.sharded_tokens * job.model.hidden_size
    if not job.model.masked_lm_head:
        return []
    return [
        memory_bound(job, "masked LM activation", activation_bytes(hidden, False, job.software), layer="head"),
        memory_bound(job, "masked LM norm", norm_bytes(hidden, job.software), layer="head"),
    ]


def cross_entropy_bytes(tokens: Number, columns: Number, per_logit: float) -> tuple[Number, Number]:
    """(forward, backward) traffic of cross entropy over `columns` logits a token, half each way.

    44 bytes a logit unfused (fp32 copy, max, exp, sum, and the gradient), 14 fused. Source: findings on public
    measurements, section 2.
    """
    half = 0.5 * per_logit * tokens * columns
    return half, half


def head_communication(job: TrainingJob, x: Shapes, hidden: BlockCollectives) -> Operator:
    """Forward: gather of the final hidden states (SP); backward: their gradient, reduce-scattered (SP) or all-reduced."""
    trained = np.where(x.sp, hidden.gather, 0.0)
    return Operator(
        name="head communication",
        formula="tp_communication_seconds",
        layer="head",
        forward=trained,
        dgrad=np.where(x.sp, hidden.scatter, hidden.all_reduce),
        traffic=np.where(x.tp > 1.0, hidden.total_bytes, 0.0),
    )


def head_operators(job: TrainingJob, x: Shapes, hidden: BlockCollectives) -> list[Operator]:
    """Final norm, cross entropy and communication of the last stage, beside the logits GEMM."""
    columns = padded_vocab_size(job.model, x.tp) / x.tp
    return [
        memory_bound(job, "final norm", norm_bytes(x.sharded_tokens * job.model.hidden_size, job.software), layer="head"),
        memory_bound(
            job,
            "cross entropy",
            cross_entropy_bytes(x.tokens, columns, job.software.loss_traffic_bytes),
            layer="head",
            launches=(6.0, 4.0),
        ),
        head_communication(job, x, hidden),
        *masked_lm_operators(job, x),
    ]


def embedding_operators(job: TrainingJob, x: Shapes, hidden: BlockCollectives) -> list[Operator]:
    """Word lookup (read, write, position and dropout: 8 bytes an element; backward scatters into the gradient: 12) and its
    all-reduce, or reduce-scatter forward and gather backward with SP."""
    elements = x.tokens * job.model.hidden_size
    return [
        memory_bound(job, "embedding lookup", (8.0 * elements, 12.0 * elements), layer="embedding", launches=(3.0, 3.0)),
        Operator(
            name="embedding communication",
            formula="tp_communication_seconds",
            layer="embedding",
            forward=np.where(x.sp, hidden.scatter, hidden.all_reduce),
            dgrad=np.where(x.sp, hidden.gather, 0.0),
            traffic=np.where(x.tp > 1.0, hidden.total_bytes, 0.0),
        ),
    ]


def mtp_projection_shape(job: TrainingJob, x: Shapes) -> GemmShape:
    """The 2 h -> h projection of one multi-token-prediction depth (DeepSeek-V3 report, section 2.2)."""
    h = float(job.model.hidden_size)
    return GemmShape(name="mtp projection", m=x.tokens, n=h / x.tp, k=2.0 * h + 0.0 * x.tokens, layer="mtp")


def mtp_operators(job: TrainingJob, x: Shapes) -> list[Operator]:
    """Norms of one multi-token-prediction depth: two at its input (its final one is the head's)."""
    return [
        memory_bound(
            job,
            "mtp norms",
            norm_bytes(2.0 * x.sharded_tokens * job.model.hidden_size, job.software),
            layer="mtp",
            launches=(4.0, 4.0),
        )
    ]
