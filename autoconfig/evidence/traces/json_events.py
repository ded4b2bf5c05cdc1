"""A trace's JSON, event by event, as it streams by: nothing of it is kept."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

EVENTS = "traceEvents"
LONGEST = 16 << 20
"""Characters of one value: Kineto lists the process groups of a large job in a few MB, an event takes a few hundred."""
WORK = 1 / 50
"""Units of planning.work that a byte costs."""
_BETWEEN = re.compile(r"[\s,]*+")
_BLANKS = re.compile(r"\s*+")


class TraceEvents:
    """The events of a trace; `top` holds what stands beside them, `truncated` says that the text ends within."""

    def __init__(self, name: str, chunks: Iterable[bytes]) -> None:
        self.name = name
        self.top: dict[str, Any] = {}
        self.truncated = False
        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._text, self._at = "", 0

    def events(self) -> Iterator[Any]:
        """Every event. Raises InputError where the text is no trace, and WorkError beyond the budget in force."""
        self._blanks()
        start = self._peek()
        if start == "[":  # the list alone is a trace, too
            yield from self._list()
            return
        if start != "{":
            raise self._wrong("begins with no { or [")
        self._at += 1
        found = False
        while not self.truncated and (sign := self._next()) != "}":
            if sign == "":
                self.truncated = True
                break
            if sign != '"':
                raise self._wrong("holds no name where one must stand")
            key = self._value()
            if self._next() != ":":
                raise self._wrong(f"holds no : behind {str(key)[:40]!r}")
            self._at += 1
            self._blanks()
            if key == EVENTS and self._peek() == "[":
                found = True
                yield from self._list()
            else:
                self.top[str(key)[:80]] = self._value()
        if not found:
            raise InputError(f"{self.name!r} begins as a trace of torch.profiler and holds no {EVENTS}: copy it again")

    def _list(self) -> Iterator[Any]:
        self._at += 1
        scan, between = self._scan, _BETWEEN.match
        while True:
            text = self._text
            at = between(text, self._at).end()  # type: ignore[union-attr]
            if text[at : at + 1] == "]":
                self._at = at + 1
                return
            try:
                event, self._at = scan(text, at)
            except (ValueError, RecursionError) as error:
                self._at = at
                if isinstance(error, RecursionError) or len(text) - at > LONGEST:
                    raise self._wrong("holds an event that is none") from None
                if not self._more():
                    self.truncated = True
                    return
                continue
            yield event

    def _value(self) -> Any:
        """The value here; what stands behind it shows that it is whole."""
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or len(self._text) - self._at > LONGEST:
                    raise self._wrong("holds a value that is none") from None
                end = len(self._text)
            if end < len(self._text):
                self._at = end
                return value
            if not self._more():
                self.truncated = True
                self._at = len(self._text)
                return None

    def _next(self) -> str:
        """The sign behind blanks and commas, "" at the end."""
        while True:
            self._at = _BETWEEN.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._more():
                return self._peek()

    def _blanks(self) -> None:
        while True:
            self._at = _BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._more():
                return

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _more(self) -> bool:
        """Read on; what was used is forgotten."""
        chunk = next(self._chunks, b"")
        if not chunk:
            return False
        spend(len(chunk) * WORK)
        self._text = self._text[self._at :] + self._decode(chunk)
        self._at = 0
        return True

    def _wrong(self, what: str) -> InputError:
        shown = self._text[self._at : self._at + 40]
        return InputError(f"{self.name!r} is no trace of torch.profiler that can be read: it {what}, at {shown!r}")
