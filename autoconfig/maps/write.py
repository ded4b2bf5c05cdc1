"""The file that says fields, by its map."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from autoconfig.maps.read import holds
from autoconfig.maps.table import FieldRow, Map


def written(table: Map, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested values of a file that says these fields, in the order of the map."""
    values: dict[str, Any] = {}
    for path, value in written_paths(table, fields):
        *parents, last = path.split(".")
        section = values
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return values


def written_paths(table: Map, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything that is written."""
    names = dict(fields)
    for entry in (one for one in table.entries if holds(one.when, names)):
        if entry.constant is not None:
            yield entry.keys[0], entry.constant
        if entry.values and (word := entry.word_of(names)) is not None:
            names.setdefault(entry.name, _typed(entry, word))
        if entry.write:
            yield from _written_entry(entry, fields)


def _written_entry(entry: FieldRow, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    word = entry.word_of(fields) if entry.values else fields.get(entry.name)
    value = entry.otherwise if word is None else word
    if value is None:
        return
    if entry.joined:
        yield from zip((key.split("|")[0] for key in entry.keys), _typed_words(entry, str(value)), strict=False)
    elif entry.write != "unusual" or _typed(entry, value) != entry.default:
        yield entry.keys[0], _typed(entry, value)


def _typed_words(entry: FieldRow, words: str) -> list[Any]:
    return [_typed(entry, word) for word in words.split()]


def _typed(entry: FieldRow, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if entry.type == "flag":
        return value == "true"
    return int(value) if entry.type in ("whole", "count") else value


def json_text(values: Mapping[str, Any]) -> str:
    """Return a file of JSON."""
    return json.dumps(values, indent=2) + "\n"


def yaml_text(values: Mapping[str, Any]) -> str:
    """Return a file of YAML."""
    return str(yaml.safe_dump(dict(values), sort_keys=False))


def toml_text(values: Mapping[str, Any]) -> str:
    """Return a file of TOML: a table for each mapping, however deep."""
    return "\n".join([*_tables(values, ""), ""])


def _tables(values: Mapping[str, Any], path: str) -> Iterator[str]:
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    if plain and path:
        yield f"\n[{path}]"
    yield from (f"{key} = {json.dumps(value)}" for key, value in plain.items())
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _tables(value, f"{path}.{key}" if path else key)
