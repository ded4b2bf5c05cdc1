"""Recorded sweeps: many plans of one question that others measured and published, as an oracle for the study.

A sweep is the rows of one source with the same architecture, GPUs, sequence and global batch. The prior of its candidates
comes from constants that have not seen its source (`accuracy.runs.Constants`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from autoconfig.accuracy.runs import Constants, paper_of
from autoconfig.runs.cells import Row, cell
from autoconfig.runs.training_row import Case, measured_step_seconds, published_rows, read_case
from autoconfig.specs.errors import AutoconfigError
from autoconfig.study.training.candidates import Candidates, build

LEAST_CHANCE_TO_FIT = 0.05
"""Plans below it are pruned by the memory model and never proposed."""
VARIANT_CELLS = ("attention_kernel", "norm_kernel", "transformer_impl", "loss_fusion", "overlap", "cuda_graph")
"""Cells that tell apart runs of one plan."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One recorded sweep."""

    name: str
    source: str
    candidates: Candidates
    step_seconds: tuple[float | None, ...]
    """Measured step of each candidate; None: it ran out of memory."""
    pruned_that_ran: int
    """Measured plans that the memory model left out."""
    best: float
    """The least measured step seconds, of all plans: the memory model may have left the best one out."""

    @property
    def timed(self) -> int:
        """Candidates with a time."""
        return sum(step is not None for step in self.step_seconds)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    case: Case
    variant: str
    step_seconds: float | None


def sweeps(least_rows: int) -> list[Sweep]:
    """Every sweep of the published tables with at least this many timed rows, in the order of source and shape."""
    groups: dict[tuple[object, ...], list[_Entry]] = {}
    for entry in _entries():
        scenario = entry.case.scenario
        model, work = scenario.model, scenario.workload
        shape = (model.num_layers, model.hidden_size, model.num_attention_heads)
        key = (entry.case.source, scenario.cluster.gpu.id, *shape, scenario.numerics.precision)
        groups.setdefault((*key, scenario.cluster.num_gpus, work.seq_length, work.global_batch_size), []).append(entry)
    large = [key for key, entries in groups.items() if sum(e.step_seconds is not None for e in entries) >= least_rows]
    return [_sweep(key, groups[key]) for key in sorted(large, key=str)]


@cache
def _rows() -> tuple[Row, ...]:
    return tuple(published_rows())


def _entries() -> Iterator[_Entry]:
    for row in _rows():
        if cell(row, "full_plan") == "0":
            continue
        try:
            case = read_case(row)
            measured = None if cell(row, "status") == "oom" else measured_step_seconds(row, case.scenario)
        except AutoconfigError:
            continue
        if measured or cell(row, "status") == "oom":
            variant = "+".join(filter(None, (cell(row, name) for name in VARIANT_CELLS)))
            yield _Entry(case=case, variant=variant, step_seconds=measured)


def _sweep(key: tuple[object, ...], entries: Sequence[_Entry]) -> Sweep:
    """Runs of one plan and variant are one candidate with their median time."""
    same: dict[tuple[str, str], list[_Entry]] = {}
    for entry in entries:
        same.setdefault((str(entry.case.plan), entry.variant), []).append(entry)
    constants = _constants()
    cases, variants, steps = [], [], []
    for (_, variant), runs in same.items():
        case = runs[0].case
        cases.append((constants.applied(case), case.plan))
        variants.append(variant)
        times = [run.step_seconds for run in runs if run.step_seconds is not None]
        steps.append(float(np.median(times)) if times else None)
    everything = build(cases, variants)
    likely = _likely(everything)
    kept = [n for n in range(len(cases)) if likely[n]]
    source, gpu, layers, hidden, _, _, gpus, seq, batch = key
    return Sweep(
        name=f"{source}: {layers} layers of {hidden}, {gpus} {gpu}, sequence {seq}, batch {batch}",
        source=str(source),
        candidates=build([cases[n] for n in kept], [variants[n] for n in kept]),
        step_seconds=tuple(steps[n] for n in kept),
        best=min(step for step in steps if step is not None),
        pruned_that_ran=sum(steps[n] is not None and not likely[n] for n in range(len(cases))),
    )


def _likely(candidates: Candidates) -> list[bool]:
    from autoconfig.study.training.memory_belief import memory_belief

    return [bool(chance >= LEAST_CHANCE_TO_FIT) for chance in memory_belief(candidates, []).chance]


@cache
def _constants() -> Constants:
    return Constants("source")


def paper(sweep: Sweep) -> str:
    """The paper or repository that a sweep leaves with."""
    return paper_of(sweep.source)
