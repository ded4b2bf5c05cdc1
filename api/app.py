"""The service as an ASGI application."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from autoconfig.api.access import RateLimit
from autoconfig.api.compute import Compute
from autoconfig.api.context import JSON, Service, guarded
from autoconfig.api.http.limits import Limits
from autoconfig.api.http.metrics import Metrics
from autoconfig.api.problems import TITLES, problem
from autoconfig.api.routes import answers as routes_answers
from autoconfig.api.routes import catalogue as routes_catalogue
from autoconfig.api.routes import measurements as routes_measurements
from autoconfig.api.routes import page as routes_page
from autoconfig.api.routes import searches as routes_searches
from autoconfig.api.settings import ServiceSettings
from autoconfig.api.store import dbos_url, engine_of
from autoconfig.api.wire import search_schemas
from autoconfig.api.wire.schemas import components
from autoconfig.api.work.worker_processes import WorkerProcesses
from dbos import DBOSClient
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

LOG = logging.getLogger("autoconfig.training.answer")
TITLE = "autoconfig"
DESCRIPTION = (
    "The best way to run a model on a cluster. Request fields are the command line's long options, "
    "answers those of its `--json`."
)


def create_app(settings: ServiceSettings) -> FastAPI:
    """The application; worker processes start and end with it. Raises InputError where the database cannot be used."""
    compute = Compute(settings.workers, settings.answer_seconds, settings.cache_bytes)
    engine = engine_of(settings.database)
    service = Service(
        settings=settings,
        engine=engine,
        queue=DBOSClient(system_database_url=dbos_url(settings.database), system_database_engine=engine),
        compute=compute,
        metrics=Metrics(),
        rates=RateLimit(settings.requests_per_second),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        compute.start()
        workers = WorkerProcesses(settings.database, getattr(app.state, "search_workers", 0))
        workers.start()
        try:
            yield
        finally:
            workers.stop()
            compute.stop()
            service.queue.destroy()
            service.engine.dispose()

    app = FastAPI(
        title=TITLE,
        version=version("megatron-autoconfig"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.service = service
    app.include_router(routes_answers.router())
    app.include_router(routes_searches.router())
    app.include_router(routes_measurements.router())
    app.include_router(routes_catalogue.router())
    app.include_router(routes_page.router())
    _add_document(app, settings)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(Limits, most_bytes=settings.max_body_bytes)
    return app


def _add_document(app: FastAPI, settings: ServiceSettings) -> None:
    """`GET /openapi.json`."""

    async def document(_: HttpRequest) -> Response:
        return Response(json.dumps(openapi(app, settings)), media_type=JSON)

    app.add_api_route("/openapi.json", guarded("read", document), methods=["GET"], include_in_schema=False)


def openapi(app: FastAPI, settings: ServiceSettings) -> dict[str, Any]:
    """The OpenAPI document with our components."""
    if app.openapi_schema is None:
        found = FastAPI.openapi(app)
        found["components"] = {"schemas": {**components(), **search_schemas.COMPONENTS, **routes_measurements.COMPONENTS}}
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
    return problem(status, str(error.detail), headers=headers)


def _methods(request: HttpRequest) -> set[str]:
    """What the path allows, over all its routes."""
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
