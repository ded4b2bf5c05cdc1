"""Processes of a job: found by a mark in their environment, so that none hides in a session of its own (torchrun's workers
do).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

MARK = "AUTOCONFIG_JOB_FOLDER"
"""Environment variable of every process of a job: the folder's path."""
POLL_S = 0.05
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""
DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def marked(folder: Path) -> list[psutil.Process]:
    """Live processes of the job in this folder, this one left out."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(MARK) == str(folder) and process.pid != os.getpid()
    ]


def end_marked(folder: Path, grace_s: float) -> None:
    """Ask every process of the job to end, and kill what is left after the grace."""
    signalled(marked(folder), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while marked(folder) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for _ in range(100):  # a killed process may have started another just before
        left = marked(folder)
        if not left:
            return
        signalled(left, signal.SIGKILL)
        time.sleep(POLL_S)


def signalled(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each that still lives and is ours."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def start_ticks(process: psutil.Process) -> int:
    """When a process started, in clock ticks since boot: with its id it names one process for good, whatever the clock says."""
    return round((process.create_time() - psutil.boot_time()) * CLOCK_TICKS)


def started_at(process_id: int | None, ticks: int | None) -> psutil.Process | None:
    """The process of this id that started then; None where it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process_id is not None and start_ticks(found := psutil.Process(process_id)) == ticks:
            return found
    return None


def group_members(group: int) -> list[int]:
    """Live processes of a process group; those that ended and were not reaped yet are left out."""
    return [one.pid for one in psutil.process_iter(["status"]) if one.info["status"] not in DEAD and _group(one.pid) == group]


def _group(process: int) -> int | None:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return None


def die_with_parent() -> Callable[[], object]:
    """For Popen's preexec_fn: the kernel sends SIGTERM to the child when this process dies, however it dies."""
    library = ctypes.CDLL(None, use_errno=True)
    return lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
