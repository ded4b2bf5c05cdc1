"""What a decoder's attention over an encoder's output saves, per layer and micro-batch on one rank, in bytes.

Queries are made of the decoder's T tokens, keys and values of the encoder's T_e = s_e b / cp (Raffel et al. 2020, section 2.1;
megatron-core models/T5/t5_spec.py, CrossAttention). The encoder's output itself is `final_norm`'s, once for all layers.
Symbols: specs/models/model.py; T, u, t: activations.Shape.
"""

from __future__ import annotations

from dataclasses import replace

from autoconfig.memory_model.activations import Number, Shape, attention_output, attention_scores
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import kv_heads_per_rank
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory


def cross_query_key_value(model: ModelSpec, numerics: Numerics, shape: Shape, encoder: Shape) -> Number:
    """q of the decoder's tokens, k and v of the encoder's: 2 (T q + T_e 2 kv) / t."""
    heads, kv = model.num_attention_heads / shape.tp, kv_heads_per_rank(model, shape.tp)
    return numerics.activation_bytes * model.kv_channels * (shape.tokens * heads + encoder.tokens * 2 * kv)


def cross_attention_scores(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape, encoder: Shape) -> Number:
    """As `attention_scores`, each query over the s_e keys of the encoder: 5 a s s_e b / t unfused, 4 T a / t flash."""
    return attention_scores(model, numerics, stack, replace(shape, sequence=encoder.sequence))


def cross_attention_output(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape, gpu: GpuSpec) -> Number:
    """As `attention_output`: 2 T q / t, the input of the projection."""
    return attention_output(model, numerics, stack, shape, gpu)


def cross_attention_activations(
    model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape, encoder: Shape, gpu: GpuSpec
) -> dict[str, Number]:
    """All that the block saves beside its norm and its dropout mask, by part."""
    return {
        "cross_query_key_value": cross_query_key_value(model, numerics, shape, encoder),
        "cross_attention_scores": cross_attention_scores(model, numerics, stack, shape, encoder),
        "cross_attention_output": cross_attention_output(model, numerics, stack, shape, gpu),
    }
