"""Would our first choice have been the right one? Groups of measured plans for one question, ranked by prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoconfig.accuracy.runs import LeaveOut, Predicted
from autoconfig.calibration.observe import Run

LEAST_ROWS = 6
"""Measured plans that make a group."""
FIRST_CHOICES = 3


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """How the ranking of one source's groups went. Regret: measured time of the chosen plan over the best measured, less 1."""

    source: str
    constants: str
    """Whether they have seen the rows."""
    groups: int
    rows: int
    spearman_median: float
    spearman_min: float
    regret_mean: float
    regret_max: float
    regret_first_three_mean: float
    regret_first_three_max: float
    mean_error: float
    """Mean absolute error of all rows of these groups."""


def decisions(predicted: Sequence[Predicted], leave_out: LeaveOut) -> list[Decisions]:
    """Every source with groups."""
    constants = "seen" if leave_out is None else "not seen"
    found = (
        _decide([p for p in predicted if p.source == source], constants) for source in sorted({p.source for p in predicted})
    )
    return [one for one in found if one is not None]


def _question(run: Run) -> tuple[object, ...]:
    scenario = run.case.scenario
    model, work = scenario.model, scenario.workload
    shape = (model.num_layers, model.hidden_size, model.num_attention_heads)
    return (*shape, scenario.cluster.num_gpus, work.seq_length, work.global_batch_size)


def _decide(rows: Sequence[Predicted], constants: str) -> Decisions | None:
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, one in enumerate(rows):
        groups.setdefault(_question(one.run), []).append(number)
    large = [members for members in groups.values() if len(members) >= LEAST_ROWS]
    if not large:
        return None
    measured = np.array([one.run.measured_s for one in rows])
    predicted = np.array([one.step_seconds for one in rows])
    kept = np.concatenate(large)
    ranks = [_spearman(measured[m], predicted[m]) for m in large]
    first = [_regret(measured[m], predicted[m], 1) for m in large]
    three = [_regret(measured[m], predicted[m], FIRST_CHOICES) for m in large]
    return Decisions(
        source=rows[0].source,
        constants=constants,
        groups=len(large),
        rows=len(kept),
        spearman_median=float(np.median(ranks)),
        spearman_min=float(np.min(ranks)),
        regret_mean=float(np.mean(first)),
        regret_max=float(np.max(first)),
        regret_first_three_mean=float(np.mean(three)),
        regret_first_three_max=float(np.max(three)),
        mean_error=float(np.abs(predicted[kept] / measured[kept] - 1).mean()),
    )


def _spearman(measured: np.ndarray, predicted: np.ndarray) -> float:
    """Correlation of the ranks, ties at their mean rank."""
    from scipy.stats import rankdata

    a, b = rankdata(measured), rankdata(predicted)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _regret(measured: np.ndarray, predicted: np.ndarray, choices: int) -> float:
    order = np.argsort(predicted, kind="stable")[:choices]
    return float(measured[order].min() / measured.min() - 1)
