"""The watcher of one local job: `python -P -m autoconfig.profiler.supervise FOLDER DESCRIPTOR`, started by `local.LocalRunner`.

It outlives the search that started it. It holds the folder's lock (inherited as DESCRIPTOR), runs the command of launch.json
in a process group of its own, ends it and all that it started at the time limit or on SIGTERM, and says in end.json how it
ended. When it returns, no process of the job is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from autoconfig.profiler.folder import STARTED, JobFolder, read_json, write_json
from autoconfig.profiler.lock import FileLock, take
from autoconfig.profiler.nvml import Sampler
from autoconfig.profiler.outcome import CANCEL, EXITED, TIMEOUT
from autoconfig.profiler.processes import MARK, die_with_parent, end_marked, start_ticks
from autoconfig.specs.errors import AutoconfigError

MAX_DESCRIPTORS = 65_536
"""Closed at the start: where the limit is a billion, trying each takes too long."""
TURN_S = 0.2
"""How often a job that waits for another one looks."""
GRACE_S = 5.0
"""From the polite signal to the kill."""


class _Cancelled(Exception):
    """SIGTERM came."""


def supervise(folder: JobFolder) -> None:
    """Run the command of launch.json to its end, its time limit or a cancellation, once no other job of this place runs."""
    launch = read_json(folder.launch_file)
    limit_s = float(launch["limit_s"])
    life = {"pid": os.getpid(), "start_ticks": start_ticks(psutil.Process())}
    write_json(folder.life_file, life)
    started, reason, code = time.monotonic(), EXITED, None
    turn: FileLock | None = None
    child: subprocess.Popen[bytes] | None = None
    sampler: Sampler | None = None
    try:
        turn = _wait_for_turn(folder)
        started = time.monotonic()
        write_json(folder.life_file, {**life, STARTED: True})
        with folder.log_file.open("ab") as log:
            child = _start(launch, folder, log)
        sampler = Sampler(folder.nvml_file) if launch.get("nvml") else None
        code = child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        reason = TIMEOUT
    except _Cancelled:
        reason = CANCEL
    except OSError as error:
        code = 127
        folder.log_file.write_text(f"{launch['command'][0]} cannot be started: {error.strerror or error}\n", encoding="utf-8")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if sampler is not None:
            sampler.stop()
        end_marked(folder.path, GRACE_S)
        if child is not None:
            child.wait()
        if turn is not None:
            turn.release()
        write_json(folder.end_file, {"reason": reason, "exit_code": code, "seconds": time.monotonic() - started})


def _wait_for_turn(folder: JobFolder) -> FileLock:
    """Jobs of one place run one after the other, whoever started them: beside each other each would measure both. A watcher
    that dies gives its turn back."""
    while (turn := take(folder.turn_file)) is None:
        time.sleep(TURN_S)
    return turn


def _start(launch: dict[str, Any], folder: JobFolder, log: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **launch.get("environment", {}), MARK: str(folder.path)}
    return subprocess.Popen(
        launch["command"],
        cwd=launch.get("cwd") or folder.path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )


def _cancel(*_: object) -> None:
    raise _Cancelled


def main(arguments: list[str]) -> int:
    """FOLDER and the descriptor of its lock, which stays open until the end. What else was inherited would be held as long."""
    lock = int(arguments[1])
    os.closerange(3, lock)
    os.closerange(lock + 1, min(os.sysconf("SC_OPEN_MAX"), MAX_DESCRIPTORS))
    signal.signal(signal.SIGTERM, _cancel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        os.chdir(arguments[0])
        supervise(JobFolder(Path(arguments[0])))
    except (AutoconfigError, KeyError, OSError, _Cancelled) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
