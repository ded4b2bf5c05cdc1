"""The terminal: lines that break between words and plan keys only, tables that fit, what is long in two lines."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.align import AlignMethod
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autoconfig.specs.remarks import Effect, Remark, by_effect, sentence

WIDTH_WHEN_PIPED = 180
BREAKS = re.compile(r"(?<=[,;+/)])")
"""Where a word that is longer than a line is broken: behind these."""
BRIEF_LINES = 2
INDENT = 4


class Screen(Console):
    """A console of the width of the terminal; in a pipe as wide as COLUMNS says, else wide."""

    def __init__(self, *, verbose: bool = False, **settings: Any) -> None:
        """`verbose`: nothing is cut to two lines."""
        super().__init__(highlight=False, emoji=False, **settings)  # `:x:` is what was written; their table costs a start 2 %
        self.verbose = verbose

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, for the command line to end quietly."""
        raise BrokenPipeError

    def print(self, *objects: Any, soft_wrap: bool | None = None, **settings: Any) -> None:
        """As rich does; a text breaks between words and plan keys. With `soft_wrap` a line stays whole, to be copied."""
        if len(objects) == 1 and isinstance(objects[0], str) and not soft_wrap:
            for line in broken(_text(objects[0], settings), self.width):
                super().print(line, soft_wrap=True)
            return
        super().print(*objects, soft_wrap=soft_wrap, **settings)


def terminal(*, verbose: bool = False) -> Screen:
    """Standard output."""
    asked = os.environ.get("COLUMNS", "")
    piped = int(asked) if re.fullmatch("[1-9][0-9]{1,3}", asked) else WIDTH_WHEN_PIPED
    found = Screen(verbose=verbose, width=None if sys.stdout.isatty() else piped)
    found.size = found.size  # looked up once, not for every line that is printed
    return found


def _text(said: str, settings: dict[str, Any]) -> Text:
    style = settings.get("style") or ""
    return Text(said, style) if settings.get("markup") is False else Text.from_markup(said, style=style, emoji=False)


def broken(text: Text, width: int) -> Iterator[Text]:
    """Lines of at most `width` characters where words allow it, each with the indent of its paragraph's first."""
    for paragraph in text.split("\n", allow_blank=True):
        plain = paragraph.plain
        indent = len(plain) - len(plain.lstrip(" "))
        for number, line in enumerate(paragraph.divide(_offsets(plain, width, indent))):
            line.rstrip()
            yield Text(" " * indent) + line if number else line


def _offsets(plain: str, width: int, indent: int) -> list[int]:
    """Where lines begin."""
    begins: list[int] = []
    room = width
    start = 0
    for word in re.finditer(r"(?<! ) *+[^ ]+", plain):
        first = word.end() - len(word.group().lstrip(" "))
        if word.end() - start <= room:
            continue
        if first - start > indent * (not begins) and first > 0:
            begins.append(first)
            start, room = first, width - indent
        last = first
        for end in [first + match.start() for match in BREAKS.finditer(word.group().lstrip(" "))] + [word.end()]:
            if end - start > room and last > first:
                begins.append(last)
                start, room = last, width - indent
            last = end
    return begins


def show_assumptions(console: Console, remarks: Iterable[Remark]) -> None:
    """What was assumed: what moves most first; what moves every figure, and parts of the model that no figure holds, is always
    said."""
    said = (Effect.EVERYTHING, Effect.LEFT_OUT)
    ordered = sorted(by_effect(dict.fromkeys(remarks)), key=lambda remark: remark.effect not in said)
    always = sum(remark.effect in said for remark in ordered)
    brief(console, "Assumed", [sentence(remark) for remark in ordered], always=always)


def brief(console: Console, head: str, texts: Sequence[str], *, always: int = 0) -> None:
    """`head: a; b`, in two lines, more where the first `always` need them: what they do not hold is counted, and said with
    --verbose."""
    if not texts:
        return
    said = f"{head}: {'; '.join(texts)}"
    if not getattr(console, "verbose", False):
        for kept in range(len(texts) - 1, always - 1, -1):
            if len(list(broken(Text(said), console.width))) <= BRIEF_LINES:
                break
            more = f"{len(texts) - kept} more (--verbose)"
            said = f"{head}: {'; '.join([*texts[:kept], more])}"
    console.print(escape(said), style="dim")


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[str] = (),
    fold: Collection[str] = (),
    no_wrap: bool = False,
    title: str | None = None,
) -> Table:
    """A table without a box: numbers but for the columns in `left`; long texts of `fold` go on in another line."""
    table = Table(box=None, padding=(0, 1), header_style="bold", title=title, title_justify="left")
    for name in columns:
        side, rest = "left" if name in left else "right", "fold" if name in fold else "ellipsis"
        table.add_column(name, justify=side, overflow=rest, no_wrap=no_wrap and name not in fold)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table


def show_table(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[str] = (),
    below: Collection[str] = (),
    spare: Sequence[str] = (),
    title: str = "",
) -> None:
    """A table that fits: on a narrow screen the texts of the columns `below` stand under the figures of their rows, and what is
    still too wide loses columns of `spare`, the first of them first, then those at its right, which is said."""
    if title:
        console.print(escape(title), style="bold")
    texts = [[_text(cell, {}) for cell in row] for row in rows]
    widths = {name: _width(name, cells) for name, *cells in zip(columns, *texts, strict=True)}
    names, under, dropped = _columns_that_fit(columns, widths, below, spare, console.width)
    aligned: list[tuple[int, AlignMethod, int]] = [
        (columns.index(name), "left" if name in left else "right", min(widths[name], console.width - 2)) for name in names
    ]
    console.print(_line_of([Text(name, "bold") for name in columns], aligned), soft_wrap=True)
    for row, line in zip(rows, texts, strict=True):
        console.print(_line_of(line, aligned), soft_wrap=True)
        if below_it := "; ".join(filter(None, (row[columns.index(name)] for name in under))):
            console.print(" " * INDENT + escape(below_it))
    if dropped:
        console.print(f"Not on this screen: {', '.join(reversed(dropped))} (--json has all)", style="dim")


def without_empty(
    columns: Sequence[str], rows: Iterable[Sequence[str]], optional: Collection[str]
) -> tuple[list[str], list[list[str]]]:
    """(columns, rows) of a table without those of `optional` in which no row says anything."""
    lines = list(rows)
    held = [place for place, name in enumerate(columns) if name not in optional or any(line[place] for line in lines)]
    return [columns[place] for place in held], [[line[place] for place in held] for line in lines]


def _width(name: str, cells: Iterable[Text]) -> int:
    return max([cell_len(name), *(cell.cell_len for cell in cells)])


def _line_of(row: Sequence[Text], aligned: Iterable[tuple[int, AlignMethod, int]]) -> Text:
    """A row's line: of each column its place, to which side it stands, and how wide it is."""
    line = Text(" ")
    for place, side, width in aligned:
        row[place].align(side, width)
        line.append_text(row[place]).append("  ")
    line.rstrip()
    return line


def _columns_that_fit(
    columns: Sequence[str], widths: Mapping[str, int], below: Collection[str], spare: Sequence[str], width: int
) -> tuple[list[str], list[str], list[str]]:
    """(the columns that the screen holds, those that stand under their rows, those that have no room in the order in which they
    went)."""
    wide = sum(widths[name] + 2 for name in columns) > width
    under = [name for name in columns if wide and name in below]
    names, dropped = [name for name in columns if name not in under], list[str]()
    for name in (*spare, *[name for name in names[:0:-1] if name not in spare]):
        if sum(widths[one] + 2 for one in names if one not in dropped) <= width:
            break
        dropped.append(name)
    return [name for name in names if name not in dropped], under, dropped


BILLIONS_FROM = 10**8
LONG = 30
"""Characters from which on a column is text, which may stand under its row."""


def show_records(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """A table of rows with the same keys; on a narrow screen texts stand under their rows and the last figures are left out."""
    columns = [column.replace("_", " ") for column in rows[0]]
    shown = [[_cell(name, value) for name, value in row.items()] for row in rows]
    texts = [name for name, *cells in zip(columns[1:], *(row[1:] for row in shown), strict=True) if max(map(len, cells)) > LONG]
    figures = [name for name in columns[1:] if name not in texts]
    numbers = {name for name in rows[0] if any(isinstance(row[name], int | float) for row in rows)}
    left = {column for column, name in zip(columns, rows[0], strict=True) if name not in numbers}
    show_table(console, columns, shown, left=left, below=texts, spare=figures[:0:-1])


def _cell(name: str, value: object) -> str:
    if isinstance(value, int) and value >= BILLIONS_FROM:
        return f"{value / 1e9:,.{3 - min(3, len(str(value // 10**9)))}f} B"
    return str(value) if isinstance(value, bool | str) or value is None or name == "year" else f"{value:,}"


def amount_text(value: float | None, digits: int = 0) -> str:
    """A number with so many digits behind the point; empty where it is not known."""
    return "" if value is None else f"{value:,.{digits}f}"


def seconds_text(value: float) -> str:
    """Three significant digits, with the unit."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:,.2f} s"
