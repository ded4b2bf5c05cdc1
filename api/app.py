"""The service as an ASGI application, run under uvicorn, with worker processes that it starts beside itself."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click
import uvicorn
from autoconfig.api import retention
from autoconfig.api.browser import KnownHosts, known_hosts
from autoconfig.api.compute import Compute, render
from autoconfig.api.context import ACCESS, JSON, RELEASE, Service, account, guarded, respond
from autoconfig.api.follow import Followers
from autoconfig.api.http import LimitedHead, Limits, Metrics
from autoconfig.api.problems import TITLES, problem
from autoconfig.api.routes import answers as routes_answers
from autoconfig.api.routes import batch as routes_batch
from autoconfig.api.routes import catalogue as routes_catalogue
from autoconfig.api.routes import searches as routes_searches
from autoconfig.api.routes.docs import docs_page
from autoconfig.api.store import LOOPBACK, RateLimit, ServiceSettings, dbos_url, engine_of
from autoconfig.api.wire.schemas import components
from autoconfig.specs.errors import InputError
from dbos import DBOSClient
from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

if TYPE_CHECKING:
    from autoconfig.api.agents import ToolEndpoint

RESTART_SECONDS = 1.0
STOP_SECONDS = 8.5
"""From the signal to end on; the searches of a worker that takes longer are begun anew by the next."""


class WorkerProcesses:
    """`start` and `stop` bracket the life of the service."""

    def __init__(self, database: str, count: int) -> None:
        self._command = [sys.executable, "-m", "autoconfig", "worker"]
        self._environment = {**os.environ, "AUTOCONFIG_DATABASE": database}  # no argument: those are shown to every user
        self._count = count
        self._running: list[subprocess.Popen[bytes]] = []
        self._ending = threading.Event()
        self._until = float("inf")
        self._watch = threading.Thread(target=self._keep_running, daemon=True)

    def start(self) -> None:
        if self._count:
            self._running = [self._started() for _ in range(self._count)]
            self._watch.start()

    def terminate(self) -> None:
        """Tell them to end."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._until = time.monotonic() + STOP_SECONDS
        if self._watch.is_alive():
            self._watch.join()
        for process in self._running:
            process.terminate()

    def stop(self) -> None:
        """End them in order; those that do not go in time are killed, and their searches taken up by the next."""
        self.terminate()
        for process in self._running:
            try:
                process.wait(max(0.1, self._until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _keep_running(self) -> None:
        while not self._ending.wait(RESTART_SECONDS):
            for number, process in enumerate(self._running):
                if process.poll() is not None:
                    self._running[number] = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._environment)


LOG = logging.getLogger("autoconfig.training.answer")
TITLE = "autoconfig"
DESCRIPTION = (
    "The best way to run a model on a cluster. Request fields are the command line's long options, "
    "answers those of its `--json`."
)


def create_app(
    settings: ServiceSettings, host: str = LOOPBACK[0], search_workers: int = 0, agents: ToolEndpoint | None = None
) -> FastAPI:
    """The application, to be listened to at `host`; its processes start and end with it. `agents`: also their tools, at `/mcp`.
    Raises InputError where the database cannot be used."""
    compute = Compute(settings.workers, settings.answer_seconds, settings.cache_bytes, spare=settings.keys_required)
    engine = engine_of(settings.database)
    service = Service(
        settings=settings,
        engine=engine,
        queue=DBOSClient(system_database_url=dbos_url(settings.database), system_database_engine=engine),
        compute=compute,
        metrics=Metrics(),
        rates=RateLimit(settings.requests_per_second),
        followers=Followers(engine, settings.event_streams),
    )

    workers = WorkerProcesses(settings.database, search_workers)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        compute.start()
        workers.start()
        keeping = asyncio.create_task(retention.keep(engine, service.queue, settings.database, settings.keep_days))
        try:
            async with agents.running() if agents is not None else nullcontext():
                yield
        finally:
            keeping.cancel()
            workers.stop()
            compute.stop()
            service.queue.destroy()
            service.engine.dispose()

    app = FastAPI(
        title=TITLE,
        version=RELEASE,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service, app.state.workers = service, workers
    _add_routes(app, agents)
    _add_documents(app, settings)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _bug)
    if not settings.keys_required:
        app.add_middleware(KnownHosts, hosts=known_hosts(host, settings.allowed_hosts))
    app.add_middleware(Limits, most_bytes=settings.max_body_bytes)
    return app


def _add_routes(app: FastAPI, agents: ToolEndpoint | None) -> None:
    app.include_router(routes_answers.router())
    app.include_router(routes_batch.router())
    app.include_router(routes_searches.router())
    app.include_router(routes_answers.measurements_router())
    app.include_router(routes_catalogue.router())
    app.include_router(routes_catalogue.page_router())
    if agents is not None:
        from autoconfig.api.routes.agents import agents_router

        app.include_router(agents_router(agents))


def _add_documents(app: FastAPI, settings: ServiceSettings) -> None:
    """`/openapi.json`, and `/docs`, which is read off it; open, as they hold nobody's data."""

    async def document(_: HttpRequest) -> Response:
        return Response(json.dumps(openapi(app, settings)), media_type=JSON)

    app.add_api_route("/openapi.json", guarded("", document), methods=["GET"], include_in_schema=False)

    async def docs(request: HttpRequest) -> Response:
        """The endpoints, to read."""
        return respond(request, render(200, docs_page(openapi(app, settings)).encode()), "text/html; charset=utf-8")

    pages = APIRouter(tags=["page"])
    routes_answers.add(pages, "/docs", "", docs, routes_catalogue.PAGE, {"security": []})
    app.include_router(pages)


def openapi(app: FastAPI, settings: ServiceSettings) -> dict[str, Any]:
    """The OpenAPI document with our components."""
    if app.openapi_schema is None:
        found = FastAPI.openapi(app)
        found["components"] = {"schemas": components()}
        if settings.keys_required:
            found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            found["security"] = [{"key": []}]
    return app.openapi_schema or {}


async def _http_problem(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in TITLES else 400
    headers = dict(error.headers or {})
    if status == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    account(request, "", status, 0.0)
    detail = "no such path; GET /docs lists them" if status == 404 else str(error.detail)
    return problem(status, detail, headers=headers)


def _methods(request: HttpRequest) -> set[str]:
    found: set[str] = set()
    for route in every_route(request.app.routes):
        match, _ = route.matches(request.scope)
        if match != Match.NONE:
            found |= set(getattr(route, "methods", None) or ())
    return found


def every_route(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Routes, and those of included routers, which newer FastAPI keeps as one (0.165) and older copies (0.115)."""
    for route in routes:
        router = getattr(route, "original_router", None)
        if router is None:
            yield route
        else:
            yield from every_route(router.routes)


async def _gone(_: HttpRequest, error: Exception) -> Response:
    """The caller left while sending: nobody reads this answer."""
    return problem(400, "the body ended early")


async def _bug(request: HttpRequest, error: Exception) -> Response:
    LOG.error("%s %s", request.method, request.url.path, exc_info=error)
    return problem(500, "a bug of ours; the service's log has it")


KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 7
"""Longest that requests which run may take to end; questions have less (`compute.DRAIN_SECONDS`), streams end at once."""
MAX_CONNECTIONS = 1_000
BACKLOG = 2_048


class Server(uvicorn.Server):
    """Refuses what waits and tells its processes to end as soon as it is told to end itself."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.config.app.state  # type: ignore[union-attr]
        state.service.compute.drain()
        state.service.followers.end()
        await asyncio.to_thread(state.workers.terminate)
        await super().shutdown(sockets)


def run(settings: ServiceSettings, host: str, port: int, search_workers: int = 0, agents: ToolEndpoint | None = None) -> None:
    """Listen until SIGTERM or Ctrl-C, then finish what runs. Raises InputError where the address cannot be used."""
    app = create_app(settings, host, search_workers, agents)
    ACCESS.propagate = False  # the SDK of agents gives the root logger a handler of its own
    if settings.access_log:
        ACCESS.addHandler(logging.StreamHandler(sys.stdout))
        ACCESS.setLevel(logging.INFO)
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"listening on http://{shown}:{listening.getsockname()[1]}", err=True)
    config = uvicorn.Config(
        app,
        http=LimitedHead,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
        server_header=False,
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,  # else any local process could say which address it is
    )
    with listening:
        Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot listen on {host}:{port}: {why}; choose another --port or --host") from None
    return listening
