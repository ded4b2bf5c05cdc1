"""What measured plans say about the others: a Student-t process on log(measured / predicted).

The time model is the prior mean. Its error is a sum of what all plans share (the whole step), what plans share by where their
time goes (one random factor per kind of operator, the factors of `time_model.calibration`), what plans share by layer shape
(nearer keys share more), and what is a plan's own. All are normal on the log scale given one common scale, whose inverse
square is gamma distributed: where the first measurements are far off, every band widens (O'Hagan and Forster 2004, Kendall's
Advanced Theory of Statistics 2B, section 9; Shah et al. 2014, Student-t processes as alternatives to Gaussian processes,
equations 4 to 6).
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

from autoconfig.study.candidates import Floats
from autoconfig.study.training.candidates import Candidates

DEGREES = 4.0
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
    """Logarithm of the step seconds."""
    covariance: Floats
    """Of the Student-t's normal part, scale included."""
    degrees: float

    @property
    def log_sd(self) -> Floats:
        """Spread of each candidate."""
        sd: Floats = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
        return sd

    def draws(self, rows: npt.NDArray[np.int64], count: int, generator: np.random.Generator) -> Floats:
        """[len(rows), count] joint draws of log step seconds."""
        block = self.covariance[np.ix_(rows, rows)] + 1e-9 * np.eye(len(rows))
        normal = np.linalg.cholesky(block) @ generator.standard_normal((len(rows), count))
        scale = np.sqrt((self.degrees - 2) / generator.chisquare(self.degrees, count))
        found: Floats = self.mean[rows, None] + normal * scale
        return found


def prior_covariance(candidates: Candidates, scatter: Scatter) -> Floats:
    """[n, n] covariance of log(measured / predicted) before any measurement."""
    apart = np.zeros((len(candidates),) * 2)
    for column in candidates.sizes.T:
        apart += np.abs(column[:, None] - column[None, :]) / scatter.doublings
    for codes in candidates.kinds.T:
        apart += (codes[:, None] != codes[None, :]) / scatter.differences
    shared = scatter.part**2 * (candidates.shares @ candidates.shares.T)
    found: Floats = scatter.step**2 + shared + scatter.shape**2 * np.exp(-apart) + scatter.plan**2 * np.eye(len(candidates))
    return found


def posterior(
    candidates: Candidates, observations: Sequence[PlanMeasured], scatter: Scatter, covariance: Floats | None = None
) -> Posterior:
    """Belief after the observations. `covariance` saves computing the prior's again. The scale never shrinks below the prior's:
    a few lucky measurements do not make the model sure."""
    prior = prior_covariance(candidates, scatter) if covariance is None else covariance
    mean = np.log(candidates.predicted_s)
    if not observations:
        return Posterior(mean=mean, covariance=prior, degrees=DEGREES)
    rows = np.array([o.row for o in observations])
    ratio = np.array([o.log_ratio for o in observations])
    noise = np.array([o.log_sd**2 for o in observations])
    seen = prior[np.ix_(rows, rows)] + np.diag(noise)
    gain = np.linalg.solve(seen, prior[rows]).T
    surprise = float(ratio @ np.linalg.solve(seen, ratio))
    scale = max(1.0, (DEGREES - 2 + surprise) / (DEGREES - 2 + len(rows)))
    return Posterior(
        mean=mean + gain @ ratio,
        covariance=scale * (prior - gain @ prior[rows]),
        degrees=DEGREES + len(rows),
    )


def log_likelihood(candidates: Candidates, log_ratio: Floats, scatter: Scatter) -> float:
    """Log density of one group's measured errors, up to a constant (Shah et al. 2014, equation 3)."""
    n = len(candidates)
    factor = np.linalg.cholesky(prior_covariance(candidates, scatter) + REPEAT_LOG_SD**2 * np.eye(n))
    z = np.linalg.solve(factor, log_ratio)
    return float(-np.log(np.diag(factor)).sum() - 0.5 * (DEGREES + n) * math.log1p(float(z @ z) / (DEGREES - 2)))


@cache
def shipped_scatter() -> Scatter:
    """Fitted on all recorded sweeps by `make profiling-docs`; data/study_scatter.json."""
    text = (resources.files("autoconfig") / "data" / "study_scatter.json").read_text(encoding="utf-8")
    body: dict[str, Any] = json.loads(text)
    return Scatter(**body["scatter"])


def scatter_json(scatter: Scatter, sources: Sequence[str], groups: int) -> dict[str, Any]:
    """What `shipped_scatter` reads."""
    rounded = {name: round(value, 4) for name, value in asdict(scatter).items()}
    return {"schema_version": 1, "scatter": rounded, "groups": groups, "sources": list(sources)}
