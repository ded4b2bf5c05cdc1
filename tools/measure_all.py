"""Measures every candidate of a study and says where the study's winner stands: `python -m tools.measure_all NAME --folder
DIR`.

Jobs that the study ran are not run again. The noise is measured too: the winner's and the best one's jobs run `--repeats`
times more, with other seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from autoconfig.study.jobs import full_job
from autoconfig.study.report import study_found
from autoconfig.study.session import Options, Session, lock_folder, make_runner, open_session
from profiler.folder import prepare
from profiler.outcome import Kind, outcome_of
from profiler.runner import Life, Runner
from specs.job import Job

LIMIT_S = 600.0


def measure(runner: Runner, folder: Path, job: Job) -> float | None:
    """Step seconds; None where it was not measured."""
    place = prepare(folder / "jobs", job)
    if outcome_of(place) is None:
        runner.submit(place, LIMIT_S)
        while runner.poll(place) in (Life.RUNNING, Life.WAITING):
            time.sleep(0.2)
    outcome = outcome_of(place)
    if outcome is None or outcome.kind is not Kind.MEASURED or outcome.measurement is None:
        return None
    return outcome.measurement.step_seconds


def measure_all(session: Session, runner: Runner) -> dict[str, float]:
    """Plan -> step seconds of every candidate that runs."""
    found = {}
    for number, plan in enumerate(session.candidates.plans, 1):
        seconds = measure(runner, session.options.folder, full_job(session.setting, plan, session.settings))
        print(f"{number} of {len(session.candidates)}: {plan}: {seconds}", file=sys.stderr, flush=True)
        if seconds is not None:
            found[str(plan)] = seconds
    return found


def main() -> None:
    """The table, the study's winner and the noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=4)
    given = parser.parse_args()
    with lock_folder(given.folder):
        session = open_session(given.name, None, Options(folder=given.folder, python=sys.executable), resume=True)
        runner = make_runner(session)
        measured = measure_all(session, runner)
        best = study_found(session).best
        assert best is not None and measured
        order = sorted(measured, key=lambda plan: measured[plan])
        repeated: dict[str, list[float]] = {}
        for plan in session.candidates.plans:
            if str(plan) in (best.plan, order[0]):
                job = full_job(session.setting, plan, session.settings)
                again = [measure(runner, given.folder, job.replace(seed=job.seed + n)) for n in range(given.repeats + 1)]
                repeated[str(plan)] = [seconds for seconds in again if seconds is not None]
    for rank, text in enumerate(order, 1):
        print(f"{rank:3d}  {measured[text]:.4f} s  {text}{'   <- the study' if text == best.plan else ''}")
    print(
        f"the study measured {len([t for t in session.study.trials if t.value is not None])} of {len(measured)} plans that run"
    )
    for text, values in repeated.items():
        spread = (max(values) - min(values)) / statistics.median(values)
        print(f"noise: {text} run {len(values)} times: median {statistics.median(values):.4f} s, spread {spread:.1%}")


if __name__ == "__main__":
    main()
