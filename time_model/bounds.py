"""A lower bound of the step time of many layouts, from their layers alone: which layouts are worth a price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from autoconfig.specs.layouts import Layouts, middle_layers
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.operators.kernels import straggler_ratio
from autoconfig.time_model.predict import prepared_table
from autoconfig.time_model.step.rows import Column

ROUNDING = 1e-9
"""Share by which sums in another order may differ: the bound is lowered by it."""


def least_step_seconds(scenario: Scenario, layouts: Layouts, recomputes: Sequence[Recompute]) -> Column:
    """[n]: no plan of the layout, whatever it recomputes, has a shorter step in `estimate_step_time`.

    There a step is (m S + (A - S) / v + other parts) x straggler growth, with A the time of one micro-batch on all p stages and
    S that of the longest. With v >= 1 and m >= 1 this grows with S and with A. Left out are parts that are never negative:
    sends, data parallelism, the optimizer, FSDP's traffic, and whole layers of full:block that run again. A is then at least
    all layers forward and backward with the least that any option runs again, and embedding and head; S at least A / p, the
    mean of the stages, and the most layers on one stage times the quickest kind of layer.
    """
    job = TrainingJob(scenario)
    table, index = prepared_table(job, layouts, recomputes)
    model = job.model
    counts = [model.layer_kinds.count(kind) for kind in table.kinds]
    kinds = zip(table.forward, table.backward, table.recompute, strict=True)
    layers = [fore + back + again.min(axis=1) for fore, back, again in kinds]
    used = [(count, cost) for count, cost in zip(counts, layers, strict=True) if count]
    quickest = np.minimum.reduce([cost for _, cost in used])
    ends = table.embedding[0] + table.embedding[1] + table.head[0] + table.head[1]
    every = (sum(count * cost for count, cost in used) + ends)[index]
    pp, vpp, m = (getattr(layouts, name).astype(np.float64) for name in ("pp", "vpp", "num_microbatches"))
    most = np.maximum(np.maximum(layouts.first, layouts.last), middle_layers(model, layouts))
    longest = np.maximum(every / pp, most * quickest[index])
    step = m * longest + np.maximum(every - longest, 0.0) / vpp
    step = step * straggler_ratio(layouts.num_gpus.astype(np.float64), job.software.straggler_growth) * job.factors.step
    return np.asarray(step * (1.0 - ROUNDING))
