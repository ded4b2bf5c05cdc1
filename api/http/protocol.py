"""uvicorn's HTTP/1.1 with limits of a request's head, which httptools reads without any."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 30.0
"""Longest that a request line and its headers may take to arrive, from the connection or their first bytes on."""
MAX_HEAD_BYTES = 64 * 2**10
"""Longest head, to within what is read at once."""
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedHead(HttpToolsProtocol):
    """Ends connections whose head is too large or does not arrive. A head that is there at once costs no timer."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first head is waited for."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head, self._bytes = True, 0

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Counts what belongs to a head that is not complete."""
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
        """Nothing is waited for any more."""
        self._end()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.transport.close()
