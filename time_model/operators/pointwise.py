"""Seconds of memory-bound operators: norms, residuals, copies, RoPE, activation functions, casts."""

from __future__ import annotations

from autoconfig.specs.models.parameters import Number
from autoconfig.specs.numerics import Numerics
from autoconfig.specs.software.software import StackTime


def pointwise_seconds(
    traffic_bytes: Number,
    launches: float = 0.0,
    *,
    hbm_bytes_per_s: float,
    efficiency: float,
    launch_s: float,
    factor: float = 1.0,
) -> Number:
    """bytes / (HBM x efficiency) x factor + launches x start-up.

    Source: findings on public measurements, sections 2 and 4 (efficiency 0.8; factor 1.3-1.5 for unfused torch code; 3
    us a launch).
    """
    return traffic_bytes * factor / (hbm_bytes_per_s * efficiency) + launches * launch_s


def norm_bytes(elements: Number, stack: StackTime) -> tuple[Number, Number]:
    """(forward, backward) traffic of one norm over `elements` inputs."""
    return stack.norm_forward_bytes * elements, stack.norm_backward_bytes * elements


def residual_bytes(elements: Number, stack: StackTime, numerics: Numerics) -> tuple[Number, Number]:
    """(forward, backward) traffic of one bias-dropout-add; without hidden dropout the mask and its pass fall away."""
    on = 1.0 if numerics.hidden_dropout else 0.0
    return (
        (stack.residual_forward_bytes + on * stack.dropout_forward_bytes) * elements,
        (stack.residual_backward_bytes + on * stack.dropout_backward_bytes) * elements,
    )


def activation_bytes(channels: Number, gated: bool, stack: StackTime) -> tuple[Number, Number]:
    """(forward, backward) traffic of the activation function over `channels` = tokens x ffn width of a rank.

    GELU reads and writes 2 bytes; SwiGLU reads 4 and writes 2; backward reads the gradient too and writes as much as was read.
    """
    if gated:
        return stack.gated_forward_bytes * channels, stack.gated_backward_bytes * channels
    return stack.activation_forward_bytes * channels, stack.activation_backward_bytes * channels


def softmax_bytes(stack: StackTime, numerics: Numerics) -> tuple[float, float]:
    """(forward, backward) traffic per score of unfused softmax and dropout: 4 + 5 and 6 + 5 bytes, times the stack's factor.

    Source: findings on public measurements, section 2.
    """
    on = 5.0 if numerics.attention_dropout else 0.0
    return (4.0 + on) * stack.softmax_slowdown, (6.0 + on) * stack.softmax_slowdown
