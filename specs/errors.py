"""The error tree. Every message says what was given, what is allowed and what to try.

    AutoconfigError
    |-- InputError            the person or program asking gave something that cannot be used   (exit code 2, HTTP 4xx)
    |   |-- UnknownNameError  a model, GPU, software stack, rule or key that no catalogue holds
    |   |-- PlanError         a plan's short form or its values cannot be read
    |   |   `-- UnknownKeyError   it names a key or a format that there is not; an UnknownNameError, too
    |   |-- UnsupportedError  understood, and refused with the reason (T5, BERT, RLHF, ...)
    |   `-- FileError         a file cannot be read or written
    `-- CatalogueError        a data file of ours is wrong: our bug, never the user's           (exit code 1)

A plan that does not fit is a result, not an error; "nothing fits" is exit code 3, decided by the command line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class AutoconfigError(Exception):
    """Base of everything this project raises on purpose."""


_FIELD = "\x1e"
"""Stands before and after the name of a field in a message."""


def option_name(field: str) -> str:
    """A field of a request as an option of the command line."""
    return "--" + field.replace("_", "-")


def option(name: str) -> str:
    """The name of a field of a request for the message of an InputError, which each edge spells its own way."""
    return f"{_FIELD}{name}{_FIELD}"


class InputError(AutoconfigError):
    """The input cannot be used; the message says what to change.

    An `option` in the message reads `--seq-length` in `str`, for the command line, and `seq_length` in `text`, for HTTP and
    Python. `field` is the one to blame: the first in the message unless given. `message` goes into that of another error.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        pieces = message.split(_FIELD)
        super().__init__("".join(option_name(piece) if number % 2 else piece for number, piece in enumerate(pieces)))
        self.message, self.text = message, "".join(pieces)
        self.field = field if field is not None else next(iter(pieces[1::2]), None)


class PlanError(InputError):
    """A plan's short form or one of its values cannot be read."""


class UnsupportedError(InputError):
    """Understood, and refused for a stated reason."""


class FileError(InputError):
    """A file cannot be read or written."""


class UnknownNameError(InputError):
    """No catalogue entry has this name; carries what was looked for, the names that exist and the nearest of them."""

    def __init__(self, kind: str, given: str, known: Iterable[str], hint: str = "", field: str | None = None) -> None:
        """`kind` is what was looked for ("model"), `given` the user's word, `known` all names, `hint` where to see them."""
        self.kind = kind
        self.given = given
        self.known = tuple(dict.fromkeys(known))
        self.nearest = nearest(given, self.known)
        text = f"unknown {kind} {given!r}"
        if self.nearest:
            text += f"; did you mean {' or '.join(self.nearest)}?"
        super().__init__(text + (f" ({hint})" if hint else ""), field=field)


class UnknownKeyError(UnknownNameError, PlanError):
    """A short form (`tp=8,mbs=1`) names a key or a format that there is not; `mended` is it with the nearest one instead."""

    def __init__(self, kind: str, given: str, known: Iterable[str], text: str) -> None:
        """`kind`, `given` and `known` as of UnknownNameError; `text` is the short form."""
        names = tuple(known)
        super().__init__(kind, given, names, f"in {text!r}; {kind.split()[-1]}s: {' '.join(names)}")
        self.short_form = text
        whole_word = rf"(?<!\w){re.escape(given)}(?!\w)"
        self.mended = re.sub(whole_word, self.nearest[0], text, count=1, flags=re.IGNORECASE) if self.nearest else None


class CatalogueError(AutoconfigError):
    """A data file that ships with the project is malformed."""


def nearest(given: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` known names most like `given`, best first; empty when nothing is alike."""
    by_lower = {name.lower(): name for name in known}
    hits = difflib.get_close_matches(given.lower(), by_lower, n=count, cutoff=0.5)
    starts = [low for low in by_lower if low.startswith(given.lower())][:count] if given else []
    return [by_lower[low] for low in dict.fromkeys(starts + hits)][:count]
