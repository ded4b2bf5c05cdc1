"""`/v1/measurements`: measured runs come in and calibrate the answers to the key that brought them."""

from __future__ import annotations

import json
from typing import Any

from autoconfig.api import measurements
from autoconfig.api.context import JSON, guarded, is_json, own_calibration, service_of
from autoconfig.api.http import PAGE_PARAMETERS, PageError, bounds_of
from autoconfig.api.problems import problem
from autoconfig.api.routes.answers import RUN_EXAMPLE, problem_responses
from autoconfig.api.wire.bodies import BodyError, MeasurementsBody, read_body
from autoconfig.api.wire.schemas import REF
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

MEASUREMENT_EXAMPLE = {"rows": [{**RUN_EXAMPLE, "id": "job-4711", "metric_step_s": 3.1}]}


async def create(request: HttpRequest) -> Response:
    """Bring measured runs; from now on they calibrate the answers to this key. The same id again replaces a run."""
    if not is_json(request):
        return problem(415, "send the runs as application/json")
    try:
        rows = read_body(await request.body(), MeasurementsBody)["rows"]
    except BodyError as error:
        return problem(error.status, error.detail, **error.more)
    ids = [row["id"] for row in rows]
    if len({*ids}) < len(ids):
        return problem(422, "two runs have the same id; give each its own", field="rows")
    service, owner = service_of(request), request.state.owner
    sorted_out = await service.compute.run("sort_out", {"rows": rows})
    if sorted_out.status != 200:
        return Response(sorted_out.body, sorted_out.status, media_type="application/problem+json")
    found = json.loads(sorted_out.body)
    if not found["good"]:
        first = found["left_out"][0]
        return problem(422, f"none of the runs can calibrate; {first['id'][:80]}: {first['reason']}", field="rows")
    try:
        await run_in_threadpool(measurements.add, service.engine, owner, [rows[number] for number in found["good"]])
    except measurements.TooManyError:
        return problem(
            422, f"at most {measurements.MAX_RUNS:,} runs are kept for a key; replace some by their ids", field="rows"
        )
    revision, kept = await run_in_threadpool(measurements.runs_of, service.engine, owner)
    fitted = await service.compute.run("calibrate", {"rows": kept})
    if fitted.status != 200:
        return Response(fitted.body, fitted.status, media_type="application/problem+json")
    await run_in_threadpool(measurements.store, service.engine, owner, revision, fitted.body.decode())
    service.calibrations.hold(owner, await run_in_threadpool(measurements.current, service.engine, owner))
    body = {
        "schema_version": 1,
        "accepted": len(found["good"]),
        "left_out": found["left_out"],
        "measurements": len(kept),
        "calibration": json.loads(fitted.body)["version"],
    }
    return Response(json.dumps(body), media_type=JSON)


async def listing(request: HttpRequest) -> Response:
    """The runs of this key, and the version of the calibration that they make."""
    try:
        after, limit = bounds_of(request)
    except PageError as error:
        return problem(422, str(error), field=error.field)
    engine, owner = service_of(request).engine, request.state.owner
    found = await run_in_threadpool(lambda: measurements.listed(engine, owner, after=after, limit=limit + 1))
    shown = found[:limit]
    own = await own_calibration(request)
    body = {
        "schema_version": 1,
        "calibration": None if own is None else own.version,
        "measurements": [one.json() for one in shown],
        "next": str(shown[-1].number) if len(found) > limit else None,
    }
    return Response(json.dumps(body), media_type=JSON)


_TEXT = {"type": "string"}
_LEFT_OUT = {
    "type": "object",
    "properties": {"id": _TEXT, "reason": _TEXT},
    "required": ["id", "reason"],
    "additionalProperties": False,
}
ACCEPTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 1},
        "accepted": {"type": "integer", "minimum": 1},
        "left_out": {"type": "array", "items": _LEFT_OUT, "description": "Runs that cannot calibrate, and why."},
        "measurements": {"type": "integer", "description": "Runs of this key, all together."},
        "calibration": {"type": "string", "description": "The version that answers to this key name."},
    },
    "required": ["schema_version", "accepted", "left_out", "measurements", "calibration"],
    "additionalProperties": False,
}
MEASUREMENT_PAGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 1},
        "calibration": {"type": ["string", "null"]},
        "measurements": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": _TEXT, "created": {**_TEXT, "format": "date-time"}, "run": {"type": "object"}},
                "required": ["id", "created", "run"],
                "additionalProperties": False,
            },
        },
        "next": {"type": ["string", "null"], "description": "The cursor of the next page."},
    },
    "required": ["schema_version", "calibration", "measurements", "next"],
    "additionalProperties": False,
}
COMPONENTS = {"Accepted": ACCEPTED, "MeasurementPage": MEASUREMENT_PAGE}


def router() -> APIRouter:
    """The endpoints of this module."""
    found = APIRouter(prefix="/v1/measurements", tags=["measurements"])
    bad = {
        400: "The body is not JSON, or not as its schema says.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        422: "No run can calibrate, or there are too many.",
        500: "A bug of ours, or a worker process that ended.",
        503: "Starting or stopping.",
    }
    content = {JSON: {"schema": {"$ref": REF + "MeasurementsBody"}, "example": MEASUREMENT_EXAMPLE}}
    for method, scope, endpoint, name, answer, problems, extra in (
        ("POST", "profile", create, "bring_measurements", "Accepted", bad,
         {"requestBody": {"required": True, "content": content}}),
        ("GET", "read", listing, "list_measurements", "MeasurementPage", {422: "Not a page."}, {"parameters": PAGE_PARAMETERS}),
    ):  # fmt: skip
        shown = {"description": "The answer.", "content": {JSON: {"schema": {"$ref": REF + answer}}}}
        found.add_api_route(
            "",
            guarded(scope, endpoint),
            methods=[method],
            summary=(endpoint.__doc__ or "").split("\n")[0],
            operation_id=name,
            response_class=Response,
            responses={200: shown, **problem_responses(problems)},
            openapi_extra=extra,
        )
    return found
