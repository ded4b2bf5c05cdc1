"""What the recurrent layers of hybrid models save and need in backward: Mamba-2 and Gated DeltaNet, in bytes on one rank.

Source: project findings on mixtures and hybrids, section 5, read in megatron-core 0.19.2 (ssm/mamba_mixer.py,
ssm/gated_delta_net.py); no measured peak stands behind it. Symbols: specs/models/model.py; T, u, t: activations.Shape.
"""

from __future__ import annotations

from autoconfig.memory_model.activations import Number, Shape, gemm_input_bytes
from autoconfig.specs.models.hybrid import (
    MAMBA_CHUNK,
    gdn_keys,
    gdn_projected,
    gdn_values,
    mamba_convolved,
    mamba_inner,
    mamba_projected,
)
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory


def mamba_projections(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Output of in_proj, 2 T (2 d_i + 2 g n + H) / t: the fused convolution and scan keep it whole and run the rest again."""
    return numerics.activation_bytes * shape.tokens * mamba_projected(model) / shape.tp


def scan_outputs(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Scan's output before and behind the gated norm, 2 T 2 d_i / t, and the input of out_proj, 2 T d_i / t (quantised where
    the stack saves it so)."""
    each = 2 * numerics.activation_bytes + gemm_input_bytes(numerics, stack)
    return each * shape.tokens * mamba_inner(model) / shape.tp


def gdn_projections(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Output of in_proj, 2 T (2 q + 2 v) / t with q = H_k d_k and v = H_v d_v, and q and k repeated to the value heads,
    2 T 2 v / t."""
    columns = gdn_projected(model) - 2 * model.linear_num_value_heads + 2 * gdn_values(model)
    return numerics.activation_bytes * shape.tokens * columns / shape.tp


def delta_rule_outputs(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Output of the delta rule before and behind the gated norm and the input of out_proj, 3 x 2 T v / t (the last one
    quantised where the stack saves it so), and 128 T H_v / t of the chunks' triangular factors."""
    each = 2 * numerics.activation_bytes + gemm_input_bytes(numerics, stack)
    factors = 128.0 * model.linear_num_value_heads
    return shape.tokens / shape.tp * (each * gdn_values(model) + factors)


def mamba_backward(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Temporaries of the scan's backward while the states are passed back, w bytes per activation, all over t:

    gradient of in_proj's output w T (2 d_i + 2 g n + H); x, B and C convolved again and their gradient 2 w T (d_i + 2 g n);
    fp32 steps and decays 8 T H; fp32 products of B and C 4 T g C; of the states of every chunk, T / C d_i n elements with
    C = 128, themselves and their gradient in fp32 and in 16 bits, 8 + 2 w bytes. The gradients before and behind the gate take
    the place of the norm's input and output, which are gone by then. Source: state-spaces/mamba at e9594ce,
    mamba_ssm/ops/triton/ssd_combined.py, backward of MambaSplitConv1dScanCombinedFn and _mamba_chunk_scan_combined_bwd.
    """
    wide, heads, groups = numerics.activation_bytes, model.mamba_num_heads, model.mamba_num_groups
    states = (8.0 + 2 * wide) * mamba_inner(model) * model.mamba_state_dim / MAMBA_CHUNK
    steps = 8.0 * heads + 4.0 * groups * MAMBA_CHUNK
    per_token = wide * (mamba_projected(model) + 2 * mamba_convolved(model)) + steps + states
    return shape.tokens * per_token / shape.tp


def gdn_backward(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Temporaries of the delta rule's backward: 16-bit states of every chunk, 2 T / 64 d_k v / t, and the gradients of
    in_proj's output and of the repeated q and k."""
    states = 2.0 * shape.tokens / 64 * gdn_values(model) * model.linear_key_head_dim / shape.tp
    return states + numerics.activation_bytes * shape.tokens * (2 * gdn_keys(model) + 4 * gdn_values(model)) / shape.tp
