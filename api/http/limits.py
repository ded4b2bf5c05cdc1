"""Limits and headers of every response, as plain ASGI middleware."""

from __future__ import annotations

import asyncio

from autoconfig.api.problems import MEDIA_TYPE, problem_bytes
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
"""Longest that a body may take to arrive."""


class Limits:
    """Refuses bodies above the limit before they are read whole, those that do not arrive and those that are compressed; adds
    the security headers."""

    def __init__(self, app: ASGIApp, most_bytes: int, body_seconds: float = BODY_SECONDS) -> None:
        self.app, self.most, self.body_seconds = app, most_bytes, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
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
            await _refuse(with_headers, _RefusedError(415, "the body is compressed; send it without Content-Encoding"))
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
                raise _RefusedError(408, f"the body did not arrive within {self.body_seconds:g} s") from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if received > self.most:
                raise self._too_large()
            return message

        try:
            await self.app(scope, counted, with_headers)
        except _RefusedError as error:
            if not started:
                await _refuse(with_headers, error)

    def _too_large(self) -> _RefusedError:
        return _RefusedError(413, f"the body is larger than {self.most:,} bytes")


class _RefusedError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


async def _refuse(send: Send, error: _RefusedError) -> None:
    """The problem document; the connection ends, for what was not read of the body is still on it."""
    body = problem_bytes(error.status, error.detail)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
