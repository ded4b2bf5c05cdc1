"""Helpers of tests that run jobs: jobs whose seed says how they behave, waiting without asserting about time."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from autoconfig.profiler.folder import JobFolder
from autoconfig.profiler.runner import Life, Runner
from autoconfig.specs.job import Job
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Workload

STAND_IN = Path(__file__).with_name("stand_in.py")
DEADLINE_S = 300.0
"""Until a test gives up waiting; nothing is asserted about time."""


def stand_in_command(folder: JobFolder, job: Job) -> list[str]:
    return [sys.executable, "-S", str(STAND_IN)]


def make_job(behaviour: int = 0, number: int = 0, **changes: object) -> Job:
    """A small job; `number` makes it another one of the same behaviour."""
    values = {
        "model": load_model("gpt3-126m").replace(num_layers=2), "plan": TrainPlan(tp=1, pp=1, dp=1, mbs=1),
        "workload": Workload(seq_length=16, global_batch_size=1), "device": "cpu", "seed": 1000 * number + behaviour,
    }  # fmt: skip
    return Job(**{**values, **changes})


def wait_for(runner: Runner, folder: JobFolder, *lives: Life) -> Life:
    deadline = time.monotonic() + DEADLINE_S
    while (life := runner.poll(folder)) not in (lives or (Life.ENDED, Life.LOST)):
        assert time.monotonic() < deadline, f"{folder.path} is still {life}"
        time.sleep(0.05)
    return life


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def runs_of(folder: JobFolder) -> int:
    """How often the job was started."""
    runs = folder.path / "runs.txt"
    return len(runs.read_text().split()) if runs.exists() else 0
