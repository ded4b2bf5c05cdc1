"""What every endpoint needs: the running service, the caller's key, ready responses; worker processes for answers, with a time
limit that ends the process, and a cache of rendered answers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as PoolTimeout
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import sqlalchemy as sa
from autoconfig.api.answers import answer, warm_up
from autoconfig.api.browser import refuse_foreign_pages
from autoconfig.api.follow import Followers
from autoconfig.api.http import Metrics
from autoconfig.api.measurements import Known, OwnCalibration, current
from autoconfig.api.problems import MEDIA_TYPE, RefusedError, problem, problem_bytes
from autoconfig.api.store import Key, RateLimit, ServiceSettings, find_key
from dbos import DBOSClient
from pebble import ProcessExpired, ProcessPool
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

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


class AnswerCache:
    """The answers used last, up to a number of bytes. Keys are (endpoint and calibration, hash of the raw body)."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[tuple[str, bytes], Rendered] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @staticmethod
    def key(kind: str, raw: bytes, calibration: str = "") -> tuple[str, bytes]:
        return f"{kind} {calibration}", hashlib.sha256(raw).digest()

    def get(self, key: tuple[str, bytes]) -> Rendered | None:
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: tuple[str, bytes], value: Rendered) -> None:
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
        self._pool = ProcessPool(
            max_workers=self._processes, max_tasks=JOBS_PER_PROCESS, initializer=warm_up, context=get_context("spawn")
        )
        for _ in range(self._processes):
            self._pool.schedule(warm_up)

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None

    @property
    def waiting(self) -> int:
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
            text = f"too large a question to be answered within {self._seconds:g} s; {SMALLER.get(kind, FIX_KEYS)}"
            return render(422, problem_bytes(422, text))
        except ProcessExpired:
            return render(500, problem_bytes(500, "the worker process ended; try again, and see the service's log"))
        if len(body_bytes) < LARGE_BYTES:
            return render(status, body_bytes)
        return await asyncio.to_thread(render, status, body_bytes)


JSON = "application/json"
DATABASE_AWAY = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)
"""It cannot be reached, it ends the connection, or every connection to it is taken: no fault of the question, and it passes."""
AGAIN_SECONDS = 2
Endpoint = Callable[[HttpRequest], Awaitable[Response]]


@dataclass(kw_only=True)
class Service:
    """One running process."""

    settings: ServiceSettings
    engine: sa.Engine
    compute: Compute
    metrics: Metrics
    rates: RateLimit
    queue: DBOSClient
    followers: Followers
    calibrations: Known = field(default_factory=Known)

    async def admit(self, request: HttpRequest, scope: str) -> None:
        """Raises RefusedError where the caller may not go on: 401, 403 or 429. Says in the request's state whose rows it makes
        (`owner`), and whose it sees (`sees`; None: everybody's)."""
        if scope:
            refuse_foreign_pages(request, self.settings.allowed_hosts)
        request.state.owner, request.state.sees = "", None
        if not self.settings.keys_required or not scope:
            return
        key = await self._key(request)
        if key is None:
            how = {"WWW-Authenticate": 'Bearer realm="autoconfig"'}
            raise RefusedError(401, "send a valid key: Authorization: Bearer ac_...", how)
        if not key.allows(scope):
            raise RefusedError(403, f"this needs the scope {scope!r}; the key has {', '.join(key.scopes)}")
        request.state.owner = key.id
        request.state.sees = None if key.allows("admin") else key.id
        wait = self.rates.wait(key.id)
        if wait > 0:
            text = f"more than {self.settings.requests_per_second:g} requests a second with this key; wait {wait:.2f} s"
            raise RefusedError(429, text, {"Retry-After": str(max(1, round(wait)))})

    async def _key(self, request: HttpRequest) -> Key | None:
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not text.strip():
            return None
        return await run_in_threadpool(find_key, self.engine, text.strip())


def service_of(request: HttpRequest) -> Service:
    """The service behind a request."""
    found: Service = request.app.state.service
    return found


def guarded(scope: str, endpoint: Endpoint) -> Endpoint:
    """The endpoint behind its scope (open where it is empty), timed for /metrics; what it refuses is a problem document."""

    async def inner(request: HttpRequest) -> Response:
        service, start, status = service_of(request), time.perf_counter(), 500
        try:
            await service.admit(request, scope)
            response = await endpoint(request)
            status = response.status_code
        except RefusedError as error:
            response, status = error.response, error.status
        except DATABASE_AWAY:
            LOG.warning("%s %s: the database does not answer", request.method, request.url.path, exc_info=True)
            response = problem(503, "the database does not answer; try again", headers={"Retry-After": str(AGAIN_SECONDS)})
            status = 503
        except ClientDisconnect:  # the answer that nobody reads (`api.app`)
            status = 400
            raise
        finally:
            service.metrics.latency.labels(request.scope["route"].path, status).observe(time.perf_counter() - start)
        return response

    inner.__name__ = endpoint.__name__
    inner.__doc__ = endpoint.__doc__
    return inner


def respond(request: HttpRequest, found: Rendered, kind: str = JSON, **more: str) -> Response:
    """A rendered answer: gzipped where the caller takes it, 304 where a GET has it already."""
    headers = {"ETag": found.etag, "Vary": "Accept-Encoding", **more}
    if found.status != 200:
        return Response(found.body, status_code=found.status, media_type=MEDIA_TYPE)
    if request.method == "GET" and matches(request.headers.get("if-none-match", ""), found.etag):
        return Response(status_code=304, headers=headers)
    if found.zipped is not None and takes_gzip(request):
        return Response(found.zipped, media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.body, media_type=kind, headers=headers)


def takes_gzip(request: HttpRequest) -> bool:
    """Accept-Encoding, RFC 9110 section 12.5.3: gzip by name, else `*`; a weight of 0 refuses."""
    weights: dict[str, bool] = {}
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = not re.fullmatch(r"\s*q\s*=\s*0(\.0{0,3})?\s*", weight)
    return weights.get("gzip", weights.get("*", False))


def require_json(request: HttpRequest) -> None:
    """A body without a content type is none either: a page of another site may send that unasked. Raises RefusedError."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise RefusedError(415, "send the body as application/json (curl: -H 'content-type: application/json')")


async def own_calibration(request: HttpRequest) -> OwnCalibration | None:
    """The calibration of the caller's own measurements; None: the shipped one."""
    service, owner = service_of(request), request.state.owner
    fresh, found = service.calibrations.fresh(owner)
    if not fresh:
        found = await run_in_threadpool(current, service.engine, owner)
        service.calibrations.hold(owner, found)
    return found


def matches(header: str, etag: str) -> bool:
    """If-None-Match, RFC 9110 section 13.1.2: weak comparison."""
    return any(part.strip() in ("*", etag, f"W/{etag}") for part in header.split(","))
