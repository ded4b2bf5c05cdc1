"""LocalRunner: jobs as processes of this machine, each under a watcher of its own (`supervise`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from profiler.errors import RunnerError
from profiler.folder import JobFolder, read_json, write_json
from profiler.lock import is_held, take
from profiler.outcome import LOSS, outcome_of
from profiler.processes import POLL_S, end_marked, start_ticks
from profiler.runner import Command, Life
from profiler.supervise import GRACE_S

ROOT = Path(__file__).parents[1]


class LocalRunner:
    """Runs `command` for every job."""

    name = "local"

    def __init__(self, command: Command, environment: Mapping[str, str] | None = None, *, nvml: bool = False) -> None:
        """`environment` is added to this process's own; `nvml`: sample the GPUs beside the job."""
        self._command = command
        self._environment = dict(environment or {})
        self._nvml = nvml
        self._watchers: dict[Path, subprocess.Popen[bytes]] = {}

    def submit(self, folder: JobFolder, limit_s: float) -> None:
        """Start a watcher; nothing where one runs already."""
        with contextlib.ExitStack() as stack:
            lock = take(folder.lock_file)
            if lock is None:
                return
            stack.enter_context(lock)
            attempt = int(read_json(folder.launch_file).get("attempt", 0)) + 1
            for stale in (folder.end_file, folder.life_file):
                stale.unlink(missing_ok=True)
            launch = {
                "runner": self.name,
                "command": self._command(folder, folder.job()),
                "environment": self._environment,
                "limit_s": limit_s,
                "attempt": attempt,
                "nvml": self._nvml,
            }
            write_json(folder.launch_file, launch)
            os.set_inheritable(lock.descriptor, True)
            try:
                self._watchers[folder.path] = subprocess.Popen(
                    [sys.executable, "-P", "-m", "profiler.supervise", str(folder.path), str(lock.descriptor)],
                    env={**os.environ, "PYTHONPATH": _python_path()},
                    cwd=folder.path,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(lock.descriptor,),
                )
            except OSError as error:
                raise RunnerError(f"{sys.executable} cannot be started: {error.strerror or error}") from error

    def poll(self, folder: JobFolder) -> Life:
        """Running while the folder's lock is held."""
        if (watcher := self._watchers.get(folder.path)) is not None and watcher.poll() is not None:
            del self._watchers[folder.path]
        if is_held(folder.lock_file):
            return Life.RUNNING
        return Life.ENDED if outcome_of(folder) is not None else Life.LOST

    def cancel(self, folder: JobFolder) -> None:
        """Ask the watcher to end its job; where it does not answer, kill it and what is left of the job."""
        life = read_json(folder.life_file)
        process = life.get("pid")
        deadline = time.monotonic() + 2 * GRACE_S
        while is_held(folder.lock_file) and time.monotonic() < deadline:
            life = read_json(folder.life_file)
            process = life.get("pid")
            if process is not None and start_ticks(process) == life.get("start_ticks"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)
            time.sleep(POLL_S)
        if is_held(folder.lock_file) and process is not None and start_ticks(process) == life.get("start_ticks"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        end_marked(folder.path, 0.0)
        if outcome_of(folder) is None:
            write_json(folder.end_file, {"reason": LOSS, "detail": "its watcher did not answer and was killed"})
        self.poll(folder)


def _python_path() -> str:
    """This project first, so that the watcher imports what this process runs."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
