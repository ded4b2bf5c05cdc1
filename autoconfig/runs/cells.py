"""Cells of one row of a table of runs, each read as data/run_tables.toml declares its column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

from autoconfig.runs.table import NO, YES, CellError, Row, names_of, number, whole
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.software.software import (
    FLASH_GENERATION,
    GRAD_REDUCE,
    LOSS_BYTES,
    PARAM_GATHER,
    SOFTMAX_SLOWDOWN,
    TP_OVERLAP,
)

EP_OVERLAP = "overlap-moe-expert-parallel-comm"
VOCABULARIES: Mapping[str, tuple[str, ...]] = {
    "attention_kernels": ("flash", *FLASH_GENERATION, *SOFTMAX_SLOWDOWN),
    "fused_losses": tuple(LOSS_BYTES),
    "overlaps": ("none", GRAD_REDUCE, PARAM_GATHER, TP_OVERLAP, EP_OVERLAP),
}
"""Words that the package defines elsewhere, by the name that a column calls them by."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """How the cell of one column is read: the head of [columns] in data/run_tables.toml says what each field means."""

    reads: Literal["text", "word", "words", "flag", "whole", "number"] = "text"
    tokens: bool = False
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    words: tuple[str, ...] = ()
    other: Mapping[str, str] | None = None
    read_as: str = ""
    refused: str = ""
    none: bool = False
    free: bool = False
    default: Any = None
    to: str = ""
    instead: str = ""
    never: bool = False

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> Column:
        """Return the column that a line of the table declares."""
        words = declared.get("words", ())
        least = 1 if declared.get("reads") == "whole" else None
        return cls(
            **{
                **{"least": least, **declared},
                "words": VOCABULARIES[words] if isinstance(words, str) else tuple(words),
                "other": names_of(declared["other"]) if "other" in declared else None,
            }
        )

    @cached_property
    def empty(self) -> frozenset[str]:
        """Words, in lower case, that programs and people write where they say nothing."""
        words = frozenset[str](() if self.free else names_of("empty")["words"])
        return words - {"none"} if self.none else words

    def in_our_words(self, text: str) -> str:
        """Return a word as we spell it: another name's own, a known word in its case, else the word in lower case."""
        word = text.lower()
        word = (self.other or {}).get(word, word)
        return next((ours for ours in self.words if ours.lower() == word), word)

    def parts(self, text: str) -> list[str]:
        """Return the words of a cell that holds several, also as options (--overlap-grad-reduce) or keys
        (overlap_grad_reduce), or its one word."""
        if self.reads != "words":
            return [text] if text else []
        words = text.lower().translate(dict.fromkeys(map(ord, "+,;"), " ")).split()
        return [word.removeprefix("--").replace("_", "-") for word in words]

    def bounds(self) -> str:
        """Return the bounds in words."""
        limits = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        words = " and ".join(f"{word} {limit:,}" for word, limit in limits.items() if limit is not None)
        return words + "".join(f", or {word}" for word in self.other or ())

    def holds(self, value: float) -> bool:
        """Whether a number is within the bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


@cache
def columns(kind: str) -> Mapping[str, Column]:
    """Return the columns of a table of `kind`: training, encoders, serving or post_training runs."""
    return {name: Column.of(declared) for name, declared in names_of("columns")[kind].items()}


@cache
def columns_never_read(kind: str) -> frozenset[str]:
    """Return the columns that name, comment or measure a run."""
    return frozenset(name for name, column in columns(kind).items() if column.never)


@cache
def _fields_of(kind: str, part: str) -> Mapping[str, str]:
    """Return column -> field of the columns that say a field of one part of a question."""
    split = {name: column.to.partition(".") for name, column in columns(kind).items() if column.to}
    return {name: own for name, (of, _, own) in split.items() if of == part}


def read_flag(name: str, text: str) -> bool | None:
    """Return 1, true, yes, on; 0, false, no, off as a flag, None for an empty text. Raises CellError."""
    word = text.lower().removesuffix(".0")
    if word and word not in YES + NO:
        raise CellError(f"cell {name}={word[:40]!r} is neither {YES[0]} nor {NO[0]}")
    return word in YES if word else None


class RunRow:
    """The cells of one row, and what had to be assumed of it. Every reader raises CellError for a cell that cannot be read."""

    def __init__(self, kind: str, row: Row) -> None:
        self.kind = kind
        self.columns = columns(kind)
        self.assumed: list[Remark] = []
        self.cells = {name: self._trimmed(name, text) for name, text in row.items() if text and not self._column(name).never}
        for name in [name for name in self.cells if self._column(name).instead]:
            self.cells[self.columns[name].instead] = self.cells.get(self.columns[name].instead) or self.cells[name]

    def _column(self, name: str) -> Column:
        return self.columns.get(name) or _UNKNOWN

    def _trimmed(self, name: str, text: str) -> str:
        """Return the text of a cell, empty where it says nothing."""
        text = text.strip()
        return "" if text.lower() in self._column(name).empty else text

    def text(self, name: str) -> str:
        """Return the text of a cell, a word in our spelling; empty where nothing is said."""
        column, text = self._column(name), self.cells.get(name, "")
        if column.reads != "word" or not text:
            return text
        word = column.in_our_words(text)
        if column.refused and word not in column.words:
            raise CellError(f"cell {name}={text[:40]!r} is none of {', '.join(column.words)}{column.refused}")
        return word

    def words(self, name: str) -> list[str]:
        """Return the words of a cell that may hold several."""
        return self._column(name).parts(self.cells.get(name, ""))

    def flag(self, name: str) -> bool | None:
        """Return a flag, None for an empty cell."""
        return read_flag(name, self.cells.get(name, ""))

    def number(self, name: str) -> float | None:
        """Return a number within the column's bounds, None for an empty cell."""
        column, text = self._column(name), self.cells.get(name, "")
        if not text:
            return None
        cells = {name: (column.other or {}).get(text.lower(), text)}
        value: float | None = whole(cells, name, tokens=column.tokens) if column.reads == "whole" else number(cells, name)
        if value is None or not column.holds(value):
            raise CellError(f"cell {name}={text[:40]} must be {column.bounds()}")
        return value

    def count(self, name: str) -> int | None:
        """Return a whole number, the column's default for an empty cell, None where it has none."""
        value = self.number(name)
        if value is None:
            value = self.columns[name].default
        return None if value is None else int(value)

    def degree(self, name: str) -> int:
        """Return a whole number that the row must say, or that has a default. Raises InputError where it is empty."""
        value = self.count(name)
        if value is None:
            raise InputError(f"cell {name} is empty")
        return value

    def value(self, name: str) -> Any:
        """Return a cell as its column is read, None for an empty one."""
        reads = self._column(name).reads
        if reads == "flag":
            return self.flag(name)
        return self.count(name) if reads == "whole" else self.number(name) if reads == "number" else self.text(name) or None

    def fields(self, part: str, *, but: str = "") -> dict[str, Any]:
        """Return field -> value of the cells that say one part of a question (`to`), empty ones and one column left out."""
        own = _fields_of(self.kind, part)
        return {field: self.value(name) for name, field in own.items() if self.cells.get(name) and name != but}

    def assume(self, why: str, effect: Effect = Effect.MEMORY_AND_TIME) -> None:
        """Remark what was taken where the row says nothing, or what is not taken as it says."""
        self.assumed.append(note(why, effect))

    def assume_defaults(self, *names: str) -> None:
        """Remark the default of each of these columns whose cell is empty."""
        self.assumed += [Remark(name, str(self.columns[name].default), "") for name in names if not self.cells.get(name)]

    def assume_known_words(self) -> None:
        """Remark every cell whose word is not known: what it is read as, what was said, which words are known."""
        for name, text in self.cells.items():
            column = self._column(name)
            for part in column.parts(text) if column.read_as else ():
                if part.lower() not in map(str.lower, column.words):
                    self.assumed.append(Remark(name, column.read_as, f"{part[:40]!r} is none of {', '.join(column.words)}"))


_UNKNOWN = Column()
"""Of a column that no table has."""
