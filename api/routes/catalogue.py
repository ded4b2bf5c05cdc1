"""`GET /v1/models`, `/v1/gpus`, `/v1/software`: the catalogues, a page at a time; `/healthz`, `/readyz`, `/metrics`; `GET /`
and `/page/{name}`: the web page, static files, open without a key as the probes are: a person needs them to type it in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import sqlalchemy as sa
from anyio import to_thread
from autoconfig.api import searches
from autoconfig.api.compute import Rendered, render
from autoconfig.api.context import JSON, Endpoint, guarded, respond, service_of
from autoconfig.api.http import PAGE_PARAMETERS, page_of
from autoconfig.api.problems import RefusedError
from autoconfig.api.routes.answers import Responses, add, problem_responses
from autoconfig.api.wire.schemas import published
from autoconfig.specs.errors import InputError
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from autoconfig.render.html import INDEX, media_type, page_text, served_names
from autoconfig.render.listings import describe, gpu_rows, model_json_text, model_rows, software_rows

CATALOGUES: dict[str, Callable[[], list[dict[str, Any]]]] = {"models": model_rows, "gpus": gpu_rows, "software": software_rows}


@cache
def _rows(name: str) -> list[dict[str, Any]]:
    return CATALOGUES[name]()


def _listing(name: str) -> Endpoint:
    async def listing(request: HttpRequest) -> Response:
        items, following = page_of(request, _rows(name))
        body = {"schema_version": 1, name: items, "next": following}
        return respond(request, render(200, json.dumps(body, allow_nan=False).encode()))

    listing.__name__ = name
    return listing


async def model(request: HttpRequest) -> Response:
    """One model of the catalogue, or of a size."""
    try:
        found = await run_in_threadpool(describe, request.path_params["name"], local_files=False)
    except InputError as error:
        raise RefusedError(422, error.text) from None
    return respond(request, render(200, model_json_text(found).encode()))


READY_SECONDS = 4.0


async def healthz(_: HttpRequest) -> Response:
    """The process runs."""
    return Response(b'{"status":"ok"}', media_type=JSON)


async def readyz(request: HttpRequest) -> Response:
    """The database answers."""
    service = service_of(request)
    try:
        async with asyncio.timeout(READY_SECONDS):
            await to_thread.run_sync(_ping, service.engine, limiter=service.probing, abandon_on_cancel=True)
    except (sa.exc.SQLAlchemyError, TimeoutError):
        raise RefusedError(503, "the database does not answer") from None
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


HELD: Responses = {304: {"description": "As the caller has it (If-None-Match)."}}
_TEXT = {"schema": {"type": "string"}}
_STATUS = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


PAGE: Responses = {200: {"description": "The page.", "content": {"text/html": _TEXT}}, **HELD}


def router() -> APIRouter:
    """The catalogues and the operator's endpoints."""
    found = APIRouter()
    for name in CATALOGUES:
        listed = {
            "type": "object",
            "properties": {
                "schema_version": {"const": 1},
                name: {"type": "array", "items": {"type": "object"}},
                "next": {"type": ["string", "null"], "description": "The cursor of the next page."},
            },
            "required": ["schema_version", name, "next"],
        }
        page = {200: {"description": "A page.", "content": {JSON: {"schema": listed}}}, **HELD}
        add(
            found,
            f"/v1/{name}",
            "read",
            _listing(name),
            page,
            {"parameters": PAGE_PARAMETERS},
            problems={422: "limit or cursor cannot be used."},
            tags=["catalogue"],
            summary=f"The {name} of the catalogue.",
        )
    one = {200: {"description": "The model.", "content": {JSON: {"schema": published("model")[0]}}}, **HELD}
    named = {"parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]}
    add(
        found,
        "/v1/models/{name}",
        "read",
        model,
        one,
        named,
        problems={422: "No such model, or one that cannot be planned."},
        tags=["catalogue"],
        summary="One model's parameters.",
    )
    yes = {200: {"description": "Yes.", "content": {JSON: {"schema": _STATUS}}}}
    text = {200: {"description": "Prometheus' text format.", "content": {"text/plain": _TEXT}}}
    for path, probe in (("/healthz", healthz), ("/readyz", readyz)):  # open: probes have no key, and learn the status alone
        add(found, path, "", probe, yes | problem_responses({503: "No."}), {"security": []}, tags=["operation"])
        found.add_api_route(path, guarded("", probe), methods=["HEAD"], include_in_schema=False)
    add(found, "/metrics", "read", metrics, text, {}, tags=["operation"])
    return found


@cache
def _file(name: str) -> Rendered:
    return render(200, page_text(name).encode())


def _page_response(request: HttpRequest, name: str) -> Response:
    """The browser asks each time whether the file has changed."""
    return respond(request, _file(name), f"{media_type(name)}; charset=utf-8", **{"Cache-Control": "no-cache"})


async def index(request: HttpRequest) -> Response:
    """The web page."""
    return _page_response(request, INDEX)


async def page_file(request: HttpRequest) -> Response:
    """A style or module of the web page."""
    name = request.path_params["name"]
    if name not in served_names():
        raise RefusedError(404, f"the page has no file {name[:40]!r}", allowed=served_names())
    return _page_response(request, name)


def page_router() -> APIRouter:
    """The web page."""
    found = APIRouter(tags=["page"])
    file = {200: {"description": "The file.", "content": dict.fromkeys(("text/css", "text/javascript"), _TEXT)}, **HELD}
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": served_names()}}
    missing = problem_responses({404: "The page has no such file."})
    add(found, "/", "", index, PAGE, {"security": []})
    add(found, "/page/{name}", "", page_file, {**file, **missing}, {"security": [], "parameters": [name]})
    return found
