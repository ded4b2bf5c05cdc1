"""What torch's FSDP holds beside the shards, by the moment of a step: units that are gathered, gradients that are not yet
sharded, and the buffer of the reduce-scatter that runs, in bytes on one rank.

A unit is what one call of `fully_shard` wraps: a layer; the embedding, and the output layer with its norm, each a unit of its
own or together the root's. Source: torch 2.13, torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py (pre_backward gathers
the next unit before it runs this one; post_backward frees the weights, then makes the reduce-scatter's input of the gradients,
which stays until the next unit's), _fsdp_state.py (root units are not resharded after forward). Held to torch's own tracker:
validation/judge/torch_plans.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.activations import Number
from autoconfig.specs.scenario import TYPE_BYTES, Numerics
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES

LAYERS, NEXT_LAYER, FIRST_LAYER, OUTPUT = "layers", "next_layer", "first_layer_backward", "output_reduced"
"""Backward of a stage's last layer, of which most activations are held; of the layer before it; of the first one. The
reduce-scatter of the output layer's gradients."""

SHARD_BYTES = TYPE_BYTES["fp32"]
"""Of a gradient in the shards' own type."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """Parameters of one rank's units before sharding; `trained`: those with gradients."""

    layer: Number
    layer_trained: Number
    stage: Number
    """All of the stage's."""
    stage_trained: Number
    embedding: Number
    """0 but on the first stage."""
    output: Number
    """The output layer and the norm before it; 0 but on the last stage."""
    shard: Number
    """Ranks that gradients are divided over."""


def unit_bytes(
    units: Units, numerics: Numerics, *, apart: bool, tied: bool, whole: Number, syncs_late: Number, several: Number
) -> dict[str, Number]:
    """Moment -> bytes.

    apart: embedding and output layer are units of their own; else the root's, whose backward gathers the last layer before the
    loss. tied: they are one matrix, whose two gradients are added to a third. whole: units stay gathered from their forward to
    their backward (no reshard after forward). syncs_late: gradients of all micro-batches add up whole, in the type of their
    reduction, until the last one's are reduced, and weights stay gathered as long (torch's pipeline schedules:
    pipelining/stage.py, backward_maybe_with_nosync and perform_reduce_grad). several: micro-batches; of a single one no
    gradient is there before its backward. Let g, r be the bytes of a gathered weight and of a gradient in reduction, p, e, o
    the parameters of a layer, of the embedding and of the output layer:

    loss                   g o
    output_layer_backward  g (o + p)
    output_reduced         (2 + r) o + g p, and 4 o / N of the shards' gradients
    layers                 2 g p, the layer's own and the next one's, and r o of the reduce-scatter before it
    next_layer             2 g p + r p
    first_layer_backward   g (p + e) + r p
    embedding_backward     g e + r p, and when it ends (2 + r) e: the larger; its 2 e are the moment's
    """
    wide, reduced = numerics.activation_bytes, TYPE_BYTES[numerics.grad_reduce_dtype]
    frozen = FROZEN_BYTES.get(numerics.frozen_dtype, wide)
    trains = numerics.peft == "none"
    layer = frozen * (units.layer - units.layer_trained) + wide * units.layer_trained
    stage = frozen * (units.stage - units.stage_trained) + wide * units.stage_trained
    embedding, output = wide * units.embedding, wide * units.output
    ends = 1.0 if trains else 0.0
    scattered, scattered_output = reduced * units.layer_trained, ends * reduced * units.output
    scattered_embedding = ends * reduced * units.embedding
    # of a single micro-batch: what of the shards' gradients is made, or is not made yet
    alone = np.where(several, 0.0, SHARD_BYTES / units.shard)
    made_output, made_layer = ends * alone * units.output, alone * units.layer_trained
    if apart:
        held, made = output, 0.0 * output
        found = {
            "loss": output,
            "output_layer_backward": output + layer,
            OUTPUT: ends * wide * units.output + scattered_output + layer + made_output,
            LAYERS: 2.0 * layer + scattered_output,
            NEXT_LAYER: 2.0 * layer + scattered,
            FIRST_LAYER: layer + embedding + scattered,
            "embedding_backward": np.maximum(embedding + scattered, scattered_embedding),
        }
    else:
        held, made = 0.0 * output, ends * wide * units.output
        root, sums = embedding + output, ends * wide * units.embedding if tied else 0.0
        found = {
            "loss": root + layer,
            "output_layer_backward": root + layer,
            OUTPUT: root + layer,
            LAYERS: root + made + 2.0 * layer,
            NEXT_LAYER: root + made + 2.0 * layer + scattered,
            FIRST_LAYER: root + made + layer + scattered,
            "embedding_backward": made + np.maximum(root + scattered + sums, scattered_embedding + scattered_output),
        }
    gathered = found | {
        "loss": stage,
        "output_layer_backward": stage,
        OUTPUT: stage + scattered_output + made_output,
        LAYERS: stage - ends * held + made + scattered_output * (1.0 if apart else 0.0),
        NEXT_LAYER: stage - ends * held + made - layer + scattered,
    }
    found = {name: np.where(whole, gathered[name], size) for name, size in found.items()}
    if apart:
        found[LAYERS] = found[LAYERS] + made_output
        found[NEXT_LAYER] = found[NEXT_LAYER] + made_output + made_layer
    else:
        found[NEXT_LAYER] = found[NEXT_LAYER] + made_layer
    found[FIRST_LAYER] = found[FIRST_LAYER] - made_layer - ends * alone * units.embedding
    biggest = np.maximum(scattered, scattered_embedding)
    late = stage + np.where(several, reduced * units.stage_trained, 0.0)
    reduction = {"embedding_backward": biggest}
    return {name: np.where(syncs_late, late + reduction.get(name, 0.0), size) for name, size in found.items()}
