"""`POST /v1/plans`, `/explain`, `/scaling`, `/check`, `/predict`, `/deployments`: question in, the command line's JSON out."""

from __future__ import annotations

from autoconfig.api.context import JSON, AnswerCache, Endpoint, guarded, is_json, own_calibration, respond, service_of
from autoconfig.api.problems import MEDIA_TYPE, problem
from autoconfig.api.wire import bodies
from autoconfig.api.wire.bodies import BodyError, read_body
from autoconfig.api.wire.schemas import REF
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

PLANS_EXAMPLE = {"model": "175b", "gpus": 1024, "gpu": "h100-sxm-80gb"}
CHECK_EXAMPLE = {
    "text": "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 "
    "--global-batch-size 64 --tensor-model-parallel-size 2 --bf16",
    "gpus": 8,
    "gpu": "h100-sxm-80gb",
}
RUN_EXAMPLE: dict[str, object] = {
    "id": "a",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "seq": 4096,
    "gpu": "h100-sxm-80gb",
    "gpus": 8,
    "tp": 1,
    "pp": 1,
    "mbs": 1,
    "gbs": 64,
    "precision": "bf16",
    "recompute": "none",
}
DEPLOYMENTS_EXAMPLE: dict[str, object] = {
    **{"model": "llama3-70b", "gpus": 8, "gpu": "h200-sxm-141gb", "isl": 1000, "osl": 500},
    **{"ttft": "2s", "tpot": "50ms"},
}
QUESTIONS: tuple[tuple[str, type[BaseModel], str, str, dict[str, object]], ...] = (
    ("plans", bodies.PlansBody, "Search", "The best plans by formula, as `autoconfig search --json`.", PLANS_EXAMPLE),
    (
        "explain",
        bodies.ExplainBody,
        "Explain",
        "Everything about one plan, as `autoconfig explain --json`.",
        {**PLANS_EXAMPLE, "plan": "tp=8,pp=8,mbs=1,sp=1"},
    ),
    (
        "timeline",
        bodies.TimelineBody,
        "Timeline",
        "The step of one plan as a pipeline timeline: what every stage works on, and when.",
        {**PLANS_EXAMPLE, "plan": "tp=8,pp=8,mbs=1,sp=1"},
    ),
    (
        "export",
        bodies.ExportBody,
        "Scripts",
        "Launch scripts and plan.json of one plan, as `autoconfig export` writes them.",
        {**PLANS_EXAMPLE, "plan": "tp=8,pp=8,mbs=1,sp=1"},
    ),
    (
        "scaling",
        bodies.ScalingBody,
        "Scaling",
        "GPU counts and types, as `autoconfig scaling --json`.",
        {"model": "175b", "gpus": "256:2048", "gpu": ["h100-sxm-80gb"], "tokens": "300B", "days": 20.0},
    ),
    (
        "check",
        bodies.CheckBody,
        "Check",
        "A Megatron-LM script, argument list or plan.json, as `autoconfig check --json`. It is read, never run.",
        CHECK_EXAMPLE,
    ),
    ("predict", bodies.PredictBody, "Predictions", "A table of runs, as `autoconfig predict`.", {"rows": [RUN_EXAMPLE]}),
    (
        "deployments",
        bodies.DeploymentsBody,
        "Serve",
        "The best deployments of a served model, as `autoconfig search --inference --json`.",
        DEPLOYMENTS_EXAMPLE,
    ),
)
_PROBLEMS = {
    400: "The body is not JSON, or not as its schema says.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The question follows the schema and cannot be answered (or takes too long); the document says what would do.",
    500: "A bug of ours, or a worker process that ended.",
    503: "Starting or stopping.",
}
ACCESS_PROBLEMS = {
    401: "No valid key.",
    403: "The key lacks the scope.",
    429: "Too many requests.",
    503: "The database does not answer; `Retry-After` says when to try again.",
}


def problem_responses(texts: dict[int, str]) -> dict[int | str, dict[str, object]]:
    """OpenAPI responses that are problem documents."""
    content = {MEDIA_TYPE: {"schema": {"$ref": REF + "Problem"}}}
    return {status: {"description": text, "content": content} for status, text in (ACCESS_PROBLEMS | texts).items()}


NOT_CALIBRATED = frozenset({"deployments"})
"""Measured training runs say nothing about serving."""


def _endpoint(kind: str, body: type[BaseModel]) -> Endpoint:
    async def ask(request: HttpRequest) -> Response:
        service = service_of(request)
        if not is_json(request):
            return problem(415, "send the question as application/json")
        raw = await request.body()
        own = None if kind in NOT_CALIBRATED else await own_calibration(request)
        key = AnswerCache.key(kind, raw, own.version if own else "")
        found = service.compute.cache.get(key)
        if found is not None:
            service.metrics.cached.inc()
            return respond(request, found)
        try:
            checked = read_body(raw, body)
        except BodyError as error:
            return problem(error.status, error.detail, **error.more)
        return respond(request, await service.compute.answer(kind, checked, key, own.text if own else None))

    ask.__name__ = kind
    return ask


def router() -> APIRouter:
    """The endpoints of this module."""
    found = APIRouter(prefix="/v1", tags=["answers"])
    for kind, body, answer, text, example in QUESTIONS:
        content = {JSON: {"schema": {"$ref": REF + body.__name__}, "example": example}}
        found.add_api_route(
            f"/{kind}",
            guarded("plan", _endpoint(kind, body)),
            methods=["POST"],
            summary=text,
            operation_id=kind,
            response_class=Response,
            responses={
                200: {"description": "The answer.", "content": {JSON: {"schema": {"$ref": REF + answer}}}},
                **problem_responses(_PROBLEMS),
            },
            openapi_extra={"requestBody": {"required": True, "content": content}},
        )
    return found
