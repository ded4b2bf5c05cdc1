"""Streams that the caller closed, and Ctrl-C while the command is loaded."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from background import started

pytestmark = pytest.mark.service
ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--model", "1.7b", "--gpus", "8")
SHOWN = (
    ("search", *SMALL), ("search", *SMALL, "--json"), ("models",), ("scaling", "--model", "1.7b", "--gpus", "8:16"),
    ("explain", "tp=2", *SMALL), ("deployments", *SMALL, "--top", "1", "--json"), ("rl", *SMALL), ("validate",), ("--help",),
)  # fmt: skip
"""Commands that show a table, progress or JSON."""


def run(words: tuple[str, ...], closed: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-m", "autoconfig", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("words", SHOWN, ids=lambda words: " ".join(words[:1]))
def test_closed_streams(words):
    """What is closed is not written to; what is open gets all that it gets otherwise."""
    for closed in (">&-", "2>&-", ">&- 2>&- <&-"):
        done = run(words, closed)
        assert done.returncode == 0 and done.stderr == "" and bool(done.stdout) == closed.startswith("2"), (closed, done)
        if "--json" in words and done.stdout:
            assert json.loads(done.stdout)


def test_what_is_written_is_not_printed_into(tmp_path):
    """A closed stream's number is not that of the next file: what is printed would land in it."""
    table = tmp_path / "plans.csv"
    assert run(("search", *SMALL, "--output", str(table)), ">&- 2>&- <&-").returncode == 0
    assert {line.count(",") for line in table.read_text().splitlines()} == {table.read_text().splitlines()[0].count(",")}


def test_a_refusal_with_standard_error_closed():
    assert run(("search", "--model", "none", "--gpus", "8"), "2>&-").returncode == 2


SLOW_IMPORT = """
import os, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            os.write(1, b"begun\\n")
            time.sleep(300)
sys.meta_path.insert(0, Slow())
sys.argv[0] = "autoconfig"
from autoconfig.__main__ import main
"""
WHERE = {
    "while the command line is loaded": ("click", ""),
    "while a command is loaded": ("autoconfig.training.answer", "main()"),
    "after the command": (
        "none",
        "import atexit\natexit.register(lambda: (os.write(1, b'begun\\n'), time.sleep(300)))\nmain()",
    ),
}


@pytest.mark.parametrize("where", WHERE)
def test_ctrl_c_while_it_is_loaded_or_ends(where, tmp_path):
    module, then = WHERE[where]
    command = [sys.executable, "-c", SLOW_IMPORT.replace("MODULE", repr(module)) + then, "search", *SMALL]
    process = started(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    while process.stdout.readline() != b"begun\n":
        pass
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"interrupted\n")


def test_an_ignored_ctrl_c_stays_ignored():
    """A job in the background of a shell is not ended by the terminal's Ctrl-C."""
    code = SLOW_IMPORT.replace("MODULE", "'autoconfig.training.answer'").replace("300", "1") + "main()"
    process = started(subprocess.Popen(
        [sys.executable, "-c", code, "search", *SMALL, "--json"], cwd=ROOT, env={**os.environ}, stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ))  # fmt: skip
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and json.loads(said)["plans"]
