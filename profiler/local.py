"""LocalRunner: jobs as processes of this machine, each under a watcher of its own (`supervise`)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from autoconfig.profiler.folder import STARTED, FileLock, JobFolder, is_held, read_json, take, write_json
from autoconfig.profiler.outcome import LOSS, outcome_of
from autoconfig.profiler.processes import POLL_S, end_marked, signalled, started_at
from autoconfig.profiler.runner import Command, Life, RunnerError
from autoconfig.profiler.supervise import GRACE_S
from autoconfig.specs.import_path import with_import_path


class LocalRunner:
    """Runs `command` for every job."""

    name = "local"

    def __init__(self, command: Command, environment: Mapping[str, str] | None = None, *, nvml: bool = False) -> None:
        """`environment` is added to this process's own; `nvml`: sample the GPUs beside the job."""
        self._command = command
        self._environment = dict(environment or {})
        self._nvml = nvml
        self._watchers: dict[Path, int] = {}

    def submit(self, folder: JobFolder, limit_s: float) -> None:
        """Start a watcher; nothing where one runs already."""
        lock = take(folder.lock_file)
        if lock is None:
            return
        with lock:
            end_marked(folder.path, 0.0)  # what a watcher that was killed may have left
            attempt = int(read_json(folder.launch_file).get("attempt", 0)) + 1
            for stale in (folder.end_file, folder.life_file):
                stale.unlink(missing_ok=True)
            how = {"environment": self._environment, "limit_s": limit_s, "attempt": attempt, "nvml": self._nvml}
            write_json(folder.launch_file, {"runner": self.name, "command": self._command(folder, folder.job()), **how})
            os.set_inheritable(lock.descriptor, True)
            self._watchers[folder.path] = _start_watcher(folder, lock)

    def submit_together(self, jobs: Sequence[tuple[JobFolder, float]]) -> None:
        for folder, limit_s in jobs:
            self.submit(folder, limit_s)

    def poll(self, folder: JobFolder) -> Life:
        """Running while the folder's lock is held; waiting where its command was not started yet, because another job runs."""
        self._reap()
        if is_held(folder.lock_file):
            return Life.RUNNING if read_json(folder.life_file).get(STARTED) else Life.WAITING
        return Life.ENDED if outcome_of(folder) is not None else Life.LOST

    def cancel(self, folder: JobFolder) -> None:
        """Ask the watcher to end its job; where it does not answer, kill it and what is left of the job."""
        deadline = time.monotonic() + 2 * GRACE_S
        while is_held(folder.lock_file) and time.monotonic() < deadline:
            signalled(_watcher(folder), signal.SIGTERM)
            time.sleep(POLL_S)
        if is_held(folder.lock_file):
            signalled(_watcher(folder), signal.SIGKILL)
        end_marked(folder.path, 0.0)
        if outcome_of(folder) is None:
            write_json(folder.end_file, {"reason": LOSS, "detail": "its watcher did not answer and was killed"})
        self.poll(folder)

    def _reap(self) -> None:
        for path, process in list(self._watchers.items()):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(process, os.WNOHANG) == (0, 0):
                    continue
            del self._watchers[path]


def _watcher(folder: JobFolder) -> list[psutil.Process]:
    life = read_json(folder.life_file)
    found = started_at(life.get("pid"), life.get("start_ticks"))
    return [] if found is None else [found]


def _start_watcher(folder: JobFolder, lock: FileLock) -> int:
    """Process id of a watcher in a session of its own; it inherits the lock. It may outlive this process."""
    arguments = [sys.executable, "-P", "-m", "autoconfig.profiler.supervise", str(folder.path), str(lock.descriptor)]
    streams = [
        *((os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1)),
        (os.POSIX_SPAWN_OPEN, 2, str(folder.log_file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
    ]
    environment = with_import_path({**os.environ})
    try:
        return os.posix_spawn(sys.executable, arguments, environment, file_actions=streams, setsid=True)
    except OSError as error:
        raise RunnerError(f"{sys.executable} cannot be started: {error.strerror or error}") from error
