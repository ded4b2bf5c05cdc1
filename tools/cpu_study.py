"""A study of real jobs on this CPU beside measuring every candidate, and both in docs: `python -m tools.cpu_study`.

First the study (`autoconfig search --profile`), then every candidate once, then the contenders again in turn, so that the
noise between jobs of one plan is measured where it matters. Jobs are folders: stopped at any moment, the same command goes on,
and what the study ran is not run again. Options after `--` go to `autoconfig search`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import scipy.stats
from autoconfig.profiler.folder import prepare
from autoconfig.profiler.outcome import FINAL, Kind, outcome_of
from autoconfig.profiler.runner import Life, Runner
from autoconfig.specs.files import replace_section
from autoconfig.specs.job import Job

from autoconfig.study.session import Options, Session, lock_folder
from autoconfig.study.training.session import TRAINING, TrainingFound, study_found
from autoconfig.study.training.work import TrainingWork, full_job

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "docs" / "examples" / "tiny_model.json"
QUESTION = ("--fix", "recompute=none", "--fix", "recompute=full:uniform:1")
"""Keeps the candidates to a number that can all be measured: thirty of the tiny model."""
STUDY = "cpu"
LIMIT_S = 600.0
CONTENDERS, ROUNDS = 3, 4
"""Fastest plans of the exhaustive measurement that are measured again, and how often; the study's winner too."""
SHOWN = 8
BEGIN, END = "<!-- cpu study: begin, written by `python -m tools.cpu_study` -->", "<!-- cpu study: end -->"


class OutOfTimeError(Exception):
    """--minutes are over."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The study's winner beside the best of all. Steps in seconds."""

    once: Mapping[str, float]
    again: Mapping[str, Sequence[float]]
    winner: str
    best: str
    """Contender with the least mean over the further jobs: the first measurement chose it, so that it does not count."""
    noise: float
    """Standard deviation of log step seconds between jobs of one plan."""
    behind: float
    """Logarithm of the winner's step over the best one's."""
    band: float
    """95 % of `behind` where both are as fast: Student's t times the standard error of the difference of two means."""

    @property
    def within_noise(self) -> bool:
        return self.behind <= self.band


def compare(once: Mapping[str, float], again: Mapping[str, Sequence[float]], winner: str) -> Comparison:
    """From measurements of all plans and of the contenders, the winner among them."""
    means = {plan: statistics.fmean(map(math.log, values)) for plan, values in again.items()}
    best = min(means, key=lambda plan: means[plan])
    squares = [(math.log(value) - means[plan]) ** 2 for plan, values in again.items() for value in values]
    free = len(squares) - len(again)
    noise = math.sqrt(sum(squares) / free)
    error = noise * math.sqrt(1 / len(again[winner]) + 1 / len(again[best]))
    return Comparison(
        once=dict(once),
        again=dict(again),
        winner=winner,
        best=best,
        noise=noise,
        behind=means[winner] - means[best],
        band=float(scipy.stats.t.ppf(0.975, free)) * error,
    )


class Bench:
    """Measures jobs one after the other until the deadline."""

    def __init__(self, session: Session[TrainingWork], runner: Runner, deadline: float) -> None:
        self.session, self.work, self._runner, self._deadline = session, session.work, runner, deadline

    def once(self) -> dict[str, float]:
        found = {}
        for number, plan in enumerate(self.work.candidates.plans, 1):
            seconds = self._measure(full_job(self.work.scenario, plan, self.work.settings))
            say(f"{number} of {len(self.work.candidates)}: {plan}: {seconds}")
            if seconds is not None:
                found[str(plan)] = seconds
        return found

    def again(self, contenders: Sequence[str], rounds: int) -> dict[str, list[float]]:
        """Contender -> step seconds of its further jobs, in turn: what the machine does meanwhile meets all of them."""
        found: dict[str, list[float]] = {plan: [] for plan in contenders}
        plans = {str(plan): plan for plan in self.work.candidates.plans}
        for number in range(rounds):
            for text in contenders:
                job = full_job(self.work.scenario, plans[text], self.work.settings)
                seconds = self._measure(job.replace(seed=job.seed + 1000 + number))  # the study's repeats use the seeds after
                say(f"round {number + 1} of {rounds}: {text}: {seconds}")
                if seconds is not None:
                    found[text].append(seconds)
        return found

    def _measure(self, job: Job) -> float | None:
        place = prepare(self.session.options.folder / "jobs", job)
        known = outcome_of(place)
        if known is None or known.kind not in FINAL:
            if time.monotonic() > self._deadline:
                raise OutOfTimeError
            self._runner.submit(place, LIMIT_S)
            while self._runner.poll(place) in (Life.RUNNING, Life.WAITING):
                time.sleep(0.1)
        outcome = outcome_of(place)
        if outcome is None or outcome.kind is not Kind.MEASURED or outcome.measurement is None:
            return None
        return outcome.measurement.step_seconds


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def search_command(model: Path, budget: str, folder: Path, question: Sequence[str]) -> list[str]:
    """The literal study."""
    asked = ["--model", str(model), "--gpus", "2", "--device", "cpu", "--profile", "--budget", budget, "--study", STUDY]
    return [sys.executable, "-m", "autoconfig", "search", *asked, "--folder", str(folder), *question]


def compared(
    folder: Path, deadline: float, contenders: int = CONTENDERS, rounds: int = ROUNDS
) -> tuple[Session[TrainingWork], TrainingFound, Comparison]:
    """The exhaustive measurement beside the finished study of the folder."""
    with lock_folder(folder):
        session = TRAINING.open(STUDY, None, Options(folder=folder, python=sys.executable), resume=True)
        bench = Bench(session, session.runner(), deadline)
        found = study_found(session)
        if found.best is None:
            raise SystemExit(
                f"the study measured nothing: delete it (autoconfig studies delete {STUDY}), and give it a larger --budget"
            )
        once = bench.once()
        order = sorted(once, key=lambda plan: once[plan])
        chosen = list(dict.fromkeys([*order[:contenders], found.best.plan]))
        return session, found, compare(once, bench.again(chosen, rounds), found.best.plan)


def lines_of(session: Session[TrainingWork], found: TrainingFound, result: Comparison) -> list[str]:
    """The comparison as Markdown."""
    order = sorted(result.once, key=lambda plan: result.once[plan])
    trials = [line for line in found.lines if line.measured_s is not None]
    times = {plan: statistics.geometric_mean(values) for plan, values in result.again.items()}
    roles = (("best of all", result.best), ("the study's winner", result.winner))
    verdict = "within the noise" if result.within_noise else "NOT within the noise"
    return [
        f"{len(trials)} jobs of the study (the fastest {min(SHOWN, len(trials))} below), "
        f"all {len(session.work.candidates)} candidates once ({len(result.once)} ran), then "
        f"{len(result.again)} contenders {min(map(len, result.again.values()))} times each in turn; {os.cpu_count()} cores, "
        f"load {os.getloadavg()[2]:.0f} at the end:",
        "",
        "| trial | plan | predicted | measured | rank among all measured once |",
        "|---|---|---|---|---|",
        *(
            f"| {one.trial} | `{one.plan}` | {one.predicted_s:.3f} s | {one.measured_s:.3f} s | {order.index(one.plan) + 1} |"
            for one in trials[:SHOWN]
        ),
        "",
        "| contender | geometric mean of its further jobs | |",
        "|---|---|---|",
        *(
            f"| `{plan}` | {times[plan]:.3f} s | {', '.join(said for said, who in roles if who == plan)} |"
            for plan in sorted(times, key=lambda plan: times[plan])
        ),
        "",
        f"Noise: jobs of one plan scatter by {result.noise:.1%} (standard deviation). The study's winner is "
        f"{math.expm1(result.behind):.1%} behind the best of all; up to {math.expm1(result.band):.1%} is noise: {verdict}.",
    ]


def main() -> int:
    """The study, the exhaustive measurement, the page. Exit code 1: --minutes are over, run the same command again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("cpu-study"), help="studies and jobs (cpu-study)")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--budget", default="3m", help="of the study (3m)")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop measuring after so long (60)")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "profiling.md")
    parser.add_argument("question", nargs="*", default=[], help=f"after --: options of the search ({' '.join(QUESTION)})")
    given = parser.parse_args()
    deadline = time.monotonic() + 60 * given.minutes
    if not (given.folder / "study-done").exists():
        command = search_command(given.model, given.budget, given.folder, given.question or QUESTION)
        code = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode
        if code:
            return code
        (given.folder / "study-done").touch()
    try:
        session, found, result = compared(given.folder, deadline)
    except OutOfTimeError:
        say(f"{given.minutes:g} minutes are over: run the same command again to go on")
        return 1
    lines = lines_of(session, found, result)
    print("\n".join(lines))
    replace_section(given.page, BEGIN, END, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
