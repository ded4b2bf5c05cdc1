"""The tools of agents over the Model Context Protocol: on standard input and output, and at `/mcp` of the service, behind its
keys, its check of Host and its limits. What a tool is, and what a call of it means, the caller of this module says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool as ServedTool
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, TextContent, ToolAnnotations

ONLY = "only"
"""The argument that names the keys of an answer that are wanted."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A tool as an agent sees it."""

    name: str
    description: str
    schema: dict[str, Any]


Ask = Callable[[str, Mapping[str, Any], Any], Awaitable[tuple[bool, str]]]
"""(name of a tool, its arguments, the HTTP request or None) -> whether it is answered, and the answer's JSON or why not."""


class _AskedTool(ServedTool):
    """A tool whose arguments are read by what answers it: a wrong one is told in the words of the command line."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> CallToolResult:
        """The answer, as a text and as an object; or the message, marked as an error."""
        given = dict(arguments)
        wanted = given.pop(ONLY, None)
        answered, text = await self.fn(self.name, given, context.request_context.request)
        if answered:
            answered, text = _kept(text, wanted)
        content: Any = [TextContent(type="text", text=text)]
        found = json.loads(text) if answered else None
        return CallToolResult(content=content, structured_content=found, is_error=not answered)


def _kept(text: str, wanted: Any) -> tuple[bool, str]:
    """The keys of an answer that are wanted, without blanks; or which keys there are."""
    answer = json.loads(text)
    names = [wanted] if isinstance(wanted, str) else wanted or list(answer)
    if not isinstance(names, list) or (unknown := [str(name)[:80] for name in names if name not in answer]):
        first = "" if not isinstance(names, list) else f"the answer has no {unknown[0]!r}; "
        return False, f"{ONLY}: {first}name keys of it as a list: {', '.join(answer)}"
    return True, json.dumps({name: answer[name] for name in names}, separators=(",", ":"))


async def _nothing() -> None:
    """A tool's arguments are in its schema."""


def server_of(offers: Iterable[Offer], ask: Ask, version: str, instructions: str) -> MCPServer:
    """A server that offers these tools."""
    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    tools = []
    for offer in offers:
        what: dict[str, Any] = {"name": offer.name, "description": offer.description, "annotations": hints}
        tool = _AskedTool.from_function(_nothing, structured_output=False, **what)
        tool.fn, tool.parameters = ask, offer.schema
        tools.append(tool)
    settings: dict[str, Any] = {"log_level": "WARNING", "subscriptions": False}  # stdio's standard error, and no streams
    return MCPServer("autoconfig", version=version, instructions=instructions, tools=tools, **settings)


class ToolEndpoint:
    """A server of tools as an endpoint of the service: each call is one request with one answer, nothing is kept between."""

    def __init__(self, server: MCPServer) -> None:
        settings = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # `api.browser` checks Host and Origin
        server.streamable_http_app(json_response=True, stateless_http=True, transport_security=settings)
        self._manager = server.session_manager

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """As long as the service lives."""
        async with self._manager.run():
            yield

    async def answer(self, scope: Mapping[str, Any], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """(status, body, headers) of the answer to one request whose body is read."""
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        status, headers, parts = 500, {}, []

        async def receive() -> dict[str, Any]:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()  # who hangs up is noticed outside, and ends this
            raise AssertionError

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers.update({key.decode(): value.decode() for key, value in message.get("headers", ())})
            else:
                parts.append(message.get("body", b""))

        await self._manager.handle_request(dict(scope), receive, send)
        headers.pop("content-length", None)
        return status, b"".join(parts), headers
