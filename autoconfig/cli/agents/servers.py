"""`mcp`: the commands as tools of agents, on standard input and output or over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click

from autoconfig.cli.agents.tools import TOOLS
from autoconfig.cli.main import load
from autoconfig.specs.errors import InputError

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from autoconfig.api.agents import ToolEndpoint

INSTRUCTIONS = (
    "Plans, memory, step times and causes for training, serving and post-training of large language models, by formulas with "
    "named sources. Each tool is a command of autoconfig: its arguments are the long options with underscores, its answer the "
    "command's JSON. `assumed` says what was taken where nothing was said: read it before you trust a figure."
)


@click.command("mcp")
@click.option("--http", is_flag=True, help="Over HTTP at /mcp, beside the service's own paths: then every option of serve.")
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF SERVE]...")
def mcp_command(http: bool, serve_options: tuple[str, ...]) -> None:
    """Tools for agents (Model Context Protocol): search, explain, check, diagnose, deployments, rl, model, budget.

    On standard input and output, as agents start it; a tool is the command of its name. Over HTTP it is `autoconfig serve` with
    tools beside its paths, behind the same keys and limits.

    autoconfig mcp

    autoconfig mcp --http --port 8000 --keys
    """
    if http:
        serve = load("service", "serve_command")
        serve.main(["--mcp", *serve_options], prog_name="autoconfig mcp --http", standalone_mode=False)
        return
    if serve_options:
        raise InputError(f"{serve_options[0]} is for a service: say --http, too")
    here().run("stdio")


mcp_command.context_settings = {"ignore_unknown_options": True}


def here() -> MCPServer:
    """The tools on this machine: each call runs the command itself."""
    import anyio

    turns = anyio.CapacityLimiter(max(1, len(os.sched_getaffinity(0))))

    async def ask(name: str, arguments: Mapping[str, Any], _: object) -> tuple[bool, str]:
        try:
            words = TOOLS[name].words(arguments)
        except InputError as error:
            return False, str(error)
        async with turns:
            command = [sys.executable, "-P", "-m", "autoconfig", *words]
            try:
                done = await anyio.run_process(command, stdin=subprocess.DEVNULL, check=False)
            except (OSError, ValueError) as error:  # longer than the system takes, or with a zero byte
                return False, f"the arguments are no command line: {error}"
        if done.stdout.strip():
            return True, done.stdout.decode()
        return False, message(done.stderr.decode())

    return _server(ask, remote=False)


def message(stderr: str) -> str:
    """What a command says of bad input, without its usage."""
    said = stderr.strip()
    for before in ("Error: ", "error: "):
        _, found, behind = (
            said.rpartition(f"\n{before}") if not said.startswith(before) else ("", before, said.removeprefix(before))
        )
        if found:
            return behind
    return said


def over_http() -> ToolEndpoint:
    """The tools as an endpoint of the service: each call is a question of its own, in turn with the others of its key."""
    from autoconfig.api.agents import ToolEndpoint
    from autoconfig.api.routes.agents import ask as question

    async def ask(name: str, arguments: Mapping[str, Any], request: Any) -> tuple[bool, str]:
        tool = TOOLS[name]
        try:
            body = tool.body(arguments)
        except InputError as error:
            return False, str(error)
        return await question(request, tool.kind, body)

    return ToolEndpoint(_server(ask, remote=True))


def _server(ask: Any, *, remote: bool) -> MCPServer:
    from autoconfig.api.agents import Offer, server_of

    offers = [
        Offer(name=tool.name, description=tool.description(), schema=tool.schema(remote=remote)) for tool in TOOLS.values()
    ]
    return server_of(offers, ask, version("megatron-autoconfig"), INSTRUCTIONS)
