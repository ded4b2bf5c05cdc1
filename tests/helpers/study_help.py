"""Helpers of tests that run whole searches: the real command line with a training core that answers from a record."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import optuna
import pytest
from background import started
from command_line import run_in_process
from job_help import STAND_IN
from optuna.trial import TrialState

from autoconfig.study.storage import opened, sqlite_url
from autoconfig.study.training.candidates import candidates_of
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import rank

ROOT = Path(__file__).parents[2]
QUESTION = {
    "model": "gpt3-1.7b", "gpus": 8, "gpu": "a100-80gb", "seq_length": 1024, "global_batch_size": 8,
    "software": "megatron-local", "architecture": {"num_layers": 4}, "fix": ("recompute=none",), "max": ("pp=2",),
}  # fmt: skip
ARGUMENTS = (
    "--model", "gpt3-1.7b", "--gpus", "8", "--gpu", "a100-80gb", "--seq-length", "1024", "--global-batch-size", "8",
    "--software", "megatron-local", "--num-layers", "4", "--fix", "recompute=none", "--max", "pp=2",
)  # fmt: skip
"""A question with a few dozen candidates."""


@cache
def candidates():
    return candidates_of(rank(understand(Request(**QUESTION)).scenario, understand(Request(**QUESTION)).constraints))


def write_oracle(folder: Path) -> dict[str, float | str]:
    """What the stand-in measures: the prediction with an error by tp and a little of its own; the third plan does not fit."""
    found = candidates()
    oracle: dict[str, float | str] = {}
    for row, plan in enumerate(found.plans):
        own = 1 + 0.02 * ((row * 7919) % 11 - 5) / 5
        oracle[str(plan)] = float(found.predicted_s[row]) * (1.3 if plan.tp == 1 else 0.9) * own
    oracle[str(found.plans[2])] = "oom"
    (folder / "oracle.json").write_text(json.dumps(oracle))
    return oracle


def fake_python(folder: Path) -> Path:
    """An interpreter that has torch as far as anyone can tell, and runs the stand-in for everything else."""
    script = folder / "python-with-torch"
    script.write_text(f'#!/bin/bash\ncase "$*" in "-c "*) exit 0;; esac\nexec {sys.executable} -S {STAND_IN}\n')
    script.chmod(0o755)
    return script


def environment(place: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "STAND_IN_ORACLE": str(place / "oracle.json"), **more}


def search_command(place: Path, *arguments: str, folder: str = "work") -> list[str]:
    return [
        sys.executable, "-m", "autoconfig", "search", *arguments, "--folder", str(place / folder),
        "--python", str(place / "python-with-torch"),
    ]  # fmt: skip


def run(place: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command to its end, in this process; its jobs are processes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(place, **more).items():
            patch.setenv(name, value)
        done = run_in_process(*arguments)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def search(place: Path, *arguments: str, folder: str = "work", **more: str) -> subprocess.CompletedProcess[str]:
    """`run` of a search."""
    return run(place, *search_command(place, *arguments, folder=folder)[3:], **more)


def start(place: Path, *arguments: str, folder: str = "work", **more: str) -> subprocess.Popen[str]:
    """In the background."""
    command = search_command(place, *arguments, folder=folder)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(place, **more), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    return started(process, place)


def trials_of(place: Path, name: str, folder: str = "work", url: str | None = None) -> list[optuna.trial.FrozenTrial]:
    with opened(url or sqlite_url(place / folder)) as storage:
        try:
            return storage.get_all_trials(storage.get_study_id_from_name(name))
        except KeyError:
            return []


def told(trials) -> list[tuple[object, ...]]:
    """What must be the same however often the search was killed."""
    kept = [t for t in trials if t.user_attrs.get("outcome") != "duplicate" and t.state != TrialState.RUNNING]
    return [(t.number, t.state, t.user_attrs.get("plan"), t.user_attrs.get("measured_step_seconds")) for t in kept]


def runs(place: Path, folder: str = "work") -> dict[str, int]:
    """Job folder -> how often its job was started."""
    jobs = place / folder / "jobs"
    return {path.parent.name: len(path.read_text().split()) for path in jobs.glob("*/runs.txt")}


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
