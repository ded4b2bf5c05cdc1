"""Peak memory against measured runs, and the verdict `fits` against runs that ran or ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.specs.errors import GIB, AutoconfigError

from autoconfig.runs.predict import peak_bytes
from autoconfig.runs.table import cell, number
from autoconfig.runs.training_row import read_case
from validation.published import published_rows
from validation.sheets.figures import Group, Line, groups_of, share_line
from validation.sources import source_of

FOLDS = 5
"""Only four (GPUs, sequence) groups exist, so there are four."""
VERDICTS_RIGHT = 0.95
"""Asked for: this share of the runs that ran, and of those that did not, called right."""
Floats = npt.NDArray[np.float64]


@cache
def peak_errors() -> tuple[tuple[str, str, float], ...]:
    """Return (source with its stack and the rank that was measured, id, predicted / measured peak - 1) of every row with a
    whole plan and a measured peak."""
    errors = []
    for row in published_rows():
        measured = number(row, "peak_mem_gib")
        if measured is None or cell(row, "full_plan") == "0" or "memory" not in source_of(cell(row, "source")).use:
            continue
        with suppress(AutoconfigError):
            case = read_case(row)
            error = peak_bytes(case.scenario, case.plan, row) / GIB / measured - 1.0
            name = f"{cell(row, 'source')}, {cell(row, 'software')}, {cell(row, 'peak_rank')} rank, {cell(row, 'peak_kind')}"
            errors.append((name, cell(row, "id"), error))
    return tuple(errors)


def memory_groups() -> list[Group]:
    """Return the figures of peaks by source, stack and the rank that was measured."""
    return groups_of(peak_errors())


def verdict_lines() -> list[Line]:
    """Return how often `fits` is right with no constant from these rows, and with one offset in GiB where tp or pp is above 1,
    fitted on the other (GPUs, sequence) groups, which is what is held to."""
    ends = list(_end_rows())
    peak, limit, ran, divided = (np.array([end[i] for end in ends]) for i in range(4))
    ran, divided, where = ran.astype(bool), divided.astype(bool), [end[4] for end in ends]
    groups = sorted(set(where), key=lambda g: (-where.count(g), g))
    fold = np.array([groups.index(g) % FOLDS for g in where])
    offset = np.zeros(len(fold))
    for number_of_fold in sorted(set(fold)):
        test, others = fold == number_of_fold, (fold != number_of_fold) & divided
        offset[test & divided] = best_offset(peak[others], limit[others], ran[others])
    lines = []
    for name, fits, least in (
        ("no constant from these rows", peak <= limit, None),
        ("cross-validated", peak + offset <= limit, VERDICTS_RIGHT),
    ):
        for what, members, right in (("ran out of memory", ~ran, ~fits), ("ran", ran, fits)):
            lines.append(share_line(f"Aleph Alpha 13B, {name}: {what}, right", right[members], least))
    return lines


def _end_rows() -> Iterator[tuple[float, float, bool, bool, tuple[str, str]]]:
    """(peak, limit, ran, divided, (GPUs, sequence)) with the stack's documented properties only: its reserve left out. Divided:
    tp or pp above 1, what the offset is for (`StackMemory.model_parallel_reserved_gib`)."""
    for row in published_rows():
        if "fits" not in source_of(cell(row, "source")).use or cell(row, "full_plan") != "1":
            continue
        case = read_case(row)
        scenario = case.scenario
        documented = replace(scenario.software.memory, model_parallel_reserved_gib=0.0)
        plain = replace(scenario, software=replace(scenario.software, memory=documented))
        memory = estimate_memory(plain, plain.layouts([case.plan]), [case.plan.recompute])
        where = (cell(row, "gpus"), cell(row, "seq"))
        divided = case.plan.tp > 1 or case.plan.pp > 1
        yield float(memory.peak_bytes[0, 0]), float(memory.limit_bytes[0]), cell(row, "status") == "ran", divided, where


def best_offset(peak: Floats, limit: Floats, ran: npt.NDArray[np.bool_]) -> float:
    """Return the offset that makes the mean of both error rates least; the middle of the best interval."""
    headroom = np.sort(limit - peak)
    edges = np.concatenate([[headroom[0] - GIB], (headroom[1:] + headroom[:-1]) / 2, [headroom[-1] + GIB]])
    wrong = np.array([np.mean(limit[ran] - peak[ran] < e) + np.mean(limit[~ran] - peak[~ran] >= e) for e in edges])
    best = edges[wrong <= wrong.min() + 1e-12]
    return float(best[len(best) // 2])
