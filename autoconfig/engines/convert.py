"""`autoconfig convert` of a serving start: the same server by another engine's command."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from autoconfig.engines.check import StartRequest, read_and_fill
from autoconfig.engines.written import WrittenStart, converted
from autoconfig.formats.convert import SERVERS
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import DEFAULT_GPU
from autoconfig.specs.json_record import Keywords
from autoconfig.specs.remarks import sentences


@dataclass(frozen=True, kw_only=True)
class ConvertedStartJson:
    """A serving start as a command of another engine."""

    schema_version: Literal[2] = 2
    """Raised when a name or meaning changes."""
    kind: Annotated[str, Keywords(enum=["start"])] = "start"
    """What the file was."""
    engine: Annotated[str, Keywords(enum=SERVERS)]
    """What the file started."""
    format: str
    """What it is now."""
    file_name: str
    """A usual name for such a file."""
    text: str
    """The file."""
    unsaid: tuple[str, ...]
    """What the other engine has no flag for, or reckons otherwise, and what was not read."""


def convert_start(text: str, request: StartRequest, form: str, path: Path | None = None) -> ConvertedStartJson:
    """The start that a text holds for the engine `form`. Raises InputError, and UnsupportedError where the engine has no words
    for the layout."""
    if form not in SERVERS:
        raise InputError(
            f"this starts a server: {option('format')} is one of {', '.join(SERVERS)}, not {form[:30]}", field="format"
        )
    read, filled = read_and_fill(text, replace(request, gpu=request.gpu or _gpu(text, request, path)), path)
    written: WrittenStart = converted(filled.start, filled.model_name, form)
    unread = (*read.unknown, *(f"{name} is not here" for name in read.missing), *sentences(filled.not_modelled))
    return ConvertedStartJson(
        engine=read.engine,
        format=form,
        file_name="serve.sh",
        text=written.text,
        unsaid=(*written.unsaid, *unread),
    )


def _gpu(text: str, request: StartRequest, path: Path | None) -> str | None:
    """A GPU where the file names none: no flag depends on it."""
    try:
        read_and_fill(text, request, path)
    except InputError as error:
        if error.field == "gpu":
            return DEFAULT_GPU
        raise
    return None
