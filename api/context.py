"""What every endpoint needs: the running service, the caller's key, the body within its limits, ready responses."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar

import sqlalchemy as sa
from anyio import CapacityLimiter
from autoconfig.api.browser import refuse_foreign_pages
from autoconfig.api.compute import CacheKey, Compute, Rendered
from autoconfig.api.follow import Followers
from autoconfig.api.http import ENDING, Metrics
from autoconfig.api.limits import Logins, Room
from autoconfig.api.measurements import Known, OwnCalibration, current
from autoconfig.api.problems import MEDIA_TYPE, RefusedError, problem
from autoconfig.api.store import Key, RateLimit, ServiceSettings, find_key, now, trouble
from autoconfig.api.wire.bodies import READERS
from dbos import DBOSClient
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

LOG = logging.getLogger("autoconfig.training.answer")
ACCESS = logging.getLogger("autoconfig.access")
RELEASE = version("megatron-autoconfig")
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
    room: Room = field(default_factory=Room)
    logins: Logins = field(default_factory=Logins)
    probing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(2))
    """Threads of `/readyz` alone: those of the other requests may all wait for the database."""
    batches: Counter[str] = field(default_factory=Counter)
    """That are being answered, by key."""

    async def admit(self, request: HttpRequest, scope: str) -> None:
        """Raises RefusedError where the caller may not go on: 401, 403 or 429. Says in the request's state whose rows it makes
        (`owner`), and whose it sees (`sees`; None: everybody's)."""
        if scope:
            refuse_foreign_pages(request, self.settings.allowed_hosts)
        request.state.owner, request.state.sees, request.state.key_name = "", None, ""
        if not self.settings.keys_required or not scope:
            return
        key = await self._key(request)
        if key is None:
            how = {"WWW-Authenticate": 'Bearer realm="autoconfig"'}
            raise RefusedError(401, "send a valid key: Authorization: Bearer ac_...", how)
        request.state.key_name = key.name
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
        address, text = request.client.host if request.client else "", text.strip()
        self.logins.refuse(address, text)
        key = await run_in_threadpool(find_key, self.engine, text)
        self.logins.tell(address, text, key is not None)
        return key


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
        except DATABASE_AWAY as error:
            LOG.warning("%s %s: the database fails", request.method, request.url.path, exc_info=True)
            response = problem(503, trouble(error), headers={"Retry-After": str(AGAIN_SECONDS)})
            status = 503
        except ClientDisconnect:  # the answer that nobody reads (`api.app`)
            status = 400
            raise
        finally:
            account(request, request.scope["route"].path, status, time.perf_counter() - start)
        return response

    inner.__name__ = endpoint.__name__
    inner.__doc__ = endpoint.__doc__
    return inner


def account(request: HttpRequest, route: str, status: int, seconds: float) -> None:
    """Count a request, and write its line: nothing of its body, nor of its path beyond the route."""
    metrics, key = service_of(request).metrics, getattr(request.state, "key_name", "")
    metrics.latency.labels(route, status).observe(seconds)
    metrics.requests.labels(key, route, status).inc()
    ACCESS.info(
        "time=%s release=%s key=%s method=%s route=%s status=%d seconds=%.4f",
        *(now().isoformat(timespec="milliseconds"), RELEASE, json.dumps(key), request.method, route, status, seconds),
    )


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


LARGE_BODY_BYTES = 64 * 2**10
"""Bodies from here on are checked in a process, where no other request waits for it."""
Found = TypeVar("Found")


async def whole_body(request: HttpRequest) -> bytes:
    """The body; it takes room until the answer is out. Raises RefusedError where there is none, before it is read."""
    service, owner, ending = service_of(request), request.state.owner, request.scope[ENDING]
    declared = request.headers.get("content-length", "")
    taken, parts = 0, []
    if declared.isdigit():
        taken = service.room.take(owner, int(declared), ending)
    read = 0
    async for part in request.stream():
        read += len(part)
        if read > taken:
            taken += service.room.take(owner, read - taken, ending)
        parts.append(part)
    return b"".join(parts)


async def checked_body(request: HttpRequest, name: str) -> dict[str, Any]:
    """The body as the reader of this name (`bodies.READERS`) checks it. Raises RefusedError."""
    raw = await whole_body(request)
    if len(raw) <= LARGE_BODY_BYTES:
        return READERS[name](raw)
    return await unless_gone(request, service_of(request).compute.read(name, raw, owner=request.state.owner))


async def computed(
    request: HttpRequest, kind: str, body: dict[str, Any] | bytes, key: CacheKey, own: OwnCalibration | None
) -> Rendered:
    """The answer to a question, as long as the caller waits for it."""
    compute, owner = service_of(request).compute, request.state.owner
    return await unless_gone(request, compute.answer(kind, body, key, own.text if own else None, owner=owner))


async def unless_gone(request: HttpRequest, work: Coroutine[Any, Any, Found]) -> Found:
    """What comes out of `work`, which is cancelled where the caller hangs up first. Raises ClientDisconnect."""
    asked, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({asked, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise ClientDisconnect
        return asked.result()
    finally:
        asked.cancel()
        leaving.cancel()


async def _left(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
