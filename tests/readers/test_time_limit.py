"""The clock beside the counted budget: a sentence and exit code 2, also out of a loop in C, and Ctrl-C as before."""

import re
import signal
import threading
import time
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from click.testing import CliRunner

from autoconfig.cli import time_limit as module
from autoconfig.cli.main import EXIT_BAD_INPUT, EXIT_INTERRUPTED, cli
from autoconfig.cli.time_limit import time_limit

COMMANDS = {
    "check": ("check", "FILE"),
    "convert": ("convert", "FILE", "--format", "plan"),
    "explain": ("explain", "FILE"),
    "search": ("search", "--model", "gpt3-1.7b", "--gpus", "8", "--include", "FILE"),
    "predict": ("predict", "FILE"),
    "rl check": ("rl", "check", "FILE"),
    "rl calibrate": ("rl", "calibrate", "FILE", "--run", "FILE", "--output", "OUT"),
}


def _without_end(*_, **__):
    while True:
        time.sleep(0.01)


@pytest.fixture
def hangs(monkeypatch, tmp_path):
    """A file whose readers never come back, and a short limit."""
    monkeypatch.setattr(module, "LIMIT_S", 0.2)
    for name in ("autoconfig.formats.check.read_text", "autoconfig.formats.post_training.check.read_text"):
        monkeypatch.setattr(name, _without_end)
    file = tmp_path / "train.sh"
    file.write_text("step:1 - timing_s/step:1.0\n" * 3)
    return file


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_file_that_takes_too_long_ends_with_a_sentence(hangs, words, tmp_path):
    held = signal.getsignal(signal.SIGALRM)
    words = [{"FILE": str(hangs), "OUT": str(tmp_path / "out.json")}.get(word, word) for word in words]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == EXIT_BAD_INPUT
    assert "takes longer than" in result.stderr and "Traceback" not in result.output
    assert signal.getsignal(signal.SIGALRM) is held and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_loop_in_c_is_ended_too(monkeypatch):
    monkeypatch.setattr(module, "LIMIT_S", 0.2)
    with pytest.raises(InputError, match="takes longer than"), time_limit(Path("train.sh")):
        re.match(r"(a+)+b", "a" * 60)


def test_an_alarm_that_a_callback_swallows_comes_again(monkeypatch):
    monkeypatch.setattr(module, "LIMIT_S", 0.1)
    monkeypatch.setattr(module, "AGAIN_S", 0.1)
    with pytest.raises(InputError), time_limit(Path("train.sh")):
        try:
            _without_end()
        except BaseException:
            _without_end()


def test_ctrl_c_is_as_before(monkeypatch, hangs):
    monkeypatch.setattr(module, "LIMIT_S", 20)
    threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
    result = CliRunner().invoke(cli, ["check", str(hangs)])
    assert result.exit_code == EXIT_INTERRUPTED and "interrupted" in result.stderr


def test_another_thread_has_no_limit(monkeypatch):
    monkeypatch.setattr(module, "LIMIT_S", 0.01)
    found = []

    def run():
        with time_limit(Path("train.sh")):
            time.sleep(0.1)
            found.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found
