"""Tests whose cases stand as data: tables.json beside the test's file, by the test's name, columns first."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def tabled(test: Callable[..., Any]) -> Any:
    """The test once for every row of its table."""
    tables = json.loads(Path(test.__code__.co_filename).with_name("tables.json").read_text(encoding="utf-8"))
    columns, *rows = tables[test.__name__]
    return pytest.mark.parametrize(columns, [row if len(columns) > 1 else row[0] for row in rows])(test)
