"""Peak memory against measured runs, and the verdict `fits` against runs that ran or ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
from autoconfig.memory_model.predict import estimate_memory, fit_probability
from autoconfig.specs.errors import GIB, AutoconfigError

from autoconfig.runs.predict import peak_bytes
from autoconfig.runs.table import Row, cell, number
from autoconfig.runs.training_row import read_case
from validation.published import published_rows
from validation.sheets.groups import figures_of
from validation.sources import source_of, sources

FOLDS = 5
"""Only four (GPUs, sequence) groups exist, so there are four."""
VERDICTS_RIGHT = 0.95
"""Asked for: this share of the runs that ran, and of those that did not, called right."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MemoryGroup:
    """Peaks of one source on one stack; errors as shares of the measured peak."""

    source: str
    stack: str
    rank: str
    rows: int
    covered: int
    mean: float
    median: float
    bias: float
    worst: float
    worst_id: str


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """How often `fits` was right on runs with a known end."""

    constants: str
    oom_rows: int
    oom_right: float
    ran_rows: int
    ran_right: float
    brier: float
    """Mean squared distance of the fit probability from what happened."""
    offsets_gib: tuple[float, ...] = ()
    """Added to the predicted peak, by fold."""

    @property
    def holds(self) -> bool:
        return min(self.oom_right, self.ran_right) >= VERDICTS_RIGHT


def memory_groups() -> list[MemoryGroup]:
    """Every source with a measured peak, by stack and by the rank that was measured."""
    errors: dict[tuple[str, str, str], list[tuple[str, float | None]]] = {}
    for row in published_rows():
        measured = number(row, "peak_mem_gib")
        if measured is None or "memory" not in source_of(cell(row, "source")).use:
            continue
        rank = f"{cell(row, 'peak_rank')} rank, {cell(row, 'peak_kind')}"
        key = (cell(row, "source"), cell(row, "software"), rank)
        errors.setdefault(key, []).append((cell(row, "id"), _error(row, measured)))
    groups = []
    for (source, stack, rank), found in sorted(errors.items()):
        figures = figures_of([(row_id, error) for row_id, error in found if error is not None])
        values = {name: value for name, value in asdict(figures).items() if name != "rows"}
        groups.append(MemoryGroup(source=source, stack=stack, rank=rank, rows=len(found), covered=figures.rows, **values))
    return groups


def _error(row: Row, measured: float) -> float | None:
    if cell(row, "full_plan") == "0":
        return None
    try:
        case = read_case(row)
        return peak_bytes(case.scenario, case.plan, row) / GIB / measured - 1.0
    except AutoconfigError:
        return None


_Ends = tuple[Floats, Floats, Floats, npt.NDArray[np.bool_]]
"""(peak, limit, device bytes, whether it ran) of runs with a known end."""


def verdicts() -> list[Verdicts]:
    """With no constant from these rows, and with one offset in GiB where tp or pp is above 1, fitted on the other folds."""
    found = list(_end_rows())
    peak, limit, device, ran, divided = (np.array([f[i] for f in found]) for i in range(5))
    ran, divided, where = ran.astype(bool), divided.astype(bool), [f[5] for f in found]
    groups = sorted(set(where), key=lambda g: (-where.count(g), g))
    fold = np.array([groups.index(g) % FOLDS for g in where])
    offset = np.zeros(len(fold))
    fitted = []
    for number_of_fold in sorted(set(fold)):
        test, others = fold == number_of_fold, (fold != number_of_fold) & divided
        shift = best_offset(peak[others], limit[others], ran[others])
        offset[test & divided] = shift
        fitted.append(shift / GIB)
    folds = f"one offset where tp or pp > 1, fitted on the other {len(fitted) - 1} of {len(fitted)} (GPUs, sequence) groups"
    ends = peak, limit, device, ran
    return [_verdicts("none from these rows", ends, np.zeros(len(fold)), ()), _verdicts(folds, ends, offset, tuple(fitted))]


def labelled_source() -> str:
    """Name of the one source with out-of-memory labels."""
    return next(source.bar.name for source in sources() if "fits" in source.use and source.bar is not None)


def _end_rows() -> Iterator[tuple[float, float, float, bool, bool, tuple[str, str]]]:
    """(peak, limit, device, ran, divided, (GPUs, sequence)) with the stack's documented properties only: its reserve left
    out. Divided: tp or pp above 1, what the offset is for (`StackMemory.model_parallel_reserved_gib`)."""
    for row in published_rows():
        if "fits" not in source_of(cell(row, "source")).use or cell(row, "full_plan") != "1":
            continue
        case = read_case(row)
        scenario = case.scenario
        documented = replace(scenario.software.memory, model_parallel_reserved_gib=0.0)
        plain = replace(scenario, software=replace(scenario.software, memory=documented))
        memory = estimate_memory(plain, plain.layouts([case.plan]), [case.plan.recompute])
        where = (cell(row, "gpus"), cell(row, "seq"))
        ran = cell(row, "status") == "ran"
        divided = case.plan.tp > 1 or case.plan.pp > 1
        yield float(memory.peak_bytes[0, 0]), float(memory.limit_bytes[0]), float(memory.device_bytes), ran, divided, where


def best_offset(peak: Floats, limit: Floats, ran: npt.NDArray[np.bool_]) -> float:
    """The offset that makes the mean of both error rates least; the middle of the best interval."""
    headroom = np.sort(limit - peak)
    edges = np.concatenate([[headroom[0] - GIB], (headroom[1:] + headroom[:-1]) / 2, [headroom[-1] + GIB]])
    wrong = np.array([np.mean(limit[ran] - peak[ran] < e) + np.mean(limit[~ran] - peak[~ran] >= e) for e in edges])
    best = edges[wrong <= wrong.min() + 1e-12]
    return float(best[len(best) // 2])


def _verdicts(constants: str, ends: _Ends, offset: Floats, offsets: tuple[float, ...]) -> Verdicts:
    peak, limit, device, ran = ends
    likely, fits = fit_probability(peak + offset, limit, device), peak + offset <= limit
    return Verdicts(
        constants=constants,
        oom_rows=int((~ran).sum()),
        oom_right=float(np.mean(~fits[~ran])),
        ran_rows=int(ran.sum()),
        ran_right=float(np.mean(fits[ran])),
        brier=float(np.mean((likely - ran) ** 2)),
        offsets_gib=offsets,
    )
