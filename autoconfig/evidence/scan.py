"""The first pass over a log: which lines a format of the table may read, and the blocks that some of them begin.

Lines that differ in digits only have one shape, and a format's words hold no digits: whether it may read a line is asked once
for each shape. So a log of 100 MB takes about two seconds. What is kept of a format is bounded; lines keep their order.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from autoconfig.evidence.grammar import Format, formats_for
from autoconfig.planning.work import spend

MOST_LINES = 8_000
"""Of the same formats that are kept: the last ones."""
MOST_ROWS = 50_000
"""Of a block of samples that are kept: the last ones."""
MOST_DUMP = 4_000
"""Lines between the marks of an argument dump; Megatron-LM has about 900 arguments."""
MOST_BLOCKS = 20_000
LONGEST = 20_000
"""Bytes of a line that is looked at; longer ones are none of any tool's."""
SHAPE_WORK = 10.0
_SHAPES = 20_000
_DIGITS = b"0123456789"
_COLOURS = re.compile(rb"\x1b\[[0-9;]{0,20}[A-Za-z]")
_DUMPED = re.compile(rb"^[^.]{0,160}? \.{1,60} |^[^.]{0,160}?\w{46,80}  ")
_RANK = re.compile(rb"^(?:\d{1,6}: )?\s{1,8}(?:rank {1,6}\d{1,7}: [\d.]{1,15}|[a-z][\w/-]{2,60}:)\s{0,4}$")
_PHASE = re.compile(rb"^[^\w]{0,12}[A-Za-z_][\w/ .-]{0,80}: [\d.]{1,15}s(?: \([\d.]{1,9}%\))?\s{0,4}$")
_SCORE = re.compile(
    rb"^\s{0,12}(?:(?:Worst|Best) performing \d{1,7}/\d{1,7} ranks:|Rank=\d{1,7} Node=\S{1,200} Score=[\d.]{1,8})\s{0,4}$"
)
_FRAME = re.compile(rb"^\s{4,12}\S[^()]{0,200} \([^()]{1,300}\)\s{0,4}$")
_ROW = re.compile(rb"^\s{0,20}(?:GPU )?\d{1,6}\s")


@dataclass(kw_only=True)
class Passage:
    """Lines under a line that begins them."""

    format: Format
    number: int
    head: bytes
    rows: deque[tuple[int, bytes]]
    ended: bool = False
    looked_at: int = 0


@dataclass(kw_only=True)
class Scanned:
    """What the first pass kept of a log."""

    lines: dict[tuple[Format, ...], deque[tuple[int, bytes]]] = field(default_factory=dict)
    blocks: dict[str, deque[Passage]] = field(default_factory=dict)
    count: int = 0
    """Lines that are not empty."""
    candidates: int = 0
    """Of them: that a format may read; the last MOST_LINES of each kind are kept."""
    in_blocks: int = 0

    @property
    def left_out(self) -> int:
        """Lines that a format may read and that are not kept."""
        return self.candidates - sum(map(len, self.lines.values()))

    def in_order(self) -> Iterator[tuple[int, tuple[Format, ...], bytes]]:
        """(number, formats that may read it, line) of the kept lines."""
        kept = [(number, formats, line) for formats, lines in self.lines.items() for number, line in lines]
        yield from sorted(kept, key=lambda one: one[0])

    def blocks_of(self, record: str) -> Iterator[Passage]:
        return iter(self.blocks.get(record, ()))


def scan(chunks: Iterable[bytes]) -> Scanned:
    """Look at every line of a log once. A chunk ends where a line does, but for lines without an end."""
    scanned, shapes = Scanned(), _Shapes()
    number, block = 0, None
    for chunk in chunks:
        spend(len(chunk) / 64)
        if b"\x1b" in chunk:
            chunk = _COLOURS.sub(b"", chunk)
        if returns := b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n")
        lines = chunk.split(b"\n")
        for line, shape in zip(lines, chunk.translate(None, _DIGITS).split(b"\n"), strict=True):
            number += 1
            if not line:
                continue
            if block is None and not returns:
                formats = shapes.known.get(shape)
                if formats is None:
                    formats = shapes.look(shape)
                scanned.count += 1
                if formats:
                    block = _keep(scanned, formats, number, line)
                continue
            for piece in line.split(b"\r"):  # a progress bar prints one line over the other
                if piece.strip():
                    scanned.count += 1
                    block = _follow(scanned, shapes, block, number, piece)
        if not lines[-1]:
            number -= 1
    return scanned


class _Shapes:
    """Shape of a line -> the formats that may read it."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[Format, ...]] = {}

    def look(self, shape: bytes) -> tuple[Format, ...]:
        """Formats that may read a line of this shape; remembered."""
        if len(self.known) >= _SHAPES:
            self.known.clear()
        spend(SHAPE_WORK)
        formats: tuple[Format, ...] = ()
        if len(shape) <= LONGEST and not (shape.lstrip()[:2] == b"# " and not _TABLE.match(shape)):
            formats = formats_for(shape)
            self.known[shape[:]] = formats
        return formats


_TABLE = re.compile(rb"^\s{0,8}# (?:gpu |Avg bus bandwidth)")
"""Headers and sums that begin as comments do; all else behind `# ` is a comment of a script."""


def _follow(found: Scanned, shapes: _Shapes, block: Passage | None, number: int, line: bytes) -> Passage | None:
    """A line within a block, or one that ends it; or any line, where no block is open."""
    if block is not None:
        goes_on = _CONTINUES[block.format.record](block, line)
        if goes_on:
            block.rows.append((number, line))
            found.in_blocks += 1
            return None if block.ended else block
        if goes_on is False or block.ended:
            block = None
    shape = line.translate(None, _DIGITS)
    formats = shapes.known.get(shape)
    if formats is None:
        formats = shapes.look(shape)
    if not formats:
        return block
    return _keep(found, formats, number, line) or block


def _keep(found: Scanned, formats: tuple[Format, ...], number: int, line: bytes) -> Passage | None:
    """Keep a line; the block that it begins, if it does."""
    for row in formats:
        if row.record in _CONTINUES and row.pattern.search(line.decode("utf-8", "replace")):
            block = Passage(format=row, number=number, head=line, rows=deque(maxlen=MOST_ROWS))
            found.blocks.setdefault(row.record, deque(maxlen=MOST_BLOCKS)).append(block)
            found.in_blocks += 1
            return block
    found.candidates += 1
    found.lines.setdefault(formats, deque(maxlen=MOST_LINES)).append((number, line))
    return None


def _in_dump(block: Passage, line: bytes) -> bool | None:
    """Arguments; other ranks may print between them. The mark at the end ends it."""
    block.looked_at += 1
    if b"end of arguments --" in line:
        block.ended = True
        return True
    if block.looked_at > MOST_DUMP:
        return False
    return True if _DUMPED.match(line) else None


def _in_table(block: Passage, line: bytes) -> bool:
    return line.count(b",") == block.head.count(b",")


def _in_step_table(block: Passage, line: bytes) -> bool:
    """A row of as many cells; one in quotes may hold commas."""
    return _in_table(block, line) or (b'"' in line and len(csv_cells(line)) == len(csv_cells(block.head)))


def csv_cells(line: bytes) -> list[str]:
    """The cells of a row of a CSV file."""
    return next(csv.reader([line.decode("utf-8", "replace")]), [])


def _in_columns(block: Passage, line: bytes) -> bool:
    return line.lstrip()[:1] == b"#" or _ROW.match(line) is not None or line.lstrip()[:2] == b"ID"


_CONTINUES: dict[str, Callable[[Passage, bytes], bool | None]] = {
    "dump": _in_dump,
    "csv": _in_table,
    "columns": _in_columns,
    "ranks": lambda _, line: _RANK.match(line) is not None,
    "step_table": _in_step_table,
    "scores": lambda _, line: _SCORE.match(line) is not None,
    "stack": lambda _, line: _FRAME.match(line) is not None,
    "phase_block": lambda _, line: _PHASE.match(line) is not None and b"Total step time" not in line,
}
"""Record that begins a block -> whether a line belongs to it; None: it does not, and the block goes on behind it."""
