"""What is read as a file: ordinary ones within limits, by every option and argument that names one."""

import os
from pathlib import Path

import pytest
from autoconfig.specs.errors import FileError
from autoconfig.specs.files import read_bytes, read_text
from click.testing import CliRunner

from autoconfig.cli.main import EXIT_BAD_INPUT, cli

READERS = {
    "calibration": "search --model gpt3-1.7b --gpus 8 --calibration FILE",
    "cluster": "search --model gpt3-1.7b --cluster FILE",
    "GPU table": "search --model gpt3-1.7b --gpus 8 --gpu-table FILE",
    "model": "search --model FILE --gpus 8",
    "trace": "deployments --model llama3-8b --gpus 1 --trace FILE",
    "calibration of serving": "deployments --model llama3-8b --gpus 1 --isl 10 --osl 10 --calibration FILE",
    "check": "check FILE",
    "convert": "convert FILE --format plan",
    "explain": "explain FILE --model gpt3-1.7b --gpus 8",
    "file of predict": "predict FILE",
    "table of training": "predict FILE --output OUT",
    "table of serving": "predict --inference FILE --output OUT",
    "table of post-training": "predict --rl FILE --output OUT",
    "rl check": "rl check FILE",
    "rl calibrate": "rl calibrate FILE --run FILE --output OUT",
    "calibrate": "calibrate FILE --output OUT",
}


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "sparse"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(reader, kind, tmp_path):
    """Nothing is waited for, and no terabyte is read."""
    file = tmp_path / "given.csv"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file = Path("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    else:
        with file.open("wb") as stream:
            stream.truncate(2**40)
    out = tmp_path / ("out.csv" if "predict" in READERS[reader] else "out.json")
    words = [{"FILE": str(file), "OUT": str(out)}.get(word, word) for word in READERS[reader].split()]
    result = CliRunner().invoke(cli, words)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == EXIT_BAD_INPUT and "rror: " in result.output and not out.exists()


def test_a_file_that_holds_back_is_not_waited_for(tmp_path):
    """As /proc/kmsg does: an ordinary file that has nothing to read yet."""
    if not os.access("/proc/kmsg", os.R_OK):
        pytest.skip("no /proc/kmsg")
    with pytest.raises(FileError, match=r"no ordinary file|cannot be read"):
        for _ in range(1000):
            read_bytes(Path("/proc/kmsg"), "a script", 10**8)


def test_the_head_of_a_file(tmp_path):
    (tmp_path / "log").write_bytes(b"abc" * 1000)
    assert read_bytes(tmp_path / "log", "a log", 4, head=True) == b"abca"
    with pytest.raises(FileError, match="more than 4; give a log"):
        read_bytes(tmp_path / "log", "a log", 4)


def test_files_that_are_no_text_are_refused(tmp_path):
    for name, data, says in (
        ("binary", bytes(range(256)) * 10, "no text file"),
        ("nul", b"abc\0def", "no text file"),
        ("empty", b" \n", "is empty"),
        ("large", b"#" * 1_000_001, "more than 1,000,000"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FileError, match=says):
            read_text(tmp_path / name, "a script")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(100_000_000)
    for path, says in (
        (tmp_path / "huge", "more than"),
        (tmp_path, "is a folder"),
        (tmp_path / "none", "cannot be read"),
        (Path("/dev/zero"), "no ordinary file"),
        (Path("a\0b"), "cannot be read"),
    ):
        with pytest.raises(FileError, match=says):
            read_text(path, "a script")
