"""`GET /v1/models`, `/v1/gpus`, `/v1/software`: the catalogues, a page at a time; `/healthz`, `/readyz`, `/metrics`; `GET /`
and `/page/{name}`: the web page, static files, open without a key: a person needs them to type the key in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import sqlalchemy as sa
from autoconfig.api import searches
from autoconfig.api.context import JSON, Endpoint, Rendered, guarded, matches, render, respond, service_of, takes_gzip
from autoconfig.api.http import PAGE_PARAMETERS, PageError, page_of
from autoconfig.api.problems import problem
from autoconfig.api.routes.answers import problem_responses
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from autoconfig.render.html import INDEX, media_type, page_text, served_names
from autoconfig.render.listings import gpu_rows, model_rows, software_rows

CATALOGUES: dict[str, Callable[[], list[dict[str, Any]]]] = {"models": model_rows, "gpus": gpu_rows, "software": software_rows}


@cache
def _rows(name: str) -> list[dict[str, Any]]:
    return CATALOGUES[name]()


def _listing(name: str) -> Endpoint:
    async def listing(request: HttpRequest) -> Response:
        try:
            page = page_of(request, _rows(name))
        except PageError as error:
            return problem(422, str(error), field=error.field)
        return respond(request, _rendered({"schema_version": 1, name: page.items, "next": page.next}))

    listing.__name__ = name
    return listing


def _rendered(body: dict[str, Any]) -> Rendered:

    return render(200, json.dumps(body, allow_nan=False).encode())


async def healthz(_: HttpRequest) -> Response:
    """The process runs."""
    return Response(b'{"status":"ok"}', media_type=JSON)


async def readyz(request: HttpRequest) -> Response:
    """The database answers."""
    try:
        await run_in_threadpool(_ping, service_of(request).engine)
    except sa.exc.SQLAlchemyError:
        return problem(503, "the database does not answer")
    return Response(b'{"status":"ready"}', media_type=JSON)


def _ping(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        connection.execute(sa.select(1))


async def metrics(request: HttpRequest) -> Response:
    """Prometheus' text format."""
    service = service_of(request)
    service.metrics.waiting.set(service.compute.waiting)
    for state, count in (await run_in_threadpool(searches.counts, service.engine)).items():
        service.metrics.searches.labels(state).set(count)
    for outcome, count in (await run_in_threadpool(searches.trials_by_outcome, service.engine)).items():
        service.metrics.trials.labels(outcome).set(count)
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


_STATUS = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


def router() -> APIRouter:
    """The endpoints of this module."""
    found = APIRouter()
    for name in CATALOGUES:
        schema = {
            "type": "object",
            "properties": {
                "schema_version": {"const": 1},
                name: {"type": "array", "items": {"type": "object"}},
                "next": {"type": ["string", "null"], "description": "The cursor of the next page."},
            },
            "required": ["schema_version", name, "next"],
        }
        found.add_api_route(
            f"/v1/{name}",
            guarded("read", _listing(name)),
            methods=["GET"],
            tags=["catalogue"],
            summary=f"The {name} of the catalogue.",
            operation_id=name,
            response_class=Response,
            responses={
                200: {"description": "A page.", "content": {JSON: {"schema": schema}}},
                304: {"description": "As the caller has it (If-None-Match)."},
                **problem_responses({422: "limit or cursor cannot be used."}),
            },
            openapi_extra={"parameters": PAGE_PARAMETERS},
        )
    for path, scope, endpoint in (("/healthz", "read", healthz), ("/readyz", "read", readyz)):
        found.add_api_route(
            path,
            guarded(scope, endpoint),
            methods=["GET"],
            tags=["operation"],
            operation_id=endpoint.__name__,
            response_class=Response,
            responses={200: {"description": "Yes.", "content": {JSON: {"schema": _STATUS}}}, **problem_responses({503: "No."})},
        )
    found.add_api_route(
        "/metrics",
        guarded("read", metrics),
        methods=["GET"],
        tags=["operation"],
        operation_id="metrics",
        response_class=Response,
        responses={
            200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
            **problem_responses({}),
        },
    )
    return found


Responses = dict[int | str, dict[str, Any]]


@cache
def _file(name: str) -> Rendered:
    return render(200, page_text(name).encode())


def _page_response(request: HttpRequest, name: str) -> Response:
    """The file; the browser asks each time whether it has changed."""
    found = _file(name)
    headers = {"ETag": found.etag, "Vary": "Accept-Encoding", "Cache-Control": "no-cache"}
    if matches(request.headers.get("if-none-match", ""), found.etag):
        return Response(status_code=304, headers=headers)
    kind = f"{media_type(name)}; charset=utf-8"
    if found.zipped is not None and takes_gzip(request):
        return Response(found.zipped, media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.body, media_type=kind, headers=headers)


async def index(request: HttpRequest) -> Response:
    """The web page."""
    return _page_response(request, INDEX)


async def page_file(request: HttpRequest) -> Response:
    """A style or module of the web page."""
    name = request.path_params["name"]
    if name not in served_names():
        return problem(404, f"the page has no file {name[:40]!r}", allowed=served_names())
    return _page_response(request, name)


def _timed(endpoint: Endpoint) -> Endpoint:
    async def inner(request: HttpRequest) -> Response:
        start = time.perf_counter()
        response = await endpoint(request)
        route = request.scope["route"].path
        service_of(request).metrics.latency.labels(route, response.status_code).observe(time.perf_counter() - start)
        return response

    inner.__name__, inner.__doc__ = endpoint.__name__, endpoint.__doc__
    return inner


def page_router() -> APIRouter:
    """The endpoints of this module."""
    found = APIRouter(tags=["page"])
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": served_names()}}
    texts = {kind: {"schema": {"type": "string"}} for kind in ("text/css", "text/javascript")}
    held: Responses = {304: {"description": "As the caller has it (If-None-Match)."}}
    missing: Responses = {404: problem_responses({404: "The page has no such file."})[404]}
    page: Responses = {200: {"description": "The page.", "content": {"text/html": {"schema": {"type": "string"}}}}, **held}
    file: Responses = {200: {"description": "The file.", "content": texts}, **held, **missing}
    operations: tuple[tuple[str, Endpoint, Responses, dict[str, Any]], ...] = (
        ("/", index, page, {}),
        ("/page/{name}", page_file, file, {"parameters": [name]}),
    )
    for path, endpoint, responses, extra in operations:
        found.add_api_route(
            path,
            _timed(endpoint),
            methods=["GET"],
            operation_id=endpoint.__name__,
            response_class=Response,
            responses=responses,
            openapi_extra={"security": [], **extra},
        )
    return found
