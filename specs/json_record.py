"""Dataclasses from and to JSON, with every wrong key and type as an InputError that names it.

The published JSON Schemas are generated from the same dataclasses (`python -m tools.schemas`): a field's docstring is its
description, and `Annotated[int, Keywords(minimum=1)]` adds what a Python type cannot say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from autoconfig.specs.errors import InputError, nearest

T = TypeVar("T")


class Keywords:
    """Keywords of JSON Schema for an annotated type."""

    def __init__(self, **keywords: object) -> None:
        self.keywords = keywords

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """What pydantic, which tools/schemas.py runs, calls on the metadata of a type."""
        return {**handler(core_schema), **self.keywords}


Natural = Annotated[int, Keywords(minimum=0)]
Positive = Annotated[int, Keywords(minimum=1)]
NotNegative = Annotated[float, Keywords(minimum=0)]
AboveZero = Annotated[float, Keywords(exclusiveMinimum=0)]
Share = Annotated[float, Keywords(minimum=0, maximum=1)]
Parts = Annotated[dict[str, float], Keywords(propertyNames={"pattern": "^[a-z][a-z0-9_]*$"})]
"""Part (the name of its formula) -> amount."""


def canonical_json(value: object) -> str:
    """One text for one value: keys sorted, no spaces, no NaN. What content hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def to_json(record: object) -> Any:
    """A dataclass as JSON values: fields by name, tuples as lists. Fields that compare nothing (sources) are left out.

    A field that Python does not let have its name (`try_`) is written without the underscore.
    """
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name.rstrip("_"): to_json(getattr(record, f.name)) for f in dataclasses.fields(record) if f.compare}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_json(value) for value in record]
    return record


def json_text(value: object, *, indent: int | None = 2) -> str:
    """A record, or values with records among them, as JSON text; without `indent` on one line, for machines."""
    return json.dumps(to_json(value), indent=indent, allow_nan=False, separators=None if indent else (",", ":"))


def record_of(kind: type[T], source: object, **given: object) -> T:
    """A record whose fields are those of `source` with the same names, but for those that are given."""
    names = [f.name for f in dataclasses.fields(kind) if f.init and f.name not in given]  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **given)


def from_json(kind: type[T], values: object, where: str) -> T:
    """The dataclass of this kind. `where` opens every message. Raises InputError for unknown, missing or mistyped fields."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: {_shown(values)} is not an object of {kind.__name__}'s fields")
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            close = nearest(str(key), fields)
            raise InputError(f"{where}: unknown field {str(key)[:60]!r}" + (f"; did you mean {close[0]}?" if close else ""))
    hints = typing.get_type_hints(kind)
    built = {}
    for name, field in fields.items():
        if name in values:
            built[name] = _convert(hints[name], values[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InputError(f"{where}: {name} is missing")
    return kind(**built)


def _convert(kind: Any, value: object, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, where)
    if dataclasses.is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        return from_json(typing.cast(type, kind), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if kind in (Any, object):
        return value
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {str(key): _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _convert_plain(kind, value, where)


def _convert_plain(kind: Any, value: object, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # of more than 308 digits
            return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise InputError(f"{where}={_shown(value)} is not {_name(kind)}")


def _convert_union(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    records = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    if len(records) == 1 and isinstance(value, Mapping):  # it says itself what is wrong in it
        return _convert(records[0], value, where)
    for kind in kinds:
        if kind is not type(None):
            try:
                return _convert(kind, value, where)
            except InputError:
                continue
    raise InputError(f"{where}={_shown(value)} is not {' or '.join(_name(kind) for kind in kinds)}")


def _name(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
    return words.get(kind, "a list" if typing.get_origin(kind) is tuple else "an object")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
