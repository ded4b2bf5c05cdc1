"""estimate_step_time: seconds of one training step, for many plans at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.recompute import Recompute
from autoconfig.specs.scenario import Scenario
from autoconfig.time_model.job import TrainingJob, shapes_of, unique_rows
from autoconfig.time_model.operators.layer_table import layer_table
from autoconfig.time_model.step.parts import step_parts
from autoconfig.time_model.step.rows import Rows, rows_of
from autoconfig.time_model.step.step import compute_seconds, row_seconds

PAIRS_PER_CHUNK = 65_536
"""Layouts x recomputes that are combined at once: the working arrays stay in the cache."""

ROWS_PER_TABLE = 65_536
"""Layouts that share one layer table: bounds its memory where nearly every row has a shape of its own (experts)."""

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """Seconds of one training step. Tables are [layouts, recomputes]."""

    step_seconds: Table
    parts: dict[str, Table] = field(default_factory=dict)
    """Only with detail: name of the public function of time_model -> seconds of the step; they sum to step_seconds."""
    level: str = "default"
    """calibrated where operator tables of this GPU stand behind the constants, default where they were inherited."""
    origin: str = ""
    """Which entries of data/gpu_efficiency.json were used, and the software stack."""


def estimate_step_time(
    scenario: Scenario, layouts: Layouts, recomputes: Sequence[Recompute], *, detail: bool = False
) -> TimeEstimate:
    """Price every layout under every recomputation. Raises InputError where the GPU lacks the precision.

    A layer is priced once per distinct (tp, sp, cp, mbs, fsdp[, ep, etp]) and gathered; pipeline, data parallelism and the
    optimizer are added per row. Legality is not checked here: a silly plan gets its price.
    """
    job = TrainingJob(scenario)
    step = np.empty((len(layouts), len(recomputes)))
    parts: dict[str, Table] = {}
    for start in range(0, len(layouts) if recomputes else 0, ROWS_PER_TABLE):
        block = slice(start, start + ROWS_PER_TABLE)
        rows = _prepare(job, layouts.take(block), recomputes)
        _price(job, rows, step[block])
        if detail:
            for name, values in step_parts(job, rows).items():
                parts.setdefault(name, np.zeros_like(step))[block] = values * job.factors.step
    step *= job.factors.step
    return TimeEstimate(
        step_seconds=step, parts=parts, level=job.gpu.level, origin=f"{job.gpu.origin}; {scenario.software.name}"
    )


def _prepare(job: TrainingJob, layouts: Layouts, recomputes: Sequence[Recompute]) -> Rows:
    """Layer table of the distinct shapes, and the columns of every row."""
    names = ("mbs", "tp", "sp", "cp", "fsdp") + (("ep", "etp") if job.model.is_moe else ())
    first, inverse = unique_rows(layouts, names)
    table = layer_table(job, shapes_of(layouts.take(first), job), recomputes)
    return rows_of(job, layouts, table, inverse, recomputes)


def _price(job: TrainingJob, rows: Rows, step: Table) -> None:
    """Fill `step` chunk by chunk."""
    size = max(1, PAIRS_PER_CHUNK // step.shape[1])
    for start in range(0, len(step), size):
        chunk = rows.slice(start, start + size) if len(step) > size else rows
        step[start : start + size] = row_seconds(job, chunk, compute_seconds(job, chunk))
