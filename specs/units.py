"""Numbers as people write them: counts with commas or suffixes, sizes, durations."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from numbers import Integral

from autoconfig.specs.errors import InputError

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
