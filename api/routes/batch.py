"""`POST /v1/batch`: many questions at once, answers in order, errors as values, so that a scheduler does not have to hammer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from autoconfig.api.compute import AnswerCache
from autoconfig.api.context import (
    JSON,
    LARGE_BODY_BYTES,
    Service,
    checked_body,
    own_calibration,
    require_json,
    service_of,
)
from autoconfig.api.http import ENDING
from autoconfig.api.measurements import OwnCalibration
from autoconfig.api.problems import RefusedError, problem_bytes
from autoconfig.api.routes.answers import (
    BODY_PROBLEMS,
    CHECK_EXAMPLE,
    COMPUTE_PROBLEMS,
    NOT_CALIBRATED,
    PLANS_EXAMPLE,
    add,
    answered,
    body_of,
)
from autoconfig.api.wire.bodies import READERS
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

MOST_BATCHES = 4
"""Of one key at a time."""
AHEAD = 2
"""Questions of a batch that wait or run, and answers that wait for one before them, for each process of the service."""
ATTEMPTS = 5
"""Of a question that finds the service busy."""
EXAMPLE = {"questions": [{"kind": "plans", "question": PLANS_EXAMPLE}, {"kind": "check", "question": CHECK_EXAMPLE}]}


async def batch(request: HttpRequest) -> Response:
    """Up to 256 questions of any kind: their answers in order, each with its status, some with a problem."""
    service, owner = service_of(request), request.state.owner
    require_json(request)
    questions = (await checked_body(request, "batch"))["questions"]
    own = await own_calibration(request)
    if service.batches[owner] >= MOST_BATCHES:
        raise RefusedError(429, f"{MOST_BATCHES} batches of yours are being answered; ask again", {"Retry-After": "5"})
    service.batches[owner] += 1
    request.scope[ENDING].callback(service.batches.subtract, [owner])
    return StreamingResponse(_answers(service, owner, questions, own), media_type=JSON)


async def _answers(
    service: Service, owner: str, questions: list[dict[str, Any]], own: OwnCalibration | None
) -> AsyncIterator[bytes]:
    """The document as the answers come, so that few of them are held at a time."""
    running: list[asyncio.Task[tuple[int, bytes]]] = []
    begun = 0
    try:
        yield b'{"schema_version":1,"answers":['
        for number in range(len(questions)):
            while begun < len(questions) and len(running) < AHEAD * service.settings.workers:
                running.append(asyncio.create_task(_one(service, owner, questions[begun], own)))
                questions[begun] = {}
                begun += 1
            status, document = await running.pop(0)
            comma = b"," if number else b""
            yield b'%b{"status":%d,"%b":%b}' % (comma, status, b"answer" if status == 200 else b"problem", document)
        yield b"]}"
    finally:
        for task in running:
            task.cancel()


async def _one(service: Service, owner: str, asked: dict[str, Any], own: OwnCalibration | None) -> tuple[int, bytes]:
    """(status, document) of one question; where the service is busy it is asked again."""
    kind, raw = asked["kind"], json.dumps(asked["question"]).encode()
    calibration = None if kind in NOT_CALIBRATED else own
    key = AnswerCache.key(kind, raw, calibration.version if calibration else "")
    for attempt in range(ATTEMPTS):
        held = service.compute.cache.get(key)
        if held is not None:
            service.metrics.cached.inc()
            return held.status, held.body
        try:
            body = raw if len(raw) > LARGE_BODY_BYTES else READERS[kind](raw)
            text = calibration.text if calibration else None
            found = await service.compute.answer(kind, body, key, text, owner=owner, patient=True)
        except RefusedError as error:
            if "Retry-After" in (error.headers or {}) and attempt < ATTEMPTS - 1 and not service.compute.draining:
                continue
            return error.status, problem_bytes(error.status, error.detail, **error.more)
        return found.status, found.body
    raise AssertionError("the last attempt returns")


def router() -> APIRouter:
    """The endpoint of this module."""
    found = APIRouter(prefix="/v1", tags=["answers"])
    problems = BODY_PROBLEMS | COMPUTE_PROBLEMS
    asked, answers = body_of("BatchBody", EXAMPLE), {200: answered("BatchAnswers")}
    add(found, "/batch", "plan", batch, answers, asked, problems=problems, method="POST", summary=batch.__doc__)
    return found
