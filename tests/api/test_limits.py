"""Requests that are too large or do not arrive: refused, and the service goes on."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import uvicorn
from autoconfig.api import http as protocol
from autoconfig.api.http import Limits
from starlette.requests import Request
from starlette.responses import Response

pytestmark = pytest.mark.xdist_group("api")
HEAD = b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def connected(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def test_a_head_without_an_end_is_refused(service, http):
    answer = b""
    with connected(service.url) as line, suppress(ConnectionError):  # where it ends while more is sent, the answer is lost
        line.sendall(HEAD + b"X: ")
        for _ in range(64):
            line.sendall(b"a" * 2**14)
        answer = line.recv(100)
    assert not answer or answer.startswith(b"HTTP/1.1 431")
    assert http.get("/healthz").status_code == 200


def test_many_requests_on_one_connection_are_no_large_head(service):
    line = HTTPConnection(urlsplit(service.url).netloc, timeout=20)
    line.connect()
    first = line.sock
    for _ in range(8):
        line.request("GET", "/healthz", headers={"X": "a" * (protocol.MAX_HEAD_BYTES // 2)})
        answer = line.getresponse()
        assert answer.status == 200 and answer.read() and line.sock is first
    line.close()


def test_a_head_that_does_not_arrive_ends_the_connection(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.05)

    async def ask(sent: bytes) -> bytes:
        async def app(scope, receive, send):
            await Response(b"yes")(scope, receive, send)

        config = uvicorn.Config(app, http=protocol.LimitedHead, ws="none", lifespan="off", log_level="error")
        config.load()
        state = uvicorn.Server(config).server_state
        listening = await asyncio.get_running_loop().create_server(
            lambda: protocol.LimitedHead(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with listening:
            reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
            writer.write(sent)
            found = await asyncio.wait_for(reader.read(), 20)
            writer.close()
        return found

    assert asyncio.run(ask(b"")) == b"" and asyncio.run(ask(HEAD)) == b""
    whole = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert asyncio.run(ask(whole)).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_arrive_is_refused():
    async def app(scope, receive, send):
        await Request(scope, receive).body()

    async def ask() -> list[dict]:
        parts = [{"type": "http.request", "body": b"{", "more_body": True}]
        sent: list[dict] = []

        async def receive() -> dict:
            if parts:
                return parts.pop()
            await asyncio.sleep(20)
            raise AssertionError("it is waited for")

        async def send(message: dict) -> None:
            sent.append(message)

        await Limits(app, 1_000, body_seconds=0.05)({"type": "http", "headers": []}, receive, send)
        return sent

    assert [message.get("status") for message in asyncio.run(ask())] == [408, None]


def test_a_caller_that_leaves_is_no_fault_of_the_service(services):
    service = services("--workers", "1")
    for _ in range(3):
        with connected(service.url) as line:
            line.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
    with service.client() as client:
        assert client.get("/healthz").status_code == 200
    service.process.terminate()
    _, said = service.process.communicate(timeout=60)
    assert "Traceback" not in said, said
