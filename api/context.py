"""What every endpoint needs: the running service, the caller's key, ready responses."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import sqlalchemy as sa
from autoconfig.api.access import Key, RateLimit, find_key
from autoconfig.api.compute import Compute, Rendered
from autoconfig.api.http.metrics import Metrics
from autoconfig.api.measurements import Known, OwnCalibration, current
from autoconfig.api.problems import MEDIA_TYPE, problem
from autoconfig.api.settings import ServiceSettings
from dbos import DBOSClient
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

LOG = logging.getLogger("autoconfig.training.answer")
JSON = "application/json"
DATABASE_AWAY = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)
"""It cannot be reached, it ends the connection, or every connection to it is taken: no fault of the question, and it passes."""
AGAIN_SECONDS = 2
"""When a caller may try again."""
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
    calibrations: Known = field(default_factory=Known)

    async def admit(self, request: HttpRequest, scope: str) -> Response | None:
        """None where the caller may go on; else 401, 403 or 429."""
        request.state.owner = ""
        if not self.settings.keys_required:
            return None
        key = await self._key(request)
        if key is None:
            return problem(
                401, "send a valid key: Authorization: Bearer ac_...", headers={"WWW-Authenticate": 'Bearer realm="autoconfig"'}
            )
        if not key.allows(scope):
            return problem(403, f"this needs the scope {scope!r}; the key has {', '.join(key.scopes)}")
        request.state.owner = key.id
        wait = self.rates.wait(key.id)
        if wait > 0:
            return problem(
                429,
                f"more than {self.settings.requests_per_second:g} requests a second with this key; wait {wait:.2f} s",
                headers={"Retry-After": str(max(1, round(wait)))},
            )
        return None

    async def still_allowed(self, request: HttpRequest, scope: str) -> bool:
        """Whether a request that was admitted would be again: its key may have been revoked since."""
        if not self.settings.keys_required:
            return True
        key = await self._key(request)
        return key is not None and key.allows(scope)

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
    """The endpoint behind its scope, timed for /metrics."""

    async def inner(request: HttpRequest) -> Response:
        service, start, status = service_of(request), time.perf_counter(), 500
        try:
            response = await service.admit(request, scope) or await endpoint(request)
            status = response.status_code
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


def respond(request: HttpRequest, found: Rendered) -> Response:
    """A rendered answer: gzipped where the caller takes it, 304 where a GET has it already."""
    headers = {"ETag": found.etag, "Vary": "Accept-Encoding"}
    if found.status != 200:
        return Response(found.body, status_code=found.status, media_type=MEDIA_TYPE)
    if request.method == "GET" and matches(request.headers.get("if-none-match", ""), found.etag):
        return Response(status_code=304, headers=headers)
    if found.zipped is not None and takes_gzip(request):
        return Response(found.zipped, media_type=JSON, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.body, media_type=JSON, headers=headers)


def takes_gzip(request: HttpRequest) -> bool:
    """Accept-Encoding, RFC 9110 section 12.5.3: gzip by name, else `*`; a weight of 0 refuses."""
    weights: dict[str, bool] = {}
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = not re.fullmatch(r"\s*q\s*=\s*0(\.0{0,3})?\s*", weight)
    return weights.get("gzip", weights.get("*", False))


def is_json(request: HttpRequest) -> bool:
    """No content type counts as JSON."""
    kind = request.headers.get("content-type", JSON).split(";")[0].strip().lower()
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


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
