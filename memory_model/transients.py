"""Temporaries of the moments in which a step can peak. A stage's peak is its largest moment, never the sum of all extremes.

    optimizer_step_bytes no activations; 16-bit gradients cast to fp32
    mlp_backward         end of warm-up, backward of the last layer's MLP (any stage)
    attention_backward   the same, one module further: the MLP's tensors are gone, attention's gradients are alive
    loss                 forward and backward of the loss: 16-bit logits and an fp32 copy (last stage)
    output_layer_backward   gradient of the logits beside a fresh dummy weight gradient (last stage)
    embedding_backward   gradient of the word embedding, when the last micro-batch's activations are gone (first stage)

Constants marked (findings) were found on the measured SimuMax B200 and Megatron-LM golden rows (docs/memory_model.md).
"""

from __future__ import annotations

import numpy as np
from autoconfig.memory_model.activations import Number, Shape, routed_rows
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import kv_heads_per_rank
from autoconfig.specs.numerics import Numerics
from autoconfig.specs.software.software import StackMemory


def dummy_weight_gradients(stack: StackMemory, numerics: Numerics, gemm_weights: tuple[Number, ...]) -> Number:
    """Cached dummy wgrads of Transformer Engine with fused gradient accumulation: 2 bytes x the GEMM weights of ONE layer,
    one buffer per shape (transformer_engine/pytorch/module/base.py get_dummy_wgrad; without it 2.7 % low on SimuMax); none
    where the weights are frozen."""
    cached = stack.dummy_wgrads and numerics.peft == "none"
    return (2.0 if cached else 0.0) * sum(gemm_weights)


def mlp_backward(model: ModelSpec, ffn: int, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """2 T (G f / t + c h): gradient of fc1's output beside hidden-size buffers (findings: c = 1 with SP, 1.7 without)."""
    c = np.where(np.greater(shape.sp, 1), stack.mlp_backward_buffers, stack.mlp_backward_buffers_no_sp)
    return numerics.activation_bytes * shape.tokens * (model.gate_factor * ffn / shape.tp + c * model.hidden_size)


def expert_backward(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """2 R (G f_e / etp + h): gradient of the grouped fc1's output and of its input; 2 R h more for sorting several local
    experts (engineering knowledge of the all-to-all dispatcher; no measured row)."""
    several = np.where(np.greater((model.num_moe_experts or 1) / shape.ep, 1), 2.0, 1.0)
    width = model.gate_factor * model.moe_ffn_hidden_size / shape.etp + several * model.hidden_size
    return numerics.activation_bytes * routed_rows(model, numerics, shape) * width


def attention_backward(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Gradients of q, k, v and of the output; flash adds an fp32 accumulator of dq (Dao 2023, section 3.1), unfused attention
    two 16-bit gradients per score; ring context parallelism two key/value blocks in flight."""
    heads = model.num_attention_heads / shape.tp
    kv = kv_heads_per_rank(model, shape.tp) if not model.multi_latent_attention else heads
    qkv = heads * model.query_head_dim + kv * (model.query_head_dim + model.value_head_dim)
    out = heads * model.value_head_dim
    total = numerics.activation_bytes * shape.tokens * (qkv + out)
    if stack.attention_kernel == "flash":
        total = total + 4.0 * shape.tokens * heads * model.query_head_dim
    else:
        total = total + stack.score_backward_bytes * numerics.activation_bytes / 2 * shape.tokens * shape.sequence * heads
    ring = stack.cp_comm_type == "p2p"
    blocks = 2 * numerics.activation_bytes * shape.tokens * kv * (model.query_head_dim + model.value_head_dim)
    return total + np.where(np.greater(shape.cp, 1), blocks if ring else shape.cp * blocks / 2, 0.0)


def logits_per_rank(stack: StackMemory, vocab: Number, shape: Shape) -> Number:
    """T V / t logits of one rank, or T V where the stack gathers them before the loss."""
    return shape.tokens * vocab / (shape.tp if stack.logits_sharded else 1.0)


def retained_logits(stack: StackMemory, vocab: Number, shape: Shape) -> Number:
    """Logits of earlier micro-batches that a schedule's output buffers still hold: 0 but for stacks that say so."""
    return stack.retained_logit_bytes * logits_per_rank(stack, vocab, shape)


def loss(stack: StackMemory, vocab: Number, shape: Shape) -> Number:
    """Logits at the loss: 6 T V / t (16-bit and fp32, softmax in place; findings: 33 % wrong with 2); by stack 0 to 20."""
    per_logit: Number = stack.loss_bytes_per_logit
    if not stack.logits_sharded:
        per_logit = np.where(np.greater(shape.tp, 1), stack.gathered_loss_bytes_per_logit or per_logit, per_logit)
    return per_logit * logits_per_rank(stack, vocab, shape)


def output_layer_backward(
    model: ModelSpec, numerics: Numerics, stack: StackMemory, vocab: Number, shape: Shape, pp: Number
) -> Number:
    """2 T V / t + 2 V h / t + 2 T h, with SP 2 T h (gathered input) + 2 T h / u (scattered gradient), with PP 4 T h (send and
    receive buffers): the logits' gradient, a weight gradient (a dummy one where accumulation is
    fused), hidden-size gradients (findings: 4.2 % wrong without)."""
    wide = numerics.activation_bytes
    hidden = wide * shape.tokens * model.hidden_size
    total = stack.logit_gradient_bytes * wide / 2 * logits_per_rank(stack, vocab, shape) + hidden
    total = total + 2.0 * vocab * model.hidden_size / shape.tp
    total = total + np.where(np.greater(shape.sp, 1), hidden + hidden / shape.sp, 0.0)
    return total + np.where(np.greater(pp, 1), 2.0 * hidden, 0.0)


def embedding_backward(model: ModelSpec, numerics: Numerics, vocab: Number, shape: Shape, pp: Number) -> Number:
    """First stage, when the last micro-batch's activations are gone: 2 V h / t + H, with PP the next gradient H_u (H = 2 T h).

    The gradient of the embedding's table is a whole tensor in every stack (torch's embedding_dense_backward): fused
    accumulation knows linear layers only. Read off traces of megatron-core 0.16.1 with both stacks.
    """
    hidden = numerics.activation_bytes * shape.tokens * model.hidden_size
    table = numerics.activation_bytes * vocab * model.hidden_size / shape.tp
    return table + hidden + np.where(np.greater(pp, 1), hidden / shape.sp, 0.0)


def tied_weight_gradient(model: ModelSpec, numerics: Numerics, vocab: Number, shape: Shape, pp: Number) -> Number:
    """2 V h / t: with tied embeddings on one stage the output layer's gradient (where accumulation is fused a dummy) waits for
    the embedding's, because autograd adds the two."""
    table = numerics.activation_bytes * vocab * model.hidden_size / shape.tp
    tied = np.logical_and(not model.untie_embeddings_and_output_weights, np.equal(pp, 1))
    return np.where(tied, table, 0.0)


def final_norm(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Input and output of the norm before the output layer: 4 T h / u."""
    return 2.0 * numerics.activation_bytes * shape.tokens * model.hidden_size / shape.sp


def embedding_dropout(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """First stage: one byte per element of the dropout after the embedding, T h / u."""
    return (1.0 if numerics.hidden_dropout > 0 else 0.0) * shape.tokens * model.hidden_size / shape.sp


def mtp_loss(stack: StackMemory, vocab: Number, shape: Shape, depths: int) -> Number:
    """Every multi-token-prediction depth keeps its loss's fp32 softmax until backward: 4 T V / t (engineering knowledge)."""
    return 4.0 * depths * logits_per_rank(stack, vocab, shape)
