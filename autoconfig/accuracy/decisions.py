"""Would our first choice have been the right one? Groups of measured plans for one question, ranked by prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoconfig.accuracy.runs import Constants, Predicted, predict_steps, with_factor
from autoconfig.calibration.observe import Run

LEAST_ROWS = 6
"""Measured plans that make a group."""
FIRST_CHOICES = 3
SEEN, NOT_SEEN = "seen", "not seen"
"""Whether the constants know the rows; a scalar measured on them stands in its own words."""
HOST_FACTORS = tuple(float(factor) for factor in np.geomspace(0.25, 4.0, 17))
SCALAR_ROWS = 160
"""Rows on which the host scalar is chosen, spread over the source."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """How the ranking of one source's groups went. Regret: measured time of the chosen plan over the best measured, less 1."""

    source: str
    constants: str
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


def decisions(predicted: Sequence[Predicted], constants: Constants) -> list[Decisions]:
    """Every source with groups; vTrain's single-node runs also with one measured host scalar, SimuMax with one step scalar."""
    found = []
    for source in sorted({p.source for p in predicted}):
        mine = [p for p in predicted if p.source == source]
        runs = [p.run for p in mine]
        found.append(_decide(source, NOT_SEEN if constants.leave_out else SEEN, runs, [p.step_seconds for p in mine]))
        if source == "vTrain-groundtruth-single":
            factor = host_scalar(runs, constants)
            steps = predict_steps([with_factor(run, host=factor, constants=constants) for run in runs])
            said = "" if constants.leave_out else f"{SEEN}, "
            found.append(_decide(source, f"{said}host floor x {factor:.2f}, measured on these rows", runs, steps))
        if source.startswith("SimuMax"):
            step = float(np.median([p.run.measured_s / p.step_seconds for p in mine]))
            text = f"step x {step:.2f}, measured on these rows"
            found.append(_decide(source, text, runs, [p.step_seconds * step for p in mine]))
    return [d for d in found if d is not None]


def host_scalar(runs: Sequence[Run], constants: Constants) -> float:
    """The factor on the host floor that leaves the least mean absolute error, from a spread of the source's own rows."""
    some = runs[:: max(1, len(runs) // SCALAR_ROWS)]
    measured = np.array([run.measured_s for run in some])

    def error(factor: float) -> float:
        steps = predict_steps([with_factor(run, host=factor, constants=constants) for run in some])
        return float(np.abs(np.array(steps) / measured - 1).mean())

    return _least(error, HOST_FACTORS)


def _least(error: Callable[[float], float], factors: Sequence[float]) -> float:
    """The factor with the least error."""
    return float(min(factors, key=error))


def _question(run: Run) -> tuple[object, ...]:
    scenario = run.case.scenario
    model, work = scenario.model, scenario.workload
    shape = (model.num_layers, model.hidden_size, model.num_attention_heads)
    return (*shape, scenario.cluster.num_gpus, work.seq_length, work.global_batch_size)


def _decide(source: str, constants: str, runs: Sequence[Run], steps: Sequence[float]) -> Decisions | None:
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, run in enumerate(runs):
        groups.setdefault(_question(run), []).append(number)
    large = [members for members in groups.values() if len(members) >= LEAST_ROWS]
    scalar = constants not in (SEEN, NOT_SEEN)
    if not large and not source.startswith("SimuMax"):
        return None
    measured = np.array([run.measured_s for run in runs])
    predicted = np.array(steps)
    kept = np.concatenate(large) if large and not scalar else np.arange(len(runs))
    ranks = [_spearman(measured[m], predicted[m]) for m in large]
    first = [_regret(measured[m], predicted[m], 1) for m in large]
    three = [_regret(measured[m], predicted[m], FIRST_CHOICES) for m in large]
    return Decisions(
        source=source,
        constants=constants,
        groups=len(large),
        rows=len(kept),
        spearman_median=_over(np.median, ranks),
        spearman_min=_over(np.min, ranks),
        regret_mean=_over(np.mean, first),
        regret_max=_over(np.max, first),
        regret_first_three_mean=_over(np.mean, three),
        regret_first_three_max=_over(np.max, three),
        mean_error=float(np.abs(predicted[kept] / measured[kept] - 1).mean()),
    )


def _over(function: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    return float(function(values)) if values else float("nan")


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
