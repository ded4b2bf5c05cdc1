"""A first screen as blocks: START or NO on top, at most 24 lines of 80 columns; what does not fit stays behind --verbose."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from autoconfig.render.screen import Screen, broken, show_table
from autoconfig.specs.errors import chance_text

LINES = 24
"""Of a terminal as it opens."""
INDENT = 9
"""Columns of a label with the blanks behind it."""
START, NO = "[bold green]START[/bold green]", "[bold red]NO[/bold red]"
ROWS, LEAST_ROWS = 5, 3
"""Of a table, and where more are too tall."""
LIKELY, EVEN = 0.95, 0.5
"""Chances to fit from which on they are green and yellow, as on the page."""


@dataclass(frozen=True)
class _Block:
    draw: Callable[[Console], None]
    spare: int
    """0: always shown; of the others the highest is left out first."""


class Blocks:
    """What a first screen holds, in its order."""

    def __init__(self, rows: int = ROWS) -> None:
        self._blocks: list[_Block] = []
        self.rows = rows
        """Rows of tables, as many as there is room for."""

    def say(self, label: str, text: str, *, spare: int = 0) -> None:
        """A label with its text beside it, which goes on below itself. Nothing where the text is empty."""
        if text:
            self._blocks.append(_Block(lambda console: labelled(console, label, text), spare))

    def head(self, text: str) -> None:
        """The first line: what was asked."""
        self.print(text)

    def print(self, text: str, *, spare: int = 0) -> None:
        """A paragraph without a label."""
        self.draw(lambda console: console.print(text), spare=spare)

    def draw(self, draw: Callable[[Console], None], *, spare: int = 0) -> None:
        """What another function prints."""
        self._blocks.append(_Block(draw, spare))

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], last: Sequence[Sequence[str]] = (), **settings: Any
    ) -> None:
        """A table as `show_table` has it: as many of `rows` as there is room for, then those of `last`."""
        self.draw(lambda console: show_table(console, columns, [*rows[: self.rows], *last], **settings))

    def commands(self, texts: Iterable[str], *, spare: int = 0) -> None:
        """Whole lines to be copied."""
        lines = list(texts)

        def draw(console: Console) -> None:
            for line in lines:
                console.print(line, markup=False, soft_wrap=True)

        self.draw(draw, spare=spare)

    def show(self, console: Console) -> None:
        """Print as many as LINES hold: those that can be spared are left out, the highest `spare` first, then rows. All where
        the console is verbose."""
        blocks = list(self._blocks)
        if not getattr(console, "verbose", False):
            self._shorten(blocks, console.width)
        for block in blocks:
            block.draw(console)

    def _shorten(self, blocks: list[_Block], width: int) -> None:
        """Leave out what LINES do not hold."""
        text = io.StringIO()
        scratch = Screen(file=text, width=width, height=LINES)

        def height(block: _Block) -> int:
            """Lines of a terminal; one that is not broken takes as many as it fills."""
            text.seek(0)
            text.truncate()
            block.draw(scratch)
            return sum(max(1, -(-len(line) // width)) for line in text.getvalue().splitlines())

        heights = {id(block): height(block) for block in blocks}
        too_many = sum(heights.values()) - LINES
        for block in sorted((one for one in blocks if one.spare), key=lambda one: -one.spare):
            if too_many <= 0:
                return
            blocks.remove(block)
            too_many -= heights[id(block)]
        while self.rows > LEAST_ROWS and too_many > 0:
            self.rows -= 1
            too_many = sum(map(height, blocks)) - LINES


def labelled(console: Console, label: str, text: str) -> None:
    """`label    text`, the text's further lines and paragraphs below its first."""
    head = Text.from_markup(label, style="bold")
    head.append(" " * max(1, INDENT - head.cell_len))
    for line in broken(Text.from_markup(text, emoji=False), max(console.width - INDENT, INDENT)):
        console.print(head + line, soft_wrap=True)
        head = Text(" " * INDENT)


def capital(text: str) -> str:
    """A sentence from its first word on."""
    return text[:1].upper() + text[1:]


def fit_text(chance: float) -> str:
    """A chance to fit in its colour, as the page has it."""
    colour = "green" if chance >= LIKELY else "yellow" if chance >= EVEN else "red"
    return f"[{colour}]{chance_text(chance)}[/{colour}]"
