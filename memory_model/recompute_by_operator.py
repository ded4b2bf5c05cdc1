"""What stays of a layer under torchtitan's selective activation checkpointing by operator (specs.plan.OP).

The whole layer is a checkpoint whose policy keeps the outputs of attention, of reduce-scatter and of every second matrix
product in the order of execution (torchtitan/distributed/activation_checkpoint.py: where `mm_count % 2 == 0`, it is run again).
With separate projections that order is q, k, v, output, then gate, up, down (gated MLP) or fc1, fc2: kept are q, v, gate (fc1)
and down.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from autoconfig.memory_model.activations import Number, Shape
from autoconfig.memory_model.recomputation import KeptLayer
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import kv_heads_per_rank
from autoconfig.specs.numerics import Numerics


def kept_by_operator(model: ModelSpec, moe: bool, numerics: Numerics, shape: Shape, parts: Mapping[str, Number]) -> KeptLayer:
    """Bytes that stay of one layer and micro-batch; `parts`: activations.layer_activations of the whole layer.

    Layer input w T h / u; q and v w T (q + kv) / t; output and logsumexp of attention w T q / t + 4 T a / t; first product of a
    dense MLP w T f / t; product of a gated MLP's down projection w T h, and with tensor parallelism both reduce-scattered
    outputs, 2 w T h / u. Experts are run again whole. w: bytes per activation; MLA: q and k count as q.
    """
    w, tokens = numerics.activation_bytes, shape.tokens
    heads = model.num_attention_heads / shape.tp
    values = heads if model.multi_latent_attention else kv_heads_per_rank(model, shape.tp)
    hidden = w * tokens * model.hidden_size
    kept: dict[str, Number] = {
        "norm_inputs": hidden / shape.sp,
        "query_key_value": w * tokens * (heads * model.query_head_dim + values * model.value_head_dim),
        "attention_scores": parts["attention_scores"],
        "attention_output": w * tokens * heads * model.value_head_dim,
        "reduced_outputs": np.where(np.greater(shape.tp, 1), 2 * hidden / shape.sp, 0.0),
    }
    if not moe:
        kept["mlp_inside"] = w * tokens * model.ffn_hidden_size / shape.tp
        kept["down_projection"] = hidden if model.gated_linear_unit else 0.0 * tokens
    back = sum(parts.values(), 0.0 * tokens) - sum(kept.values(), 0.0 * tokens)
    return KeptLayer(kept=kept, back_in_mlp=back, back_in_attention=back)
