"""Timers that a log prints: Megatron-LM's, DeepSpeed's."""

from __future__ import annotations

import re

from autoconfig.evidence.grammar import grammar
from autoconfig.evidence.records import MOST_TEXT, Origin, Timer
from autoconfig.evidence.scan import Passage

_NAME = re.compile(r"^(?:\d{1,6}: )?\s{1,8}([a-z][\w/-]{2,60}):\s{0,4}$")
_RANK = re.compile(r"^(?:\d{1,6}: )?\s{1,8}rank {1,6}(\d{1,7}): ([\d.]{1,15})\s{0,4}$")


def timer(
    name: str,
    low: float,
    high: float,
    origin: Origin,
    step: int | None,
    by_rank: dict[int, float] | None = None,
    *,
    leveled: bool = True,
) -> Timer:
    """A timer with the level that Megatron-LM prints it from; None for other tools' timers and, not `leveled`, for releases to
    August 2022, which have no levels and print forward-compute always. Seconds."""
    level = grammar().timer_levels.get(name) if leveled else None
    return Timer(origin=origin, name=name, seconds_min=low, seconds_max=high, by_rank=by_rank or {}, step=step, level=level)


def of_ranks(block: Passage, step: int | None, file: str) -> list[Timer]:
    """The timers of a block of --timing-log-option all: a name, then a line for each rank, in ms."""
    timers: list[Timer] = []
    name, origin, by_rank = "", Origin(file=file), dict[int, float]()

    def end() -> None:
        if name and by_rank:
            timers.append(timer(name, min(by_rank.values()), max(by_rank.values()), origin, step, dict(by_rank)))

    for number, raw in block.rows:
        line = raw.decode("utf-8", "replace")
        if (match := _RANK.match(line)) is not None:
            by_rank[int(match[1])] = float(match[2]) * 1e-3
        elif (match := _NAME.match(line)) is not None:
            end()
            name, by_rank = match[1], {}
            origin = Origin(file=file, line=number, text=line.strip()[:MOST_TEXT])
    end()
    return timers
