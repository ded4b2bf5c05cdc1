"""Megatron's flags and the fields that they say, both ways, by one table: `autoconfig/data/megatron_flags.csv`.

| column | says |
|---|---|
| part | where the flag is written: a section of a script, or `switches`; empty: it is only read |
| flag, value | the flag and the fact that is its value; behind `=` a value that is always the same, nothing for a switch |
| when | a fact without which it is left out |
| why | the comment behind it, with facts in braces, or behind `=` a fact that is the comment |
| read | the rows that are read together; `value` is then a field of the record that is read |
| type | count (1 or more), whole, number, switch, absent (true without the flag), state (a type of optimizer state) |
| default | what a flag means that is not given; `needed`: an error says that it is missing |
| older | further names, of other years and forks (megatron_arguments.csv has their years) |

Facts are worked out where a part is written (write.py, write_model.py, switches.py); the attributes of the records that a part
is about are facts, too. What a row cannot say, such as two flags that exclude each other, is code there and in read_model.py
and read_plan.py.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.errors import InputError

GROUPS = ("model", "plan", "batch", "numerics", "optimizer", "overlap", "data", "run")
"""Sections of a script, in the order in which they are written."""
SECTION = {"switches": "overlap"}
"""Part -> the section where it stands, where that has another name."""
NEEDED = "needed"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table."""

    part: str
    flag: str
    value: str
    when: str
    why: str
    read: str
    type: str
    default: str
    older: str

    @property
    def names(self) -> tuple[str, ...]:
        """Return every name of the flag, the one that is written first."""
        return (self.flag, *self.older.split())


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A flag with its values (none for a switch)."""

    group: str
    flag: str
    values: tuple[str, ...] = ()
    comment: str = ""
    """What it means here; one line, shown behind the flag in a script."""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.flag, *self.values)


def words(arguments: Iterable[Argument]) -> list[str]:
    """Return the argument list that the training process receives."""
    return [word for argument in arguments for word in argument.words]


@cache
def _rows() -> tuple[Row, ...]:
    text = (resources.files("autoconfig") / "data" / "megatron_flags.csv").read_text(encoding="utf-8")
    return tuple(Row(**row) for row in csv.DictReader(text.splitlines()))


class Facts:
    """What the rows of a part ask for by name: worked out, else an attribute of the first record that has it."""

    def __init__(self, derived: Mapping[str, Any], *records: object) -> None:
        self.derived, self.records = derived, records

    def __getitem__(self, name: str) -> Any:
        if name in self.derived:
            return self.derived[name]
        for record in self.records:
            if hasattr(record, name):
                return getattr(record, name)
        raise KeyError(name)


def written(part: str, facts: Facts) -> list[Argument]:
    """Return the arguments of a part, in the table's order; None and False leave an argument out."""
    arguments = []
    for row in _rows():
        if row.part != part or (row.when and not facts[row.when]):
            continue
        value = row.value[1:] or True if row.value.startswith("=") else facts[row.value]
        if value is None or value is False:
            continue
        values = () if value is True else value if isinstance(value, tuple) else (value,)
        why = facts[row.why[1:]] if row.why.startswith("=") else row.why.format_map(facts) if "{" in row.why else row.why
        group = SECTION.get(part, part)
        arguments.append(Argument(group=group, flag=row.flag, values=tuple(map(str, values)), comment=why))
    return arguments


def read_fields(a: Arguments, rows: str) -> dict[str, Any]:
    """Return field -> value of rows that are read together. Raises InputError for a value of another type, or a missing one."""
    return {row.value: _read(a, row) for row in _rows() if row.read == rows}


@cache
def older_names(flag: str) -> tuple[str, ...]:
    """Return further names of a flag, of other years and forks."""
    return tuple(name for row in _rows() if row.flag == flag for name in row.names[1:])


def _read(a: Arguments, row: Row) -> Any:
    if row.type in ("switch", "absent"):
        return a.has(*row.names) == (row.type == "switch")
    value = getattr(a, row.type)(*row.names)
    if value is None and row.default == NEEDED:
        raise missing(row.flag)
    if value is not None or not row.default:
        return value
    return row.default if row.type == "state" else json.loads(row.default)


def missing(flag: str) -> InputError:
    """Return the error of a model without a size."""
    return InputError(f"{flag} is not in the file; add it, or name the model with --model (see `autoconfig models`)")
