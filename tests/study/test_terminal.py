"""A search on a terminal: what a person sees while it runs, and that closing the terminal ends its job."""

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from pathlib import Path

from job_help import DEADLINE_S, wait_until
from study_help import ARGUMENTS, ROOT, environment, fake_python, left_over, search_command, trials_of, write_oracle


def on_a_terminal(place: Path, *arguments: str, **more: str) -> tuple[subprocess.Popen[bytes], int]:
    """The search in a session of its own whose terminal is a new pseudo-terminal; its other end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        search_command(place, *arguments), cwd=ROOT, env=environment(place, TERM="xterm", COLUMNS="250", **more),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    return process, ours


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
    arguments = (*ARGUMENTS, "--profile", "--study", "s", "--budget", "10m,9trials")
    process, terminal = on_a_terminal(tmp_path, *arguments, STAND_IN_EVERY_SECONDS="4")
    read_until(terminal, r"s: 0 measured of \d+ candidates \| 10\.0 min, 9 trials left.*running: 0 for \d+ s")
    best = r"best tp=\S+ [\d.]+ s \(predicted .*another may win: \d+%"
    read_until(terminal, r"s: 1 measured of \d+ candidates \| " + best + r".*running: 1 for \d+ s")
    os.close(terminal)
    assert process.wait(DEADLINE_S) == 130
    outcomes = [t.user_attrs.get("outcome") for t in trials_of(tmp_path, "s")]
    assert outcomes[0] == "measured" and outcomes[-1] == "cancelled"
    wait_until(lambda: left_over(tmp_path) == [], "processes are left")
