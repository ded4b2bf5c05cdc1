"""Parameters of the recurrent sublayers of hybrid models: Mamba-2 and Gated DeltaNet.

As in specs/models/parameters.py, functions take `tp` and return what ONE rank holds. Heads, groups and the convolution's
channels are divided by tp (megatron-core 0.19.2, ssm/mamba_mixer.py and ssm/gated_delta_net.py). Symbols:
specs/models/model.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from autoconfig.specs.models.model import ModelSpec

Number = Any


def mamba_inner(model: ModelSpec) -> int:
    """d_i = H p: channels of all heads."""
    return model.mamba_num_heads * model.mamba_head_dim


def mamba_projected(model: ModelSpec) -> int:
    """Columns of in_proj: gate and input 2 d_i, B and C 2 g n, time steps H."""
    return 2 * mamba_inner(model) + 2 * model.mamba_num_groups * model.mamba_state_dim + model.mamba_num_heads


def mamba_convolved(model: ModelSpec) -> int:
    """Channels of the causal convolution: d_i + 2 g n."""
    return mamba_inner(model) + 2 * model.mamba_num_groups * model.mamba_state_dim


def mamba_gemms(model: ModelSpec, tp: Number) -> dict[str, Number]:
    """Weight elements of in_proj and out_proj of one rank."""
    h, tp = model.hidden_size, np.asarray(tp)
    return {"in_proj": h * mamba_projected(model) / tp, "out_proj": mamba_inner(model) * h / tp}


def mamba_parameters(model: ModelSpec, tp: Number) -> Number:
    """h (2 d_i + 2 g n + H) + d_i h + (taps + 1)(d_i + 2 g n) + 3 H + d_i, over tp: projections, convolution with bias,
    dt_bias, A_log and D of each head, gated norm. The layer's own norm is not in it."""
    small = (model.linear_conv_kernel_dim + 1) * mamba_convolved(model) + 3 * model.mamba_num_heads + mamba_inner(model)
    return sum(mamba_gemms(model, tp).values()) + small / np.asarray(tp)


def gdn_keys(model: ModelSpec) -> int:
    """H_k d_k."""
    return model.linear_num_key_heads * model.linear_key_head_dim


def gdn_values(model: ModelSpec) -> int:
    """H_v d_v."""
    return model.linear_num_value_heads * model.linear_value_head_dim


def gdn_projected(model: ModelSpec) -> int:
    """Columns of in_proj: q, k, v and gate z, and of every value head its decay and its step (b and a)."""
    return 2 * gdn_keys(model) + 2 * gdn_values(model) + 2 * model.linear_num_value_heads


def gdn_convolved(model: ModelSpec) -> int:
    """Channels of the causal convolution: those of q, k and v."""
    return 2 * gdn_keys(model) + gdn_values(model)


def gdn_gemms(model: ModelSpec, tp: Number) -> dict[str, Number]:
    """Weight elements of in_proj and out_proj of one rank."""
    h, tp = model.hidden_size, np.asarray(tp)
    return {"in_proj": h * gdn_projected(model) / tp, "out_proj": gdn_values(model) * h / tp}


def gdn_parameters(model: ModelSpec, tp: Number) -> Number:
    """h (2 q + 2 v + 2 H_v) + v h + taps (2 q + v) + 2 H_v, over tp, and d_v: projections, convolution without bias,
    dt_bias and A_log of each value head, and the gated norm of one head, whole on every rank. The
    layer's own norm is not in it."""
    small = model.linear_conv_kernel_dim * gdn_convolved(model) + 2 * model.linear_num_value_heads
    return sum(gdn_gemms(model, tp).values()) + small / np.asarray(tp) + model.linear_value_head_dim


STATE_BYTES = 4.0
"""The state of Mamba-2 and Gated DeltaNet is kept in fp32: config.json of Nemotron-3 (mamba_ssm_cache_dtype) and Qwen3-Next
(mamba_ssm_dtype) ask for it; the inputs of the convolution that are kept take 2 bytes."""


def state_layer_bytes(model: ModelSpec, kind: str, tp: int) -> float:
    """State of one sequence in a recurrent layer on one rank, as long as the sequence lives; 0 for other kinds.

    Mamba-2: 4 H p n + 2 (taps - 1)(d_i + 2 g n); Gated DeltaNet: 4 H_v d_k d_v + 2 (taps - 1)(2 H_k d_k + H_v d_v), over tp.
    Source: Dao and Gu 2024 (arXiv:2405.21060); Yang et al. 2024 (arXiv:2412.06464); vLLM model_executor/layers/mamba/
    mamba_utils.py (shapes of both states).
    """
    if kind == "mamba":
        state, channels = mamba_inner(model) * model.mamba_state_dim, mamba_convolved(model)
    elif kind == "gdn":
        state, channels = gdn_values(model) * model.linear_key_head_dim, gdn_convolved(model)
    else:
        return 0.0
    return (STATE_BYTES * state + 2.0 * (model.linear_conv_kernel_dim - 1) * channels) / tp


MAMBA_CHUNK, GDN_CHUNK = 128, 64
"""Tokens of a chunk: --mamba-chunk-size's default, and that of flash-linear-attention's gated delta rule."""


def scan_flops_per_token(model: ModelSpec) -> float:
    """Forward FLOPs of Mamba-2's chunked scan: H (2 C p + 4 n p) + 2 g C n, C = 128.

    Products inside a chunk, states in and out, scores of a group. Source: Dao and Gu 2024 (arXiv:2405.21060), section 6.
    """
    p, n, chunk = model.mamba_head_dim, model.mamba_state_dim, MAMBA_CHUNK
    return float(model.mamba_num_heads * (2 * chunk * p + 4 * n * p) + 2 * model.mamba_num_groups * chunk * n)


def delta_rule_flops_per_token(model: ModelSpec) -> float:
    """Forward FLOPs of the chunked gated delta rule: H_v (6 d_k d_v + 2 C (2 d_k + d_v)), C = 64.

    State corrected, written and read; keys with keys and with queries, and values inside a chunk. Source: Yang et al. 2024
    (arXiv:2412.06464), section 3.3.
    """
    keys, values = model.linear_key_head_dim, model.linear_value_head_dim
    return float(model.linear_num_value_heads * (6 * keys * values + 2 * GDN_CHUNK * (2 * keys + values)))
