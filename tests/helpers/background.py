"""Processes that tests start in the background: what is left of them when a test ends, however it ends, is killed."""

import contextlib
import subprocess
from pathlib import Path
from typing import Any, TypeVar

import psutil
from autoconfig.profiler.processes import MARK

_STARTED: list[tuple[subprocess.Popen[Any], Path | None]] = []
Process = TypeVar("Process", bound=subprocess.Popen[Any])


def started(process: Process, place: Path | None = None) -> Process:
    """The process, which `end_all` will end, with its children, and the jobs whose folders are under `place`."""
    _STARTED.append((process, place))
    return process


def left_over(place: Path) -> list[int]:
    """Processes of jobs under this place that still live."""
    found = psutil.process_iter(["environ"])
    return [process.pid for process in found if (process.info["environ"] or {}).get(MARK, "").startswith(str(place))]


def end_all() -> None:
    """Kill what was started since the last call and still runs."""
    ended, _STARTED[:] = list(_STARTED), []
    for process, _ in ended:
        if process.poll() is None:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                _kill(one.pid)
            process.wait()
    for place in {place for _, place in ended if place is not None}:
        for pid in left_over(place):
            _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()
