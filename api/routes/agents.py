"""`POST /mcp`: tools of agents, as the Model Context Protocol has them; a call of one is a question of `/v1`."""

from __future__ import annotations

import json

from autoconfig.api.agents import ToolEndpoint
from autoconfig.api.context import guarded, require_json, unless_gone, whole_body
from autoconfig.api.problems import RefusedError
from autoconfig.api.routes.answers import question
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response


def agents_router(agents: ToolEndpoint) -> APIRouter:
    """The endpoint."""
    found = APIRouter()

    async def mcp(request: HttpRequest) -> Response:
        require_json(request)
        status, body, headers = await unless_gone(request, agents.answer(request.scope, await whole_body(request)))
        return Response(body, status, headers)

    found.add_api_route("/mcp", guarded("plan", mcp), methods=["POST"], include_in_schema=False)
    return found


async def ask(request: HttpRequest, kind: str, raw: bytes) -> tuple[bool, str]:
    """Whether a question is answered, and its JSON; or why not."""
    try:
        found = await question(request, kind, raw)
    except RefusedError as error:
        return False, error.detail
    return found.status == 200, found.body.decode() if found.status == 200 else json.loads(found.body)["detail"]
