"""What the recurrent layers of hybrid models save and need in backward: Mamba-2 and Gated DeltaNet, in bytes on one rank.

Source: project findings on mixtures and hybrids, section 5, read in megatron-core 0.19.2 (ssm/mamba_mixer.py,
ssm/gated_delta_net) and held to traces of its modules (docs/trace.md); no measured peak stands behind it. Symbols:
specs/models/model.py; T, u, t: activations.Shape.
"""

from __future__ import annotations

from autoconfig.memory_model.activations import Number, Shape, gemm_input_bytes
from autoconfig.specs.models.hybrid import (
    GDN_CHUNK,
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
    """What lies between in_proj and the delta rule, all over t, w bytes per activation, q = H_k d_k, v = H_v d_v:

    in_proj's output, which the convolution keeps whole as its input, w T (2 q + 2 v + 2 H_v); normalised queries and keys
    w T 2 q and their fp32 inverse norms 4 T 2 H_k; contiguous copies of what the delta rule and the output gate read: queries
    and keys repeated to the value heads w T 2 H_v d_k, values and gate w T 2 v, alpha and beta w T 2 H_v; fp32 sums of
    decays 4 T H_v.
    Source: megatron-core 0.19.2, ssm/gated_delta_net; fla-core 0.6.0, ops/gated_delta_rule/chunk.py, modules/norm/l2norm.py.
    """
    heads = model.linear_num_value_heads
    copies = 2 * heads * model.linear_key_head_dim + 2 * gdn_values(model) + 2 * heads
    columns = gdn_projected(model) + 2 * gdn_keys(model) + copies
    fp32 = 2 * model.linear_num_key_heads + heads
    return shape.tokens * (numerics.activation_bytes * columns + 4.0 * fp32) / shape.tp


def delta_rule_outputs(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Output of the delta rule before and behind its norm and the input of out_proj, 3 x 2 T v / t (the last one quantised
    where the stack saves it so), the norm's fp32 inverse deviation of every head 4 T H_v / t, and the chunks' triangular
    factors, 2 T 64 H_v / t."""
    each = 2 * numerics.activation_bytes + gemm_input_bytes(numerics, stack)
    by_head = numerics.activation_bytes * GDN_CHUNK + 4.0
    return shape.tokens / shape.tp * (each * gdn_values(model) + by_head * model.linear_num_value_heads)


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
    """Temporaries of the delta rule's backward, w bytes per activation, all over t, with k = H_v d_k and v = H_v d_v:

    held to its end are w, u, the new values and their gradient, gradients of queries, keys, w and values, and of keys and
    values once more, w T (5 k + 4 v); states of every chunk and their gradient, w T / 64 2 k d_v; fp32 gradients of the decays
    8 T H_v and those of beta w T H_v. Of the four tensors behind the delta rule, which are gone by then, two make room for the
    gradients of its output and of the gate; the other two are taken off, w T 2 v. Source: fla-core 0.6.0,
    ops/gated_delta_rule/chunk.py, chunk_gated_delta_rule_bwd.
    """
    values, heads = gdn_values(model), model.linear_num_value_heads
    keys = heads * model.linear_key_head_dim
    states = 2.0 * keys * model.linear_value_head_dim / GDN_CHUNK
    per_token = numerics.activation_bytes * (5 * keys + 2 * values + states + heads) + 8.0 * heads
    return shape.tokens * per_token / shape.tp
