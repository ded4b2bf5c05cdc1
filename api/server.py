"""Runs the application under uvicorn."""

from __future__ import annotations

import socket

import click
import uvicorn
from autoconfig.api.app import create_app
from autoconfig.api.http.protocol import LimitedHead
from autoconfig.api.settings import ServiceSettings
from autoconfig.specs.errors import InputError

KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 30
MAX_CONNECTIONS = 1_000
BACKLOG = 2_048
"""Connections that wait from the moment that the address is printed."""


def run(settings: ServiceSettings, host: str, port: int, search_workers: int = 0) -> None:
    """Listen until SIGTERM or Ctrl-C, then finish what runs. Raises InputError where the address cannot be used."""
    app = create_app(settings)
    app.state.search_workers = search_workers
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"listening on http://{shown}:{listening.getsockname()[1]}", err=True)
    config = uvicorn.Config(
        app,
        http=LimitedHead,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
        server_header=False,
    )
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot listen on {host}:{port}: {why}; choose another --port or --host") from None
    return listening
