"""What CUDA graphs hold beside the tensors that a layer saves anyway."""

from __future__ import annotations

from dataclasses import replace

from autoconfig.memory_model.activations import KeptLayer, Number, Shape
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import Scenario


def graph_masks(shape: Shape) -> Number:
    """T s: the attention mask, one byte a pair, that Transformer Engine's graph of `attn` has among its static inputs for every
    layer and micro-batch in flight, though no kernel reads it. Its static hidden states take the place of the norm's input.

    Source: megatron-core 0.16.1 and 0.19.2, transformer/transformer_layer.py get_layer_static_inputs and, for the mask at a
    replay, _get_te_cuda_graph_replay_args; transformer/cuda_graphs.py _get_sample_arguments: buffers are used again once a
    micro-batch's backward has run. What `full` means there differs by release, so that its masks are not counted.
    """
    return shape.tokens * shape.sequence


def beside_graphs(scenario: Scenario, kind: str, shape: Shape, recompute: Recompute, layer: KeptLayer) -> KeptLayer:
    """The layer with what the graphs that run beside this recomputation hold for it."""
    attends = not scenario.model.is_hybrid or kind == "attention"
    if not attends or "attn" not in scenario.settings().beside(recompute).cuda_graphs:
        return layer
    return replace(layer, kept={**layer.kept, "graph_masks": graph_masks(shape)})
