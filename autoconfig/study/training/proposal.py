"""Which plan to measure next, and whether anything can still change: one pure function of what is known.

    propose(candidates, results, pending, name, seed, number) -> Proposal

The proposal is the plan that is most often the best in joint draws of the posterior (probability of improvement over the
incumbent, jointly over all candidates; Thompson 1933, counted instead of drawn once). Plans that other workers are measuring
count as measured at their mean. The stop rule uses the same draws: the study is settled when no unmeasured plan beats the
best measured one by more than TOLERANCE in at least CONFIDENCE of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from optuna.trial import FrozenTrial

from autoconfig.study import trials as names
from autoconfig.study.training.candidates import Candidates
from autoconfig.study.training.surrogate import (
    REPEAT_LOG_SD,
    MemoryBelief,
    MemoryFact,
    PlanMeasured,
    Posterior,
    Scatter,
    chance_to_run,
    chances_on_front,
    memory_belief,
    posterior,
    prior_covariance,
    shipped_scatter,
)
from autoconfig.study.trials import Floats
from autoconfig.study.work import Proposal

DRAWS = 2_000
TOLERANCE = 0.01
"""Plans within this share of the best are as good."""
CONFIDENCE = 0.95
MAX_MEASUREMENTS = 5
"""Jobs that one plan gets at most, where noise hides which of the measured plans is the fastest."""
NOISY_LOG_SD = 0.03
"""Spread of a measured plan from which it is worth measuring again."""
MIN_MEASURED = 3
"""Plans that a settled study has measured at least, where it has so many."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished trial. Several results of one row add up: a short job and then the full one."""

    row: int
    step_seconds: float | None = None
    """Measured step of the full job; None where it did not run to its end."""
    log_ratio: float | None = None
    """log(measured / predicted) of the job that ran; by default of `step_seconds`."""
    log_sd: float | None = None
    out_of_memory: bool = False
    peak_bytes: float | None = None


def results_of(trials: Sequence[FrozenTrial], candidates: Candidates, *, emulated: bool = False) -> list[Result]:
    """What finished trials say, in the order of their numbers. `emulated`: composed steps count as measured ones."""
    return [found for trial in trials if (found := _result_of(trial, candidates, emulated=emulated)) is not None]


def _result_of(trial: FrozenTrial, candidates: Candidates, *, emulated: bool) -> Result | None:
    row, said = candidates.row_of(trial.params), trial.user_attrs
    if row is None or not trial.state.is_finished():
        return None
    outcome = said.get(names.OUTCOME)
    if outcome == names.OUT_OF_MEMORY:
        return Result(row=row, out_of_memory=True)
    if outcome not in (names.MEASURED, names.EMULATED, names.PRUNED):
        return None
    if outcome == names.EMULATED and not emulated:
        return Result(row=row, log_ratio=said[names.LOG_RATIO], log_sd=said[names.LOG_SD])
    return Result(
        row=row,
        step_seconds=said.get(names.STEP_SECONDS),
        log_ratio=said.get(names.LOG_RATIO),
        log_sd=said.get(names.LOG_SD),
        peak_bytes=said.get(names.PEAK_BYTES),
    )


@dataclass(frozen=True, kw_only=True)
class Belief:
    """Everything that the finished trials say."""

    posterior: Posterior
    memory: MemoryBelief
    measured: dict[int, float] = field(default_factory=dict)
    """Row -> measured step seconds of full jobs."""

    @property
    def best(self) -> int | None:
        """The measured candidate that is believed to be the fastest: among noisy ones a lucky measurement does not win."""
        return min(self.measured, key=lambda row: (float(self.posterior.mean[row]), row)) if self.measured else None

    @property
    def step_seconds(self) -> Floats:
        """The re-ranked table: measured where measured, else the corrected prediction."""
        found: Floats = np.exp(self.posterior.mean)
        for row, seconds in self.measured.items():
            found[row] = seconds
        return found


def believe(
    candidates: Candidates,
    results: Sequence[Result],
    pending: Sequence[int] = (),
    scatter: Scatter | None = None,
    covariance: Floats | None = None,
    failed: Sequence[int] = (),
) -> Belief:
    """The belief after the results; pending rows count as measured at their mean."""
    scatter = scatter or shipped_scatter()
    covariance = prior_covariance(candidates, scatter) if covariance is None else covariance
    floor = scatter_between_jobs(results)
    seen = [found for result in results if (found := _observation(candidates, result, floor)) is not None]
    after = posterior(candidates, seen, scatter, covariance)
    if pending:
        guessed = [
            PlanMeasured(row=row, log_ratio=float(after.mean[row] - np.log(candidates.predicted_s[row]))) for row in pending
        ]
        after = posterior(candidates, [*seen, *guessed], scatter, covariance)
    facts = [
        MemoryFact(row=r.row, ran=not r.out_of_memory, peak_bytes=r.peak_bytes)
        for r in results
        if r.out_of_memory or r.step_seconds is not None
    ]
    times: dict[int, list[float]] = {}
    for result in results:
        if result.step_seconds is not None:
            times.setdefault(result.row, []).append(result.step_seconds)
    measured = {row: float(np.median(values)) for row, values in times.items()}
    memory = memory_belief(candidates, facts)
    runs = chance_to_run(candidates, failed, [fact.row for fact in facts])
    return Belief(posterior=after, memory=replace(memory, chance=memory.chance * runs), measured=measured)


def scatter_between_jobs(results: Sequence[Result]) -> float:
    """Standard deviation of log step seconds between jobs of one plan, pooled over the plans that were measured again; 0 where
    none was. On a machine that is shared it is far above what the steps of one job show."""
    logs: dict[int, list[float]] = {}
    for result in results:
        if result.step_seconds is not None:
            logs.setdefault(result.row, []).append(float(np.log(result.step_seconds)))
    again = [values for values in logs.values() if len(values) > 1]
    free = sum(len(values) - 1 for values in again)
    return float(np.sqrt(sum(np.var(values) * len(values) for values in again) / free)) if free else 0.0


def _observation(candidates: Candidates, result: Result, floor: float) -> PlanMeasured | None:
    ratio = result.log_ratio
    if ratio is None and result.step_seconds is not None:
        ratio = float(np.log(result.step_seconds / candidates.predicted_s[result.row]))
    if ratio is None:
        return None
    own = REPEAT_LOG_SD if result.log_sd is None else result.log_sd
    return PlanMeasured(row=result.row, log_ratio=ratio, log_sd=own if result.step_seconds is None else max(own, floor))


def propose(
    candidates: Candidates,
    results: Sequence[Result],
    *,
    name: str,
    seed: int,
    number: int,
    pending: Sequence[int] = (),
    given_up: Sequence[int] = (),
    failed: Sequence[int] = (),
    scatter: Scatter | None = None,
    covariance: Floats | None = None,
    headroom: bool = False,
    repeats: bool = False,
) -> Proposal:
    """The next plan. `number` is the trial's; `given_up` rows were tried and are not proposed again (pruned,
    failed); `failed` are those whose job failed: plans that fail for the same reason are put off (`failures`).

    With `repeats` plans are measured again where noise hides the winner. With `headroom` the front of step time against free
    memory decides (`front`). Pure: the same arguments give the same proposal, whatever ran before in this process.
    """
    belief = believe(candidates, results, pending, scatter, covariance, failed)
    gone = {r.row for r in results if r.out_of_memory or r.step_seconds is not None} | set(pending) | set(given_up)
    left = np.setdiff1d(np.arange(len(candidates)), sorted(gone))
    generator, repeats = _generator(name, seed, number), repeats and not headroom
    if not len(left):
        again = _again(belief, results, pending, generator) if repeats else None
        return again or Proposal(row=None, settled=True, why="every candidate was measured")
    points = measured_points(candidates, results, belief) if headroom else []
    chances, change = chances_to_win(belief, left, generator)
    if points:
        draws = belief.posterior.draws(left, DRAWS, generator)
        fits = generator.random(draws.shape) < belief.memory.chance[left, None]
        free = np.maximum(candidates.limit_bytes[left] - belief.memory.correction * candidates.peak_bytes[left], 0.0)
        chances, change = chances_on_front(points, draws, free, fits, TOLERANCE)
    enough = min(MIN_MEASURED, len(candidates))
    order = np.lexsort((left, belief.posterior.mean[left] - np.log(np.maximum(belief.memory.chance[left], 1e-9)), -chances))
    row, chance = int(left[order[0]]), float(chances[order[0]])
    settled = belief.best is not None and len(gone) >= enough and change <= 1 - CONFIDENCE
    again = _again(belief, results, pending, generator) if settled and repeats else None
    return again or Proposal(row=row, chance=chance, chance_to_change=change, settled=settled, why=_why(belief, row, chance))


def measured_points(candidates: Candidates, results: Sequence[Result], belief: Belief) -> list[tuple[float, float]]:
    """(step seconds, free bytes) of every plan measured in full; where no peak was measured the corrected one."""
    points = []
    for result in results:
        if result.step_seconds is not None:
            corrected = belief.memory.correction * float(candidates.peak_bytes[result.row])
            peak = corrected if result.peak_bytes is None else result.peak_bytes
            points.append((result.step_seconds, float(candidates.limit_bytes[result.row]) - peak))
    return points


def chances_to_win(belief: Belief, left: npt.NDArray[np.int64], generator: np.random.Generator) -> tuple[Floats, float]:
    """(for each row left the share of draws in which it fits and is the best of all, the share in which one of them beats the
    best measured plan by more than TOLERANCE)."""
    done = np.array(sorted(belief.measured), dtype=np.int64)
    together = belief.posterior.draws(np.concatenate([left, done]), DRAWS, generator)
    draws, incumbent = together[: len(left)], together[len(left) :].min(axis=0, initial=np.inf)
    fits = generator.random(draws.shape) < belief.memory.chance[left, None]
    draws = np.where(fits, draws, np.inf)
    least = draws.min(axis=0)
    chances = np.bincount(draws.argmin(axis=0)[least < incumbent], minlength=len(left)) / DRAWS
    return chances, float((least < incumbent + np.log(1 - TOLERANCE)).mean())


def _again(
    belief: Belief, results: Sequence[Result], pending: Sequence[int], generator: np.random.Generator
) -> Proposal | None:
    """Where noise hides which measured plan is the fastest: the contender to measure once more; None where that is clear."""
    rows = np.array(sorted(belief.measured), dtype=np.int64)
    if len(rows) < 2:
        return None
    draws = belief.posterior.draws(rows, DRAWS, generator)
    best = int(np.flatnonzero(rows == belief.best)[0])
    wrong = float((draws.min(axis=0) < draws[best] + np.log(1 - TOLERANCE)).mean())
    counts = np.array([sum(r.row == row and r.step_seconds is not None for r in results) for row in rows])
    chances = np.bincount(draws.argmin(axis=0), minlength=len(rows)) / DRAWS
    chances[best] = max(chances[best], 0.5)
    spread = belief.posterior.log_sd[rows]
    worth = chances * spread * (spread > NOISY_LOG_SD) * (counts < MAX_MEASUREMENTS) * ~np.isin(rows, pending)
    if wrong <= 1 - CONFIDENCE or worth.max() <= 0:
        return None
    chosen = int(worth.argmax())
    why = f"measured again: noise hides which measured plan is the fastest ({wrong:.0%} that it is not the best so far)"
    return Proposal(row=int(rows[chosen]), chance=float(chances[chosen]), chance_to_change=wrong, why=why)


def _generator(name: str, seed: int, number: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{name}\n{seed}\n{number}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def _why(belief: Belief, row: int, chance: float) -> str:
    spread = float(belief.posterior.log_sd[row])
    step = float(np.exp(belief.posterior.mean[row]))
    text = f"best of all in {chance:.0%} of what is possible; expected {step:.4g} s, give or take {spread:.0%}"
    fit = float(belief.memory.chance[row])
    return text if fit > 0.995 else text + f"; fits with {fit:.0%}"
