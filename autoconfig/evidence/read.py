"""Files that a run left behind, in any order, each recognised by its content, to one Evidence."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from autoconfig.evidence.lines import Read, read_lines
from autoconfig.evidence.records import Evidence, Origin, SourceFile, StepLine
from autoconfig.evidence.scan import MOST_LINES
from autoconfig.evidence.traces import kineto, nsys
from autoconfig.evidence.traces.activity import Activity
from autoconfig.evidence.traces.arrivals import compare
from autoconfig.evidence.traces.timeline import TracedRank, rank_trace
from autoconfig.planning.work import WorkError, bounded
from autoconfig.specs.errors import FileError, InputError

CHUNK = 1 << 20
MOST_LOG_BYTES = 1 << 30
"""Of a log, unpacked."""
MOST_FILES = 64
MOST_TRACE_BYTES = 2 << 30
READ_WORK = 100_000_000.0
"""Units of planning.work for all files of one reading: 6 GB of logs, or 5 GB of traces."""
HEAD = 1 << 18
"""Bytes by which a file is recognised; launch files are smaller."""
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first (zstd -d)",
    b"\xfd7zXZ": "packed with xz: unpack it first (xz -d)",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\x89HDF": "an HDF5 file, not a log",
    b"\x7fELF": "a program, not a log",
}
_ALSO_IN_LAUNCH = frozenset(("environment", "nccl-variable", "figure", "run-start"))
"""Formats whose lines launch files hold, too: `export NCCL_DEBUG=INFO`, `temperature: 0.7`."""
LAUNCH_KEEPS = ("variables",)
"""Records that are evidence in a launch file, too."""


def no_launch_file(_text: str) -> bool:
    """Every text is what a run left behind."""
    return False


def read_files(paths: Iterable[Path | str], is_launch: Callable[[str], bool] = no_launch_file) -> Evidence:
    """The evidence of all files; texts that `is_launch` takes for launch files are listed as kind `launch`, for the readers of
    those. Raises InputError for what can be no file of a run, FileError for what cannot be opened."""
    given = [Path(path) for path in paths]
    return _read(len(given), (_read_file(path, is_launch) for path in given))


def read_texts(texts: Mapping[str, str], is_launch: Callable[[str], bool] = no_launch_file) -> Evidence:
    """The evidence of texts by name, as a page or an HTTP body gives them. Raises InputError."""
    streams = ((name, io.BytesIO(text.encode("utf-8", "replace"))) for name, text in texts.items())
    return _read(len(texts), (_read_stream(name, stream, is_launch) for name, stream in streams))


@dataclass(frozen=True, kw_only=True)
class ReadFile:
    """One file: what it is, its records by the field of Evidence that they go to, and of a trace its collectives."""

    file: SourceFile
    records: dict[str, list[Any]] = field(default_factory=dict)
    trace: TracedRank | None = None


def _read(count: int, parts: Iterator[ReadFile]) -> Evidence:
    if count > MOST_FILES:
        raise InputError(f"{count} files are more than {MOST_FILES}: give the log of one rank, or those of a few")
    try:
        with bounded(READ_WORK):
            return _together(list(parts))
    except WorkError as error:
        raise InputError(
            "these files hold more than is read at once: give the log of one rank, and a trace of few steps"
        ) from error


def _read_file(path: Path, is_launch: Callable[[str], bool]) -> ReadFile:
    with _opened(path) as stream:
        if stream.read(len(nsys.MAGIC)) == nsys.MAGIC:
            return _of_trace(str(path), "nsys", *nsys.read(path))
        stream.seek(0)
        return _read_stream(str(path), stream, is_launch)


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """An ordinary file; pipes and devices are never waited for. Raises FileError."""
    name = str(path) if len(str(path)) <= 200 else f"{str(path)[:197]}..."
    try:
        if path.is_dir():
            raise FileError(f"{name!r} is a folder; give the files of a run in it")
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileError(f"{name!r} cannot be read: {reason}; check the path") from error
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileError(f"{name!r} is no ordinary file; save it to one first")
        yield file


def _read_stream(name: str, stream: io.BufferedIOBase, is_launch: Callable[[str], bool]) -> ReadFile:
    head = stream.read(HEAD)
    stream.seek(0)
    truncated: list[str] = []
    if head[:2] == _GZIP:
        head = _head(name, gzip.GzipFile(fileobj=stream))
        stream.seek(0)
        stream = cast(io.BufferedIOBase, gzip.GzipFile(fileobj=stream))
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            raise InputError(f"{name!r} is {what}")
    if b"brain.Event:" in head[:64]:
        raise InputError(f"{name!r} is an event file of TensorBoard: give what the run printed")
    if head.startswith(nsys.MAGIC):
        raise InputError(f"{name!r} is a database: give it as a file, unpacked")
    if b"\0" in head[:4096]:
        raise InputError(f"{name!r} is no text and no trace that is read; logs, Kineto JSON and Nsight's sqlite export are")
    if kineto.is_trace(head):
        return _of_trace(name, "kineto", *kineto.read(name, _chunks(name, stream, truncated, MOST_TRACE_BYTES)), *truncated)
    read = read_lines(name, _whole_lines(_chunks(name, stream, truncated, MOST_LOG_BYTES)))
    if set(read.formats) <= _ALSO_IN_LAUNCH or head.startswith(b"#!"):
        whole = len(head) < HEAD or head.startswith(b"#!")
        if whole and is_launch(head.decode("utf-8", "replace")):
            kept = {kind: some for kind, some in read.records.items() if kind in LAUNCH_KEEPS}
            return ReadFile(file=SourceFile(name=name, kind="launch", lines_read=read.lines), records=kept)
    return ReadFile(file=_source(name, read, truncated), records=read.records)


def _of_trace(name: str, kind: str, activity: Activity, count: int, remarks: list[str], *truncated: str) -> ReadFile:
    trace = rank_trace(activity, Origin(file=name))
    window, texts = "", [*truncated, *remarks]
    if trace is None:
        texts.append("no kernel of a GPU in it: profile with ProfilerActivity.CUDA")
    elif not trace.parts.steps:
        window = f"{trace.parts.span_s:.3g} s"
        texts.append("no step in it: all of it is looked at; a schedule and prof.step() mark steps")
    else:
        window = f"{trace.parts.steps} step{'s' * (trace.parts.steps > 1)}"
    if trace is not None and trace.parts.rank is not None:
        window += f" of rank {trace.parts.rank}"
    file = SourceFile(
        name=name,
        kind=kind,
        lines_read=count - activity.not_understood,
        lines_not_understood=activity.not_understood,
        window=window,
        remarks=tuple(texts),
    )
    return ReadFile(file=file, records={"traces": [trace.parts]} if trace else {}, trace=trace)


def _head(name: str, stream: gzip.GzipFile) -> bytes:
    """The first bytes of a packed file, however early it ends."""
    head = b""
    try:
        while len(head) < HEAD and (more := stream.read1(HEAD)):
            head += more
    except (OSError, EOFError, zlib.error):
        if not head:
            raise InputError(f"{name!r} is a gzip file that cannot be unpacked: copy it again") from None
    return head


def _chunks(name: str, stream: io.BufferedIOBase, truncated: list[str], most: int) -> Iterator[bytes]:
    """The bytes of a file. A gzip file that ends too early gives what it holds. Raises InputError for more than `most`."""
    total = 0
    while True:
        try:
            chunk = stream.read1(CHUNK)
        except (EOFError, OSError, zlib.error):
            truncated.append("the gzip file ends too early: what it holds was read")
            return
        if not chunk:
            return
        total += len(chunk)
        if total > most:
            advice = "give its end, as by tail -c 200M" if most == MOST_LOG_BYTES else "profile fewer steps, without stacks"
            raise InputError(f"{name!r} holds more than {most:,} bytes: {advice}")
        yield chunk


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut where a line ends, but for lines longer than CHUNK."""
    rest = b""
    for chunk in chunks:
        whole, end, rest_of = chunk.rpartition(b"\n")
        if end:
            yield rest + whole + end
            rest = rest_of
        else:
            rest += chunk
            if len(rest) > CHUNK:
                yield rest + b"\n"
                rest = b""
    if rest:
        yield rest


NCCL_TESTS = frozenset(("nccl-tests", "nccl-tests-mean", "nccl-version"))
NVML = frozenset(
    (
        *("nvidia-smi-query", "nvidia-smi-dmon", "dcgm-dmon", "nvml-samples"),
        *("nvidia-smi-report", "nvidia-smi-power", "nvidia-smi-table"),
    )
)
"""Formats of lines that only a test of links, or only samples of the GPUs' state, have."""


def _source(name: str, read: Read, truncated: list[str]) -> SourceFile:
    formats = tuple(row for row, count in read.formats.most_common() if count > 0)
    kinds = {"nccl-tests": NCCL_TESTS, "nvml": NVML}
    steps: list[StepLine] = read.records.get("steps", [])
    numbers = [line.step for line in steps if line.step is not None]
    return SourceFile(
        name=name,
        kind=next((kind for kind, own in kinds.items() if formats and own.issuperset(formats)), "log"),
        formats=formats,
        lines_read=read.lines,
        lines_not_understood=read.not_understood,
        window=f"steps {min(numbers)} to {max(numbers)}" if numbers else "",
        remarks=(*truncated, *_remarks(read, steps, numbers)),
    )


def _remarks(read: Read, steps: Sequence[StepLine], numbers: Sequence[int]) -> Iterator[str]:
    """Say what of the lines is not looked at, and that the log holds several ranks or starts."""
    ranks = {line.rank for line in steps if line.rank is not None}
    if len(ranks) > 1:
        yield f"lines of {len(ranks)} ranks"
    if read.left_out:
        yield f"a long log: the last {MOST_LINES:,} lines of each format are looked at"
    if unread := sum(line.unread for line in steps):
        yield f"the time of {unread} of {len(steps)} steps cannot be read"
    again = sum(later < before for before, later in pairwise(numbers))
    if again and len(ranks) < 2:
        yield f"steps begin again {again} times"
    elif begun := max((line.start for line in steps), default=0):
        yield f"the program began again {begun} times"


def _together(parts: list[ReadFile]) -> Evidence:
    records: dict[str, list[Any]] = {}
    for part in parts:
        for kind, some in part.records.items():
            records.setdefault(kind, []).extend(some)
    arrivals = compare([part.trace for part in parts if part.trace is not None])
    return Evidence(
        files=tuple(part.file for part in parts), arrivals=arrivals, **{kind: tuple(some) for kind, some in records.items()}
    )
