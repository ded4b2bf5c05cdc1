"""`/v1/searches`: accept, list, follow, cancel; the plans of a search and their export."""

from __future__ import annotations

import json
import re
from typing import Any

from autoconfig.api import follow, searches
from autoconfig.api.answers import check_search
from autoconfig.api.compute import AnswerCache, render
from autoconfig.api.context import (
    JSON,
    checked_body,
    computed,
    own_calibration,
    require_json,
    respond,
    service_of,
)
from autoconfig.api.follow import EventStream, Follower, sent
from autoconfig.api.http import PAGE_PARAMETERS, bounds_of, query_parameter
from autoconfig.api.problems import MEDIA_TYPE, RefusedError, of_error
from autoconfig.api.routes.answers import BODY_PROBLEMS, PLANS_EXAMPLE, Responses, add, answered, body_of
from autoconfig.api.routes.catalogue import HELD
from autoconfig.api.store import ENDED, STATES
from autoconfig.specs.errors import AutoconfigError
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from autoconfig.formats.export import FORMATS

MAX_KEY = 200
KEY_PATTERN = "^[!-~]+$"


async def create(request: HttpRequest) -> Response:
    """Accept a search; with an Idempotency-Key the same search again is the one accepted before."""
    service = service_of(request)
    require_json(request)
    key = request.headers.get("idempotency-key")
    if key is not None and not (len(key) <= MAX_KEY and re.fullmatch(KEY_PATTERN, key)):
        raise RefusedError(400, f"Idempotency-Key: give 1 to {MAX_KEY} visible ASCII characters", field="Idempotency-Key")
    body = await checked_body(request, "search")
    try:
        await run_in_threadpool(check_search, body)
    except AutoconfigError as error:
        status, document = of_error(error)
        return Response(document, status, media_type=MEDIA_TYPE)
    quota = service.settings.queued_searches
    found, new = await run_in_threadpool(searches.submit, service.engine, service.queue, request.state.owner, body, key, quota)
    headers = {"Location": f"/v1/searches/{found.id}"}
    return Response(await _shown(request, found), 202 if new else 200, headers, JSON)


async def listing(request: HttpRequest) -> Response:
    """The searches of this key (of an admin's: all), oldest first, a page at a time."""
    after, limit = bounds_of(request)
    engine, owner = service_of(request).engine, request.state.sees
    state = request.query_params.get("state")
    if state is not None and state not in STATES:
        raise RefusedError(422, f"state {state[:40]!r}: use {', '.join(STATES)}", field="state", allowed=list(STATES))
    found = await run_in_threadpool(lambda: searches.listed(engine, after=after, limit=limit + 1, state=state, owner=owner))
    shown = found[:limit]
    more = str(shown[-1].number) if len(found) > limit else None
    rows = b",".join([await _shown(request, search) for search in shown])
    return Response(b'{"schema_version":1,"searches":[%b],"next":%b}' % (rows, json.dumps(more).encode()), media_type=JSON)


async def one(request: HttpRequest) -> Response:
    """One search."""
    return respond(request, render(200, await _shown(request, await _found(request))))


async def cancel(request: HttpRequest) -> Response:
    """Cancel a search; one that is over stays as it is."""
    found = await _found(request)
    await run_in_threadpool(searches.cancel, service_of(request).engine, found.id)
    return Response(await _shown(request, await _found(request)), media_type=JSON)


async def plans(request: HttpRequest) -> Response:
    """The answer of a search that is done."""
    return respond(request, render(200, await _answer(request, await _found(request))))


async def export(request: HttpRequest) -> Response:
    """Launch scripts and plan.json of the search's first plan, or of `plan`."""
    found = await _found(request)
    form = request.query_params.get("format", FORMATS[0])
    if form not in FORMATS:
        raise RefusedError(422, f"format {form[:40]!r}: use {' or '.join(FORMATS)}", field="format", allowed=list(FORMATS))
    answer, service = json.loads(await _answer(request, found)), service_of(request)
    plan = request.query_params.get("plan") or _first(answer)
    if plan is None:
        why = "no plan fits" if "plans" in answer else f"no plan was measured ({answer['stopped']})"
        raise RefusedError(409, f"{why}, so there is nothing to export; GET .../plans says more")
    body = {**found.body, "plan": plan[:500], "format": form}
    own = await own_calibration(request)
    key = AnswerCache.key("export", json.dumps(body, sort_keys=True).encode(), own.version if own else "")
    held = service.compute.cache.get(key)
    return respond(request, held or await computed(request, "export", body, key, own))


async def events(request: HttpRequest) -> Response:
    """What happens to a search, as server-sent events; ends with it. Last-Event-ID goes on after an interruption."""
    found = await _found(request)
    last = request.headers.get("last-event-id", "0")
    if not (last.isascii() and last.isdigit() and len(last) <= 9):
        raise RefusedError(422, f"Last-Event-ID {last[:40]!r}: give the number of an event", field="Last-Event-ID")
    service = service_of(request)
    backlog = await run_in_threadpool(searches.events, service.engine, found.id, int(last))
    if found.state in ENDED:
        return Response(sent(backlog), media_type=follow.MEDIA_TYPE, headers=follow.HEADERS)
    follower = Follower(search=found.id, owner=request.state.owner, last=backlog[-1].number if backlog else int(last))
    service.followers.join(follower)
    return EventStream(service.followers, follower, backlog)


async def _shown(request: HttpRequest, found: searches.StoredSearch) -> bytes:
    note = await run_in_threadpool(searches.note, service_of(request).engine, found)
    return json.dumps(found.json(note)).encode()


def _first(answer: dict[str, Any]) -> str | None:
    if "plans" in answer:
        return answer["plans"][0]["short"] if answer["plans"] else None
    return answer["best"]["plan"] if answer["best"] else None


async def _found(request: HttpRequest) -> searches.StoredSearch:
    identity = request.path_params["search_id"]
    found = await run_in_threadpool(searches.get, service_of(request).engine, identity, request.state.sees)
    if found is None:
        raise RefusedError(404, f"there is no search {identity[:40]!r}; GET /v1/searches lists them")
    return found


async def _answer(request: HttpRequest, found: searches.StoredSearch) -> bytes:
    if found.state != "done":
        why = f": {found.problem['detail']}" if found.problem else ""
        raise RefusedError(409, f"the search is {found.state}, not done{why}")
    answer = await run_in_threadpool(searches.result_of, service_of(request).engine, found.id)
    assert answer is not None, found.id
    return answer


_ID = {"name": "search_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}
_FOLLOWED = ("get_search", "cancel_search", "search_events", "search_plans", "export_search")
_LINKS = {name: {"operationId": name, "parameters": {"search_id": "$response.body#/id"}} for name in _FOLLOWED}
_KEY = query_parameter(
    "Idempotency-Key", {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": KEY_PATTERN}, place="header"
)
_STATE = query_parameter("state", {"enum": list(STATES)})
_FORM = query_parameter("format", {"enum": list(FORMATS)})
_PLAN = query_parameter("plan", {"type": "string", "maxLength": 500}, "A plan in its short form; the first unless given.")
_RESUME = query_parameter("Last-Event-ID", {"type": "string", "pattern": "^[0-9]{1,9}$"}, place="header")
_BAD = {**BODY_PROBLEMS, 409: "The key was used for another question.", 422: "No search can answer the question."}
_NOT_FOUND = {404: "There is no such search."}
_NOT_DONE = {**_NOT_FOUND, 409: "The search is not done."}
_NO_EXPORT = {**_NOT_DONE, 422: "No such format, or a plan that cannot be exported."}
_NOT_AN_EVENT = {**_NOT_FOUND, 422: "Not the number of an event."}
_STREAM = {"description": "Events until the search is over.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
_ROW = {200: answered("SearchRow")}
_ACCEPTED = {202: {**answered("SearchRow"), "links": _LINKS}, **_ROW}
_OPERATIONS: tuple[tuple[str, str, str, Any, str, Responses, dict[int, str], dict[str, Any]], ...] = (
    ("", "POST", "profile", create, "create_search", _ACCEPTED, _BAD,
     {"parameters": [_KEY], **body_of("SearchBody", PLANS_EXAMPLE)}),
    ("", "GET", "read", listing, "list_searches", {200: answered("SearchPage")}, {422: "Not a page."},
     {"parameters": [*PAGE_PARAMETERS, _STATE]}),
    ("/{search_id}", "GET", "read", one, "get_search", {**_ROW, **HELD}, _NOT_FOUND, {"parameters": [_ID]}),
    ("/{search_id}", "DELETE", "profile", cancel, "cancel_search", _ROW, _NOT_FOUND, {"parameters": [_ID]}),
    ("/{search_id}/events", "GET", "read", events, "search_events", {200: _STREAM}, _NOT_AN_EVENT,
     {"parameters": [_ID, _RESUME]}),
    ("/{search_id}/plans", "GET", "read", plans, "search_plans", {200: answered("SearchAnswer"), **HELD}, _NOT_DONE,
     {"parameters": [_ID]}),
    ("/{search_id}/export", "GET", "read", export, "export_search", {200: answered("Scripts"), **HELD}, _NO_EXPORT,
     {"parameters": [_ID, _FORM, _PLAN]}),
)  # fmt: skip
"""Path, method, scope, endpoint, name, answers, problems, and what else the OpenAPI document says."""


def router() -> APIRouter:
    """The endpoints of this module."""
    found = APIRouter(prefix="/v1/searches", tags=["searches"])
    for path, method, scope, endpoint, name, answers, problems, extra in _OPERATIONS:
        said = {"summary": (endpoint.__doc__ or "").split("\n")[0], "status_code": next(iter(answers))}
        add(found, path, scope, endpoint, answers, extra, problems=problems, method=method, name=name, **said)
    return found
