"""Cells of a table of runs: text to numbers, with messages that name the cell."""

from __future__ import annotations

from collections.abc import Mapping

from autoconfig.specs.errors import InputError

Row = Mapping[str, str]
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class CellError(InputError):
    """A cell holds something that cannot be read; what it decides is not guessed."""


def cell(row: Row, key: str) -> str:
    """The trimmed text of a cell, empty where it is missing."""
    return (row.get(key) or "").strip()


def whole(row: Row, key: str, default: int | None = None) -> int:
    """A whole number, or the default for an empty cell. Raises InputError where it is empty, CellError where it is odd."""
    text = cell(row, key)
    if not text:
        if default is None:
            raise InputError(f"cell {key} is empty")
        return default
    value = number(row, key)
    assert value is not None
    if value != int(value):
        raise CellError(f"cell {key}={text[:40]!r} is not a whole number")
    return int(value)


def number(row: Row, key: str) -> float | None:
    """A finite number, None for an empty cell. Raises CellError naming the cell."""
    text = cell(row, key)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not -1e18 < value < 1e18:
        raise CellError(f"cell {key}={text[:40]!r} is not a number")
    return value


def degree(row: Row, key: str, default: int | None = 1) -> int:
    """A whole number of at least 1. Raises InputError where it is empty and has no default, CellError where it is odd."""
    value = whole(row, key, default)
    if value < 1:
        raise CellError(f"cell {key}={value} must be at least 1")
    return value


def flag(row: Row, key: str) -> bool | None:
    """1, true, yes, on; 0, false, no, off; None for an empty cell. Raises CellError."""
    text = cell(row, key).lower()
    if text and text not in YES + NO:
        raise CellError(f"cell {key}={text[:40]!r} is neither {YES[0]} nor {NO[0]}")
    return text in YES if text else None


def count_of(row: Row, key: str) -> int | None:
    """A whole number of at least 1, None for an empty cell. Raises CellError where it is odd."""
    return degree(row, key) if cell(row, key) else None
