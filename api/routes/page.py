"""`GET /` and `/page/{name}`: the web page. Static files, open without a key: a person needs them to type the key in."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from autoconfig.api.compute import Rendered, render
from autoconfig.api.context import Endpoint, matches, service_of, takes_gzip
from autoconfig.api.problems import problem
from autoconfig.api.routes.answers import problem_responses
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from autoconfig.render.page_files import INDEX, media_type, page_text, served_names

Responses = dict[int | str, dict[str, Any]]


@cache
def _file(name: str) -> Rendered:
    return render(200, page_text(name).encode())


def _respond(request: HttpRequest, name: str) -> Response:
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
    return _respond(request, INDEX)


async def page_file(request: HttpRequest) -> Response:
    """A style or module of the web page."""
    name = request.path_params["name"]
    if name not in served_names():
        return problem(404, f"the page has no file {name[:40]!r}", allowed=served_names())
    return _respond(request, name)


def _timed(endpoint: Endpoint) -> Endpoint:
    async def inner(request: HttpRequest) -> Response:
        start = time.perf_counter()
        response = await endpoint(request)
        route = request.scope["route"].path
        service_of(request).metrics.latency.labels(route, response.status_code).observe(time.perf_counter() - start)
        return response

    inner.__name__, inner.__doc__ = endpoint.__name__, endpoint.__doc__
    return inner


def router() -> APIRouter:
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
