"""The bar of long work: on terminals from two seconds on, never in pipes."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from background import started

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (
    "import sys, time; import autoconfig.training.answer as a; asked = a.answer\n"
    "seconds = float(sys.argv.pop())\n"
    "import autoconfig.cli.progress as p; p.FROM_SECONDS = p.FROM_SECONDS if seconds else 60.0  # of a busy machine, too\n"
    "def slow(request, shown=None, **more):\n"
    "    shown and shown('question 3 of 12'); time.sleep(seconds); return asked(request, shown, **more)\n"
    "a.answer = slow\nfrom autoconfig.cli.main import main\nmain()"
)


def run(seconds):
    """What standard error, a terminal, shows of a search that takes so long."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, "search", "--model", "1.7b", "--gpus", "8", "--json", str(seconds)]
    done = started(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=theirs))
    os.close(theirs)
    said, until = b"", time.monotonic() + 60
    while time.monotonic() < until:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:
                break
        elif done.poll() is not None:
            break
    os.close(ours)
    assert done.wait(60) == 0
    return said.decode()


@pytest.mark.service
@pytest.mark.parametrize(("seconds", "seen"), [(0.0, False), (3.2, True)])
def test_the_bar_comes_after_two_seconds_and_goes(seconds, seen):
    said = run(seconds)
    assert ("question 3 of 12" in said) == seen and ("[#####  " in said) == seen
    assert not said.strip(" \r\n") or said.rstrip("\n").endswith(" \r")


@pytest.mark.service
def test_a_pipe_sees_no_bar():
    command = [sys.executable, "-c", PROGRAM, "search", "--model", "1.7b", "--gpus", "8", "--json", "2.6"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stderr == b""
