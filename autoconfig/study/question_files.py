"""Files that a question names: stored by absolute path and held by content, so that a resumed study asks the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from optuna.study import Study

from autoconfig.planning.calibration_file import NO_CALIBRATION
from autoconfig.specs.errors import FileError, InputError, UnknownNameError
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.study.settings import Settings

FIELDS = ("model", "gpu_table", "cluster", "calibration")
"""Fields of a request that may name a file."""
FILES = "files"
"""Attribute of a study: field -> SHA-256 of the file."""


def with_absolute_paths(settings: Settings) -> Settings:
    """The same question, asked from any folder."""
    found = {field: str(path.absolute()) for field, path in _paths(settings)}
    return replace(settings, request=replace(settings.request, **found)) if found else settings


def hold_files(study: Study, settings: Settings) -> None:
    """Keep what the question's files hold; raises InputError where one has changed since, FileError where it cannot be read."""
    now = {field: _digest(path) for field, path in _paths(settings)}
    kept = study.user_attrs.get(FILES)
    if kept is None:
        if now:
            study.set_user_attr(FILES, now)
        return
    for field, path in _paths(settings):
        if kept.get(field, now[field]) != now[field]:
            raise InputError(
                f"study {study.study_name}: {path} (--{field.replace('_', '-')}) has changed since the study was begun; put it "
                "back, or start a new study with --study"
            )


def _paths(settings: Settings) -> Iterator[tuple[str, Path]]:
    """(field, path) of the files that are there; one that is not is refused where it is read."""
    request = settings.request
    if not request.local_files:
        return
    for field in FIELDS:
        value = getattr(request, field, None)
        if isinstance(value, str) and not _is_a_name(field, value):
            path = Path(value.strip()).expanduser()
            if path.exists():
                yield field, path


def _is_a_name(field: str, value: str) -> bool:
    """Names come before files of the same name, as where the question is read."""
    if field == "model":
        try:
            load_model(value)
        except UnknownNameError:
            return False
        return True
    return field == "calibration" and value == NO_CALIBRATION


def _digest(path: Path) -> str:
    file = path / "config.json" if path.is_dir() else path
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise FileError(f"{str(file)[:200]!r} cannot be read: {error.strerror or error}") from error
