"""Errors of bad input, each naming its field and what to do; and how numbers with units are read and shown."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from itertools import pairwise
from numbers import Integral


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

_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_WITH_COMMAS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_COUNT = re.compile(r"\s*+([0-9]++(?:\.[0-9]++)?(?:e[+-]?[0-9]++)?)\s*+([kmbgt]?)\s*+", re.IGNORECASE)


def parse_count(text: str, what: str = "count") -> float:
    """`"300b"`, `"1.5T"`, `"2e12"` or `"4,096"` as a number (K, M, B, T are powers of 1,000). Raises InputError."""
    match = _COUNT.fullmatch(text.replace(",", "") if _WITH_COMMAS.fullmatch(text) else text)
    value = float(match[1]) * _SUFFIX[match[2].lower()] if match else math.nan
    if not match or not math.isfinite(value) or value <= 0:
        raise InputError(f"{what} {text!r} is not a positive number; write it like 4096, 300B or 1.5T")
    return value


LENGTHS = (
    *("seq_length", "decoder_seq_length", "packed_length"),
    *("isl", "osl", "prompt_length", "response_length", "max_response_length"),
)
"""Fields that count tokens of a sequence: 4k is 4,096."""


COUNTS = ("gpus", "gpus_at_most")
"""Fields of one count of GPUs, where people write several: 256,512 is refused, 16,384 is one."""
MOST_BETWEEN_COUNTS = 16
"""Counts in a list grow by at most this factor from one to the next. It is below 24, the ratio of the two groups in every
multiple of 1,024 below a million (8,192; 16,384; 24,576), the counts of GPUs that are written with a comma."""


def _may_be_several(text: str) -> bool:
    """Whether groups of three digits read as a list, too: numbers without a zero in front that grow, by no great factor."""
    groups = text.split(",")
    numbers = [int(group) for group in groups]
    grows = all(0 < low < high <= MOST_BETWEEN_COUNTS * low for low, high in pairwise(numbers))
    return grows and not any(group.startswith("0") for group in groups)


def whole_number(given: object, field: str) -> int:
    """A whole number, with commas where the user likes them; of LENGTHS also 4k, which of other counts may be 4,000 or 4,096.
    Raises ValueError."""
    if not isinstance(given, bool) and isinstance(given, Integral):
        return int(given)
    text = given if isinstance(given, str) else ""
    if _WITH_COMMAS.fullmatch(text):
        if field in COUNTS and _may_be_several(text):
            raise ValueError(
                f"{text!r} may be several counts or one; write {text.replace(',', '')} for one, and ask "
                f"autoconfig scaling --gpus {text} for several"
            )
        text = text.replace(",", "")
    length = field in LENGTHS
    if length and re.fullmatch(r"[0-9]{1,6}[kK]", text):
        return 1024 * int(text[:-1])
    try:
        return int(text)
    except ValueError:
        hint = thousands(text) or f"write a whole number like 1024{' or 4k' if length else ''}"
        raise ValueError(f"{given!r} is no integer; {hint}") from None


def real_number(given: object) -> float:
    """A number, with commas between thousands where the user likes them. Raises ValueError."""
    text = str(given).strip()
    try:
        return float(text.replace(",", "") if _WITH_COMMAS.fullmatch(text) else text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no number; {thousands(text) or 'write it like 2.5'}") from None


def thousands(text: str) -> str:
    """What a count like 1k may mean, as a question; empty where it is another text."""
    if not re.fullmatch(r"[0-9]{1,6}[kK]", text):
        return ""
    number = int(text[:-1])
    return f"write {1000 * number} or {1024 * number}, whichever it is"


_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(b|mb|gb|tb|mib|gib|tib)", re.IGNORECASE)
_BYTES = {"b": 1, "mb": 10**6, "gb": 10**9, "tb": 10**12, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_size(given: str | float) -> int:
    """`600MiB`, `2GiB`, `1.5TB` in bytes; a number is bytes already. Raises InputError."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        size = int(given) if math.isfinite(given) else 0
    else:
        match = _SIZE.fullmatch(str(given).strip())
        size = int(float(match[1]) * _BYTES[match[2].lower()]) if match else 0
    if size < 1:
        raise InputError(f"size {str(given)[:40]!r}: write it like 600MiB, 2GiB or 1.5TiB")
    return size


def parse_seconds(given: str | float, most_bare: float) -> float:
    """A duration like 50ms, 2s or 0.05 (seconds). Above `most_bare` seconds a number without a unit was likely meant in
    milliseconds, and is asked about. Raises ValueError with what is allowed."""
    text = str(given)
    wanted = text.strip().lower()
    for suffix, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("", 1.0)):
        if wanted.endswith(suffix):
            try:
                value = float(wanted.removesuffix(suffix)) * factor
            except ValueError:
                break
            if not suffix and most_bare < value < math.inf:
                raise ValueError(f"{text[:40]!r} without a unit is {value:,.6g} seconds: say {value:.6g}ms or {value:.6g}s")
            if math.isfinite(value) and value > 0:
                return value
            break
    raise ValueError(f"{text[:40]!r} is no duration; write 50ms, 2s or 0.05")
