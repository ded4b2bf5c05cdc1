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


def divisors(number: int) -> list[int]:
    """All positive divisors of `number`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
