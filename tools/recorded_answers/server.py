"""Records the HTTP interface: starts the service on a free port with a database of its own and asks it everything."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading
import time
from urllib.parse import urlsplit

from tools.recorded_answers.record import HttpRequest, Recording

PATIENCE = 300.0
"""Seconds for one answer, and for what is asked again until it has come about."""
HEADERS_LEFT_OUT = ("date",)
STARTED = "listening on "


class ServiceError(Exception):
    """The service did not start, or something did not come about: recorded in place of an answer."""


def _start(recording: Recording) -> tuple[subprocess.Popen[bytes], str]:
    place = recording.place / "service"
    place.mkdir()
    database = f"sqlite:///{place}/service.db"
    command = [*recording.command, "serve", "--port", "0", "--database", database, "--workers", "1", "--search-workers", "1"]
    process = recording.processes.start(command, place)
    assert process.stderr is not None and process.stdout is not None
    lines = []
    for raw in process.stderr:
        lines.append(raw.decode(errors="backslashreplace"))
        if lines[-1].startswith(STARTED):
            for stream in (process.stderr, process.stdout):
                threading.Thread(target=stream.read, daemon=True).start()  # nobody reads on: a full pipe would block it
            return process, lines[-1].split()[-1]
    raise ServiceError(f"the service did not start: {''.join(lines)}")


class Asking:
    """Requests that build on one another: ids of earlier answers stand in the paths of later ones."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc
        self.ids: dict[str, str] = {}

    def once(self, request: HttpRequest) -> tuple[int, list[tuple[str, str]], str]:
        path = request.path
        for name, identity in self.ids.items():
            path = path.replace(f"{{{name}}}", identity)
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        try:
            connection.request(request.method, path, body=request.body, headers=request.headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="backslashreplace")
            return answer.status, answer.getheaders(), text
        finally:
            connection.close()

    def ask(self, request: HttpRequest) -> tuple[int, list[tuple[str, str]], str]:
        until = time.monotonic() + PATIENCE
        while True:
            status, headers, text = self.once(request)
            if request.until in text:
                break
            if time.monotonic() > until:
                raise ServiceError(f"{request.name}: no answer has {request.until!r}; the last one: {text[:500]}")
            time.sleep(0.2)
        if text.startswith("{"):
            body = json.loads(text)
            if isinstance(body.get("id"), str):
                self.ids[request.name] = body["id"]
        return status, headers, text


def _record(request: HttpRequest, asking: Asking, recording: Recording) -> None:
    recording.write(request.name, "request", f"{request.method} {request.path}\n{(request.body or b'').decode()}\n")
    try:
        status, headers, text = asking.ask(request)
    except (ServiceError, OSError, http.client.HTTPException) as error:
        recording.write(request.name, "error", f"{error!r}\n")
        return
    if request.keep:
        text = "".join(line for line in text.splitlines(keepends=True) if re.search(request.keep, line))
    left_out = {*HEADERS_LEFT_OUT, *request.without}
    shown = [f"{name}: {value}\n" for name, value in headers if name.lower() not in left_out]
    recording.write(request.name, "status", f"{status}\n")
    recording.write(request.name, "headers", "".join(shown))
    recording.write(request.name, "body", text)


def answer_requests(requests: list[HttpRequest], recording: Recording) -> None:
    """Ask the service everything, in order, and record its answers."""
    try:
        process, url = _start(recording)
    except ServiceError as error:
        recording.write("http-service", "error", f"{error}\n")
        return
    try:
        asking = Asking(url)
        for request in requests:
            _record(request, asking, recording)
        process.terminate()
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired as error:
        recording.write("http-service", "error", f"it does not stop: {error}\n")
    finally:
        recording.processes.ended(process)
