"""The ranks of a job tell each other how they end, through the store of torch.distributed.

A thread in every rank looks after signals, after the others' heartbeats and after their failures, also while the main thread
hangs in a collective; it ends the process itself. The first failure that is told is the job's. Every rank then tells its
figures, rank 0 writes the result, says so, and all exit with the same code.

Keys: `alive/R` host and process id, `beat/R` a time, `failed` the first failure, `figures/R`, `terminated`, `written` how all
end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from autoconfig.specs.errors import InputError
from autoconfig.specs.measurement import ExitCode
from autoconfig.trainer.result_file import say

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_PEER = (
    *("Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe"),
    *("Timed out waiting", "Read timeout", "timed out after", "Socket closed"),
    *("ncclRemoteError", "NCCL communicator was aborted", "remote process exited"),
)
"""What gloo, NCCL and the store say of a peer that is gone."""


@dataclass(frozen=True)
class Failure:
    """One rank's end."""

    code: ExitCode
    message: str

    def text(self) -> str:
        return json.dumps([int(self.code), self.message])

    @classmethod
    def parse(cls, text: bytes | str) -> Failure:
        code, message = json.loads(text)
        return cls(ExitCode(code), message)


class Lost(Exception):
    """A peer does not answer."""


def classify(error: BaseException, rank: int) -> Failure:
    """The failure that this exception is."""
    text = " ".join(str(error).split())[:1000]
    if isinstance(error, InputError):
        return Failure(ExitCode.BAD_JOB, text)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in text for word in _OUT_OF_MEMORY):
        return Failure(ExitCode.OUT_OF_MEMORY, f"rank {rank}: {text or 'out of memory'}")
    if isinstance(error, Lost | dist.DistNetworkError | dist.DistStoreError) or any(word in text for word in _PEER):
        return Failure(ExitCode.PEER_LOST, f"rank {rank} lost a peer: {text}")
    if isinstance(error, OSError):
        return Failure(ExitCode.DISK, f"rank {rank}: {text}")
    return Failure(ExitCode.CRASHED, f"rank {rank}: {type(error).__name__}: {text}")


TICK_SECONDS = 0.1
BEAT_SECONDS = 1.0
GRACE_SECONDS = 5.0
"""How long rank 0 waits for the others' figures after a failure, and the others for rank 0 (twice as long)."""
SIGNALS = {signal.SIGTERM: ExitCode.TERMINATED, signal.SIGINT: ExitCode.INTERRUPTED}


class Peers:
    """One rank's view of the others."""

    def __init__(self, store: Any, rank: int, world_size: int, timeout_seconds: float) -> None:
        """`store`: this object's own connection. `timeout_seconds`: silence after which a peer is lost."""
        self._store, self.rank, self.world_size, self._timeout = store, rank, world_size, timeout_seconds
        self.figures: Callable[[], str] = lambda: ""
        self.write: Callable[[Failure | None, list[str]], Failure | None] = lambda failure, figures: failure
        self.clean_up: Callable[[], None] = lambda: None
        self._ending = threading.Lock()
        self._beats: dict[int, tuple[bytes, float]] = {}
        self._last_beat = 0.0
        self._read_fd, self._write_fd = os.pipe()

    def start(self) -> None:
        """Take over SIGTERM and SIGINT and start the thread. Call in the main thread."""
        os.set_blocking(self._write_fd, False)
        os.set_blocking(self._read_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # the wake-up pipe has told the thread already
        self._store.set(f"alive/{self.rank}", json.dumps([socket.gethostname(), os.getpid()]))
        threading.Thread(target=self._watch, name="peers", daemon=True).start()

    def finish(self, failure: Failure | None) -> ExitCode:
        """End of the main thread: with a failure of its own, or none. Returns the code that all ranks exit with."""
        if not self._ending.acquire(blocking=False):
            while True:  # the thread ends the process
                time.sleep(60.0)
        try:
            return self._end_together(failure)
        except Exception as error:  # the store is gone
            return say_failure(failure or Failure(ExitCode.PEER_LOST, f"rank {self.rank}: the store is gone: {error}"))

    def _end_together(self, failure: Failure | None) -> ExitCode:
        if failure is not None:
            failure = Failure.parse(self._store.compare_set("failed", "", failure.text()))
        self._store.set(f"figures/{self.rank}", self.figures())
        if self.rank == 0:
            ended = self._collect_and_write(failure)
            self._store.set("written", ended.text() if ended else "")
            return say_failure(ended)
        whole = failure is None and self._wait_for(["written"], self._timeout, stop_at_failure=True)
        if not whole and not self._wait_for(["written"], 2 * GRACE_SECONDS, stop_at_failure=False):
            raise Lost("rank 0 does not say that the result is written")
        text = self._store.get("written")
        return say_failure(Failure.parse(text) if text else None, quiet=True)

    def _collect_and_write(self, failure: Failure | None) -> Failure | None:
        keys = [f"figures/{rank}" for rank in range(self.world_size)]
        whole = self._wait_for(keys, GRACE_SECONDS if failure else self._timeout, stop_at_failure=failure is None)
        if not whole and failure is None:
            silent = Failure(ExitCode.PEER_LOST, f"rank 0: not every rank came to the end within {self._timeout:g} s")
            failure = Failure.parse(self._store.compare_set("failed", "", silent.text()))
            self._wait_for(keys, GRACE_SECONDS, stop_at_failure=False)
        if failure is not None and failure.code is ExitCode.PEER_LOST and self._check("terminated"):  # told to end, not lost
            self.clean_up()
            code = ExitCode(int(self._store.get("terminated")))
            return Failure(code, f"rank {self.rank}: a peer was ended by a signal; nothing is written")
        told = [self._store.get(key).decode() for key in keys if self._store.check([key])]
        return self.write(failure, told)

    def _wait_for(self, keys: list[str], seconds: float, *, stop_at_failure: bool) -> bool:
        end = time.monotonic() + seconds
        while not self._store.check(keys):
            if time.monotonic() > end or (stop_at_failure and self._store.check(["failed"])):
                return False
            time.sleep(TICK_SECONDS / 2)
        return True

    def _watch(self) -> None:
        while True:
            ready, _, _ = select.select([self._read_fd], [], [], TICK_SECONDS)
            try:
                number = os.read(self._read_fd, 1)[0] if ready else 0
                if number in {int(known) for known in SIGNALS}:
                    self._end_by_signal(SIGNALS[signal.Signals(number)])
                elif self._store.check(["failed"]):
                    self._end_with(Failure.parse(self._store.get("failed")))
                else:
                    self._beat()
            except Exception as error:
                self._end_with(Failure(ExitCode.PEER_LOST, f"rank {self.rank} lost a peer: {error or type(error).__name__}"))

    def _end_with(self, failure: Failure) -> None:
        with contextlib.suppress(Exception):  # torchrun, which keeps the store, may be ending too
            self._store.compare_set("failed", "", failure.text())
        if not self._ending.acquire(blocking=False):
            return  # the main thread is ending already, and looks for what was told
        try:
            code = self._end_together(failure)
        except Exception:
            code = say_failure(self.write(failure, [self.figures()]) if self.rank == 0 else failure)
        os._exit(code)

    def _end_by_signal(self, code: ExitCode) -> None:
        """Nothing is written, unless a peer's death is the reason for torchrun's SIGTERM."""
        dead = self._dead_neighbour() if code is ExitCode.TERMINATED else None
        if not self._check("terminated"):  # asked after that: a rank that is told to end says so before it dies
            if self._check("failed"):
                self._end_with(Failure.parse(self._store.get("failed")))
                return
            if dead is not None:
                self._end_with(Failure(ExitCode.PEER_LOST, f"rank {dead} died"))
                return
            with contextlib.suppress(Exception):
                self._store.set("terminated", str(int(code)))
        self.clean_up()
        say_failure(Failure(code, f"rank {self.rank}: ended by a signal; nothing is written"))
        os._exit(code)

    def _check(self, key: str) -> bool:
        with contextlib.suppress(Exception):  # torchrun, which keeps the store, is ending too
            return bool(self._store.check([key]))
        return False

    def _dead_neighbour(self) -> int | None:
        for rank in range(self.world_size):
            if rank != self.rank and self._check(f"alive/{rank}"):
                host, pid = json.loads(self._store.get(f"alive/{rank}"))
                if host == socket.gethostname() and not _is_running(pid):
                    return rank
        return None

    def _beat(self) -> None:
        """Tell that this rank lives; raises Lost for a peer that has been silent for too long."""
        now = time.monotonic()
        if now - self._last_beat < BEAT_SECONDS:
            return
        self._last_beat = now
        self._store.set(f"beat/{self.rank}", str(now))
        for rank in range(self.world_size):
            beat = self._store.get(f"beat/{rank}") if self._store.check([f"beat/{rank}"]) else b""
            before, since = self._beats.get(rank, (None, now))
            if beat != before:
                self._beats[rank] = (beat, now)
            elif now - since > self._timeout:
                raise Lost(f"rank {rank} has been silent for {self._timeout:g} s")


def _is_running(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def say_failure(failure: Failure | None, quiet: bool = False) -> ExitCode:
    """One line on stderr; the exit code."""
    if failure is None:
        return ExitCode.RAN
    if not quiet:
        say(f"{failure.code.name.lower().replace('_', ' ')}: {failure.message}")
    return failure.code
