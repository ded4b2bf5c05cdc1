"""Tests whose cases stand as data: tables.json beside the test's file."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def table(file: str, name: str) -> Any:
    """The table of that name beside the test's file."""
    return json.loads(Path(file).with_name("tables.json").read_text(encoding="utf-8"))[name]


def tabled(test: Callable[..., Any]) -> Any:
    """The test once for every row of the table of its name, whose first row are the columns."""
    columns, *rows = table(test.__code__.co_filename, test.__name__)
    return pytest.mark.parametrize(columns, rows)(test)


def listed(value: Any) -> Any:
    """The value with lists in place of tuples, as a table has them."""
    return [listed(one) for one in value] if isinstance(value, list | tuple) else value


def write(path: Path, rows: list[dict[str, str]], encoding: str = "utf-8") -> Path:
    """The rows as a CSV file."""
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
