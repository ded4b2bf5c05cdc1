"""Numbers of GPUs as people write them: a list, a range that doubles, a range with a step."""

from __future__ import annotations

import re

from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import MAX_GPUS
from autoconfig.specs.units import thousands

MAX_COUNTS = 64
HINT = "give counts like 64,128,256, a range that doubles like 64:1024, or one with a step like 64:1024:64"


def parse_counts(text: str) -> tuple[int, ...]:
    """GPU counts, ascending, each once; `1,024` is one, as no count begins with a zero. Raises InputError."""
    if re.fullmatch(r"[1-9][0-9]{0,2}(?:,[1-9][0-9]{2})*+,0[0-9]{2}(?:,[0-9]{3})*+", text.strip()):
        return check_counts({int(text.replace(",", ""))})
    return check_counts({count for part in text.split(",") for count in _part(part.strip(), text)})


def check_counts(counts: set[int] | list[int]) -> tuple[int, ...]:
    """The counts in order, each once. Raises InputError where there are none, too many, or one is no number of GPUs."""
    ordered = tuple(sorted(set(counts)))
    if not ordered:
        raise InputError(f"no GPU counts; {HINT}")
    for count in ordered:
        if not 1 <= count <= MAX_GPUS:
            raise InputError(f"{count} GPUs: give whole numbers from 1 to {MAX_GPUS:,}")
    if len(ordered) > MAX_COUNTS:
        raise InputError(f"{len(ordered):,} GPU counts are more than {MAX_COUNTS}; give a larger step")
    return ordered


def _part(part: str, text: str) -> list[int]:
    pieces = part.split(":")
    if len(pieces) > 3 or not all(re.fullmatch(r"0|[1-9][0-9]{0,8}", piece) for piece in pieces):
        hint = next(filter(None, map(thousands, pieces)), HINT)
        raise InputError(f"GPU counts {text[:80]!r} cannot be read; {hint}")
    numbers = [int(piece) for piece in pieces]
    if len(numbers) == 1:
        return numbers
    low, high, step = (*numbers, 0)[:3]
    if low < 1 or high < low or (len(numbers) == 3 and step < 1):
        raise InputError(f"GPU counts {part!r}: the range must go upwards from at least 1, its step must be at least 1")
    if step:
        if (high - low) // step >= MAX_COUNTS:
            raise InputError(
                f"GPU counts {part!r}: {(high - low) // step + 1:,} counts are more than {MAX_COUNTS}; give a larger step"
            )
        return list(range(low, high + 1, step))
    doubled = [low]
    while doubled[-1] * 2 <= high:
        doubled.append(doubled[-1] * 2)
    return doubled
