"""`POST /v1/plans`, `/explain`, `/scaling`, `/budget`, `/check`, `/diagnose`, `/predict`, `/deployments`, `/post-training`,
`/model`: question in, JSON as of the command line out; `/v1/measurements`: measured runs come in and calibrate the answers to
the key that brought them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autoconfig.api import measurements
from autoconfig.api.compute import AnswerCache, Rendered
from autoconfig.api.context import (
    JSON,
    LARGE_BODY_BYTES,
    Endpoint,
    Service,
    checked_body,
    guarded,
    own_calibration,
    require_json,
    respond,
    service_of,
    unless_gone,
    whole_body,
)
from autoconfig.api.http import PAGE_PARAMETERS, bounds_of, query_parameter
from autoconfig.api.problems import MEDIA_TYPE, RefusedError
from autoconfig.api.wire.bodies import BODIES, MAX_ROWS, READERS
from autoconfig.api.wire.schemas import REF
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

Responses = dict[Any, Any]
PLANS_EXAMPLE: dict[str, object] = {"model": "175b", "gpus": 1024, "gpu": "h100-sxm-80gb"}
PLAN_EXAMPLE = {**PLANS_EXAMPLE, "plan": "tp=8,pp=8,mbs=1,sp=1"}
SCALING_EXAMPLE = {"model": "175b", "gpus": "256:2048", "gpu": ["h100-sxm-80gb"], "tokens": "300B", "days": 20.0}
BUDGET_EXAMPLE: dict[str, object] = {"money": "200k", "days": 30, "model": "llama3-8b", "gpu": {"h100-sxm-80gb": 2.2}}
CHECK_EXAMPLE = {
    "text": "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 "
    "--global-batch-size 64 --tensor-model-parallel-size 2 --bf16 --vocab-size 50257",
    **{"gpus": 8, "gpu": "h100-sxm-80gb"},
}
DIAGNOSE_EXAMPLE = {**PLAN_EXAMPLE, "files": {"nccl.log": "node1:77:99 [0] NCCL INFO Using network Socket"}, "step": "60s"}
RUN_EXAMPLE: dict[str, object] = {
    **{"id": "a", "layers": 32, "hidden": 4096, "heads": 32, "seq": 4096, "gpu": "h100-sxm-80gb", "gpus": 8},
    **{"tp": 1, "pp": 1, "mbs": 1, "gbs": 64, "precision": "bf16", "recompute": "none"},
}
DEPLOYMENTS_EXAMPLE: dict[str, object] = {
    **{"model": "llama3-70b", "gpus": 8, "gpu": "h200-sxm-141gb", "isl": 1000, "osl": 500},
    **{"ttft": "2s", "tpot": "50ms"},
}
POST_TRAINING_EXAMPLE: dict[str, object] = {
    **{"model": "qwen2.5-7b", "gpus": 8, "gpu": "h100-sxm-80gb", "algorithm": "grpo", "framework": "verl"},
    **{"prompts": 512, "group_size": 16, "response_length": 1600, "max_response_length": 8192},
}
QUESTIONS: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    ("plans", "Search", "The best plans by formula, as `autoconfig search --json`.", PLANS_EXAMPLE),
    ("explain", "Explain", "Everything about one plan, as `autoconfig explain --json`.", PLAN_EXAMPLE),
    ("timeline", "Timeline",
     "The step of one plan as a pipeline timeline: what every stage works on, and when.", PLAN_EXAMPLE),
    ("export", "Scripts",
     "Launch scripts and plan.json of one plan, as `autoconfig export` writes them.", PLAN_EXAMPLE),
    ("scaling", "Scaling", "GPU counts and types, as `autoconfig scaling --json`.", SCALING_EXAMPLE),
    ("budget", "Budget", "What money and days train, as `autoconfig budget --json`.", BUDGET_EXAMPLE),
    ("check", "Check",
     "A launch script or a trainer's configuration, as `autoconfig check --json`. It is read, never run.", CHECK_EXAMPLE),
    ("convert", "Convert",
     "The plan of a file as a file of another launcher, as `autoconfig convert --json`.",
     {**CHECK_EXAMPLE, "format": "megatron-yaml"}),
    ("diagnose", "Diagnose",
     "Why a run is slower than it should be, as `autoconfig diagnose --json`.", DIAGNOSE_EXAMPLE),
    ("predict", "Predictions", "A table of runs, as `autoconfig predict`.", {"rows": [RUN_EXAMPLE]}),
    ("deployments", "Serve",
     "The best deployments of a served model, as `autoconfig deployments --json`.", DEPLOYMENTS_EXAMPLE),
    ("post-training", "Rl",
     "The quickest placements of a step of post-training, as `autoconfig rl --json`.", POST_TRAINING_EXAMPLE),
    ("model", "ModelCount", "The parameters of a model, as `autoconfig model --json`.", {"model": "llama3-8b"}),
)  # fmt: skip
BODY_PROBLEMS = {
    400: "The body is not JSON, or not as its schema says.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}
COMPUTE_PROBLEMS = {500: "A bug of ours, or a worker process that ended.", 503: "Starting or stopping."}
UNANSWERED = "The question follows the schema and cannot be answered (or takes too long); the document says what would do."
ACCESS_PROBLEMS = {
    401: "No valid key.",
    403: "The key lacks the scope.",
    429: "Too many requests.",
    503: "The database does not answer; `Retry-After` says when to try again.",
}
NOT_CALIBRATED = frozenset({"deployments", "post-training", "model"})
"""Measured training runs say nothing about serving, nor about a step of post-training, nor about a count."""


def problem_responses(texts: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses that are problem documents."""
    content = {MEDIA_TYPE: {"schema": {"$ref": REF + "Problem"}}}
    return {status: {"description": text, "content": content} for status, text in texts.items()}


def answered(ref: str) -> dict[str, Any]:
    """An OpenAPI response that is a component."""
    return {"description": "The answer.", "content": {JSON: {"schema": {"$ref": REF + ref}}}}


def body_of(ref: str, example: Mapping[str, object]) -> dict[str, Any]:
    """What the OpenAPI document says of a request's body."""
    return {"requestBody": {"required": True, "content": {JSON: {"schema": {"$ref": REF + ref}, "example": example}}}}


def add(
    router: APIRouter, path: str, scope: str, endpoint: Endpoint, responses: Responses, extra: Mapping[str, Any],
    *, problems: Mapping[int, str] | None = None, method: str = "GET", name: str = "", **more: Any,
) -> None:  # fmt: skip
    """An endpoint behind its scope, and what the OpenAPI document says of it; `problems`: beside those of access."""
    refused = problem_responses(ACCESS_PROBLEMS | dict(problems or {})) if scope else {}
    router.add_api_route(
        path,
        guarded(scope, endpoint),
        methods=[method],
        operation_id=name or endpoint.__name__,
        response_class=Response,
        responses={**responses, **refused},
        openapi_extra=dict(extra),
        **more,
    )


async def question(request: HttpRequest, kind: str, raw: bytes) -> Rendered:
    """The answer to the body of one question, the one that is kept where there is one. Raises RefusedError."""
    service = service_of(request)
    own = None if kind in NOT_CALIBRATED else await own_calibration(request)
    key = AnswerCache.key(kind, raw, own.version if own else "")
    found = service.compute.cache.get(key)
    if found is not None:
        service.metrics.cached.inc()
        return found
    asked = raw if len(raw) > LARGE_BODY_BYTES else READERS[kind](raw)
    return await service.compute.answer(kind, asked, key, own.text if own else None, owner=request.state.owner)


def _endpoint(kind: str) -> Endpoint:
    async def ask(request: HttpRequest) -> Response:
        require_json(request)
        raw = await whole_body(request)
        return respond(request, await unless_gone(request, question(request, kind, raw)))

    ask.__name__ = kind.replace("-", "_")
    return ask


def router() -> APIRouter:
    """The endpoints of this module."""
    found = APIRouter(prefix="/v1", tags=["answers"])
    problems = BODY_PROBLEMS | {422: UNANSWERED} | COMPUTE_PROBLEMS
    for kind, answer, text, example in QUESTIONS:
        asked = body_of(BODIES[kind].__name__, example)
        endpoint = _endpoint(kind)
        add(found, f"/{kind}", "plan", endpoint, {200: answered(answer)}, asked, problems=problems, method="POST", summary=text)
    return found


MEASUREMENT_EXAMPLE = {"rows": [{**RUN_EXAMPLE, "id": "job-4711", "metric_step_s": 3.1}]}


async def create(request: HttpRequest) -> Response:
    """Bring measured runs; from now on they calibrate the answers to this key. The same id again replaces a run."""
    require_json(request)
    rows = (await checked_body(request, "measurements"))["rows"]
    ids = [row["id"] for row in rows]
    if len({*ids}) < len(ids):
        raise RefusedError(422, "two runs have the same id; give each its own", field="rows")
    service, owner = service_of(request), request.state.owner
    sorted_out = await unless_gone(request, service.compute.run("sort_out", {"rows": rows}, owner=owner))
    if sorted_out.status != 200:
        return Response(sorted_out.body, sorted_out.status, media_type=MEDIA_TYPE)
    found = json.loads(sorted_out.body)
    if not found["good"]:
        first = found["left_out"][0]
        raise RefusedError(422, f"none of the runs can calibrate; {first['id'][:80]}: {first['reason']}", field="rows")
    await run_in_threadpool(measurements.add, service.engine, owner, [rows[number] for number in found["good"]])
    return await _fitted(service, owner, {"accepted": len(found["good"]), "left_out": found["left_out"]})


async def remove(request: HttpRequest) -> Response:
    """Forget the runs named by `id`, or with `all` every run of this key; what is left calibrates its answers."""
    ids, every = request.query_params.getlist("id"), request.query_params.get("all", "false")
    if every not in ("true", "false") or bool(ids) == (every == "true") or len(ids) > MAX_ROWS:
        raise RefusedError(422, f"say which runs: id=NAME, up to {MAX_ROWS:,} times, or all=true for every run", field="id")
    service, owner = service_of(request), request.state.owner
    count = await run_in_threadpool(measurements.remove, service.engine, owner, ids or None)
    if ids and not count:
        raise RefusedError(404, f"no run of this key has the id {ids[0][:80]!r}; GET /v1/measurements lists them", field="id")
    return await _fitted(service, owner, {"removed": count})


async def _fitted(service: Service, owner: str, said: dict[str, Any]) -> Response:
    """`said`, and the calibration of the runs that are there now, which answers to their owner take from here on."""
    revision, kept = await run_in_threadpool(measurements.runs_of, service.engine, owner)
    text = None
    if kept:
        fitted = await service.compute.run("calibrate", {"rows": kept}, owner=owner)
        if fitted.status != 200:
            return Response(fitted.body, fitted.status, media_type=MEDIA_TYPE)
        text = fitted.body.decode()
    await run_in_threadpool(measurements.store, service.engine, owner, revision, text)
    service.calibrations.hold(owner, await run_in_threadpool(measurements.current, service.engine, owner))
    version = json.loads(text)["version"] if text else None
    body = {"schema_version": 1, **said, "measurements": len(kept), "calibration": version}
    return Response(json.dumps(body), media_type=JSON)


async def listing(request: HttpRequest) -> Response:
    """The runs of this key, and the version of the calibration that they make."""
    after, limit = bounds_of(request)
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


REMOVED = [
    query_parameter("id", {"type": "array", "items": {"type": "string"}}, "The id of a run; repeat."),
    query_parameter("all", {"enum": ["true", "false"]}, "Every run of this key."),
]


def measurements_router() -> APIRouter:
    """The endpoints of this module."""
    found = APIRouter(prefix="/v1/measurements", tags=["measurements"])
    bad = BODY_PROBLEMS | {422: "No run can calibrate, or there are too many."} | COMPUTE_PROBLEMS
    asked, parameters = body_of("MeasurementsBody", MEASUREMENT_EXAMPLE), {"parameters": PAGE_PARAMETERS}
    unknown = {404: "There is no such run.", 422: "Neither `id` nor `all` is given."} | COMPUTE_PROBLEMS
    for method, scope, endpoint, name, answer, problems, extra in (
        ("POST", "profile", create, "bring_measurements", "Accepted", bad, asked),
        ("GET", "read", listing, "list_measurements", "MeasurementPage", {422: "Not a page."}, parameters),
        ("DELETE", "profile", remove, "remove_measurements", "Removed", unknown, {"parameters": REMOVED}),
    ):
        said = {"method": method, "name": name, "summary": (endpoint.__doc__ or "").split("\n")[0]}
        add(found, "", scope, endpoint, {200: answered(answer)}, extra, problems=problems, **said)
    return found
