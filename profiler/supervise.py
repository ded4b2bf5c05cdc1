"""The watcher of one local job: `python -P -m autoconfig.profiler.supervise FOLDER DESCRIPTOR`, started by `local.LocalRunner`.

It outlives the search that started it. It holds the folder's lock (inherited as DESCRIPTOR), runs the command of launch.json
in a process group of its own, ends it and all that it started at the time limit or on SIGTERM, and says in end.json how it
ended. When it returns, no process of the job is left.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from autoconfig.profiler.folder import LOG_LOOK_S, STARTED, FileLock, JobFolder, cut_logs, read_json, take, write_json
from autoconfig.profiler.outcome import CANCEL, EXITED, TIMEOUT
from autoconfig.profiler.processes import MARK, die_with_parent, end_marked, start_ticks
from autoconfig.specs.errors import AutoconfigError

PERIOD_S = 1.0


class Sampler:
    """A thread that samples until `stop`. Does nothing where nvidia-ml-py or the driver is missing."""

    def __init__(self, path: Path, period_s: float = PERIOD_S) -> None:
        self._path = path
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._nvml: Any = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except Exception:  # not installed, no driver, no GPU: the job is measured without samples
            return
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._nvml.nvmlShutdown()

    def _run(self) -> None:
        n = self._nvml
        devices = [n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount())]
        with self._path.open("a", encoding="utf-8") as file:
            while True:
                for index, device in enumerate(devices):
                    file.write(json.dumps({"time": time.time(), "gpu": index, **sample(n, device)}) + "\n")
                file.flush()
                if self._stop.wait(self._period_s):
                    return


def sample(nvml: Any, device: Any) -> dict[str, float | int]:
    """One GPU now: bytes, watts, MHz, throttle reasons (NVML's bit mask), uncorrected ECC errors since boot."""
    readings: dict[str, Any] = {
        "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used,
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device),
        "ecc_uncorrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(
            device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    }
    found: dict[str, float | int] = {}
    for name, read in readings.items():
        try:
            found[name] = read()
        except nvml.NVMLError:  # this GPU does not report it
            continue
    return found


MAX_DESCRIPTORS = 65_536
"""Closed at the start: where the limit is a billion, trying each takes too long."""
TURN_S = 0.2
"""How often a job that waits for another one looks."""
GRACE_S = 5.0


class Cancelled(Exception):
    """SIGTERM came."""


def supervise(folder: JobFolder) -> None:
    """Run the command of launch.json to its end, its time limit or a cancellation, once no other job of this place runs."""
    launch = read_json(folder.launch_file)
    life = {"pid": os.getpid(), "start_ticks": start_ticks(psutil.Process())}
    write_json(folder.life_file, life)
    turn: list[FileLock] = []

    def begin() -> None:
        turn.append(_wait_for_turn(folder))
        write_json(folder.life_file, {**life, STARTED: True})

    def end(how: dict[str, Any]) -> None:
        for lock in turn:
            lock.release()
        write_json(folder.end_file, how)

    watch(folder, launch, mark=folder.path, log=folder.log_file, begin=begin, end=end)


def watch(
    folder: JobFolder,
    launch: dict[str, Any],
    *,
    mark: Path,
    log: Path,
    begin: Callable[[], None],
    end: Callable[[dict[str, Any]], None],
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Run launch's command after `begin`, until it ends, its time limit, SIGTERM, or `go_on` (asked every second) is false; end
    every process that carries `mark`, and tell `end` the reason, the exit code and the seconds."""
    limit_s = float(launch["limit_s"])
    started, reason, code = time.monotonic(), EXITED, None
    child: subprocess.Popen[bytes] | None = None
    sampler: Sampler | None = None
    try:
        begin()
        started = time.monotonic()
        with log.open("ab") as file:
            child = _start(launch, folder, mark, file)
        sampler = Sampler(folder.nvml_file) if launch.get("nvml") else None
        code = _wait(child, started + limit_s, folder, go_on)
    except subprocess.TimeoutExpired:
        reason = TIMEOUT
    except Cancelled:
        reason = CANCEL
    except OSError as error:
        code = 127
        log.write_text(f"{launch['command'][0]} cannot be started: {error.strerror or error}\n", encoding="utf-8")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if sampler is not None:
            sampler.stop()
        end_marked(mark, GRACE_S)
        if child is not None:
            child.wait()
        end({"reason": reason, "exit_code": code, "seconds": time.monotonic() - started})


def _wait(child: subprocess.Popen[bytes], until: float, folder: JobFolder, go_on: Callable[[], bool]) -> int:
    """The exit code; its logs are kept within their limit. Raises subprocess.TimeoutExpired, Cancelled."""
    while (left := until - time.monotonic()) > LOG_LOOK_S:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=LOG_LOOK_S)
        cut_logs(folder.path)
        if not go_on():
            raise Cancelled
    return child.wait(timeout=max(0.0, left))


def _wait_for_turn(folder: JobFolder) -> FileLock:
    """Jobs of one place run one after the other, whoever started them: beside each other each would measure both. A watcher
    that dies gives its turn back."""
    while (turn := take(folder.turn_file)) is None:
        time.sleep(TURN_S)
    return turn


def _start(launch: dict[str, Any], folder: JobFolder, mark: Path, log: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **launch.get("environment", {}), MARK: str(mark)}
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


def exit_code(work: Callable[[], None]) -> int:
    """Do the work of a watcher, where SIGTERM raises Cancelled; its exit code."""
    signal.signal(signal.SIGTERM, _cancel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work()
    except (AutoconfigError, KeyError, OSError, Cancelled) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _cancel(*_: object) -> None:
    raise Cancelled


def main(arguments: list[str]) -> int:
    """FOLDER and the descriptor of its lock, which stays open until the end. What else was inherited would be held as long."""
    lock = int(arguments[1])
    os.closerange(3, lock)
    os.closerange(lock + 1, min(os.sysconf("SC_OPEN_MAX"), MAX_DESCRIPTORS))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def work() -> None:
        os.chdir(arguments[0])
        supervise(JobFolder(Path(arguments[0])))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
