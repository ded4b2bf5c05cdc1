"""Processes of a recording: each a group of its own, which ends with the recording."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 1800.0
"""Seconds that one command may take: some take minutes where the machine is shared."""


@dataclass(frozen=True)
class Said:
    """What a command said: its exit code (`timeout` where it took too long) and both streams."""

    exit_code: str
    stdout: str
    stderr: str


@dataclass
class Processes:
    """Starts processes and can end them all: Ctrl-C leaves nothing behind."""

    environment: dict[str, str]
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def start(self, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
        """A process in a group of its own."""
        with self.lock:
            if self.stopped:
                raise RuntimeError("the recording was stopped")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self.running.add(process)
        return process

    def run(self, command: list[str], folder: Path) -> Said:
        """Run a command to its end."""
        process = self.start(command, folder)
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE)
            code = str(process.returncode)
        except subprocess.TimeoutExpired:
            _kill(process, signal.SIGKILL)
            stdout, stderr = process.communicate()
            code = "timeout"
        finally:
            self.ended(process)
        return Said(code, stdout.decode(errors="backslashreplace"), stderr.decode(errors="backslashreplace"))

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        """What is left of its group ends too."""
        _kill(process, signal.SIGKILL)
        with self.lock:
            self.running.discard(process)

    def stop(self) -> None:
        """End every process, those in groups of their own too (jobs of studies), and start no other."""
        with self.lock:
            self.stopped = True
            left = list(self.running)
        for process in left:
            _kill(process, signal.SIGKILL)
        for number in _with_home(self.environment["HOME"]):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)


def _kill(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _with_home(home: str) -> list[int]:
    """Processes whose home is that of this recording: nobody else's are."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"HOME={home}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def environment(home: Path, inherited: dict[str, str]) -> dict[str, str]:
    """What commands see: little, and the same everywhere. One thread, so that sums are added up in one order.

    Python's hashes of texts have one seed: the order of a set of names would differ from run to run.
    """
    kept = {name: inherited[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in inherited}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    fixed = {"COLUMNS": "160", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC", "PYTHONHASHSEED": "0"}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "MPLCONFIGDIR": str(home / "matplotlib")}
    return {**kept, **threads, **fixed, **places, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONSAFEPATH": "1"}
