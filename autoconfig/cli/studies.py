"""`autoconfig studies`: the studies of a folder or storage."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import click

from autoconfig.cli.main import console, json_option, option, options, show_rows
from autoconfig.cli.study import existing_storage, report, training
from autoconfig.planning.request_fields import FOLDER, SAVE_CALIBRATION, STORAGE


@click.group("studies")
def studies_group() -> None:
    """Profiling studies: list, show, delete."""


@studies_group.command("list")
@options((FOLDER, STORAGE))
@json_option
def list_command(folder: Path, storage: str | None, as_json: bool) -> None:
    """Every study of a folder or storage."""
    from autoconfig.study.storage import list_studies, opened

    with opened(existing_storage(folder, storage)) as found:
        rows = [
            {
                "name": s.name, "kind": s.kind, "model": s.model, "gpus": s.gpus, "trials": s.trials, "measured": s.measured,
                "running": s.running, "best_step_seconds": s.best_step_seconds,
                "best_tokens_per_s_per_gpu": s.best_tokens_per_s_per_gpu,
                "started": s.started.isoformat(timespec="seconds") if s.started else None,
            }
            for s in list_studies(found)
        ]  # fmt: skip
    if as_json or rows:
        show_rows("studies", rows if as_json else [_readable(row) for row in rows], as_json)
    else:
        click.echo("no studies yet")


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    best = {name: row[name] for name in ("best_step_seconds", "best_tokens_per_s_per_gpu")}
    shown = {**row, **{name: None if value is None else f"{value:.4g}" for name, value in best.items()}}
    return {name: "-" if value is None else value for name, value in shown.items()}


@studies_group.command("show")
@click.argument("name")
@options((FOLDER, STORAGE))
@json_option
@option(SAVE_CALIBRATION)
def show_command(name: str, folder: Path, storage: str | None, as_json: bool, save_calibration: str | None) -> None:
    """What a study found: measured beside predicted."""
    from autoconfig.study.session import Options
    from autoconfig.study.storage import errors_of, kind_stored, opened

    url = existing_storage(folder, storage)
    with opened(url) as database:
        stored = kind_stored(database, name)
    if stored == "inference":
        from autoconfig.cli.serving_study import serving

        asked = serving({})
    else:
        asked = training({})
    how = Options(folder=folder, storage_url=url, python=sys.executable)
    session = asked.kind.open(name, None, how, resume=True, look_only=True)
    with contextlib.closing(session), errors_of(url):
        found = report(asked.kind, session, save_calibration, "not asked to run", as_json)
    if not as_json:
        asked.words.show(console(), found, "as stored")


@studies_group.command("delete")
@click.argument("name")
@options((FOLDER, STORAGE))
@click.option("--force", is_flag=True, help="With --storage: even while searches are at it; they end, and say why.")
def delete_command(name: str, folder: Path, storage: str | None, force: bool) -> None:
    """Forget a study. Job folders stay: what they measured is not measured again."""
    from autoconfig.study.session import forget, lock_folder
    from autoconfig.study.storage import opened

    url = existing_storage(folder, storage)
    with contextlib.nullcontext() if storage else lock_folder(folder), opened(url) as found:
        forget(found, name, folder, shared=storage is not None, force=force)
    click.echo(f"deleted study {name}; its jobs stay in {folder / 'jobs'}")
