"""Worker processes that `autoconfig serve` starts beside itself, and starts again where one ends."""

from __future__ import annotations

import subprocess
import sys
import threading

RESTART_SECONDS = 1.0
STOP_SECONDS = 20.0


class WorkerProcesses:
    """`start` and `stop` bracket the life of the service."""

    def __init__(self, database: str, count: int) -> None:
        self._command = [sys.executable, "-m", "autoconfig", "worker", "--database", database]
        self._count = count
        self._running: list[subprocess.Popen[bytes]] = []
        self._ending = threading.Event()
        self._watch = threading.Thread(target=self._keep_running, daemon=True)

    def start(self) -> None:
        """Start them all."""
        if self._count:
            self._running = [subprocess.Popen(self._command) for _ in range(self._count)]
            self._watch.start()

    def stop(self) -> None:
        """End them in order; those that do not go in time are killed, and their searches taken up by the next."""
        self._ending.set()
        if self._watch.is_alive():
            self._watch.join()
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _keep_running(self) -> None:
        while not self._ending.wait(RESTART_SECONDS):
            for number, process in enumerate(self._running):
                if process.poll() is not None:
                    self._running[number] = subprocess.Popen(self._command)
