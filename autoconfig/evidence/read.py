"""Files that a run left behind, in any order, each recognised by its content, to one Evidence."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

from autoconfig.evidence.lines import Read, read_lines
from autoconfig.evidence.records import Evidence, SourceFile, StepLine
from autoconfig.planning.work import bounded
from autoconfig.specs.errors import FileError, InputError

CHUNK = 1 << 20
MOST_LOG_BYTES = 1 << 30
"""Of a log, unpacked."""
MOST_FILES = 64
LOG_WORK = 20_000_000.0
"""Units of planning.work for all files of one reading; 64 bytes of a log are one."""
MOST_LAUNCH_BYTES = 1_000_000
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first (zstd -d)",
    b"\xfd7zXZ": "packed with xz: unpack it first (xz -d)",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\x89HDF": "an HDF5 file, not a log",
    b"\x7fELF": "a program, not a log",
}
_LAUNCH = re.compile(
    rb"^\s{0,40}[\[{]|^#!|(?<!-)--[a-z][\w-]{2,60}|\btorchrun\b|(?:^[\w.-]{1,60}:(?: [^\n]{0,200})?\n){3}", re.MULTILINE
)
"""What a script, an argument list or a configuration looks like, where no line of it is one of a log."""
_ONLY_ENVIRONMENT = frozenset(("environment", "nccl-variable"))


def read_files(paths: Iterable[Path | str]) -> Evidence:
    """The evidence of all files; those that no reader of this package reads are listed as kind `launch`, for the readers of
    launch files. Raises InputError for what can be no file of a run, FileError for what cannot be opened."""
    given = [Path(path) for path in paths]
    _require_few(len(given))
    with bounded(LOG_WORK):
        return _together([_read_file(path) for path in given])


def read_texts(texts: Mapping[str, str]) -> Evidence:
    """The evidence of texts by name, as a page or an HTTP body gives them. Raises InputError."""
    _require_few(len(texts))
    with bounded(LOG_WORK):
        return _together([_read_stream(name, io.BytesIO(text.encode("utf-8", "replace"))) for name, text in texts.items()])


def _require_few(count: int) -> None:
    if count > MOST_FILES:
        raise InputError(f"{count} files are more than {MOST_FILES}: give the log of one rank, or those of a few")


def _read_file(path: Path) -> tuple[SourceFile, dict[str, list[Any]]]:
    with _opened(path) as stream:
        return _read_stream(str(path), stream)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
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


def _read_stream(name: str, stream: IO[bytes]) -> tuple[SourceFile, dict[str, list[Any]]]:
    head = stream.read(4096)
    stream.seek(0)
    truncated: list[str] = []
    if head[:2] == _GZIP:
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=stream))
        head, truncated = _peek(name, stream)
        if not truncated:
            stream.seek(0)
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            raise InputError(f"{name!r} is {what}")
    if b"brain.Event:" in head[:64]:
        raise InputError(f"{name!r} is an event file of TensorBoard: give what the run printed")
    if b"\0" in head:
        raise InputError(f"{name!r} is no text and no trace that is read; logs, Kineto JSON and Nsight's sqlite export are")
    read = read_lines(name, _chunks(name, stream, truncated))
    return _source(name, head, read, truncated), read.records


def _peek(name: str, stream: IO[bytes]) -> tuple[bytes, list[str]]:
    try:
        return stream.read(4096), []
    except (OSError, EOFError, zlib.error):
        raise InputError(f"{name!r} is a gzip file that cannot be unpacked: copy it again") from None


def _chunks(name: str, stream: IO[bytes], truncated: list[str]) -> Iterator[bytes]:
    """The bytes of a log; a chunk ends where a line does, but for lines longer than CHUNK. A gzip file that ends too early
    gives what it holds. Raises InputError for more than MOST_LOG_BYTES."""
    total, rest = 0, b""
    while True:
        try:
            chunk = stream.read(CHUNK)
        except (EOFError, OSError, zlib.error):
            truncated.append("the gzip file ends too early: what it holds was read")
            break
        if not chunk:
            break
        total += len(chunk)
        if total > MOST_LOG_BYTES:
            raise InputError(f"{name!r} holds more than {MOST_LOG_BYTES:,} bytes: give its end, as by tail -c 200M")
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


def _source(name: str, head: bytes, read: Read, truncated: list[str]) -> SourceFile:
    formats = tuple(row for row, count in read.formats.most_common() if count > 0)
    kind = "log"
    if head.startswith(b"#!") or (not set(formats) - _ONLY_ENVIRONMENT and _LAUNCH.search(head)):
        kind = "launch"
    elif formats and set(formats) <= {"nccl-tests", "nccl-tests-mean", "nccl-version"}:
        kind = "nccl-tests"
    elif formats and set(formats) <= {"nvidia-smi-query", "nvidia-smi-dmon", "dcgm-dmon", "nvml-samples", "nvidia-smi-report"}:
        kind = "nvml"
    steps: list[StepLine] = read.records.get("steps", [])
    numbers = [line.step for line in steps if line.step is not None]
    ranks = {line.rank for line in steps if line.rank is not None}
    remarks = [*truncated, *([f"lines of {len(ranks)} ranks"] if len(ranks) > 1 else [])]
    again = sum(later < before for before, later in pairwise(numbers))
    if again and len(ranks) < 2:
        remarks.append(f"steps begin again {again} times")
    return SourceFile(
        name=name,
        kind=kind,
        formats=formats,
        lines_read=read.lines,
        lines_not_understood=read.not_understood,
        window=f"steps {min(numbers)} to {max(numbers)}" if numbers else "",
        remarks=tuple(remarks),
    )


def _together(parts: list[tuple[SourceFile, dict[str, list[Any]]]]) -> Evidence:
    records: dict[str, list[Any]] = {}
    for _, found in parts:
        for kind, some in found.items():
            records.setdefault(kind, []).extend(some)
    return Evidence(files=tuple(file for file, _ in parts), **{kind: tuple(some) for kind, some in records.items()})
