"""What torch's FSDP holds beside the shards, by the moment of a step: units that are gathered, gradients that are not yet
sharded, and the buffer of the reduce-scatter that runs, in bytes on one rank.

A unit is what one call of `fully_shard` wraps: a layer; the embedding, and the output layer with its norm, each a unit of its
own or together the root's. Source: torch 2.13, torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py (pre_backward gathers
the next unit before it runs this one; post_backward frees the weights, then makes the reduce-scatter's input of the gradients,
which stays until the next unit's), _fsdp_state.py (root units are not resharded after forward). Held to torch's own tracker:
validation/judge/pytorch/plans.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.activations import Number
from autoconfig.specs.scenario import TYPE_BYTES, Numerics
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES

ACCUMULATED = "accumulated"
"""Not a moment: whole gradients of earlier micro-batches, where a stage has none of them while it holds the activations of all
micro-batches; they come when the first one's are gone."""
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
    whole_table: Number = 0.0
    """Bytes of the moment `embedding_backward` that are gone when the embedding's gradient is reduced."""


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Bytes of units: gathered; whole gradients in the type of their reduction; `made`: shards of gradients that a single
    micro-batch has made, or has not."""

    layer: Number
    stage: Number
    embedding: Number
    output: Number
    trained_output: Number
    """Also of its gradients in 16 bits."""
    trained_embedding: Number
    reduced_layer: Number
    reduced_output: Number
    reduced_embedding: Number
    reduced_stage: Number
    made_layer: Number
    made_output: Number
    made_embedding: Number
    whole_table: Number
    reduced_rest: Number
    """Of a whole table's gradient: what other ranks reduce."""


def _sizes(units: Units, numerics: Numerics, several: Number) -> _Sizes:
    wide, reduced = numerics.activation_bytes, TYPE_BYTES[numerics.grad_reduce_dtype]
    frozen = FROZEN_BYTES.get(numerics.frozen_dtype, wide)
    ends = 1.0 if numerics.trains_all else 0.0
    alone = np.where(several, 0.0, SHARD_BYTES / units.shard)
    return _Sizes(
        layer=frozen * (units.layer - units.layer_trained) + wide * units.layer_trained,
        stage=frozen * (units.stage - units.stage_trained) + wide * units.stage_trained,
        embedding=wide * units.embedding,
        output=wide * units.output,
        trained_output=ends * wide * units.output,
        trained_embedding=ends * wide * units.embedding,
        reduced_layer=reduced * units.layer_trained,
        reduced_output=ends * reduced * units.output,
        reduced_embedding=ends * reduced * units.embedding,
        reduced_stage=reduced * units.stage_trained,
        made_layer=alone * units.layer_trained,
        made_output=ends * alone * units.output,
        made_embedding=ends * alone * units.embedding,
        whole_table=ends * units.whole_table,
        reduced_rest=ends * reduced * np.maximum(units.whole_table / wide - units.embedding, 0.0),
    )


def unit_bytes(
    units: Units,
    numerics: Numerics,
    *,
    apart: bool,
    tied: bool,
    whole: Number,
    syncs_late: Number,
    several: Number,
    all_held: Number = False,
) -> dict[str, Number]:
    """Moment -> bytes.

    apart: embedding and output layer are units of their own (`ends_apart`); else the root's (`ends_of_root`). tied: they are
    one matrix. whole: units stay gathered from their forward to their backward (no reshard after forward). syncs_late:
    gradients of all micro-batches add up whole, in the type of their reduction, until the last one's are reduced, and weights
    stay gathered as long (torch's pipeline schedules: pipelining/stage.py, backward_maybe_with_nosync and perform_reduce_grad,
    which frees a unit's weights before it makes the input of its reduction).
    several: micro-batches; of a single one no gradient is there before its backward. all_held: activations of all of them are.
    """
    sizes = _sizes(units, numerics, several)
    found = ends_apart(sizes, whole) if apart else ends_of_root(sizes, whole, tied)
    found[FIRST_LAYER] = found[FIRST_LAYER] - sizes.made_layer - sizes.made_embedding
    accumulated = np.where(several, sizes.reduced_stage + sizes.reduced_rest, 0.0)
    late = sizes.stage + np.where(all_held, 0.0, accumulated)
    copied = {"embedding_backward": np.where(np.greater(sizes.whole_table, 0.0), sizes.trained_embedding, 0.0)}
    moments = {name: np.where(syncs_late, late - copied.get(name, 0.0), size) for name, size in found.items()}
    return moments | {ACCUMULATED: np.where(np.logical_and(syncs_late, all_held), accumulated, 0.0)}


def ends_apart(sizes: _Sizes, whole: Number) -> dict[str, Number]:
    """With g, r bytes of a gathered weight and of a gradient in reduction, p, e, o parameters of a layer, of the embedding, of
    the output layer, P of the stage, N ranks:

    loss                   g o, whole: g P
    output_layer_backward  g (o + p), whole: g P
    output_reduced         (2 + r) o + g p, and of a single micro-batch 4 o / N of the shards' gradients; whole: g P + r o
    layers                 2 g p, its own and the next one's, and r o of the reduce-scatter before; whole: g (P - o) + r o
    next_layer             2 g p + r p; whole: g (P - o - p) + r p
    first_layer_backward   g (p + e) + r p
    embedding_backward     g e + r p, and when it ends (2 + r) e: the larger; its 2 e are the moment's
    """
    s = sizes
    end, rest = s.output + s.layer, s.stage - s.trained_output
    return {
        "loss": np.where(whole, s.stage, s.output),
        "output_layer_backward": np.where(whole, s.stage, end),
        OUTPUT: np.where(whole, s.stage, s.trained_output + s.layer) + s.reduced_output + s.made_output,
        LAYERS: np.where(whole, rest, 2.0 * s.layer) + s.reduced_output + s.made_output,
        NEXT_LAYER: np.where(whole, rest - s.layer, 2.0 * s.layer) + s.reduced_layer + s.made_output + s.made_layer,
        FIRST_LAYER: s.layer + s.embedding + s.reduced_layer,
        "embedding_backward": np.maximum(s.embedding + s.reduced_layer - s.made_embedding, s.reduced_embedding - s.whole_table),
    }


def ends_of_root(sizes: _Sizes, whole: Number, tied: bool) -> dict[str, Number]:
    """As `ends_apart`, but g (e + o) stay gathered, 2 o of gradients wait from the output layer's backward to the end, and the
    loss, which is made inside the root, finds the last layer gathered. Two gradients of a tied matrix are added to a third.
    output_reduced: before backward the root is gathered into one tensor and copied to those of its weights."""
    s = sizes
    root = s.embedding + s.output
    end = np.where(whole, s.stage, root + s.layer)
    layers = np.where(whole, s.stage, root + 2.0 * s.layer) + s.trained_output
    following = np.where(whole, s.stage - s.layer, root + 2.0 * s.layer) + s.trained_output
    sums = s.trained_embedding if tied else 0.0
    last = np.maximum(root + s.reduced_layer + sums, s.reduced_embedding + s.reduced_output - s.whole_table)
    return {
        "loss": end,
        "output_layer_backward": end,
        OUTPUT: np.where(whole, end, 2.0 * root),
        LAYERS: layers,
        NEXT_LAYER: following + s.reduced_layer + s.made_layer,
        FIRST_LAYER: root + s.trained_output + s.layer + s.reduced_layer,
        "embedding_backward": s.trained_output + last - s.made_embedding - s.made_output,
    }
