"""Saved activations that wait in host memory (--cpu-offloading-num-layers): the time of their copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from autoconfig.memory_model.tables import layer_tables
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.time_model.collectives import exposed_seconds
from autoconfig.time_model.job import TrainingJob


def activation_offload_seconds(copied: Number, forward: Number, backward: Number, bytes_per_s: float) -> Number:
    """What a micro-batch waits for copies to host memory beside its forward pass, and for those back beside backward:
    max(B / H - forward, 0) + max(B / H - backward, 0), B bytes each way over a link of H bytes/s in each direction.

    Source: Transformer Engine 2.x, pytorch/cpu_offload.py (AsyncDoubleBufferGroupOffloadHandler): a stream of its own for each
    direction; the offloaded layers are spread over all, so that a copy has as many layers' compute beside it as are left out.
    """
    each = copied / bytes_per_s
    return exposed_seconds(each, forward, 0.0) + exposed_seconds(each, backward, 0.0)


def offloaded_bytes(job: TrainingJob, layouts: Layouts, recomputes: Sequence[Recompute]) -> Number:
    """[n, R] or [n, 1]: what all layers save of a micro-batch, times N / L where N of L layers are offloaded: with one pipeline
    stage and no recomputation (NV036, NV122); else 0."""
    count, model = job.settings.offload_layers, job.model
    if not count:
        return np.zeros((len(layouts), 1))
    layers = layer_tables(job.scenario, layouts, recomputes)
    saved = sum(model.layer_kinds.count(kind) * table.kept[layers.shape] for kind, table in layers.kinds.items())
    can = np.equal(layouts.pp, 1)[:, None] & np.array([recompute == NONE for recompute in recomputes])
    return np.where(can, count / model.num_layers * saved, 0.0)
