"""Words of a shell script and what they stand for, with the place of every character in the file."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

NEVER_RUN = "is a command, and commands are never run"
NOT_FOLLOWED = "is not followed"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Text and, per character, its offset in the file; None for characters that no place in the file holds."""

    text: str
    origin: Sequence[int | None]
    file_text: str

    def line(self, position: int) -> int:
        return bisect.bisect_right(_line_starts(self.file_text), self._places[min(max(0, position), len(self.text))])

    @cached_property
    def _places(self) -> list[int]:
        """Of each character, and of the end, the place of the first one from it on that has one; else of the last that has."""
        place = next((offset for offset in reversed(self.origin) if offset is not None), 0)
        places = [place]
        for offset in reversed(self.origin):
            place = place if offset is None else offset
            places.append(place)
        return places[::-1]

    def keeping(self, pattern: re.Pattern[str], before: str = "", behind: str = "") -> Source:
        """Return the source with the first group of each match that has one, between `before` and `behind`, in its place."""
        text: list[str] = []
        origin: list[int | None] = []
        start = 0
        for match in pattern.finditer(self.text):
            if match[1] is not None:
                text += [self.text[start : match.start()], before, match[1], behind]
                origin += [*self.origin[start : match.start()], *[None] * len(before)]
                origin += [*self.origin[match.start(1) : match.end(1)], *[None] * len(behind)]
                start = match.end()
        if not start:
            return self
        return replace(self, text="".join([*text, self.text[start:]]), origin=[*origin, *self.origin[start:]])


@lru_cache(maxsize=4)
def _line_starts(text: str) -> list[int]:
    return [0, *(at for at, sign in enumerate(text, 1) if sign == "\n")]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a word. `kind`: literal, variable, arithmetic or command."""

    kind: str
    text: str
    """literal: the characters; variable: the name; arithmetic and command: as it is written."""
    quoted: bool
    line: int
    origin: tuple[int | None, ...] = ()
    """literal: place of each character."""
    operator: str = ""
    """variable: `:-`, `[@]`, ... or empty."""
    rest: Word | None = None
    """variable: the word behind the operator; arithmetic: the expression."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """Parts that stand together."""

    parts: tuple[Part, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """NAME=WORD, NAME=( WORDS ), or either with +=; NAME[INDEX]=WORD."""

    name: str
    append: bool
    value: Word | tuple[Word, ...]
    of_element: bool = False


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some characters and where they stand; or, with a reason, what is not known."""

    text: str
    origin: tuple[int | None, ...] = ()
    unknown: str = ""
    unset: bool = False
    """Not known because the file does not set it: in conditions it counts as empty, as in a clean environment."""
    choices: tuple[str, ...] = ()
    """Not known because a condition decides: what it is in each branch; empty where this is not known either."""
    loose: bool = field(default=False, compare=False)
    """Not known and outside quotes: it may be no word or several."""


Value = tuple[Piece, ...]
Held = Value | list[Value]
"""What a variable holds; a list is an array."""


def is_name(text: str) -> bool:
    """Whether a text may be the name of a variable."""
    return text.isascii() and text.isidentifier()


def text_of(value: Value) -> str:
    """The characters of a value; unknown pieces as they were written."""
    return "".join(piece.text for piece in value)


def reason_of(value: Value) -> str:
    """Why a value is not wholly known; empty where it is."""
    return next((piece.unknown for piece in value if piece.unknown), "")


def first_reason(values: Sequence[Value]) -> str:
    """Why the first of the values that is not known is not; empty where all are."""
    return next((reason for value in values if (reason := reason_of(value))), "")


def known_text(value: Value | None) -> str | None:
    """The text, with what is not set counting as empty; None where a part cannot be known."""
    if value is None or any(piece.unknown and not piece.unset for piece in value):
        return None
    return "".join(piece.text for piece in value if not piece.unset)


def plain_value(text: str) -> Value:
    """A value that stands nowhere in the file."""
    return (Piece(text=text, origin=(None,) * len(text)),)


def unknown(text: str, why: str) -> Value:
    """A value that is not known."""
    return (Piece(text=text, unknown=why),)


def joined(values: Sequence[Value], between: Value) -> Value:
    """The values as one."""
    pieces = [piece for value in values for piece in (*between, *value)]
    return tuple(pieces[len(between) :])
