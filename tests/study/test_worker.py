"""One search's worker in this process; what a person sees of a study."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from autoconfig.profiler.folder import JobFolder, write_json, write_text
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.outcome import EXITED
from autoconfig.profiler.runner import Life
from autoconfig.specs.errors import InputError
from autoconfig.specs.measurement import Measurement, measurement_text, step_statistics
from background import left_over, started
from job_help import DEADLINE_S, stand_in_command, wait_until
from optuna.trial import TrialState
from rich.console import Console
from study_help import (
    ARGUMENTS,
    QUESTION,
    ROOT,
    environment,
    fake_python,
    runs,
    search_command,
    trials_of,
    write_oracle,
)

from autoconfig.render.study import TrainingWords
from autoconfig.study.session import Options, Session, forget
from autoconfig.study.settings import Budget
from autoconfig.study.training.session import TRAINING, Line, TrainingFound
from autoconfig.study.training.settings import StudySettings
from autoconfig.study.training.work import SHORT, SHORT_STEPS
from autoconfig.study.work import FULL
from autoconfig.study.worker import Listener
from autoconfig.training.question import Request

pytestmark = pytest.mark.service


class Stop(Exception):
    """The search is killed here."""


class Killed(Listener):
    """Ends the search at its first look at a running job, which goes on."""

    def tick(self, worker):
        raise Stop


@contextlib.contextmanager
def session(place, **changes) -> Iterator[Session]:
    settings = StudySettings(request=Request(**QUESTION), **changes)
    options = Options(folder=place / "work", python="unused")
    options.folder.mkdir(exist_ok=True)
    with contextlib.closing(TRAINING.open("s", settings, options, resume=False)) as found:
        yield found


class Machine:
    """Measures a job at once, as so many times its own prediction; its clock goes on by 10 s with every job. `slow`: the factor
    of all plans but the first that is measured. `hanging`: those print their first steps, and run until they are ended."""

    def __init__(self, study: Session, slow: float = 1.0, hanging: bool = False) -> None:
        work = study.work
        stages = [stage for row in range(len(work.candidates)) for stage in work.stages(row, 0, None)]
        self.predicted = {stage.job.content_hash: stage.predicted_s for stage in stages}
        self.slow, self.hanging = slow, hanging
        self.now, self.first = 1000.0, ""
        self.started: list[tuple[str, int]] = []
        """(plan, timed steps) of every job."""
        self.runs: set[JobFolder] = set()
        self.ended: list[JobFolder] = []

    def clock(self) -> float:
        return self.now

    def step_seconds(self, job) -> float:
        self.first = self.first or str(job.plan)
        return self.predicted[job.content_hash] * (1.0 if str(job.plan) == self.first else self.slow)

    def measured(self, job) -> Measurement:
        self.now += 10.0
        self.started.append((str(job.plan), job.steps))
        times = step_statistics((self.step_seconds(job),) * 3)
        return Measurement(job_hash=job.content_hash, plan=str(job.plan), status="ran", exit_code=0, **times)

    def submit_together(self, jobs):
        for folder, limit_s in jobs:
            self.submit(folder, limit_s)

    def submit(self, folder, limit_s):
        job = folder.job()
        step = self.step_seconds(job)
        if not self.hanging or str(job.plan) == self.first:
            if not folder.result_file.exists():
                write_text(folder.result_file, measurement_text(self.measured(job)))
                write_json(folder.end_file, {"reason": EXITED, "exit_code": 0, "seconds": 10.0})
            return
        self.runs.add(folder)
        folder.log_file.write_text("".join(f"step {n}/{job.steps} (timed): {step} s, loss 1\n" for n in (1, 2, 3)))

    def poll(self, folder):
        return Life.RUNNING if folder in self.runs else Life.ENDED if folder.result_file.exists() else Life.LOST

    def cancel(self, folder):
        self.runs.discard(folder)
        self.ended.append(folder)


def outcomes(place) -> list[object]:
    return [t.user_attrs.get("outcome") for t in trials_of(place, "s")]


def test_a_job_outlives_a_killed_search_and_its_time_budget(tmp_path):
    """What it measures counts in the next search; a search that lives cancels it at the budget's end."""
    write_oracle(tmp_path)
    budget = Budget(seconds=2)
    with session(tmp_path) as first:
        runner = LocalRunner(stand_in_command, {"STAND_IN_EVERY_SECONDS": "4"})
        with pytest.raises(Stop):
            first.worker(runner, Killed(), budget).run()
    with session(tmp_path) as second:
        assert second.worker(runner, Listener(), Budget(trials=1)).run()
    assert outcomes(tmp_path) == ["measured"] and set(runs(tmp_path).values()) == {1}
    with session(tmp_path) as third:
        assert third.worker(runner, Listener(), budget).run() == "the budget is spent"
    assert outcomes(tmp_path) == ["measured", "cancelled"]
    wait_until(lambda: left_over(tmp_path) == [], "processes are left")


def test_a_study_that_is_deleted_under_its_search(tmp_path):
    """Refused while trials run; forced, the search says so."""
    write_oracle(tmp_path)
    with session(tmp_path) as first:

        class Deletes(Listener):
            def tick(self, worker):
                if trials_of(tmp_path, "s") == []:
                    return
                with pytest.raises(InputError, match=r"study s has 1 running trial .*--force"):
                    forget(first.storage, "s", tmp_path / "elsewhere", shared=True)
                forget(first.storage, "s", tmp_path / "elsewhere", shared=True, force=True)

        worker = first.worker(LocalRunner(stand_in_command, {"STAND_IN_EVERY_SECONDS": "2"}), Deletes(), Budget(trials=1))
        with pytest.raises(InputError, match="study s is gone: it was deleted under this search"):
            worker.run()
        assert left_over(tmp_path) == []


@pytest.mark.parametrize("trials", [1, 3])
def test_a_budget_of_trials_holds_with_several_jobs_at_once(tmp_path, trials):
    """Two that end together are not followed by two where one is left."""
    with session(tmp_path) as study:
        worker = study.worker(Machine(study), Listener(), Budget(trials=trials))
        worker.slots = 2
        assert worker.run() == "the budget of trials is spent"
    assert outcomes(tmp_path) == ["measured"] * trials


def test_a_short_job_goes_before_a_long_one(tmp_path):
    """Of the first plan both jobs run; a plan whose short job leaves it no chance gets no long one."""
    with session(tmp_path, steps=9000) as study:
        machine = Machine(study, slow=3.0)
        study.worker(machine, Listener(), Budget(trials=3)).run()
    first, *others = trials_of(tmp_path, "s")
    assert first.user_attrs["outcome"] == "measured" and first.user_attrs["stage"] == FULL
    assert [(t.state, t.user_attrs["stage"]) for t in others] == [(TrialState.PRUNED, SHORT)] * 2
    assert all(t.user_attrs["message"].startswith("its short job ran 3.00 times the prediction") for t in others)
    plans = [t.user_attrs["plan"] for t in (first, *others)]
    assert len(set(plans)) == 3
    assert [steps for _, steps in machine.started] == [SHORT_STEPS, 9000, SHORT_STEPS, SHORT_STEPS]


def line(trial: int, plan: str, measured_s: float | None, outcome: str = "measured") -> Line:
    return Line(
        trial=trial, plan=plan, outcome=outcome, predicted_s=0.1, measured_s=measured_s, spread_s=None, predicted_peak_gib=None,
        measured_peak_gib=None,
    )  # fmt: skip


def shown(best: Line, *lines: Line) -> str:
    found = TrainingFound(
        name="s", best=best, lines=lines, prior_best="a", unmeasured=(), candidates=3, correction=None, scatter=None,
        memory_correction=1.0, shapes=(), front=(), noise=None, noise_between_jobs=None, tokens_per_money=None,
    )  # fmt: skip
    out = StringIO()
    TrainingWords().show(Console(file=out, width=200), found, "settled")
    return out.getvalue()


@pytest.mark.parametrize("other", ["measured", "emulated"])
def test_a_winner_that_another_trial_undercuts_is_explained(other):
    """Only by a trial of the same kind: composed steps are no measured ones."""
    fast, best, failed = line(0, "a", 0.2, other), line(1, "b", 0.25), line(2, "c", None, "out_of_memory")
    text = shown(best, fast, best, failed)
    assert "Winner: b, 0.25 s" in text and "out of memory" in text
    assert ("Trial 0 measured less, 0.2 s" in text) == (other == "measured")


def take_the_terminal() -> None:
    """In the new process: its standard input is its terminal, and SIGHUP is not ignored, as it is below nohup."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def on_a_terminal(place: Path, *arguments: str, **more: str) -> tuple[subprocess.Popen[bytes], int]:
    """The search in a session of its own whose terminal is a new pseudo-terminal; its other end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        search_command(place, *arguments), cwd=ROOT, env=environment(place, TERM="xterm", COLUMNS="250", **more),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=take_the_terminal,
    )  # fmt: skip
    os.close(theirs)
    return started(process, place), ours


def read_until(terminal: int, pattern: str) -> str:
    seen, deadline = "", time.monotonic() + DEADLINE_S
    while not re.search(pattern, seen):
        assert time.monotonic() < deadline, seen[-2000:]
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


def test_the_live_screen_and_a_closed_terminal(tmp_path):
    """Trials, best, budget left and what runs are drawn again; once the terminal is closed the job that runs is cancelled."""
    fake_python(tmp_path)
    write_oracle(tmp_path)
    arguments = (*ARGUMENTS, "--profile", "--study", "s", "--budget", "10h,2trials")
    process, terminal = on_a_terminal(tmp_path, *arguments, STAND_IN_TOKEN=str(tmp_path / "token"))
    read_until(terminal, r"s: 0 measured of \d+ candidates \| [\d.]+ min, 2 trials left.*running: 0 for \d+ s")
    (tmp_path / "token").touch()  # the first job ends, the second one waits
    best = r"best tp=\S+ [\d.]+ s \(predicted .*another may win: \d+%"
    read_until(terminal, r"s: 1 measured of \d+ candidates \| " + best + r".*running: 1 for \d+ s")
    os.close(terminal)
    assert process.wait(DEADLINE_S) == 130
    outcomes = [t.user_attrs.get("outcome") for t in trials_of(tmp_path, "s")]
    assert outcomes[0] == "measured" and outcomes[-1] == "cancelled"
    wait_until(lambda: left_over(tmp_path) == [], "processes are left")
