"""Units and the small parsers that the command line and files share. Bytes and seconds inside; GiB on screen."""

from __future__ import annotations

import math
import re

from autoconfig.specs.errors import InputError

GIB = 2**30
MIB = 2**20
SECONDS_PER_DAY = 86_400.0

_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_COUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([kmbgt]?)\s*", re.IGNORECASE)


def parse_count(text: str, what: str = "count") -> float:
    """`"300b"`, `"1.5T"`, `"2e12"` or `"4096"` as a number (K, M, B, T are powers of 1,000). Raises InputError."""
    match = _COUNT.fullmatch(text)
    value = float(match[1]) * _SUFFIX[match[2].lower()] if match else math.nan
    if not match or not math.isfinite(value) or value <= 0:
        raise InputError(f"{what} {text!r} is not a positive number; write it like 4096, 300B or 1.5T")
    return value


MIN_ODD_SECONDS = 100.0
"""Seconds from which a duration without a unit was meant in milliseconds: no one waits so long for a first token."""


def parse_seconds(given: str | float) -> float:
    """A duration like 50ms, 2s or 0.05 (seconds). Raises ValueError with what is allowed."""
    text = str(given)
    wanted = text.strip().lower()
    for suffix, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("", 1.0)):
        if wanted.endswith(suffix):
            try:
                value = float(wanted.removesuffix(suffix)) * factor
            except ValueError:
                break
            if not suffix and MIN_ODD_SECONDS <= value < math.inf:
                raise ValueError(f"{text[:40]!r} without a unit is {value:,.6g} seconds; write {wanted}ms or {wanted}s")
            if math.isfinite(value) and value > 0:
                return value
            break
    raise ValueError(f"{text[:40]!r} is no duration; write 50ms, 2s or 0.05")


def divisors(number: int) -> list[int]:
    """All positive divisors of `number`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
