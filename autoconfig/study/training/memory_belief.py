"""The chance that a plan fits, learned from jobs that ran and jobs that ran out of memory.

One correction of all predicted peaks, theta = log(true / predicted), normal before the study. A job that ran, or did not,
counts by the memory model's own chance to fit (`memory_model.predict.fit_probability`) at the corrected peak; a measured
peak counts by its distance. An out-of-memory job is a constraint learned: the plan leaves the space, and others with the same
need follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoconfig.memory_model.predict import fit_probability
from autoconfig.study.candidates import Floats
from autoconfig.study.training.candidates import Candidates

PRIOR_LOG_SD = 0.05
"""Width of the correction before the first measurement (docs/accuracy.md: peaks of software that was never seen)."""
PEAK_LOG_SD = 0.05
"""Scatter of one measured peak around the corrected prediction."""
GRID = np.linspace(-0.3, 0.3, 121)


@dataclass(frozen=True, kw_only=True)
class MemoryFact:
    """What one job said about memory."""

    row: int
    ran: bool
    peak_bytes: float | None = None
    """Measured peak of the worst rank, where the job ran at full size and a peak was measured."""


@dataclass(frozen=True, kw_only=True)
class MemoryBelief:
    """Chance to fit of every candidate, and the correction behind it."""

    chance: Floats
    correction: float
    """Measured over predicted peak, median."""


def memory_belief(candidates: Candidates, facts: Sequence[MemoryFact]) -> MemoryBelief:
    """Belief after the facts; plans that ran have chance 1, plans that did not 0."""
    log_weight = -0.5 * (GRID / PRIOR_LOG_SD) ** 2
    for fact in facts:
        chance = _chance(candidates, np.array([fact.row]))[:, 0]
        log_weight = log_weight + np.log(np.clip(chance if fact.ran else 1 - chance, 1e-6, 1.0))
        if fact.peak_bytes is not None:
            ratio = np.log(fact.peak_bytes / candidates.peak_bytes[fact.row])
            log_weight -= 0.5 * np.minimum(((GRID - ratio) / PEAK_LOG_SD) ** 2, 9.0)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    chance = weight @ _chance(candidates, np.arange(len(candidates)))
    for fact in facts:
        chance[fact.row] = float(fact.ran)
    middle = float(weight @ GRID)
    return MemoryBelief(chance=chance, correction=float(np.exp(middle)))


def _chance(candidates: Candidates, rows: np.ndarray) -> Floats:
    """[grid, rows] chance to fit at every correction."""
    peak = np.exp(GRID)[:, None] * candidates.peak_bytes[rows]
    found: Floats = fit_probability(peak, candidates.limit_bytes[rows], candidates.device_bytes)
    return found
