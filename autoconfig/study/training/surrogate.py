"""What measured plans say about the others: their step times, whether they fit, whether they run, what they add to a front.

Step times are a Student-t process on log(measured / predicted). The time model is the prior mean. Its error is a sum of what
all plans share (the whole step), what plans share by where their time goes (one random factor per kind of operator, the factors
of `time_model.job`), what plans share by layer shape (nearer keys share more), and what is a plan's own. All are normal
on the log scale given one common scale, whose inverse square is gamma distributed: where the first measurements are far off,
every band widens (O'Hagan and Forster 2004, Kendall's Advanced Theory of Statistics 2B, section 9; Shah et al. 2014, Student-t
processes as alternatives to Gaussian processes, equations 4 to 6).

Memory has one correction of all predicted peaks, theta = log(true / predicted), normal before the study. A job that ran, or did
not, counts by the memory model's own chance to fit (`memory_model.predict.fit_probability`) at the corrected peak; a measured
peak counts by its distance. An out-of-memory job is a constraint learned: others with the same need follow it out of the space.

Failures: a suspect is a set of features of one failed plan (modules that it recomputes, kinds of parallelism in use) less
everything that plans that ran have too. Candidates that hold a whole suspect set fail likely; each such failure counts once
more.

The worth of a front of step time against memory headroom is its hypervolume up to SLOWEST times the best step and down to no
headroom at all (Zitzler and Thiele 1999). The next plan is the one that adds most on average over the draws (expected
hypervolume improvement, Emmerich et al. 2006).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.memory_model.predict import fit_probability
from autoconfig.specs.layouts import pareto_front
from autoconfig.specs.plan import DEGREES, TrainPlan
from autoconfig.study.training.candidates import Candidates
from autoconfig.study.trials import Floats

FREEDOM = 4.0
"""Degrees of freedom of the common scale: how many measurements the prior scale is worth."""
REPEAT_LOG_SD = 0.01
"""Scatter of one full job run again."""
SHORT_LOG_SD = 0.05
"""Scatter of a job with fewer layers and steps around the full one."""


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Standard deviations of log(measured / predicted) by what shares them, and how fast likeness fades."""

    step: float
    """Shared by all plans of a question."""
    part: float
    """Of each kind of operator, times its share of the step."""
    shape: float
    """Shared by plans with like keys."""
    plan: float
    """A plan's own."""
    doublings: float
    """Doublings of a degree over which likeness fades to 1/e."""
    differences: float
    """Keys of other kinds that differ until likeness fades to 1/e."""


@dataclass(frozen=True, kw_only=True)
class PlanMeasured:
    """One measured candidate."""

    row: int
    log_ratio: float
    """log(measured / predicted) of the job that ran: a shorter job is compared with its own prediction."""
    log_sd: float = REPEAT_LOG_SD


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Belief about log step seconds of all candidates after the observations. Floats [n], [n, n]."""

    mean: Floats
    covariance: Floats
    """Of the Student-t's normal part, scale included."""
    degrees: float

    @property
    def log_sd(self) -> Floats:
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    def draws(self, rows: npt.NDArray[np.int64], count: int, generator: np.random.Generator) -> Floats:
        """[len(rows), count] joint draws of log step seconds."""
        block = self.covariance[np.ix_(rows, rows)] + 1e-9 * np.eye(len(rows))
        normal = np.linalg.cholesky(block) @ generator.standard_normal((len(rows), count))
        scale = np.sqrt((self.degrees - 2) / generator.chisquare(self.degrees, count))
        return self.mean[rows, None] + normal * scale


def prior_covariance(candidates: Candidates, scatter: Scatter) -> Floats:
    """[n, n] covariance of log(measured / predicted) before any measurement."""
    apart = candidates.doublings_apart / scatter.doublings + candidates.differences_apart / scatter.differences
    shared = scatter.part**2 * (candidates.shares @ candidates.shares.T)
    return scatter.step**2 + shared + scatter.shape**2 * np.exp(-apart) + scatter.plan**2 * np.eye(len(candidates))


def posterior(
    candidates: Candidates, observations: Sequence[PlanMeasured], scatter: Scatter, covariance: Floats | None = None
) -> Posterior:
    """Belief after the observations. `covariance` saves computing the prior's again. The scale never shrinks below the prior's:
    a few lucky measurements do not make the model sure."""
    prior = prior_covariance(candidates, scatter) if covariance is None else covariance
    mean = np.log(candidates.predicted_s)
    if not observations:
        return Posterior(mean=mean, covariance=prior, degrees=FREEDOM)
    rows = np.array([o.row for o in observations])
    ratio = np.array([o.log_ratio for o in observations])
    seen = prior[np.ix_(rows, rows)] + np.diag(np.array([o.log_sd**2 for o in observations]))
    gain = np.linalg.solve(seen, prior[rows]).T
    surprise = float(ratio @ np.linalg.solve(seen, ratio))
    scale = max(1.0, (FREEDOM - 2 + surprise) / (FREEDOM - 2 + len(rows)))
    return Posterior(
        mean=mean + gain @ ratio,
        covariance=scale * (prior - gain @ prior[rows]),
        degrees=FREEDOM + len(rows),
    )


def log_likelihood(candidates: Candidates, log_ratio: Floats, scatter: Scatter) -> float:
    """Log density of one group's measured errors, up to a constant (Shah et al. 2014, equation 3)."""
    n = len(candidates)
    factor = np.linalg.cholesky(prior_covariance(candidates, scatter) + REPEAT_LOG_SD**2 * np.eye(n))
    z = np.linalg.solve(factor, log_ratio)
    return float(-np.log(np.diag(factor)).sum() - 0.5 * (FREEDOM + n) * math.log1p(float(z @ z) / (FREEDOM - 2)))


@cache
def shipped_scatter() -> Scatter:
    """Fitted on all recorded sweeps by `make profiling-docs`; data/study_scatter.json."""
    text = (resources.files("autoconfig") / "data" / "study_scatter.json").read_text(encoding="utf-8")
    return Scatter(**json.loads(text)["scatter"])


def scatter_json(scatter: Scatter, sources: Sequence[str], groups: int) -> dict[str, Any]:
    """What `shipped_scatter` reads."""
    rounded = {name: round(value, 4) for name, value in asdict(scatter).items()}
    return {"schema_version": 1, "scatter": rounded, "groups": groups, "sources": list(sources)}


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
    return fit_probability(peak, candidates.limit_bytes[rows], candidates.device_bytes)


CHANCE_OF_A_SUSPECT = 0.1
"""Chance to run that one failure for a like reason leaves."""


def features(plan: TrainPlan) -> frozenset[str]:
    """What may be why a plan does not run."""
    recompute = plan.recompute
    found = {f"recompute {recompute.granularity}", *(f"recompute {module}" for module in recompute.modules)}
    if recompute.granularity == "full":
        found.add(f"recompute {recompute.method}")
    found |= {f"{key} above 1" for key in DEGREES if getattr(plan, key) > 1}
    flags = {
        "sp": plan.sp,
        "uneven stages": plan.first is not None or plan.last is not None,
        "fsdp": bool(plan.fsdp),
        "no distributed optimizer": not plan.dist_opt,
        "offload": plan.offload > 0,
    }
    return frozenset(found | {name for name, there in flags.items() if there})


def suspects(candidates: Candidates, failed: Sequence[int], ran: Sequence[int]) -> list[frozenset[str]]:
    """One set per failed plan; failures that nothing sets apart from plans that ran say nothing."""
    innocent = frozenset().union(*(features(candidates.plans[row]) for row in ran)) if ran else frozenset[str]()
    found = [features(candidates.plans[row]) - innocent for row in failed]
    return [suspect for suspect in found if suspect]


def chance_to_run(candidates: Candidates, failed: Sequence[int], ran: Sequence[int]) -> Floats:
    """[n] chance that a job of the plan does not fail. 1 while nothing ran: then the reason is likely no plan's."""
    chance = np.ones(len(candidates))
    if not ran:
        return chance
    for suspect in suspects(candidates, failed, ran):
        held = np.array([suspect <= features(plan) for plan in candidates.plans])
        chance[held] *= CHANCE_OF_A_SUSPECT
    return chance


SLOWEST = 2.0
"""Plans this many times slower than the best measured one add nothing."""


def gains(points: Sequence[tuple[float, float]], step: Floats, free: Floats) -> tuple[Floats, float]:
    """(hypervolume that each new point adds to the measured `points`, theirs). `step` [n, draws] seconds, `free` [n] bytes; the
    points' own order does not matter."""
    best = min(point[0] for point in points)
    end = SLOWEST * best
    front = [points[row] for row in pareto_front(*np.transpose(points)) if points[row][0] < end]
    starts = np.array([0.0, *(point[0] for point in front)])
    ends = np.array([*(point[0] for point in front), end])
    heights = np.array([0.0, *np.maximum.accumulate([max(0.0, point[1]) for point in front])])
    worth = float(((ends - starts) * heights).sum())
    added = np.zeros_like(step)
    for low, high, height in zip(starts, ends, heights, strict=True):
        width = np.clip(high - np.maximum(step, low), 0.0, None)
        added += width * np.maximum(0.0, free - height)[:, None]
    return added, worth


def chances_on_front(
    points: Sequence[tuple[float, float]],
    draws: npt.NDArray[np.float64],
    free: Floats,
    fits: npt.NDArray[np.bool_],
    share: float,
) -> tuple[Floats, float]:
    """(mean share of the front's worth that each row adds, share of the draws in which one row adds more than `share`).
    `draws` [n, draws] log step seconds."""
    added, worth = gains(points, np.exp(draws), free)
    relative = np.where(fits, added, 0.0) / max(worth, 1e-30)
    return relative.mean(axis=1), float((relative.max(axis=0) > share).mean())
