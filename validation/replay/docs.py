"""The scatter of the study's prior, fitted on recorded sweeps (maximum likelihood, every paper weighing the same), and the
replay table of docs/profiling.md: `make profiling-docs`. Optuna's GPSampler is replayed where torch is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import optuna
from autoconfig.specs.files import replace_section
from scipy.optimize import minimize

from autoconfig.planning.progress import Progress
from autoconfig.study.training.candidates import Candidates
from autoconfig.study.training.proposal import CONFIDENCE, TOLERANCE
from autoconfig.study.training.surrogate import Scatter, log_likelihood, scatter_json
from autoconfig.study.trials import Floats
from validation.replay.replay import (
    REPEATS,
    SAMPLER_REPEATS,
    Replay,
    Strategy,
    Sweep,
    at_random,
    by_prior,
    by_sampler,
    paper,
    quiet_optuna,
    replay,
    replay_study,
    sweeps,
)
from validation.sources import source_of

ROOT = Path(__file__).parents[2]
MIN_ROWS = 6
SWEEPS_PER_PAPER = 8.0
"""What one paper weighs at most: its sweeps repeat the same few models."""
ROWS_PER_SWEEP = 20.0
START = Scatter(step=0.3, part=0.25, shape=0.1, plan=0.03, doublings=2.0, differences=1.0)
START_LOG_SD = 1.0
"""Width of the prior around START, on the logarithm of each."""
COLUMNS = ("predicted_s", "shares", "sizes", "kinds", "peak_bytes", "limit_bytes")
"""Arrays of candidates with a row for each."""


def fit_scatter(sweeps: Sequence[Sweep]) -> Scatter:
    """The most likely scatter of these sweeps' errors."""
    papers = Counter(paper(sweep) for sweep in sweeps)
    groups = [(*_timed(sweep), min(1.0, SWEEPS_PER_PAPER / papers[paper(sweep)])) for sweep in sweeps]
    start = np.log(astuple(START))

    def cost(x: Floats) -> float:
        scatter, total = _scatter(x), 0.5 * float((((x - start) / START_LOG_SD) ** 2).sum())
        for candidates, ratio, weight in groups:
            total -= weight * min(1.0, ROWS_PER_SWEEP / len(ratio)) * log_likelihood(candidates, ratio, scatter)
        return total

    solution = minimize(cost, start, method="Nelder-Mead", options={"maxiter": 300, "xatol": 0.01, "fatol": 0.01})
    return _scatter(solution.x)


def _scatter(logs: Floats) -> Scatter:
    return Scatter(**dict(zip(asdict(START), map(float, np.exp(logs)), strict=True)))


def _timed(sweep: Sweep) -> tuple[Candidates, Floats]:
    """The candidates that were timed, and ln(measured / predicted) of each."""
    rows = np.array([row for row, step in enumerate(sweep.step_seconds) if step is not None])
    every = sweep.candidates
    columns = {name: getattr(every, name)[rows] for name in COLUMNS}
    plans, params = (tuple(some[row] for row in rows) for some in (every.plans, every.params))
    timed = Candidates(plans=plans, params=params, device_bytes=every.device_bytes, **columns)
    measured = np.array([sweep.step_seconds[row] for row in rows], dtype=np.float64)
    return timed, np.log(measured / timed.predicted_s)


MIN_TIMED = 20
BEGIN, END = "<!-- replay: begin, written by `make profiling-docs` -->", "<!-- replay: end -->"
STUDY = "the study"
GP_REPEATS, GP_MAX_ASKED = 1, 60


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One strategy on the sweeps of one source: a replay for each sweep and seed."""

    strategy: str
    source: str
    sweeps: int
    replays: Sequence[Replay]


def strategies() -> dict[str, tuple[Strategy, int]]:
    """Name -> (strategy, repeats). Optuna's GPSampler where torch is installed."""

    tpe, gaussian = (lambda seed, name=name: getattr(optuna.samplers, name)(seed=seed) for name in ("TPESampler", "GPSampler"))
    every = {
        "time model's order": (by_prior, 1),
        "random": (at_random, REPEATS),
        "Optuna TPE (default)": (by_sampler(tpe), SAMPLER_REPEATS),
        "Optuna TPE after the time model's first 3": (by_sampler(tpe, warm_start=3), SAMPLER_REPEATS),
    }
    if importlib.util.find_spec("torch") is not None:
        every["Optuna GP"] = (by_sampler(gaussian, most_asked=GP_MAX_ASKED), GP_REPEATS)
    return every


def lines(recorded: Sequence[Sweep], progress: Progress) -> list[Outcome]:
    """Every strategy on every source."""
    quiet_optuna()
    large = [sweep for sweep in recorded if sweep.timed >= MIN_TIMED]
    papers = sorted({paper(sweep) for sweep in recorded})
    unseen = {name: fit_scatter([sweep for sweep in recorded if paper(sweep) != name]) for name in papers}  # without it
    progress(STUDY)
    own = [replay_study(sweep, unseen[paper(sweep)]) for sweep in large]
    rows = _by_source(STUDY, large, [[one] for one in own])
    for name, (strategy, repeats) in strategies().items():
        progress(name)
        runs = [[replay(sweep, strategy, seed) for seed in range(repeats)] for sweep in large]
        rows += _by_source(name, large, runs)
    return rows


def _by_source(strategy: str, large: Sequence[Sweep], runs: Sequence[Sequence[Replay]]) -> list[Outcome]:
    names = sorted({sweep.source for sweep in large})
    groups = {name: [n for n, sweep in enumerate(large) if sweep.source == name] for name in names}
    barred = [n for name in names if source_of(name).regret is not None for n in groups[name]]
    groups["Aleph Alpha and vTrain together"] = barred
    return [
        Outcome(strategy=strategy, source=name, sweeps=len(own), replays=[one for n in own for one in runs[n]])
        for name, own in groups.items()
    ]


def table(outcomes: Sequence[Outcome]) -> str:
    """Trials until a plan within TOLERANCE of the measured best was measured, and those until the study stopped by itself, as
    Markdown."""
    trials = stops = ""
    for one in sorted(outcomes, key=lambda one: one.source):
        head, counts = f"| {one.source} | {one.sweeps} |", [run.found_after for run in one.replays]
        trials += f"{head} {one.strategy} | {np.median(counts):g} | {np.quantile(counts, 0.9):.3g} | {max(counts)} |\n"
        settled = [(run.settled_after, run.regret_at_stop) for run in one.replays if run.settled_after is not None]
        if settled:
            after, right = [count for count, _ in settled], sum(regret <= TOLERANCE for _, regret in settled)
            stops += f"{head} {np.median(after):g} | {np.quantile(after, 0.9):.3g} | {right} of {one.sweeps} |\n"
    return (
        f"Trials until a plan within {TOLERANCE:.0%} of the measured best was measured:\n\n"
        f"| source | sweeps | strategy | median | 90th percentile | worst |\n|---|---|---|---|---|---|\n{trials}\n"
        f"When the study stops by itself (no unmeasured plan wins with more than {1 - CONFIDENCE:.0%}), and whether the best "
        f"was found by then:\n\n| source | sweeps | trials, median | 90th percentile | right |\n|---|---|---|---|---|\n{stops}"
    )


def main() -> None:
    """Fit the scatter, replay every strategy with a line for each, write both."""
    recorded = sweeps(MIN_ROWS)
    body = scatter_json(fit_scatter(recorded), sorted({sweep.source for sweep in recorded}), len(recorded))
    target = ROOT / "autoconfig" / "data" / "study_scatter.json"
    target.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    replace_section(ROOT / "docs" / "profiling.md", BEGIN, END, table(lines(recorded, partial(print, file=sys.stderr))))


if __name__ == "__main__":
    main()
