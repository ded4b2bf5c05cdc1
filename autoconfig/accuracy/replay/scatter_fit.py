"""Fits the scatter of the study's prior on recorded sweeps: maximum likelihood, every paper weighing the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from autoconfig.accuracy.replay.recorded import Sweep, paper
from autoconfig.study.candidates import Floats
from autoconfig.study.training.candidates import Candidates
from autoconfig.study.training.surrogate import Scatter, log_likelihood, scatter_json

LEAST_ROWS = 6
"""Timed plans of a sweep that fitting uses."""
SWEEPS_PER_PAPER = 8.0
"""What one paper weighs at most: its sweeps repeat the same few models."""
ROWS_PER_SWEEP = 20.0
START = Scatter(step=0.3, part=0.25, shape=0.1, plan=0.03, doublings=2.0, differences=1.0)
START_LOG_SD = 1.0
"""Width of the prior around START, on the logarithm of each."""


def fit_scatter(sweeps: Sequence[Sweep]) -> Scatter:
    """The most likely scatter of these sweeps' errors."""
    papers = Counter(paper(sweep) for sweep in sweeps)
    groups = [(*_timed(sweep), min(1.0, SWEEPS_PER_PAPER / papers[paper(sweep)])) for sweep in sweeps]
    start = np.log(astuple(START))

    def cost(x: Floats) -> float:
        scatter = Scatter(**{f.name: float(value) for f, value in zip(fields(Scatter), np.exp(x), strict=True)})
        total = 0.5 * float((((x - start) / START_LOG_SD) ** 2).sum())
        for candidates, ratio, weight in groups:
            total -= weight * min(1.0, ROWS_PER_SWEEP / len(ratio)) * log_likelihood(candidates, ratio, scatter)
        return total

    found = minimize(cost, start, method="Nelder-Mead", options={"maxiter": 300, "xatol": 0.01, "fatol": 0.01})
    return Scatter(**{f.name: float(value) for f, value in zip(fields(Scatter), np.exp(found.x), strict=True)})


def _timed(sweep: Sweep) -> tuple[Candidates, Floats]:
    rows = np.array([row for row, step in enumerate(sweep.step_seconds) if step is not None])
    found = sweep.candidates
    kept = Candidates(
        plans=tuple(found.plans[row] for row in rows),
        params=tuple(found.params[row] for row in rows),
        device_bytes=found.device_bytes,
        **{
            name: getattr(found, name)[rows]
            for name in ("predicted_s", "shares", "sizes", "kinds", "peak_bytes", "limit_bytes")
        },
    )
    measured = np.array([sweep.step_seconds[row] for row in rows], dtype=np.float64)
    return kept, np.log(measured / kept.predicted_s)


def write_scatter(sweeps: Sequence[Sweep], target: Path) -> None:
    """Fit on all sweeps and write the file that ships."""
    body = scatter_json(fit_scatter(sweeps), sorted({sweep.source for sweep in sweeps}), len(sweeps))
    target.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
