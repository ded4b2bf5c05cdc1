"""The commands of the service: serve, worker, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoconfig.api import store as access
from autoconfig.api.store import DEFAULT_DATABASE, LOOPBACK, ServiceSettings
from autoconfig.cli.main import given_options, print_json
from autoconfig.cli.options import json_option, of_environment, options
from autoconfig.planning.request_fields import RUNNER
from autoconfig.specs.errors import InputError, option_name

DEFAULT_PORT = 8000

database_option = click.option(
    "--database",
    default=DEFAULT_DATABASE,
    show_default=True,
    metavar="URL",
    help="sqlite:///FILE or postgresql://USER@HOST/NAME.",
    **of_environment("database"),
)


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="Port; 0: a free one.")
@database_option
@click.option("--keys/--no-keys", "keys", default=None, help="Ask for API keys.  [default: only off loopback]")
@click.option("--without-keys", is_flag=True, help="Listen on another address than loopback without keys: anyone may ask.")
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A further name under which browsers ask, of a proxy for example; repeat. Without keys other names are refused.",
)
@click.option("--mcp", is_flag=True, help="Also tools of agents, at /mcp (Model Context Protocol): autoconfig mcp --http.")
@click.option("--access-log/--no-access-log", default=True, help="Write a line of each request to stdout.  [default: on]")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes that compute answers.")
@click.option(
    "--search-workers",
    type=click.IntRange(0, 16),
    default=1,
    show_default=True,
    help="Worker processes for POST /v1/searches that this process starts; 0: `autoconfig worker` elsewhere.",
)
@click.option("--answer-seconds", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True, help="Longest answer.")
@click.option("--requests-per-second", type=click.FloatRange(0.01, 1e6), default=50.0, show_default=True, help="Of one key.")
@click.option(
    "--queued-searches",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="Most searches of one key in the queue; without keys all together.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(0, 36_500),
    default=90,
    show_default=True,
    help="A search is deleted so many days after its end; 0: never.",
)
def serve_command(
    host: str, keys: bool | None, without_keys: bool, port: int, mcp: bool, search_workers: int, **options: Any
) -> None:
    """The same answers over HTTP, for schedulers and browsers.

    autoconfig serve --port 8000 --database postgresql://autoconfig@db/autoconfig
    """
    local = host in LOOPBACK
    if keys is None:
        keys = not local and not without_keys
    if not local and not keys and not without_keys:
        raise InputError(f"--host {host} without keys: leave out --no-keys, or say --without-keys to let anyone ask")
    settings, agents = ServiceSettings(keys_required=keys, **options), None
    if mcp:
        from autoconfig.cli.agents.servers import over_http

        agents = over_http()
    from autoconfig.api.app import run

    run(settings, host, port, search_workers, agents)


@click.command("worker")
@database_option
@click.option("--concurrency", type=click.IntRange(1, 64), default=2, show_default=True, help="Searches at the same time.")
@click.option(
    "--profile-folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Take up searches that measure, too, one at a time: jobs and logs go here. Workers of one cluster share it.",
)
@options(RUNNER)
def worker_command(database: str, concurrency: int, profile_folder: Path | None, **runner: Any) -> None:
    """Work on the searches of a service; start as many as you like, on any machine that reaches the database.

    autoconfig worker --database postgresql://autoconfig@db/autoconfig
    autoconfig worker --database postgresql://autoconfig@db/autoconfig --profile-folder /shared/jobs --runner slurm
    """
    from autoconfig.api.work.workflow import check_measuring, run

    profiling = None
    if profile_folder is not None:
        from autoconfig.cli.studies import options_of_runner

        storage = database if database.startswith("postgres") else None
        profiling = options_of_runner(profile_folder, runner, storage_url=storage)
        check_measuring(profiling)
    elif alone := sorted(given_options(click.get_current_context()) & runner.keys()):
        raise InputError(f"{option_name(alone[0])} is for a worker that measures: say --profile-folder DIR too")
    run(database, concurrency, profiling)


@click.group("keys")
def keys_command() -> None:
    """API keys of the service: create, list, revoke."""


@keys_command.command("create")
@click.option("--name", required=True, help="Who uses it.")
@click.option("--scope", "scopes", multiple=True, required=True, help=f"One of {', '.join(access.SCOPES)}; repeat.")
@database_option
def create_command(name: str, scopes: tuple[str, ...], database: str) -> None:
    """Make a key; it is shown once."""
    from autoconfig.api.store import engine_of

    click.echo(access.create_key(engine_of(database), name, scopes))


@keys_command.command("list")
@database_option
@json_option
def list_command(database: str, as_json: bool) -> None:
    """List the keys, without their secrets."""
    from autoconfig.api.store import engine_of

    rows = [
        {
            "id": key.id,
            "name": key.name,
            "scopes": ",".join(key.scopes),
            "created": key.created.isoformat(timespec="seconds"),
            "revoked": key.revoked.isoformat(timespec="seconds") if key.revoked else None,
        }
        for key in access.list_keys(engine_of(database))
    ]
    if as_json:
        print_json({"schema_version": 1, "keys": rows})
        return
    for row in rows:
        state = f"revoked {row['revoked']}" if row["revoked"] else "valid"
        click.echo(f"{row['id']}  {row['scopes']:<20}  {row['created']}  {state:<33}  {row['name']}")
    if not rows:
        click.echo("no keys; autoconfig keys create --name NAME --scope plan makes one", err=True)


@keys_command.command("revoke")
@click.argument("key_id")
@database_option
def revoke_command(key_id: str, database: str) -> None:
    """Refuse a key from now on."""
    from autoconfig.api.store import engine_of

    access.revoke_key(engine_of(database), key_id)
    click.echo(f"key {key_id} is revoked")
