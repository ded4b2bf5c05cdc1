"""Tables of runs (CSV): read, checked and written; their cells as numbers and words."""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, TypeVar

from autoconfig.specs.errors import FileError, InputError, nearest, option
from autoconfig.specs.files import read_bytes, read_text, write_atomically
from autoconfig.specs.scenario import FP8_RECIPES
from autoconfig.specs.units import LENGTHS, whole_number

Row = Mapping[str, str]
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]+)?")
CONFIG = "config"
"""Column of a config.json: its path beside the table, or its content."""


class CellError(InputError):
    """A cell holds something that cannot be read; what it decides is not guessed."""


def cell(row: Row, key: str) -> str:
    """Return the trimmed text of a cell, empty where it is missing."""
    return (row.get(key) or "").strip()


def whole(row: Row, key: str, default: int | None = None, *, tokens: bool = False) -> int:
    """Return a whole number, also 8,192 and of tokens 8k, or the default for an empty cell. Raises InputError where it is
    empty, CellError where it is odd."""
    text = cell(row, key)
    if not text:
        if default is None:
            raise InputError(f"cell {key} is empty")
        return default
    if ("," in text and _GROUPED.fullmatch(text)) or (tokens and text[-1] in "kK"):
        try:
            return whole_number(text, LENGTHS[0] if tokens else key)
        except ValueError as error:
            raise CellError(f"cell {key}: {error}") from None
    value = number(row, key)
    if value is None or value != int(value):
        raise CellError(f"cell {key}={text[:40]!r} is not a whole number")
    return int(value)


def number(row: Row, key: str) -> float | None:
    """Return a finite number, also 8,192.5, or None for an empty cell. Raises CellError naming the cell."""
    text = cell(row, key)
    if not text:
        return None
    try:
        value = float(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
    except ValueError:
        value = float("nan")
    if not -1e18 < value < 1e18:
        raise CellError(f"cell {key}={text[:40]!r} is not a number")
    return value


MAX_INPUT_BYTES = 16 * 2**20
MAX_NAMED = 12
"""Columns that a warning names; the others are counted."""


def names_of(section: str) -> dict[str, Any]:
    """Return others' names and ours, in their order: a section of data/run_tables.toml."""
    return _run_tables()[section]


@cache
def _run_tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((resources.files("autoconfig") / "data" / "run_tables.toml").read_text(encoding="utf-8"))


def columns_of(kind: str) -> frozenset[str]:
    """Return the columns of a table of `kind`: training, encoders, serving or post_training runs."""
    return frozenset(names_of("columns")[kind])


def format_of(word: str) -> tuple[str, str]:
    """Return (precision, recipe of fp8, empty where the word names none) of a table's word for a number format."""
    word = word.strip().lower()
    ours = names_of("precisions").get(word, word)
    return ("fp8", ours) if ours in FP8_RECIPES else (ours, "")


@dataclass(frozen=True, kw_only=True)
class TableKind:
    """Tables of one kind of runs: which columns one must have, which are read, and where they are said."""

    needed: Callable[[Sequence[str]], Iterable[str]]
    known: Callable[[], frozenset[str]]
    said: str
    megatron_names: bool = False
    other: tuple[Callable[[Sequence[str]], bool], Callable[[Row], dict[str, str]], frozenset[str]] | None = None
    """Another table of such runs, by its header: how a row of it is read, and its columns."""

    def read(self, source: Path) -> tuple[list[str], list[dict[str, str]]]:
        """(columns, rows). Raises FileError where it cannot be read, InputError where it is no such table."""
        columns, rows = read_csv(source)
        if self.other is not None and self.other[0](columns):
            return columns, [self.other[1](row) for row in rows]
        if self.megatron_names:
            columns, rows = with_short_names(columns, rows)
        check_columns(source, columns, self.needed(columns), self.said)
        return columns, [_with_config(row, source.parent) for row in rows]

    def predict(
        self, source: Path, target: Path, predict_rows: Callable[[list[dict[str, str]]], list[Answered]]
    ) -> tuple[list[Answered], str]:
        """Predict every row of `source` into `target` (written beside, then renamed): the predictions, and a remark about
        columns that nothing reads (empty where all are known). Raises FileError or InputError."""
        columns, rows = self.read(source)
        if not rows:
            raise InputError(f"{source} has a header and no rows: give one line per run below it")
        predictions = predict_rows(rows)
        write_csv(target, list(predictions[0].cells()), (prediction.cells() for prediction in predictions))
        known = self.other[2] if self.other is not None and self.other[0](columns) else self.known()
        return predictions, unread_columns(columns, known)


def _with_config(row: dict[str, str], folder: Path) -> dict[str, str]:
    """The row with the content of the config.json that its cell names, seen from the table's folder; a file that cannot be read
    stays a name, which the row's reader refuses."""
    named = cell(row, CONFIG)
    if not named or named.startswith("{"):
        return row
    try:
        return {**row, CONFIG: read_text(folder / named, "a config.json", MAX_INPUT_BYTES)}
    except FileError:
        return row


class Cells(Protocol):
    """A prediction."""

    def cells(self) -> dict[str, str]:
        """Column -> text, in order."""


Answered = TypeVar("Answered", bound=Cells)


def read_csv(source: Path) -> tuple[list[str], list[dict[str, str]]]:
    """(columns, rows) of a CSV file; names of columns are read in capitals and with blanks around them, too. Raises FileError
    where it cannot be read, InputError where it is no table."""
    text = read_text(source, "a CSV table (UTF-8)", MAX_INPUT_BYTES)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = []
        for number, row in enumerate(reader, 1):
            if row.get(None):
                raise InputError(f"{source}: row {number} has more cells than the header: a comma in a cell needs quotes")
            rows.append({k.strip().lower(): v or "" for k, v in row.items() if isinstance(k, str)})
    except csv.Error as error:
        raise InputError(f"{source} is not a CSV table: {error}") from error
    columns = [name.strip().lower() for name in reader.fieldnames or ()]
    if not columns:
        raise InputError(f"{source} is empty: give a header line and one line per run")
    return columns, rows


def check_columns(source: Path, columns: Sequence[str], needed: Iterable[str], shipped: str) -> None:
    """Raises InputError where a column is missing without which no row can be read, or is there twice; `shipped` says which
    table has the columns."""
    if missing := sorted(set(needed) - set(columns)):
        other = [name for mark, name in ((";", "semicolons"), ("\t", "tabs")) if len(columns) == 1 and mark in columns[0]]
        hint = f"; {other[0]} separate its cells: write it with commas" if other else ""
        near = {name: nearest(name, set(columns) - set(needed), 1) for name in missing}
        hint += "".join(f"; is {close[0][:40]!r} its {name}?" for name, close in near.items() if close and not other)
        raise InputError(f"{source} lacks the columns {', '.join(missing)}{hint}; {shipped}")
    if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
        raise InputError(f"{source} has the columns {', '.join(twice)} twice")


def with_short_names(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> tuple[list[str], list[dict[str, str]]]:
    """The table with our names for Megatron's names of columns, but where ours (or another of its names) stands beside it."""
    short: dict[str, str] = {}
    for name in columns:
        ours = names_of("megatron_columns").get(name.strip().lstrip("-").replace("-", "_"))
        if ours is not None and ours not in columns and ours not in short.values():
            short[name] = ours
    return [short.get(name, name) for name in columns], [{short.get(k, k): v for k, v in row.items()} for row in rows]


def unread_columns(columns: Iterable[str], read: Collection[str]) -> str:
    """A line about columns that nothing reads, each with the known names most like it; empty where all are known."""
    odd = [name for name in columns if name and name not in read]
    if not odd:
        return ""
    named = []
    for name in odd[:MAX_NAMED]:
        close = nearest(name, read, 1)
        named.append(f"{name[:40]!r}" + (f" (did you mean {close[0]}?)" if close else ""))
    more = f" and {len(odd) - MAX_NAMED:,} more" if len(odd) > MAX_NAMED else ""
    return f"nothing reads the column{'s' * (len(odd) > 1)} {', '.join(named)}{more}"


_HEADER = re.compile(r"[\w.%/()\"' -]++(?:[,;\t][\w.%/()\"' -]*+)++")


def is_table(path: Path) -> bool:
    """Whether a file is a table by its name or its first line; one that is not there counts as one."""
    if path.suffix.lower() in (".csv", ".tsv"):
        return True
    try:
        first = next((line for line in read_bytes(path, "a table", 100_000, head=True).splitlines() if line.strip()), b"")
        return _HEADER.fullmatch(first.decode("utf-8-sig").strip()) is not None
    except (FileError, ValueError):
        return True


def write_csv(target: Path, columns: Sequence[str], lines: Iterable[Mapping[str, object]], end: str = "\r\n") -> None:
    """Header and lines, written beside `target` and renamed. Raises FileError."""

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, columns, lineterminator=end)
            writer.writeheader()
            writer.writerows(lines)

    write_atomically(target, write)


def check_not_the_input(table: Path, output: Path) -> None:
    """Raises InputError where writing the output would replace the table that was measured."""
    if output.exists() and table.exists() and output.samefile(table):
        raise InputError(f"{option('output')} {output} is the table itself; name another file")
