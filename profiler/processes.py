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

MARK = "AUTOCONFIG_JOB_FOLDER"
"""Environment variable of every process of a job: the folder's path."""
POLL_S = 0.05
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""


def marked(folder: Path) -> list[int]:
    """Live processes of the job in this folder, this one left out. Reads /proc."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(entry))
    return found


def end_marked(folder: Path, grace_s: float) -> None:
    """Ask every process of the job to end, and kill what is left after the grace."""
    _signal(marked(folder), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while marked(folder) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for _ in range(100):  # a killed process may have started another just before
        left = marked(folder)
        if not left:
            return
        _signal(left, signal.SIGKILL)
        time.sleep(POLL_S)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def start_ticks(process: int) -> int | None:
    """When a process started, in clock ticks since boot; None where it is gone. With the id it names one process for good."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def group_members(group: int) -> list[int]:
    """Live processes of a process group; those that ended and were not reaped yet are left out. Reads /proc."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        state, _, theirs = text.rpartition(")")[2].split()[:3]
        if int(theirs) == group and state not in ("Z", "X"):
            found.append(int(entry))
    return found


def die_with_parent() -> Callable[[], object]:
    """For Popen's preexec_fn: the kernel sends SIGTERM to the child when this process dies, however it dies."""
    library = ctypes.CDLL(None, use_errno=True)
    return lambda: library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
