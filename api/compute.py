"""Worker processes for answers, with a time limit that ends the process, and a cache of rendered answers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import threading
from collections import OrderedDict
from concurrent.futures import TimeoutError as PoolTimeout
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from autoconfig.api.answers import answer, warm_up
from autoconfig.api.problems import problem_bytes
from pebble import ProcessExpired, ProcessPool

LOG = logging.getLogger("autoconfig.training.answer")
GZIP_FROM_BYTES = 1_024
GZIP_LEVEL = 5
LARGE_BYTES = 2**20
"""Answers from here on take tens of milliseconds to compress: not while other requests wait."""
JOBS_PER_PROCESS = 2_000
"""A worker process is replaced after so many answers, so that memory stays bounded."""


@dataclass(frozen=True)
class Rendered:
    """An answer as it goes out."""

    status: int
    body: bytes
    etag: str
    zipped: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.body) + len(self.zipped or b"")


def render(status: int, body: bytes) -> Rendered:
    """The answer with its ETag, and gzipped where that pays."""
    zipped = gzip.compress(body, GZIP_LEVEL, mtime=0) if len(body) >= GZIP_FROM_BYTES else None
    return Rendered(status, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"', zipped)


class AnswerCache:
    """The answers used last, up to a number of bytes. Keys are (endpoint and calibration, hash of the raw body)."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[tuple[str, bytes], Rendered] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @staticmethod
    def key(kind: str, raw: bytes, calibration: str = "") -> tuple[str, bytes]:
        """The key of a raw body under a calibration of the caller's own."""
        return f"{kind} {calibration}", hashlib.sha256(raw).digest()

    def get(self, key: tuple[str, bytes]) -> Rendered | None:
        """The answer, which counts as used."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: tuple[str, bytes], value: Rendered) -> None:
        """Keep an answer; the ones not used for longest give way."""
        with self._lock:
            before = self._held.pop(key, None)
            self._bytes += value.size - (before.size if before else 0)
            self._held[key] = value
            while self._bytes > self._most and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= dropped.size


class Compute:
    """Answers questions in worker processes. `start` before use, `stop` after."""

    def __init__(self, processes: int, seconds: float, cache_bytes: int) -> None:
        self.cache = AnswerCache(cache_bytes)
        self._processes, self._seconds = processes, seconds
        self._pool: ProcessPool | None = None
        self._running: dict[tuple[str, bytes], asyncio.Future[Rendered]] = {}

    def start(self) -> None:
        """Start the processes; each loads the application at once."""
        self._pool = ProcessPool(
            max_workers=self._processes, max_tasks=JOBS_PER_PROCESS, initializer=warm_up, context=get_context("spawn")
        )
        for _ in range(self._processes):
            self._pool.schedule(warm_up)

    def stop(self) -> None:
        """End the processes now."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None

    @property
    def waiting(self) -> int:
        """Questions being computed or queued."""
        return len(self._running)

    async def answer(self, kind: str, body: dict[str, Any], key: tuple[str, bytes], calibration: str | None = None) -> Rendered:
        """The answer; questions that are alike wait for one computation. Only answers (200) are kept."""
        running = self._running.get(key)
        if running is None:
            running = asyncio.ensure_future(self.run(kind, body, calibration))
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
        found = await asyncio.shield(running)
        if found.status == 200:
            self.cache.put(key, found)
        return found

    async def run(self, kind: str, body: dict[str, Any], calibration: str | None = None) -> Rendered:
        """The answer, computed now and not kept; `calibration`: the caller's own, as JSON."""
        if self._pool is None:
            return render(503, problem_bytes(503, "the service is starting or stopping; try again"))
        if not self._pool.active:
            LOG.error("the pool of worker processes has failed; it is started again")
            self.stop()
            self.start()
        try:
            future = self._pool.schedule(answer, args=(kind, body, calibration), timeout=self._seconds)
            status, body_bytes = await asyncio.wrap_future(future)
        except PoolTimeout:
            text = (
                f"too large a question to be answered within {self._seconds:g} s; fix some keys, ask for fewer GPUs, or "
                "POST /v1/searches"
            )
            return render(422, problem_bytes(422, text))
        except ProcessExpired:
            return render(500, problem_bytes(500, "the worker process ended; try again, and see the service's log"))
        if len(body_bytes) < LARGE_BYTES:
            return render(status, body_bytes)
        return await asyncio.to_thread(render, status, body_bytes)
