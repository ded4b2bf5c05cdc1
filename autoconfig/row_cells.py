"""Cells of a table of runs: text to numbers, with messages that name the cell."""

from __future__ import annotations

from collections.abc import Mapping

from specs.errors import InputError

Row = Mapping[str, str]


def cell(row: Row, key: str) -> str:
    """The trimmed text of a cell, empty where it is missing."""
    return (row.get(key) or "").strip()


def whole(row: Row, key: str, default: int | None = None) -> int:
    """A whole number, or the default for an empty cell. Raises InputError naming the cell."""
    text = cell(row, key)
    if not text:
        if default is None:
            raise InputError(f"cell {key} is empty")
        return default
    value = number(row, key)
    assert value is not None
    if value != int(value):
        raise InputError(f"cell {key}={text[:40]!r} is not a whole number")
    return int(value)


def number(row: Row, key: str) -> float | None:
    """A finite number, None for an empty cell. Raises InputError naming the cell."""
    text = cell(row, key)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not -1e18 < value < 1e18:
        raise InputError(f"cell {key}={text[:40]!r} is not a number")
    return value
