"""Answers computed in worker processes: a bounded queue in which keys take turns, a time limit from arrival that ends the
process, an end where nobody waits any more; and a cache of rendered answers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as PoolTimeout
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from autoconfig.api.answers import answer, read, warm_up
from autoconfig.api.problems import RefusedError, problem_bytes
from autoconfig.api.turns import Turns
from pebble import ProcessExpired, ProcessPool

LOG = logging.getLogger("autoconfig.training.answer")
GZIP_FROM_BYTES = 1_024
GZIP_LEVEL = 5
LARGE_BYTES = 2**20
"""Answers from here on take tens of milliseconds to compress: not while other requests wait."""
JOBS_PER_PROCESS = 2_000
"""A worker process is replaced after so many answers, so that memory stays bounded."""
MOST_WAITING, MOST_WAITING_OF_ONE = 256, 64
"""Questions that wait for a process: of all keys, of one. Without keys everybody is one."""
LONGEST_RETRY_SECONDS = 30
ABANDONED_SECONDS = 2.0
"""A question that runs when its last caller leaves may run on for so long: most are done by then, and a process that is ended
takes about as long to begin anew."""
DRAIN_SECONDS = 5.0
"""So long the questions that run may run on when the service ends."""


@dataclass(frozen=True)
class Rendered:
    """An answer as it goes out."""

    status: int
    body: bytes
    etag: str
    zipped: bytes | None = None

    @property
    def size(self) -> int:
        return len(self.body) + len(self.zipped or b"")


def render(status: int, body: bytes) -> Rendered:
    """The answer with its ETag, and gzipped where that pays."""
    zipped = gzip.compress(body, GZIP_LEVEL, mtime=0) if len(body) >= GZIP_FROM_BYTES else None
    return Rendered(status, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"', zipped)


FIX_KEYS = "fix some keys, ask for fewer GPUs, or POST /v1/searches"
SMALLER = {
    "post-training": "ask for fewer GPUs (gpus) or no staleness (staleness 0), or ask autoconfig rl on your own machine",
    "predict": "send fewer rows at once",
    "deployments": "ask for fewer GPUs (gpus), or ask autoconfig deployments on your own machine",
}
"""What makes a question smaller, by endpoint; FIX_KEYS of those that ask for training plans."""
CacheKey = tuple[str, bytes]


class AnswerCache:
    """The answers used last, up to a number of bytes. Keys are (endpoint and calibration, hash of the raw body)."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[CacheKey, Rendered] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @staticmethod
    def key(kind: str, raw: bytes, calibration: str = "") -> CacheKey:
        return f"{kind} {calibration}", hashlib.sha256(raw).digest()

    def get(self, key: CacheKey) -> Rendered | None:
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: CacheKey, value: Rendered) -> None:
        with self._lock:
            before = self._held.pop(key, None)
            self._bytes += value.size - (before.size if before else 0)
            self._held[key] = value
            while self._bytes > self._most and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= dropped.size


@dataclass(eq=False, kw_only=True)
class _Job:
    """A question that waits or runs. `result`: (status, document or value)."""

    kind: str
    call: tuple[Callable[..., tuple[int, Any]], tuple[Any, ...]]
    result: asyncio.Future[tuple[int, Any]]
    until: float
    """When its time is over, by the event loop's clock."""
    callers: int = 0
    given: float = 0.0
    """Seconds that the process has for it."""
    begun: float = 0.0
    process: Future[tuple[int, Any]] | None = None
    timer: asyncio.TimerHandle | None = None


class Compute:
    """Answers questions in worker processes. `start` before use, `stop` after; `drain` where the end is near.

    `spare`: a process more than `processes`, which is kept for keys that hold none.
    """

    def __init__(self, processes: int, seconds: float, cache_bytes: int, *, spare: bool = False) -> None:
        self.cache = AnswerCache(cache_bytes)
        self._processes, self._seconds = processes + spare, seconds
        self._pools: list[ProcessPool] = []
        """One of each process: what is handed over waits for no other process, nor for one that begins anew."""
        self._free: list[ProcessPool] = []
        self._turns: Turns[_Job] = Turns(self._processes, spare=spare)
        self._alike: dict[CacheKey, _Job] = {}
        self._running: set[_Job] = set()
        self._mean = 0.5
        """Seconds of an answer, of the last ones."""
        self.draining = False

    def start(self) -> None:
        self._pools = [_process() for _ in range(self._processes)]
        self._free = [*self._pools]

    def stop(self) -> None:
        pools, self._pools, self._free = self._pools, [], []
        with ThreadPoolExecutor(max(1, len(pools))) as threads:
            for _ in threads.map(_end, pools):
                pass

    def drain(self) -> None:
        """Refuse what waits and what comes; what runs has DRAIN_SECONDS."""
        self.draining = True
        for job in self._turns.clear():
            _refuse(job, _stopping())
        asyncio.get_running_loop().call_later(DRAIN_SECONDS, self._end_all)

    def _end_all(self) -> None:
        for job in [*self._running]:
            _refuse(job, _stopping())

    @property
    def waiting(self) -> int:
        """Questions that wait or run."""
        return self._turns.waiting + len(self._running)

    async def answer(
        self, kind: str, body: dict[str, Any] | bytes, key: CacheKey, calibration: str | None = None, *, owner: str = "",
        patient: bool = False,
    ) -> Rendered:  # fmt: skip
        """The answer to a checked body, or to the bytes of one; questions that are alike share one computation. Only answers
        (200) are kept. `patient`: one of a batch, which asks few at a time, so that no limit of waiting questions is for it.
        Raises RefusedError (429, 503)."""
        job = self._alike.get(key)
        if job is None or job.result.done():
            job = self._add(kind, (answer, (kind, body, calibration)), owner, patient)
            self._alike[key] = job
            job.result.add_done_callback(partial(self._forget, key, job))
        elif job.process is None:
            self._turns.add(owner, job)
        status, document = await self._wait(job)
        held = self.cache.get(key) if status == 200 else None
        if held is not None:
            return held
        found = await _rendered(status, document)
        if status == 200:
            self.cache.put(key, found)
        return found

    def _forget(self, key: CacheKey, job: _Job, _: object) -> None:
        if self._alike.get(key) is job:
            del self._alike[key]

    async def run(self, kind: str, body: dict[str, Any], calibration: str | None = None, *, owner: str = "") -> Rendered:
        """The answer, computed now and not kept; `calibration`: the caller's own, as JSON. Raises RefusedError."""
        return await _rendered(*await self._wait(self._add(kind, (answer, (kind, body, calibration)), owner)))

    async def read(self, name: str, raw: bytes, *, owner: str = "") -> dict[str, Any]:
        """The checked body (a key of `bodies.READERS`) of many bytes. Raises RefusedError."""
        status, found = await self._wait(self._add(name, (read, (name, raw)), owner))
        if isinstance(found, bytes):
            raise RefusedError(status, json.loads(found)["detail"])
        if status != 200:
            raise RefusedError(status, **found)
        return dict(found)

    def _add(
        self, kind: str, call: tuple[Callable[..., tuple[int, Any]], tuple[Any, ...]], owner: str, patient: bool = False
    ) -> _Job:
        if not self._pools or self.draining:
            raise _stopping()
        if not patient:
            self._refuse_more(owner)
        loop = asyncio.get_running_loop()
        job = _Job(kind=kind, call=call, result=loop.create_future(), until=loop.time() + self._seconds)
        job.timer = loop.call_at(job.until, self._late, job)
        self._turns.add(owner, job)
        self._begin()
        return job

    def _refuse_more(self, owner: str) -> None:
        """Raises RefusedError where enough questions wait: 429 of this key's, 503 of all."""
        mine, every = self._turns.waiting_of(owner), self._turns.waiting
        if mine >= MOST_WAITING_OF_ONE:
            raise RefusedError(429, f"{mine} of your questions wait; POST /v1/batch asks up to 256 at once", self._again(mine))
        if every >= MOST_WAITING:
            raise RefusedError(503, f"{every} questions wait for a process; try again", self._again(every))

    def _again(self, count: int) -> dict[str, str]:
        """When a quarter of `count` questions will have been answered, or so."""
        seconds = round(self._mean * count / 4 / self._processes)
        return {"Retry-After": str(max(1, min(seconds, LONGEST_RETRY_SECONDS)))}

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        while self._free and (found := self._turns.begin()) is not None:
            owner, job = found
            pool = self._working(self._free.pop(0))
            if job.timer is not None:
                job.timer.cancel()
            job.begun = loop.time()
            job.given = max(job.until - job.begun, 0.01)
            function, arguments = job.call
            self._running.add(job)
            job.process = pool.schedule(function, args=arguments, timeout=job.given)
            job.call = (function, ())  # what it holds is with the process now
            job.process.add_done_callback(_from_thread(loop, partial(self._ended, owner, job, pool)))

    def _working(self, pool: ProcessPool) -> ProcessPool:
        """The pool, or a new one where it has failed."""
        if pool.active:
            return pool
        LOG.error("the pool of a worker process has failed; it is started again")
        _end(pool)
        new = _process()
        self._pools[self._pools.index(pool)] = new
        return new

    def _give_back(self, owner: str, pool: ProcessPool, _: object = None) -> None:
        """The process can take the next question."""
        self._turns.end(owner)
        if pool in self._pools:
            self._free.append(pool)
        self._begin()

    def _ended(self, owner: str, job: _Job, pool: ProcessPool, future: Future[tuple[int, Any]]) -> None:
        """The process is done with a question, or was ended: then its owner holds it until it has begun anew."""
        self._running.discard(job)
        if job.timer is not None:
            job.timer.cancel()
        if not future.cancelled() and future.exception() is None:
            self._give_back(owner, pool)
        elif pool in self._pools:
            pool = self._working(pool)
            again = _from_thread(asyncio.get_running_loop(), partial(self._give_back, owner, pool))
            pool.schedule(int).add_done_callback(again)
        if job.result.done():
            return
        try:
            job.result.set_result(future.result())
        except PoolTimeout:
            self._settle_late(job)
        except CancelledError:
            job.result.cancel()
        except ProcessExpired:
            job.result.set_result((500, problem_bytes(500, "the worker process ended; try again, and see the service's log")))
        except Exception:
            LOG.exception("a worker process fails")
            job.result.set_result((500, problem_bytes(500, "a worker process failed; try again, and see the service's log")))
        self._mean += 0.1 * (asyncio.get_running_loop().time() - job.begun - self._mean)

    def _late(self, job: _Job) -> None:
        """It waits, and its time is over."""
        self._turns.remove(job)
        self._settle_late(job)

    def _settle_late(self, job: _Job) -> None:
        """Too large only where it had, but for a moment, the whole time."""
        if job.given > 0.9 * self._seconds:
            text = f"too large a question to be answered within {self._seconds:g} s; {SMALLER.get(job.kind, FIX_KEYS)}"
            job.result.set_result((422, problem_bytes(422, text)))
            return
        waited = self._seconds - job.given
        text = f"no process was free for {waited:.1f} of the {self._seconds:g} s; try again"
        _refuse(job, RefusedError(503, text, self._again(4 * self._processes + self._turns.waiting)))

    async def _wait(self, job: _Job) -> tuple[int, Any]:
        """What comes out. Where the last caller leaves, what waits is dropped, and what runs is ended soon."""
        job.callers += 1
        try:
            return await asyncio.shield(job.result)
        finally:
            job.callers -= 1
            if not job.callers and not job.result.done():
                if job.timer is not None:
                    job.timer.cancel()
                if job.process is None:
                    self._turns.remove(job)
                    job.result.cancel()
                else:
                    job.timer = asyncio.get_running_loop().call_later(ABANDONED_SECONDS, self._end_abandoned, job)

    def _end_abandoned(self, job: _Job) -> None:
        if not job.callers and not job.result.done() and job.process is not None:
            job.result.cancel()
            job.process.cancel()


def _process() -> ProcessPool:
    """A worker process, which is replaced when it ends."""
    pool = ProcessPool(max_workers=1, max_tasks=JOBS_PER_PROCESS, initializer=warm_up, context=get_context("spawn"))
    pool.schedule(warm_up)
    return pool


def _end(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[Future[Any]], None]) -> Callable[[Future[Any]], None]:
    """`call`, from another thread, in the loop, as long as that runs."""

    def handed_over(future: Future[Any]) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call, future)

    return handed_over


def _refuse(job: _Job, error: RefusedError) -> None:
    if not job.result.done():
        job.result.set_exception(error)
        job.result.exception()  # looked at, where nobody waits


def _stopping() -> RefusedError:
    return RefusedError(503, "the service is starting or stopping; try again", {"Retry-After": "2"})


async def _rendered(status: int, document: bytes) -> Rendered:
    if len(document) < LARGE_BYTES:
        return render(status, document)
    return await asyncio.to_thread(render, status, document)
