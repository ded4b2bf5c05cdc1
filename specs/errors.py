"""Errors of bad input, each naming its field and what to do; and how bytes and chances are shown in them."""

from __future__ import annotations

import difflib
import math
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


def refuse(*rules: tuple[object, str], error: type[InputError] = InputError) -> None:
    """Raises `error` with the text of the first rule that is broken; a rule is (whether it is, text)."""
    for broken, text in rules:
        if broken:
            raise error(text)


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


FROZEN_IN_4_BITS = (
    "adapters beside weights in 4 bits (QLoRA) are --peft lora --frozen-dtype nf4, in 8 bits --frozen-dtype int8; --format trl "
    "--export DIR writes them for TRL"
)
NOT_PRICED = {"qlora": f"; {FROZEN_IN_4_BITS}"}
"""What others offer for a field with choices -> why it is none of them, behind the choices that there are."""


class UnknownNameError(InputError):
    """No catalogue entry has this name; carries what was looked for, the names that exist and the nearest of them."""

    def __init__(
        self, kind: str, given: str, known: Iterable[str], hint: str = "", field: str | None = None, meant: str | None = None
    ) -> None:
        """`kind` is what was looked for ("model"), `given` the user's word, `known` all names, `hint` where to see them,
        `meant` the one of them that the word is known to mean, whatever its spelling."""
        self.kind = kind
        self.given = given
        self.known = tuple(dict.fromkeys(known))
        self.nearest = nearest(given, self.known) if meant is None else [meant]
        text = f"unknown {kind} {given!r}"
        if self.nearest:
            text += f"; did you mean {' or '.join(self.nearest)}?"
        super().__init__(text + (f" ({hint})" if hint else ""), field=field)


class UnknownKeyError(UnknownNameError, PlanError):
    """A short form (`tp=8,mbs=1`) names a key or a format that there is not; `mended` is it with the nearest one instead."""

    def __init__(self, kind: str, given: str, known: Iterable[str], text: str, meant: str | None = None) -> None:
        """`kind`, `given`, `known` and `meant` as of UnknownNameError; `text` is the short form."""
        names = tuple(known)
        super().__init__(kind, given, names, f"in {text!r}; {kind.split()[-1]}s: {' '.join(names)}", meant=meant)
        self.short_form = text
        whole_word = rf"(?<!\w){re.escape(given)}(?!\w)"
        self.mended = re.sub(whole_word, self.nearest[0], text, count=1, flags=re.IGNORECASE) if self.nearest else None


class CatalogueError(AutoconfigError):
    """A data file that ships with the project is malformed."""


_USER_PASSWORD = re.compile(r"^([^:/@]*:?//+[^:/]*|(?![^:/@]*:?//)[^:/@]*):.*@", re.DOTALL)
"""A user may have an @ (`user@server`), and a text with one stroke too few or too many is meant as a URL, too."""
_BAD_PORT = re.compile(r"(://[^:/@\[]*):(?![0-9]{1,5}(?:[/?]|$))[^/@?]+")
_QUERY_PASSWORD = re.compile(r"((?:^|[?&\s])\w*password=)[^&\s]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """A database's URL as it may be shown: without what stands, or may have been meant, where a password does. A text that is
    no URL is read as one as far as it goes."""
    found = _QUERY_PASSWORD.sub(r"\1***", url)
    found = _USER_PASSWORD.sub(r"\1:***@", found, count=1)
    return found if ":***@" in found else _BAD_PORT.sub(r"\1:***", found)


def nearest(given: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` known names most like `given`, best first; empty when nothing is alike."""
    by_lower = {name.lower(): name for name in known}
    hits = difflib.get_close_matches(given.lower(), by_lower, n=count, cutoff=0.5)
    starts = [low for low in by_lower if low.startswith(given.lower())][:count] if given else []
    return [by_lower[low] for low in dict.fromkeys(starts + hits)][:count]


def chance_text(chance: float) -> str:
    """A chance in percent, never rounded up: 89.6 % is below 90 %, and 99.6 % below 99.9 %. Whole percents up to 99 %, tenths
    above; 100 % from 99.99 % on."""
    if chance >= 0.9999:
        return "100%"
    tenths = math.floor(chance * 1000 + 1e-9)
    return f"{tenths // 10}%" if tenths <= 990 else f"{tenths / 10:g}%"


GIB = 2**30
MIB = 2**20
SECONDS_PER_DAY = 86_400.0
