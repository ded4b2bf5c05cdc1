"""Moments of a step where weight gradients are tensors of their own: megatron-core without Transformer Engine and Apex.

There a linear layer's backward makes the gradient of its weight and adds it to the gradient buffer afterwards, the gathered
input of sequence parallelism lives in one buffer that is never freed, and unfused attention keeps its scores in the same one.
Every term is read off traces of megatron-core 0.16.1 (tests/trainer/test_formula_against_trace.py); names of linear layers are
megatron-core's. H = 2 T h, H_u = 2 T h / u; symbols: specs.model, memory_model.activations.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from autoconfig.memory_model.activations import Number, Shape
from autoconfig.memory_model.experts import routed_rows
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import kv_heads_per_rank
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory


def hidden(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """H: hidden states of all tokens."""
    return numerics.activation_bytes * shape.tokens * model.hidden_size


def local_hidden(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """H_u: the share of this rank."""
    return hidden(model, numerics, shape) / shape.sp


def one_mask(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Mask of one residual dropout, T h / u; already freed when the layer before it is in backward."""
    return (1.0 if numerics.hidden_dropout > 0 else 0.0) * shape.tokens * model.hidden_size / shape.sp


def gather_buffer(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """megatron-core's global memory buffer (utils.py GlobalMemoryBuffer), sized by its largest user: the gathered input of
    sequence parallelism, H, or the scores of unfused attention, 2 a s^2 b / t."""
    gathered = np.where(np.greater(shape.sp, 1), hidden(model, numerics, shape), 0.0)
    if stack.attention_kernel == "flash":
        return gathered
    scores = numerics.activation_bytes * shape.tokens * shape.sequence * model.num_attention_heads / shape.tp
    return np.maximum(gathered, scores)


def mlp_backward(model: ModelSpec, ffn: int, numerics: Numerics, shape: Shape, inside: Number) -> Number:
    """The larger of linear_fc2's and linear_fc1's backward; `inside` is what the MLP saved, gone when fc1's begins.

    fc2: 2 f (T + h) / t and the gradient of its output: H_u, with SP gathered H more, with dropout but no SP H more.
    fc1: 2 G f (T + h) / t + H, with SP H_u more, beside the residual stream's gradient H_u, less `inside`. Frozen: without h.
    """
    wide, h_u = numerics.activation_bytes, local_hidden(model, numerics, shape)
    sp = np.greater(shape.sp, 1)
    whole = hidden(model, numerics, shape)
    own = wide * ffn * (shape.tokens + numerics.trains_all * model.hidden_size) / shape.tp
    output = h_u + np.where(sp, whole, whole if numerics.hidden_dropout > 0 else 0.0)
    first = model.gate_factor * own + whole + h_u + np.where(sp, h_u, 0.0) - inside
    return np.maximum(own + output, first) - one_mask(model, numerics, shape)


def attention_backward(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Backward of core attention beside the residual stream's gradient; norm 2, both masks and linear_proj's input are gone.

    Unfused: dv and two fp32 tensors of the scores' size, 8 bytes per score, when the probabilities (2) and their dropout mask
    (1) are freed. Flash: dq, dk, dv, the output's gradient and an fp32 accumulator of dq.
    """
    wide, heads = numerics.activation_bytes, model.num_attention_heads / shape.tp
    kv = kv_heads_per_rank(model, shape.tp) if not model.multi_latent_attention else heads
    out = wide * shape.tokens * heads * model.value_head_dim
    gone = local_hidden(model, numerics, shape) + 2 * one_mask(model, numerics, shape)
    if stack.attention_kernel == "flash":
        inputs = heads * model.query_head_dim + kv * (model.query_head_dim + model.value_head_dim)
        return wide * shape.tokens * inputs + 4.0 * shape.tokens * heads * model.query_head_dim - gone + out
    freed = stack.score_dropped_bytes + (stack.score_dropout_bytes if numerics.attention_dropout > 0 else 0.0)
    scores = shape.tokens * shape.sequence * heads
    return (stack.score_backward_bytes - freed) * wide / 2 * scores - gone


def output_layer_backward(
    model: ModelSpec, numerics: Numerics, stack: StackMemory, logits: Number, vocab: Number, shape: Shape, pp: Number
) -> Number:
    """2 T V / t + 2 V h / t (none of a frozen layer) + H, with SP H_u more, with PP the gradient that is being sent and the
    received input, 2 H_u."""
    wide, h_u = numerics.activation_bytes, local_hidden(model, numerics, shape)
    weight = wide * vocab * model.hidden_size / shape.tp if numerics.trains_all else 0.0
    total = stack.logit_gradient_bytes * wide / 2 * logits + weight
    total = total + hidden(model, numerics, shape) + np.where(np.greater(shape.sp, 1), h_u, 0.0)
    return total + np.where(np.greater(pp, 1), 2.0 * h_u, 0.0)


def sent_and_received(model: ModelSpec, numerics: Numerics, shape: Shape, pp: Number) -> Number:
    """Beside the loss, with PP: the gradient that is being sent and the one before it, 2 H_u."""
    return np.where(np.greater(pp, 1), 2.0 * local_hidden(model, numerics, shape), 0.0)


def expert_backward(model: ModelSpec, numerics: Numerics, shape: Shape, parts: Mapping[str, Number]) -> Number:
    """Experts run one after another (SequentialMLP): `mlp_backward` of the last one, whose share of the rows is R_e, beside the
    gradient of all experts' outputs, 2 R h; `parts` are what the layer saved. Frozen experts have no gradient of weights."""
    wide = numerics.activation_bytes
    rows, local = routed_rows(model, numerics, shape), (model.num_moe_experts or 1) / shape.ep
    width = numerics.trains_all * model.expert_width
    own = wide * model.moe_ffn_hidden_size * (rows / local + width) / shape.etp
    inside = (parts["expert_inside"] + parts["expert_activation"]) / local
    first = model.gate_factor * own + wide * rows / local * model.expert_width - inside
    outputs = wide * rows * model.expert_width + local_hidden(model, numerics, shape)
    return np.maximum(own, first) + outputs - one_mask(model, numerics, shape)
