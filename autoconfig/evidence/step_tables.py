"""Tables of steps: a header with the names of metrics, then a row for each step or moment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autoconfig.evidence.grammar import WHOLE, grammar, read_field
from autoconfig.evidence.records import MOST_TEXT, Origin, StepLine
from autoconfig.evidence.scan import Passage, csv_cells

_OF_A_RUN = re.compile(r"^.{1,300} - (?=[\w/. ()%-]{1,120}$)")
"""`run - metric` of a chart of wandb."""
_MARKS_A_STEP = frozenset(("step",))


def steps(block: Passage, file: str) -> list[StepLine]:
    """The lines of a table; empty where its columns measure nothing."""
    columns = _columns(csv_cells(block.head), block.format.keys)
    if not {name for how in columns.values() for name in [_field(how)]} - _MARKS_A_STEP:
        return []
    records = []
    for number, raw in block.rows:
        values: dict[str, Any] = {}
        cells = csv_cells(raw)
        for place, how in columns.items():
            if cells[place].strip():
                values |= dict(read_field(how, _field(how), cells[place]))
        values = {name: int(value) if name in WHOLE else value for name, value in values.items()}
        if values.keys() - _MARKS_A_STEP and values.get("seconds", 1.0) > 0:
            text = raw.decode("utf-8", "replace").strip()[:MOST_TEXT]
            records.append(StepLine(origin=Origin(file=file, line=number, text=text), format=block.format.name, **values))
    return records


def _field(how: Any) -> str:
    return str(how[0] if isinstance(how, list) else how)


def _columns(names: list[str], keys: Mapping[str, Any]) -> dict[int, Any]:
    """Place of a column -> its entry in the table of keys, each field once: the first of the keys, then known
    figures."""
    columns: dict[str, tuple[int, Any]] = {}
    places = {_OF_A_RUN.sub("", name.strip()): place for place, name in reversed(list(enumerate(names)))}
    for key, how in keys.items():
        if key in places:
            columns.setdefault(_field(how), (places[key], how))
    for name, place in places.items():
        entry = grammar().figures.get(name.lower())
        if entry is not None and entry[0] == "step":
            how = entry[1:] if len(entry) > 2 else entry[1]
            columns.setdefault(_field(how), (place, how))
    return dict(columns.values())
