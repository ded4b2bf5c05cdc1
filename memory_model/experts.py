"""What routed and shared experts save, and need in backward, per layer and micro-batch on one rank, in bytes.

Symbols: specs.model; T, u, t: activations.Shape; R: `routed_rows`.
"""

from __future__ import annotations

import numpy as np
from autoconfig.memory_model.activations import Number, Shape, gemm_input_bytes, mlp_inside
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory


def routed_rows(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """R: token rows that the experts of one rank process: factor x etp x k T/u.

    Balanced routing sends every rank as many rows as it sends out, k T/u; expert tensor parallelism gathers them over etp.
    The factor is the capacity factor where tokens are dropped and padded, else the stated imbalance (1 = balanced).
    Source: megatron-core transformer/moe/token_dispatcher.py (all-to-all dispatcher).
    """
    factor = numerics.moe_capacity_factor or numerics.moe_imbalance or 1.0
    return factor * shape.etp * model.moe_router_topk * shape.tokens / shape.sp


def router(model: ModelSpec, shape: Shape) -> Number:
    """fp32 logits 4, fp32 probabilities 4 and map 1 byte per token and expert; index maps 4 bytes per routed token."""
    tokens = shape.tokens / shape.sp
    return tokens * (9.0 * (model.num_moe_experts or 0) + 4.0 * model.moe_router_topk)


def expert_input(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Input of the grouped fc1 after dispatch: 2 R h; with a latent width 2 R l."""
    return gemm_input_bytes(numerics, stack) * routed_rows(model, numerics, shape) * model.expert_width


def latent_experts(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Input of the projection back from the experts' latent width: 2 T l / u. That of the one before it is norm 2's output."""
    return gemm_input_bytes(numerics, stack) * shape.tokens / shape.sp * (model.moe_latent_size or 0)


def expert_inside(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Grouped fc1 output 2 R G f_e / etp and the routing weights of the fused activation, 4 R."""
    width = model.gate_factor * model.moe_ffn_hidden_size
    extra = stack.gated_activation_extra_bytes * model.moe_ffn_hidden_size if model.gated_linear_unit else 0.0
    return routed_rows(model, numerics, shape) * ((numerics.activation_bytes * width + extra) / shape.etp + 4.0)


def expert_activation(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """What recomputing `moe_act` frees: input of the grouped fc2, 2 R f_e / etp; where the activation is clamped (gpt-oss)
    also the fc1 output behind the clamp, 2 R G f_e / etp, as the clamp is no part of the fused kernel. Source: megatron-core
    0.19.2, fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl; read off its trace."""
    each = gemm_input_bytes(numerics, stack)
    if model.clamped_swiglu:
        each += numerics.activation_bytes * model.gate_factor
    return each * routed_rows(model, numerics, shape) * model.moe_ffn_hidden_size / shape.etp


def scored_rows(model: ModelSpec, stack: StackMemory, shape: Shape) -> Number:
    """Rows that a router's scores multiply apart from the experts, c k T h of c bytes (stack); of all T tokens on every
    tensor-parallel rank. Source: torchtitan 0.2.2, models/moe/moe.py, MoE.forward: `.float()` of what the experts return, or of
    what they are sent (score_before_experts), which the product keeps."""
    return stack.scored_row_bytes * model.moe_router_topk * shape.tokens * model.hidden_size


def scored_forward_end(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """w h (k T (1 + 2 / u) + 6 T) beside a mixture's layer that has run again, where its scores are applied apart from its
    experts, else 0: rows sent and returned, k T / u each, and put back in their order, k T; their weighted sum in fp32 and in
    16 bits, the layer's output and input, and the gradient that has come. Source: as `scored_rows`; torch's tracker."""
    rows = model.moe_router_topk * (1.0 + 2.0 / np.asarray(shape.sp)) + 6.0
    held = numerics.activation_bytes * model.hidden_size * shape.tokens * rows
    return held if stack.scored_row_bytes and model.num_moe_experts else 0.0 * held


def shared_experts_inside(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Inside of the shared experts, an MLP of width f_s; its input is norm 2's output, already counted. Where a gate scales
    their output, also that output, 2 T h / u (megatron-core 0.19.2, transformer/moe/shared_experts.py)."""
    inside = mlp_inside(model, model.moe_shared_expert_intermediate_size, numerics, stack, shape, matrix="")
    gated = numerics.activation_bytes * model.hidden_size if model.moe_shared_expert_gate else 0.0
    return inside + gated * shape.tokens / shape.sp


def expert_forward(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Rows that a layer holds beside what it saves when its experts are done: those that were sent, those that come out of the
    experts, and those that are sent back; with several local experts over ranks also those that arrived, of which the experts
    save a copy sorted by expert: 2 R h + 2 R h / etp, of one local expert or one rank 2 R h + R h / etp. The layer's code holds
    them by name until it returns. Source: megatron-core 0.19.2, transformer/moe/moe_layer.py, MoELayer.forward with the
    all-to-all dispatcher; read off its traces."""
    arrived = np.logical_and(np.greater((model.num_moe_experts or 1) / shape.ep, 1), np.greater(shape.ep, 1))
    width = (2.0 + (1.0 + arrived) / shape.etp) * model.expert_width
    return numerics.activation_bytes * routed_rows(model, numerics, shape) * width


def expert_backward(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """2 R (G f_e / etp + h): gradient of the grouped fc1's output and of its input; 2 R h more for sorting several local
    experts (engineering knowledge of the all-to-all dispatcher; no measured row)."""
    several = np.where(np.greater((model.num_moe_experts or 1) / shape.ep, 1), 2.0, 1.0)
    width = model.gate_factor * model.moe_ffn_hidden_size / shape.etp + several * model.expert_width
    return numerics.activation_bytes * routed_rows(model, numerics, shape) * width


def expert_transients(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """The larger of both: either is the moment at which all that the layer saves is held."""
    return np.maximum(expert_forward(model, numerics, shape), expert_backward(model, numerics, shape))


def expert_activations(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> dict[str, Number]:
    """All that a layer's router, experts and shared experts save, by part."""
    parts = {
        "router": router(model, shape),
        "expert_input": expert_input(model, numerics, stack, shape),
        "expert_inside": expert_inside(model, numerics, stack, shape),
        "expert_activation": expert_activation(model, numerics, stack, shape),
    }
    if stack.scored_row_bytes:
        parts["scored_rows"] = scored_rows(model, stack, shape)
    if model.moe_latent_size:
        parts["latent_experts"] = latent_experts(model, numerics, stack, shape)
    if model.moe_shared_expert_intermediate_size:
        parts["shared_experts_inside"] = shared_experts_inside(model, numerics, stack, shape)
    return parts
