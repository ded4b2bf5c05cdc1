"""The published JSON Schemas of answers and files (`autoconfig/schemas/`, written by `python -m tools.schemas`), and what a
value breaks of one, for the keywords that they use."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

_KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_BOUNDS = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "exclusiveMinimum": ("above", operator.gt),
    "exclusiveMaximum": ("below", operator.lt),
}


def schema(name: str) -> dict[str, Any]:
    """The published JSON Schema of an answer: `search`, `explain`, `timeline`, ..."""
    text = (resources.files("autoconfig") / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


Broken = Iterator[tuple[str, str]]


def violations(value: object, schema: Mapping[str, Any], root: Mapping[str, Any], where: str = "") -> Broken:
    """Yield (field, what is wrong with it) for everything in which `value` breaks `schema`, whose $refs are in `root`."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        wrong = [list(violations(value, choice, root, where)) for choice in schema["anyOf"]]
        yield from () if [] in wrong else min(wrong, key=lambda rows: rows[0][1].endswith("type null"))
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", _KINDS)
    if not any(_is(value, kind) for kind in kinds):
        yield where, f"{_shown(value)} is not of type {' or '.join(kinds)}"
        return
    choices = list(map(json.dumps, [schema["const"]] if "const" in schema else schema.get("enum", [])))
    if choices and json.dumps(value) not in choices:
        yield where, f"{_shown(value)} is not one of {', '.join(choices)}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from _of_number(value, schema, where)
    if isinstance(value, list):
        yield from _of_list(value, schema, root, where)
    if isinstance(value, dict):
        yield from _of_object(value, schema, root, where)


def _of_number(value: float, schema: Mapping[str, Any], where: str) -> Broken:
    for keyword, (words, holds) in _BOUNDS.items():
        if keyword in schema and not holds(value, schema[keyword]):
            yield where, f"{_shown(value)} is not {words} {schema[keyword]}"


def _of_list(value: list[Any], schema: Mapping[str, Any], root: Mapping[str, Any], where: str) -> Broken:
    if schema.get("uniqueItems") and len({json.dumps(item, sort_keys=True) for item in value}) < len(value):
        yield where, f"{_shown(value)} holds a value twice"
    for number, item in enumerate(value):
        yield from violations(item, schema.get("items", {}), root, f"{where}.{number}".lstrip("."))


def _of_object(value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], where: str) -> Broken:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield where, f"{name} is missing"
    for name, item in value.items():
        field = f"{where}.{name}".lstrip(".")
        if name not in properties and others is False:
            yield field, "there is no such field"
        else:
            yield from violations(item, properties.get(name, others or {}), root, field)


def _shown(value: object) -> str:
    return json.dumps(value)[:80]


def _is(value: object, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
