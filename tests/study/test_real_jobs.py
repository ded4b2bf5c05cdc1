"""Studies whose jobs are real megatron-core jobs on gloo: emulated ranks first, kill -9 of the search.
Needs torch and megatron-core (`make test` installs them). A study of one real job is in
tests/api/test_profile.py, one of serving jobs in test_serving_profile.py: those here are for `make soak`.
"""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from autoconfig.specs.measurement import ExitCode, read_measurement
from background import left_over, started
from job_help import wait_until
from optuna.trial import TrialState
from study_help import ROOT, kill, run, runs, told, trials_of

from autoconfig.study import this_machine

pytestmark = [
    pytest.mark.torch,
    pytest.mark.xdist_group("real jobs"),
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core: make test installs it"),
]
QUESTION = (
    "--seq-length", "64", "--global-batch-size", "4", "--fix", "mbs=2", "--fix", "sp=0", "--fix", "recompute=none",
    "--fix", "recompute=full:uniform:1", "--steps", "3", "--device-memory", "1GiB",
)  # fmt: skip
"""Six plans: two GPUs as data, tensor or pipeline parallelism, with and without recomputation."""


MODEL, STUDY = ROOT / "docs" / "examples" / "tiny_model.json", "cpu"


def search_command(model: Path, budget: str, folder: Path, question: Sequence[str]) -> list[str]:
    asked = ["--model", str(model), "--gpus", "2", "--device", "cpu", "--profile", "--budget", budget, "--study", STUDY]
    return [sys.executable, "-m", "autoconfig", "search", *asked, "--folder", str(folder), *question]


def counting_python(folder: Path) -> Path:
    """This interpreter; a job that it starts leaves a line in its folder."""
    script = folder / "python"
    script.write_text(f'#!/bin/bash\ncase "$*" in *"-m autoconfig.trainer"*) echo $$ >> runs.txt;; esac\n'
        f'exec {sys.executable} "$@"\n')  # fmt: skip
    script.chmod(0o755)
    return script


def command(place: Path, *arguments: str) -> list[str]:
    return [*arguments, "--folder", str(place / "work"), "--python", str(place / "python"), "--quiet"]


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command(place, *arguments), cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return started(process, place)


def finish(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err


def first(place: Path, budget: str) -> list[str]:
    return [*search_command(MODEL, budget, place / "work", QUESTION)]


def again(budget: str) -> list[str]:
    return [sys.executable, "-m", "autoconfig", "search", "--resume", STUDY, "--budget", budget]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which a study was begun over emulated ranks, killed with full jobs, and went on to its end."""
    folder = tmp_path_factory.mktemp("real")
    counting_python(folder)
    finish(start(folder, *first(folder, "1trial"), "--gpus-here", "1"))
    before, kept = len(runs(folder)), told(trials_of(folder, STUDY, "work"))
    search = start(folder, *again("9trials"))
    wait_until(lambda: len(runs(folder)) > before, "no job has started")
    time.sleep(random.Random(7).uniform(0.0, 4.0))
    kill(search)
    now = told(trials_of(folder, STUDY, "work"))
    assert now[: len(kept)] == kept, "a finished trial is lost or changed"
    kept = now
    finish(start(folder, *again("3trials")))
    assert told(trials_of(folder, STUDY, "work"))[: len(kept)] == kept
    return folder


@pytest.mark.soak
def test_no_job_ran_twice_and_no_process_is_left(place):
    found = trials_of(place, STUDY, "work")
    assert all(trial.state.is_finished() for trial in found)
    assert set(runs(place).values()) == {1}
    assert left_over(place) == []
    full = [trial for trial in found if trial.user_attrs["outcome"] == "measured"]
    assert len(full) >= 3 and len({trial.user_attrs["job"] for trial in full}) == len(full)


@pytest.mark.soak
def test_emulated_ranks_come_before_full_jobs(place):
    """One process for each rank; the step composed of them is a hint once full jobs can run."""
    emulated, *others = trials_of(place, STUDY, "work")
    assert emulated.user_attrs["outcome"] == "emulated" and {t.user_attrs["outcome"] for t in others} == {"measured"}
    folder = place / "work" / "jobs" / emulated.user_attrs["job"]
    job, result = json.loads((folder / "job.json").read_text()), read_measurement(folder / "result.json")
    assert job["mode"] == result.mode == "emulate" and result.ranks[0].layer_seconds["dense.forward"] > 0
    assert emulated.user_attrs["measured_step_seconds"] > 0


@pytest.mark.soak
def test_killed_ten_times_with_real_jobs(tmp_path):
    """kill -9 at random points, the first while the CPU's operators are measured: no finished trial lost, no job run twice,
    and no process left, of the benchmark neither."""
    counting_python(tmp_path)
    generator, kept = random.Random(int(os.environ.get("AUTOCONFIG_SOAK_SEED", "20261121"))), []
    search = start(tmp_path, *first(tmp_path, "60trials"))
    time.sleep(generator.uniform(3.0, 8.0))
    kill(search)
    wait_until(lambda: left_over(tmp_path) == [], "processes of the benchmark outlive the search")
    for number in range(10):
        search = start(tmp_path, *(again("60trials") if number else first(tmp_path, "60trials")))
        if not number:
            wait_until(lambda: runs(tmp_path), "no job has started")
        time.sleep(generator.uniform(1.0, 35.0))
        settled = search.poll() is not None
        kill(search)
        now = told(trials_of(tmp_path, STUDY, "work"))
        print(f"kill {number + 1}: {len(now)} trials finished, {len(runs(tmp_path))} jobs started, settled {settled}")
        assert now[: len(kept)] == kept
        kept = now
    finish(start(tmp_path, *again("1trials")))
    found = trials_of(tmp_path, STUDY, "work")
    assert told(found)[: len(kept)] == kept and all(trial.state.is_finished() for trial in found)
    assert set(runs(tmp_path).values()) == {1}
    wait_until(lambda: left_over(tmp_path) == [], "processes of jobs are left")


@pytest.mark.soak
def test_a_plan_that_meets_its_memory_limit_is_pruned(place, tmp_path, monkeypatch):
    """Predicted to need 84 MiB of each rank, and in truth 106: --device-memory 95MiB lets the plan through and ends its job,
    not the study; another plan that recomputes runs, and is the winner."""
    counting_python(tmp_path)
    [table] = (place / "work").glob("*-cpu.json")
    monkeypatch.setattr(this_machine, "_benchmark", lambda path, python: shutil.copy(table, path))  # it was measured once
    limit = 95 * 2**20
    asked = ("--fix", "tp=2", "--fix", "mbs=8", "--fix", "sp=0", "--fix", "recompute=none", "--fix", "recompute=full:uniform:1")
    question = search_command(MODEL, "4trials", tmp_path / "work", (*asked, "--steps", "1", "--device-memory", "95MiB"))
    done = run(tmp_path, *command(tmp_path, *question[3:]))
    out = done.stdout
    assert done.returncode == 0, done.stderr
    found = {trial.user_attrs["plan"].partition("recompute=")[2]: trial for trial in trials_of(tmp_path, STUDY, "work")}
    pruned = found["none"]
    assert pruned.state == TrialState.PRUNED and pruned.user_attrs["outcome"] == "out_of_memory"
    result = read_measurement(tmp_path / "work" / "jobs" / pruned.user_attrs["job"] / "result.json")
    assert result.status == "oom" and result.exit_code == ExitCode.OUT_OF_MEMORY and "out of memory" in result.message
    assert limit - 16 * 2**20 < max(rank.peak_allocated_bytes for rank in result.ranks) <= limit
    assert found["full:uniform:1"].state == TrialState.COMPLETE
    assert [line for line in out.splitlines() if "recompute=none" in line and line.rstrip().endswith("out of memory")], out
    assert "Winner: tp=2,pp=1,dp=1,mbs=8,sp=0,recompute=full:uniform:1" in out and left_over(tmp_path) == []
