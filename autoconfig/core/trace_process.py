"""Runs the training core's trace as processes of their own, because planning never imports torch."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from autoconfig.specs.errors import AutoconfigError, InputError
from autoconfig.specs.import_path import with_import_path
from autoconfig.specs.job import MAX_PROCESSES, RankTrace, TraceRequest, read_rank, request_text
from autoconfig.specs.measurement import ExitCode

MODULE = "autoconfig.trainer.tracing.trace_process"


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Every traced rank in order, and the versions that traced them."""

    versions: dict[str, str]
    ranks: tuple[RankTrace, ...]


def run_traces(request: TraceRequest, done: Callable[[RankTrace], None], python: str = sys.executable) -> Traces:
    """Trace the request's ranks with the interpreter `python`; `done` is told of each. Raises InputError for what the training
    core refuses and for a missing torch or megatron-core; on any way out no process stays behind."""
    ranks = list(dict.fromkeys(request.ranks))
    count = min(MAX_PROCESSES, len(ranks))
    lines: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    versions: dict[str, str] = {}
    found: dict[int, RankTrace] = {}
    with _processes([replace(request, ranks=tuple(ranks[i::count])) for i in range(count)], python, lines) as running:
        open_processes = len(running)
        while open_processes:
            number, line = lines.get()
            if line is None:
                open_processes -= 1
                _check_end(running[number])
            elif "versions" in line:
                versions = line["versions"]
            else:
                trace = read_rank(line)
                found[trace.rank] = trace
                done(trace)
    return Traces(versions=versions, ranks=tuple(found[rank] for rank in ranks))


@contextmanager
def _processes(requests: list[TraceRequest], python: str, lines: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """One process per request; its lines, and None at its end, go to the queue with its number."""
    running: list[subprocess.Popen[str]] = []
    try:
        for number, request in enumerate(requests):
            running.append(_start(request, python))
            threading.Thread(target=_read, args=(number, running[number], lines), daemon=True).start()
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def _start(request: TraceRequest, python: str) -> subprocess.Popen[str]:
    try:
        process = subprocess.Popen(
            [python, "-P", "-m", MODULE],
            env=with_import_path({**os.environ}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise InputError(f"--python {python!r} cannot be started: {error.strerror or error}") from error
    assert process.stdin is not None
    try:
        process.stdin.write(request_text(request))
        process.stdin.close()
    except BrokenPipeError:
        pass  # it says why on standard error
    return process


def _read(number: int, process: subprocess.Popen[str], lines: Any) -> None:
    assert process.stdout is not None
    with process.stdout as said:
        for text in said:
            if text.startswith("{"):
                lines.put((number, json.loads(text)))
    lines.put((number, None))


def _check_end(process: subprocess.Popen[str]) -> None:
    """Raise what the process said when it did not end well."""
    assert process.stderr is not None
    said, code = process.stderr.read().strip(), process.wait()
    if code in (ExitCode.BAD_JOB, ExitCode.MISSING_PACKAGE):
        raise InputError(said.splitlines()[-1])
    if f"No module named {MODULE}" in said or "No module named 'autoconfig" in said:
        raise InputError("--python: that interpreter has no autoconfig; pip install 'megatron-autoconfig[train]' there")
    if code:
        raise AutoconfigError(f"the trace ended with exit code {code}: {said[-2000:]}")
