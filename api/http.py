"""The protocol's edge: limits of a request's head and body and headers of every response (plain ASGI middleware, uvicorn's
HTTP/1.1), what /metrics shows, and pages of a list: `?limit=50&cursor=...`; the answer's `next` is the cursor of the page
after, null at the end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any, ClassVar

from autoconfig.api.browser import PROBES
from autoconfig.api.problems import MEDIA_TYPE, RefusedError, problem_bytes
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"content-security-policy", CONTENT_POLICY.encode()),
)


BODY_SECONDS = 60.0
ENDING = "autoconfig.ending"
"""Of a request's scope: an ExitStack that closes when its answer is out."""


class Limits:
    """Refuses bodies above the limit before they are read whole, those that do not arrive and those that are compressed; adds
    the security headers."""

    def __init__(self, app: ASGIApp, most_bytes: int, body_seconds: float = BODY_SECONDS) -> None:
        self.app, self.most, self.body_seconds = app, most_bytes, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        given = dict(scope["headers"])
        declared = given.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.most:
            await _refuse(with_headers, self._too_large())
            return
        if given.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
            await _refuse(with_headers, _TooMuchError(415, "the body is compressed; send it without Content-Encoding"))
            return
        received, whole, until = 0, False, asyncio.get_running_loop().time() + self.body_seconds

        async def counted() -> Message:
            nonlocal received, whole
            if whole:  # what is waited for now is the caller's leaving
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise _TooMuchError(408, f"the body did not arrive within {self.body_seconds:g} s") from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if received > self.most:
                raise self._too_large()
            return message

        try:
            with ExitStack() as ending:
                scope[ENDING] = ending
                await self.app(scope, counted, with_headers)
        except _TooMuchError as error:
            if not started:
                await _refuse(with_headers, error)

    def _too_large(self) -> _TooMuchError:
        return _TooMuchError(413, f"the body is larger than {self.most:,} bytes")


class _TooMuchError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


async def _refuse(send: Send, error: _TooMuchError) -> None:
    """The problem document; the connection ends, for what was not read of the body is still on it."""
    body = problem_bytes(error.status, error.detail)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.latency = Histogram(
            "autoconfig_request_seconds",
            "Seconds from request to response.",
            ("route", "status"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.requests = Counter(
            "autoconfig_requests", "Requests by the name of their key.", ("key", "route", "status"), registry=self.registry
        )
        self.cached = Counter("autoconfig_answers_cached", "Answers that came from the cache.", registry=self.registry)
        self.searches = Gauge("autoconfig_searches", "Searches by state.", ("state",), registry=self.registry)
        self.trials = Gauge(
            "autoconfig_trials", "Trials of searches that measure, by how they ended.", ("outcome",), registry=self.registry
        )
        self.waiting = Gauge("autoconfig_answers_waiting", "Questions being computed or queued.", registry=self.registry)


def query_parameter(name: str, schema: dict[str, Any], said: str = "", place: str = "query") -> dict[str, Any]:
    """A parameter of the OpenAPI document that may be left out."""
    return {"name": name, "in": place, "required": False, **({"description": said} if said else {}), "schema": schema}


DEFAULT_LIMIT = 100
MAX_LIMIT = 500
PAGE_PARAMETERS: list[dict[str, Any]] = [
    query_parameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}, f"Entries of a page; {DEFAULT_LIMIT} unless given."
    ),
    query_parameter("cursor", {"type": "string", "pattern": "^[0-9]{1,9}$"}, "`next` of the page before."),
]


def bounds_of(request: HttpRequest) -> tuple[int, int]:
    """(offset, limit) of a request. Raises RefusedError."""
    limit = _number(request, "limit", str(DEFAULT_LIMIT))
    if not 1 <= limit <= MAX_LIMIT:
        raise RefusedError(422, f"limit={limit}: give a whole number from 1 to {MAX_LIMIT}", field="limit")
    return _number(request, "cursor", "0"), limit


def page_of(request: HttpRequest, items: list[Any]) -> tuple[list[Any], str | None]:
    """(the page that a request asks for, the cursor of the next one). Raises RefusedError."""
    offset, limit = bounds_of(request)
    return items[offset : offset + limit], str(offset + limit) if offset + limit < len(items) else None


def _number(request: HttpRequest, name: str, default: str) -> int:
    given = request.query_params.getlist(name) or [default]
    if len(given) > 1 or not (given[0].isascii() and given[0].isdigit() and len(given[0]) <= 9):
        raise RefusedError(422, f"{name}={','.join(given)[:40]!r}: give one whole number", field=name)
    return int(given[0])


MOST_CONNECTIONS, MOST_IDLE_OF_ONE = 800, 200
"""Open connections, and those of one address on which nothing is being answered: above them the one that is idle for the
longest time is closed, so that a new one always finds a place."""
HEAD_SECONDS = 30.0
"""Longest that a request line and its headers may take to arrive, from the connection or their first bytes on."""
MAX_HEAD_BYTES = 64 * 2**10
"""Longest head, to within what is read at once."""
_PROBE_PATHS = frozenset(path.encode() for path in PROBES)
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedHead(HttpToolsProtocol):
    """Ends connections whose head is too large or does not arrive, and where there are too many those that are idle longest.
    Probes are outside uvicorn's limit of concurrency. A head that is there at once costs no timer."""

    open: ClassVar[dict[LimitedHead, None]] = {}
    """In the order of their last answer."""
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.open[self] = None
        self._make_room()
        self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        probe = self.url.partition(b"?")[0] in _PROBE_PATHS
        self.limit_concurrency = None if probe else self.config.limit_concurrency
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if self.open.pop(self, self) is None:
            self.open[self] = None
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            self._end()
            return
        self._bytes += len(data)
        if self._bytes > MAX_HEAD_BYTES:
            self._end()
            self.transport.write(TOO_LARGE)
            self.transport.close()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self.open.pop(self, None)
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Nothing is being answered: the question is not there, or not all of it."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _make_room(self) -> None:
        """Close the connection that has been idle longest, of this address or, where all are too many, of any."""
        if len(self.open) <= MOST_IDLE_OF_ONE:
            return
        address = self.client and self.client[0]
        idle = [one for one in self.open if one.client and one.client[0] == address and one.idle and one is not self]
        oldest = idle[0] if len(idle) > MOST_IDLE_OF_ONE else None
        if oldest is None and len(self.open) > MOST_CONNECTIONS:
            oldest = next((one for one in self.open if one.idle and one is not self), None)
        if oldest is not None:
            self.open.pop(oldest, None)
            oldest.transport.close()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.transport.close()
