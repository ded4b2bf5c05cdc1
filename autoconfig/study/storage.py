"""Where studies live: SQLite in the search's folder, or PostgreSQL by URL for many workers (Optuna's RDB storage). Files that a
question names are stored by absolute path and held by content, so that a resumed study asks the same."""

from __future__ import annotations

import contextlib
import hashlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from optuna.study import Study
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from autoconfig.planning.calibration_file import NO_CALIBRATION
from autoconfig.specs.errors import FileError, InputError, UnknownNameError, option, without_password
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.study.settings import MeasuredQuestion, Settings, differences, kind_of, settings_json, settings_of
from autoconfig.study.trials import believed

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


SETTINGS = "settings"
"""Attribute of a study: its question."""
DATABASE = "studies.db"
LOCKED_S = 120.0
"""How long a writer waits for SQLite's lock: many workers take turns."""
POOL = 4
TABLE_ATTEMPTS = 5
QUESTION_S = 30.0
"""How long a worker waits for the question of a study that another one is making."""
SCHEMES = ("sqlite", "postgresql", "postgres")
GIVE_URL = "give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


def sqlite_url(folder: Path) -> str:
    """The default storage of a folder."""
    return f"sqlite:///{(folder / DATABASE).resolve()}"


def check_url(url: str) -> None:
    """Raises InputError where studies cannot be kept in such a database: asked before anything is written."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.partition("+")[0] not in SCHEMES:
        raise InputError(f"storage {shown(url)!r} is no database URL that studies are kept in; {GIVE_URL}")


def open_storage(url: str) -> RDBStorage:
    """The storage behind a URL; tables are made where there are none. Raises InputError, FileError."""
    check_url(url)
    scheme, separator, rest = url.partition("://")
    full = f"{DRIVERS.get(scheme, scheme)}{separator}{rest}"
    options: dict[str, Any] = {"pool_size": POOL}
    if scheme == "sqlite":
        options = {"connect_args": {"timeout": LOCKED_S}}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with errors_of(url), warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            storage = _connect(full, options)
    except (sqlalchemy.exc.ArgumentError, sqlalchemy.exc.NoSuchModuleError, ValueError):
        raise InputError(f"storage {shown(url)!r} is no database URL; {GIVE_URL}, a number as PORT") from None
    except ImportError as error:
        raise InputError(f"storage {shown(url)!r} needs a driver: pip install 'megatron-autoconfig[postgres]'") from error
    if scheme == "sqlite":
        sqlalchemy.event.listen(storage.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous=FULL"))
    return storage


def close(storage: RDBStorage) -> None:
    """Give back its connections."""
    storage.remove_session()
    storage.engine.dispose()


@contextlib.contextmanager
def opened(url: str) -> Iterator[RDBStorage]:
    """`open_storage`, closed at the end; errors of the database inside become ours."""
    storage = open_storage(url)
    try:
        with errors_of(url):
            yield storage
    finally:
        close(storage)


def _connect(url: str, options: dict[str, Any]) -> RDBStorage:
    """Workers that start together make the tables together: whoever comes second finds them there and tries again."""
    for attempt in range(TABLE_ATTEMPTS):
        try:
            return RDBStorage(url, engine_kwargs=options)
        except (StorageInternalError, SQLAlchemyError) as error:
            text = f"{error} {error.__cause__}".lower()
            if attempt + 1 == TABLE_ATTEMPTS or not any(word in text for word in ("already exists", "unique constraint")):
                raise
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError("unreachable")


@contextlib.contextmanager
def errors_of(url: str) -> Iterator[None]:
    """Errors of the database become ours: what failed, and what to try."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
        if isinstance(cause, sqlalchemy.exc.ArgumentError | sqlalchemy.exc.NoSuchModuleError):
            raise cause from error
        reason = _first_line(getattr(cause, "orig", None) or cause)
        if url.startswith("sqlite"):
            own = url.endswith(f"/{DATABASE}")
            hint = "is the folder {}writable and the disk not full? name another one with {}".format(
                *(("", "--folder") if own else ("there, ", "--storage"))
            )
            raise FileError(f"study database {shown(url)}: {reason}; {hint}") from error
        raise InputError(f"study database {shown(url)}: {reason}; is the server up and the URL right?") from error


def shown(url: str) -> str:
    """The URL without its password."""
    return without_password(url)[:200]


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def check_name(name: str) -> None:
    """Raises InputError where a study cannot be called so."""
    if not name or len(name) > 200 or any(not character.isprintable() for character in name):
        raise InputError(f"study name {name[:60]!r}: 1 to 200 printable characters")


def open_study(
    storage: RDBStorage, name: str, given: Settings | None, *, resume: bool, wanted: type[Settings]
) -> tuple[Study, Settings]:
    """The study and its question: a new one, or one that is there and asks the same. `given` may be None in a resume.

    Raises UnknownNameError where there is none to resume, InputError where another question was stored under this name, or a
    file of the question has changed.
    """
    check_name(name)
    given = None if given is None else with_absolute_paths(given)
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        if resume or given is None:
            raise _unknown(storage, name) from None
        study = _create(storage, name, given)
    deadline = time.monotonic() + QUESTION_S
    while SETTINGS not in study.user_attrs and time.monotonic() < deadline:
        time.sleep(0.2)
    stored = with_absolute_paths(settings_of(study.user_attrs.get(SETTINGS), f"study {name}", wanted))
    if given is not None and (changed := differences(stored, given)):
        text = "; ".join(changed[:4])
        raise InputError(
            f"study {name} asks another question ({text}): resume it with {option('resume')} {name} alone, or name a new one"
        )
    hold_files(study, stored)
    return study, stored


def _create(storage: RDBStorage, name: str, given: MeasuredQuestion) -> Study:
    """A worker that comes second loads what the first made; both write the same question."""
    directions: Any = list(given.metrics.values())
    try:
        study = optuna.create_study(study_name=name, storage=storage, directions=directions)
    except DuplicatedStudyError:
        return optuna.load_study(study_name=name, storage=storage)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(given.metrics))
        study.set_user_attr(SETTINGS, settings_json(given))
    return study


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A row of `autoconfig studies list`."""

    name: str
    kind: str
    model: str
    gpus: int | None
    trials: int
    measured: int
    running: int
    best_step_seconds: float | None
    best_tokens_per_s_per_gpu: float | None
    started: datetime | None


def list_studies(storage: RDBStorage) -> list[StudySummary]:
    """Every study, by name."""
    found = []
    for summary in sorted(optuna.get_all_study_summaries(storage), key=lambda s: s.study_name):
        all_trials = storage.get_all_trials(storage.get_study_id_from_name(summary.study_name), deepcopy=False)
        trials = [believed(trial) for trial in all_trials]
        stored = summary.user_attrs.get(SETTINGS, {})
        request, kind = stored.get("request", {}), kind_of(stored)
        values = [t.values[0] for t in trials if t.state == TrialState.COMPLETE and t.values]
        found.append(
            StudySummary(
                name=summary.study_name,
                kind=kind or "training",
                model=str(request.get("model", "-")),
                gpus=request.get("gpus"),
                trials=len(trials),
                measured=len(values),
                running=sum(t.state == TrialState.RUNNING for t in trials),
                best_step_seconds=None if kind else min(values, default=None),
                best_tokens_per_s_per_gpu=max(values, default=None) if kind else None,
                started=summary.datetime_start,
            )
        )
    return found


def kind_stored(storage: RDBStorage, name: str) -> str:
    """Of a study (`settings.kind_of`); that of training where there is no such study."""
    try:
        return kind_of(storage.get_study_user_attrs(storage.get_study_id_from_name(name)).get(SETTINGS))
    except KeyError:
        return ""


def study_id(storage: RDBStorage, name: str) -> int:
    """Of the study with this name. Raises UnknownNameError."""
    try:
        return storage.get_study_id_from_name(name)
    except KeyError:
        raise _unknown(storage, name) from None


def delete_study(storage: RDBStorage, name: str) -> None:
    """Forget a study; job folders stay. Raises UnknownNameError."""
    storage.delete_study(study_id(storage, name))


def _unknown(storage: RDBStorage, name: str) -> UnknownNameError:
    known = [summary.study_name for summary in optuna.get_all_study_summaries(storage)]
    return UnknownNameError("study", name, known, "autoconfig studies list shows them all")
