"""Which deployment to measure next: the predicted frontier first, each the least like those that are known; then the others,
nearest to the frontier first. One pure function of what is finished.

Every measured deployment moves the prediction of all (`rounds.refined`) and so the frontier that is still believed in. A batch
that ran out of memory rules out larger ones of its layout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from optuna.trial import FrozenTrial

from autoconfig.planning.answer import on_front
from autoconfig.study import trials as names
from autoconfig.study.candidates import Floats
from autoconfig.study.serving.candidates import DeploymentChoices
from autoconfig.study.serving.rounds import RoundFigures
from autoconfig.study.work import Proposal

MIN_TO_LEARN = 2
"""Measured deployments from which the prediction is corrected."""
TTFT, TPOT, TOKENS = "measured_ttft_seconds", "measured_tpot_seconds", "measured_tokens_per_second"
"""Attributes of a measured trial; tokens of the instance."""


def on_frontier(values: Floats) -> list[bool]:
    """[n, 2] (output tokens/s/GPU, TPOT) -> which rows no other row beats in one without being worse in the other."""
    return on_front(values[:, 1], values[:, 0])


def behind(values: Floats, row: int) -> float:
    """How far the row is behind the frontier: the least factor by which tokens/s/GPU and 1/TPOT would both have to grow."""
    kept = values[np.array(on_frontier(values))]
    return float(max(0.0, np.log(np.minimum(kept[:, 0] / values[row, 0], values[row, 1] / kept[:, 1])).max()))


def believed(choices: DeploymentChoices, measured: Mapping[int, RoundFigures]) -> tuple[RoundFigures, ...]:
    """Measured where measured, else predicted with what the measured ones correct."""
    figures = choices.forecast if len(measured) < MIN_TO_LEARN else choices.again(choices.learned(dict(measured)))
    return tuple(measured.get(row, figure) for row, figure in enumerate(figures))


def propose(
    choices: DeploymentChoices,
    measured: Mapping[int, RoundFigures],
    *,
    name: str,
    seed: int,
    number: int,
    pending: Collection[int] = (),
    given_up: Collection[int] = (),
    out_of_memory: Collection[int] = (),
) -> Proposal:
    """The next deployment. `pending`: measured by others now; `given_up`: failed; `out_of_memory`: rows that ran out of it."""
    known = {*measured, *pending}
    gone = {*known, *given_up, *(row for row in range(len(choices)) if _larger(choices, row, out_of_memory))}
    left = [row for row in range(len(choices)) if row not in gone]
    if not left:
        return Proposal(row=None, why="every deployment was tried")
    values = choices.values(believed(choices, measured))
    alive = np.array([row for row in range(len(choices)) if row in known or row in left])
    front = {int(row) for row, kept in zip(alive, on_frontier(values[alive]), strict=True) if kept}
    ahead = [row for row in left if row in front]
    if ahead:
        why = "on the predicted frontier" if not measured else "on the frontier as now expected"
        if not known:
            best = max(ahead, key=lambda row: (values[row, 0], _draw(name, seed, number, row)))
            why = "most tokens/s/GPU of the predicted frontier"
        else:
            best = max(ahead, key=lambda row: (_unlike(values, row, known), _draw(name, seed, number, row)))
    else:
        best = min(left, key=lambda row: (round(behind(values, row), 3), _draw(name, seed, number, row)))
        why = f"the frontier is measured; {math.expm1(behind(values, best)):.0%} behind it as expected"
    share = len(ahead) / len(left)
    return Proposal(row=best, chance=1.0 / len(left), chance_to_change=share, why=why)


def _unlike(values: Floats, row: int, known: Collection[int]) -> float:
    """Distance to the nearest known one, in logs of both values; rounded, so that ties are ties on every machine."""
    logs = np.log(values)
    return round(min(float(np.abs(logs[row] - logs[other]).max()) for other in known), 3)


def _larger(choices: DeploymentChoices, row: int, out_of_memory: Collection[int]) -> bool:
    mine = choices.rows[row].plan
    return any(
        choices.rows[other].plan.tp == mine.tp and choices.rows[other].plan.batch <= mine.batch for other in out_of_memory
    )


def _draw(name: str, seed: int, number: int, row: int) -> int:
    """Order among equals: the same for the same study, seed and trial."""
    return int.from_bytes(hashlib.sha256(f"{name}|{seed}|{number}|{row}".encode()).digest()[:8], "big")


def measured_rows(trials: Sequence[FrozenTrial], choices: DeploymentChoices) -> dict[int, RoundFigures]:
    """Row -> what its trial measured."""
    found = {}
    for trial in trials:
        row, a = names.row_of(trial, choices), trial.user_attrs
        if row is not None and trial.state.is_finished() and a.get(names.OUTCOME) == names.MEASURED:
            found[row] = RoundFigures(ttft_s=a[TTFT], tpot_s=a[TPOT], tokens_per_s=a[TOKENS])
    return found
