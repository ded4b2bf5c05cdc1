"""The command line of a request: what another command on the same question is called with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autoconfig.planning.resolve import Field
from autoconfig.specs.errors import option_name

_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
"""Units of tokens."""


def command_line(command: str, fields: Iterable[Field], values: Mapping[str, Any]) -> str:
    """`autoconfig COMMAND` with the options that give `fields` these values, by the fields' names; values that are not there,
    None or the field's default need none."""
    words = ["autoconfig", command]
    for field in fields:
        value = values.get(field.name)
        if value is None or value in (field.default, (), []):
            continue
        for word in option_words(field.name, _with_unit(value, field), field):
            name, _, text = word.partition("=")
            words += [name, text] if text and not text.startswith("-") else [word]
    return shlex.join(words)


def option_words(name: str, value: Any, field: Field | None) -> Iterator[str]:
    """The words that give an option a value, `--name=value`, one for each of several values; of a switch its name or its
    negative's. `field` is None for what is no field of the command."""
    if isinstance(value, bool) and (field is None or field.type is bool):
        if value or (field is not None and field.negative):
            yield option_name(name) if value or field is None else f"--{field.negative}"
        return
    texts = value_texts(value)
    if field is not None and field.many:
        yield from (f"{option_name(name)}={text}" for text in texts)
    elif texts:
        yield f"{option_name(name)}={','.join(texts)}"


def value_texts(value: Any) -> list[str]:
    """The texts of a value that may be several: of a mapping KEY=VALUE for each key and value."""
    if isinstance(value, Mapping):
        return list(_pairs(value))
    return [value_text(one) for one in (value if isinstance(value, list | tuple) else [value])]


def value_text(value: Any) -> str:
    """A value as it stands on a command line."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pairs(value: Mapping[str, Any]) -> Iterator[str]:
    for key, one in value.items():
        for each in one if isinstance(one, list) else (one,):
            yield f"{key}={value_text(int(each) if isinstance(each, bool) else each)}"


def _with_unit(value: Any, field: Field) -> Any:
    """A number of tokens or seconds with its unit, without which it would be asked about; of a mapping in a file's place the
    JSON."""
    if isinstance(value, Mapping) and not field.many:
        return json.dumps(value)
    if not isinstance(value, float) or field.parse is None:
        return value
    if field.unit.startswith("seconds"):
        return f"{value:.12g}s"
    if field.unit == "tokens":
        return next((f"{value / factor:.12g}{unit}" for factor, unit in _COUNTS if value >= factor), value)
    return value
