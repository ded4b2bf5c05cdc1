"""Commands and words of a shell script, with the place of every character in the file."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from autoconfig.planning.work import spend

NEVER_RUN = "is a command, and commands are never run"


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
        found = [place]
        for offset in reversed(self.origin):
            place = place if offset is None else offset
            found.append(place)
        return found[::-1]

    def without(self, pattern: re.Pattern[str]) -> Source:
        """The source without what the pattern's matches hold behind their first group."""
        kept: list[tuple[int, int]] = []
        start = 0
        for match in pattern.finditer(self.text):
            kept.append((start, match.end(1)))
            start = match.end()
        if not kept:
            return self
        kept.append((start, len(self.text)))
        return replace(
            self, text="".join(self.text[a:b] for a, b in kept), origin=[place for a, b in kept for place in self.origin[a:b]]
        )

    def inserting(self, pattern: re.Pattern[str], before: str, behind: str) -> Source:
        """The source with `before` and `behind` around the first group of the matches that have one, instead of what else they
        hold."""
        text: list[str] = []
        origin: list[int | None] = []
        start = 0
        for match in pattern.finditer(self.text):
            if match[1] is None:
                continue
            for piece, places in (
                (self.text[start : match.start()], self.origin[start : match.start()]),
                (before, [None] * len(before)),
                (match[1], self.origin[match.start(1) : match.end(1)]),
                (behind, [None] * len(behind)),
            ):
                text.append(piece)
                origin.extend(places)
            start = match.end()
        text.append(self.text[start:])
        origin.extend(self.origin[start:])
        return replace(self, text="".join(text), origin=origin) if start else self


@lru_cache(maxsize=4)
def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


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
    index: str = ""


@dataclass(frozen=True, kw_only=True)
class Simple:
    """Words of one command, with the assignments before and among them."""

    words: tuple[Word | Assignment, ...]
    line: int
    given: Word | None = None
    """The word of `<<< WORD`, or the here-document."""
    output: Word | None = None
    """The file of `> FILE` and `>> FILE`."""
    appends: bool = False


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Commands joined by && and ||: (operator before it, command)."""

    links: tuple[tuple[str, Command], ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Not:
    """! COMMAND."""

    command: Command
    line: int


@dataclass(frozen=True, kw_only=True)
class If:
    """(condition, body) in order; the last condition is empty for else."""

    branches: tuple[tuple[tuple[Command, ...], tuple[Command, ...]], ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """(( EXPRESSION ))."""

    part: Part
    line: int


@dataclass(frozen=True, kw_only=True)
class While:
    """while TEST; do BODY; done, also until and for (( ; ; ))."""

    test: tuple[Command, ...]
    body: tuple[Command, ...]
    until: bool
    line: int


@dataclass(frozen=True, kw_only=True)
class Loop:
    """for NAME in WORDS."""

    name: str
    words: tuple[Word, ...]
    body: tuple[Command, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """case WORD in PATTERNS) BODY ;; ... esac."""

    word: Word
    branches: tuple[tuple[tuple[Word, ...], tuple[Command, ...]], ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Function:
    """NAME() { ... }."""

    name: str
    body: tuple[Command, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Block:
    """{ ... }, ( ... ), the commands of a pipe, or one that runs beside the script (&)."""

    body: tuple[Command, ...]
    line: int
    apart: bool = False
    """A shell of its own: what it sets, and its `exit`, do not reach the script."""


Command = Simple | Arithmetic | Chain | Not | If | While | Loop | Choice | Function | Block


_ALONE = If | Loop | While | Arithmetic | Choice | Function


def with_words(command: Command, words: Sequence[Word]) -> Command:
    """The command with more words behind it; of several joined ones the last."""
    if not words or isinstance(command, _ALONE):
        return command
    if isinstance(command, Simple):
        spend(len(command.words) / 8)
        return replace(command, words=(*command.words, *words))
    if isinstance(command, Not):
        return replace(command, command=with_words(command.command, words))
    if isinstance(command, Chain):
        joint, last = command.links[-1]
        return replace(command, links=(*command.links[:-1], (joint, with_words(last, words))))
    return replace(command, body=(*command.body[:-1], with_words(command.body[-1], words))) if command.body else command


def redirected(command: Command, given: Word | None, output: tuple[Word, bool] | None) -> Command:
    """The command with what it reads and where it writes; of several joined ones the last."""
    if isinstance(command, Simple):
        command = replace(command, given=given) if given is not None else command
        return replace(command, output=output[0], appends=output[1]) if output else command
    if isinstance(command, Chain):
        joint, last = command.links[-1]
        return replace(command, links=(*command.links[:-1], (joint, redirected(last, given, output))))
    return command


def with_line_end(word: Word) -> Word:
    """The word of `<<< WORD` as the command reads it."""
    return replace(word, parts=(*word.parts, Part(kind="literal", text="\n", quoted=True, line=word.line, origin=(None,))))


def without_tabs(parts: Iterable[Part]) -> tuple[Part, ...]:
    """`<<-`: the tabs that lines begin with drop out."""
    found, begins = [], True
    for part in parts:
        kept = []
        for at, sign in enumerate(part.text if part.kind == "literal" else ""):
            kept += [] if begins and sign == "\t" else [at]
            begins = sign == "\n" or (begins and sign == "\t")
        begins = begins and part.kind == "literal"
        if part.kind == "literal":
            part = replace(part, text="".join(part.text[at] for at in kept), origin=tuple(part.origin[at] for at in kept))
        found.append(part)
    return tuple(found)


def without_brackets(part: Part) -> Part:
    """Text without expansions, and without the brackets that syntax.parse put around names; unknown where these are not told
    from others."""
    signs = list(zip(part.text, part.origin, strict=True))
    if "${" not in part.text or None not in part.origin:
        return part
    if all(place is None for place in part.origin) or any(place is None and sign not in "${}" for sign, place in signs):
        return replace(part, kind="command", origin=())
    kept = [(sign, place) for sign, place in signs if place is not None or sign == "$"]
    return replace(part, text="".join(sign for sign, _ in kept), origin=tuple(place for _, place in kept))


def unescaped(part: Part) -> Part:
    """$'...' with its escapes; unknown where there are others than \\n, \\t and signs."""
    if re.fullmatch(r"(?:[^\\]|\\[nt\\'\"])*", part.text, re.DOTALL) is None:
        return replace(part, kind="command", origin=())
    signs = {"n": "\n", "t": "\t"}
    text = re.sub(r"\\(.)", lambda match: signs.get(match[1], match[1]), part.text)
    return replace(part, text=text, origin=(None,) * len(text))


def start_of_body(text: str, opened: int, start: int) -> int:
    """Where the text of a here-document begins that is `opened` in front: the grammar drops blanks before `start`."""
    blank = opened + len(text[opened:start].rstrip())
    first = text.find("\n", blank, start) + 1
    return first or text.rfind("\n", 0, start) + 1


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


def text_of(value: Value) -> str:
    """The characters of a value; unknown pieces as they were written."""
    return "".join(piece.text for piece in value)


def reason_of(value: Value) -> str:
    """Why a value is not wholly known; empty where it is."""
    return next((piece.unknown for piece in value if piece.unknown), "")


def known_text(value: Value | None) -> str | None:
    """The text, with what is not set counting as empty; None where a part cannot be known."""
    if value is None or any(piece.unknown and not piece.unset for piece in value):
        return None
    return "".join(piece.text for piece in value if not piece.unset)


def plain_value(text: str) -> Value:
    """A value that stands nowhere in the file."""
    return (Piece(text=text, origin=(None,) * len(text)),)
