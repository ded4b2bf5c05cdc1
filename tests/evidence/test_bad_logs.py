"""Logs as they are found: packed, coloured, cut off, of several ranks, too large, of another kind: an error, or counted."""

import gzip
import os
import random
import time

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.evidence import read as reading
from autoconfig.evidence.read import read_files, read_texts

LINE = (
    " [2025-03-05 14:02:{0:02d}] iteration {0:8d}/ 500 | consumed samples: {0:12d} | "
    "elapsed time per iteration (ms): 5{0:03d}.5 | "
    "throughput per GPU (TFLOP/s/GPU): 401.5 | global batch size:   512 | lm loss: 2.350000E+00 |\n"
)
LOG = "".join(LINE.format(step) for step in range(1, 41))


def facts(evidence):
    """What lines say, but for where they stand."""
    return [(line.step, line.seconds, line.tflops_per_gpu, line.batch_size, line.at) for line in evidence.steps]


EXPECTED = [
    (step, pytest.approx(5 + step / 1000 + 0.0005), 401.5, 512, pytest.approx(1741183320.0 + step)) for step in range(1, 41)
]


def coloured(text):
    return "".join(f"\x1b[32m{line[:30]}\x1b[0m{line[30:]}" for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    "text",
    [
        LOG,
        LOG.replace("\n", "\r\n"),
        coloured(LOG),
        coloured(LOG).replace("\n", "\r\n"),
        "\ufeff" + LOG,
        LOG.rstrip("\n"),
        "loading\n" * 500 + LOG,
        LOG.replace("\n", "\nsomebody said something\n"),
        "".join(f"0: {line}" for line in LOG.splitlines(keepends=True)),
        "".join(f"[rank0]: {line}" for line in LOG.splitlines(keepends=True)),
    ],
    ids=["plain", "crlf", "colours", "both", "bom", "no end", "long head", "between", "srun", "torchrun"],
)
def test_the_same_log_however_it_was_kept(text):
    assert facts(read_texts({"log": text})) == EXPECTED


def test_packed_and_cut_off(tmp_path):
    (path := tmp_path / "log.gz").write_bytes(packed := gzip.compress(LOG.encode() * 200))
    assert len(read_files([path]).steps) == 8000
    path.write_bytes(packed[: len(packed) // 2])
    half = read_files([path])
    assert 1000 < len(half.steps) < 8000 and "ends too early" in half.files[0].remarks[0]
    path.write_bytes(b"\x1f\x8b" + b"garbage" * 10)
    with pytest.raises(InputError, match="cannot be unpacked"):
        read_files([path])
    cut = read_texts({"log": LOG[: LOG.index("iteration       40") + 60]})  # within the last line, before its figures
    assert facts(cut)[:39] == EXPECTED[:39]
    assert facts(cut)[39:] == [(40, None, None, None, 1741183360.0)]  # nothing is made up for what is missing


def test_eight_ranks_in_one_file():
    """Every rank prints every step; which rank is told where the launcher says it."""
    mixed = "".join(f"{rank}: {LINE.format(step)}" for step in range(1, 11) for rank in random.Random(step).sample(range(8), 8))
    evidence = read_texts({"log": mixed})
    assert len(evidence.steps) == 80 and {line.rank for line in evidence.steps} == set(range(8))
    assert evidence.files[0].remarks == ("lines of 8 ranks",) and evidence.files[0].window == "steps 1 to 10"


def test_two_ranks_in_one_line():
    """Without a lock two ranks print into one line: both steps are read, none from both."""
    both = LINE.format(1).rstrip("\n") + LINE.format(2)
    assert facts(read_texts({"log": both})) == EXPECTED[:2]


def test_a_run_that_was_started_again():
    evidence = read_texts({"log": LOG + LOG})
    assert len(evidence.steps) == 80 and evidence.files[0].remarks == ("steps begin again 1 times",)


def test_a_progress_bar_prints_over_itself():
    bar = "\r".join(
        f" {step}%|##| {step}/100 [{step // 30:02d}:{step * 2 % 60:02d}<03:00,  2.00s/it]" for step in range(1, 100)
    )
    assert [line.step for line in read_texts({"log": f"Loading\r{bar}\n"}).steps] == list(range(1, 100))


def test_what_can_be_no_file_of_a_run(tmp_path):
    for name, content, said in (
        ("a.zst", b"\x28\xb5\x2f\xfdxxxx", "zstd -d"),
        ("a.xz", b"\xfd7zXZ\x00", "xz -d"),
        ("a.zip", b"PK\x03\x04", "unpack it first"),
        ("a.h5", b"\x89HDF\r\n", "HDF5"),
        ("a.bin", b"\x7fELF", "a program"),
        ("events.out", b'\x18\0\0\0\0\0\0\0\xa3\x7fK"\t\0\0brain.Event:2', "TensorBoard"),
        ("a.dat", b"abc\0def", "no text"),
    ):
        (path := tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=said):
            read_files([path])
    with pytest.raises(InputError, match="a folder"):
        read_files([tmp_path])
    with pytest.raises(InputError, match="cannot be read"):
        read_files([tmp_path / "there is none"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no ordinary file"):
        read_files([tmp_path / "pipe"])
    with pytest.raises(InputError, match="65 files"):
        read_files([tmp_path / "a"] * 65)
    (path := tmp_path / "empty").write_bytes(b"")
    assert read_files([path]).files[0].lines_read == 0


def test_a_log_of_more_than_a_gigabyte_is_refused_before_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_LOG_BYTES", 3_000_000)
    (path := tmp_path / "log").write_text(LOG * 500)
    with pytest.raises(InputError, match="tail -c 200M"):
        read_files([path])
    (path := tmp_path / "log.gz").write_bytes(gzip.compress(LOG.encode() * 5000))
    with pytest.raises(InputError, match="more than 3,000,000 bytes"):
        read_files([path])


def test_all_files_share_one_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "READ_WORK", 20_000.0)
    (path := tmp_path / "log").write_text(LOG * 100)
    assert len(read_files([path]).steps) == 4000
    with pytest.raises(InputError, match="more than is read at once"):
        read_files([path] * 5)


def test_a_long_log_is_said_to_be_looked_at_in_part():
    evidence = read_texts({"log": LOG * 300})
    assert len(evidence.steps) == 8000 and "the last 8,000 lines" in evidence.files[0].remarks[0]
    assert (evidence.files[0].lines_read, evidence.files[0].lines_not_understood) == (12_000, 0)


@pytest.mark.parametrize(
    "text",
    [
        "iteration 1/2 |" + " a: 1 |" * 50_000,
        "iteration " * 100_000,
        "{'train_runtime': " * 50_000,
        " - ".join(["step:1", *["timing_s/x:1"] * 100_000]),
        "|" * 1_000_000,
        "\r" * 1_000_000,
        "\x1b[" * 500_000,
        "(min, max) time across ranks (ms):\n" + "    x .....: (1.0, 2.0)\n" * 50_000,
        "------------ arguments ------------\n" + "  a ..... 1\n" * 50_000,
        "timestamp, index, clocks.sm [MHz]\n" + "1, 2, 3\n" * 100_000,
        "9" * 1_000_000,
        "a" * 5_000_000,
        "".join(f"{chr(97 + n % 26)}{n} elapsed iteration | tokens/s {n}\n" for n in range(50_000)),
    ],
    ids=[
        "pairs",
        "words",
        "dict",
        "phases",
        "bars",
        "returns",
        "escapes",
        "timers",
        "dump",
        "table",
        "digits",
        "line",
        "shapes",
    ],
)
def test_hostile_text_is_read_in_linear_time(text):
    start = time.process_time()
    read_texts({"log": text})
    assert time.process_time() - start < 4.0


def test_lines_of_json_are_no_trace():
    """LLaMA-Factory's trainer_log.jsonl behind a line of a logger that traces requests."""
    text = '{"level": "info", "trace_id": "4bf92f"}\n'
    text += '{"current_steps": 5, "total_steps": 50, "loss": 1.2, "elapsed_time": "0:00:10", "remaining_time": "0:01:30"}\n'
    evidence = read_texts({"log": text})
    assert evidence.files[0].kind == "log" and [line.step for line in evidence.steps] == [5]
