"""What each source of published runs is used for, and why (`validation/sources.toml`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from autoconfig.specs.errors import UnknownNameError

USES = ("calibrate", "bands", "memory", "fits")


@dataclass(frozen=True, kw_only=True)
class HeldTo:
    """Most mean absolute error of step times, with constants that have not seen what `leave_out` names."""

    name: str
    leave_out: Literal["source", "model", "pair", "release"]
    most: float
    match: str = ""
    """Pattern of the sources; empty: the source that the bar stands in."""
    since: str = ""
    """First release of the software whose rows count."""
    before: str = ""
    """First release whose rows no longer count; empty: none."""
    longest: int = 0
    """Longest sequence that counts, in tokens; 0: any."""
    median: float | None = None
    """Most median absolute error, where that is held too."""
    bias: float | None = None
    """Most median error either way, where that is held too."""


@dataclass(frozen=True, kw_only=True)
class PublishedSource:
    """Tables of one publisher or paper that are used alike."""

    match: str
    use: tuple[str, ...]
    """Some of USES; none: shown only."""
    why: str
    publisher: str = ""
    """Whose one table these sources are parts of."""
    whole_step: bool = True
    bar: HeldTo | None = None
    regret: float | None = None
    """Most mean regret of the first choice."""


@dataclass(frozen=True, kw_only=True)
class UnknownStack:
    """What a run's own stack may not bring where its publisher is unknown."""

    times_bar: float
    """Most mean error, over the bar."""
    rates: tuple[str, ...]
    """Fields of StackTime that were read off papers."""
    generic: Mapping[str, str]
    """Stack -> the generic stack of its kind, whose rates and calibration stand in."""


@dataclass(frozen=True, kw_only=True)
class ServingFigure:
    """One figure of published serving runs: which rows, which statistic, and the bar in % that it is held to."""

    name: str
    rows: Mapping[str, str]
    """Column -> pattern of its cells."""
    statistic: str
    measured: str = ""
    predicted: str = ""
    moe: bool | None = None
    bar: float | None = None


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))


@cache
def sources() -> tuple[PublishedSource, ...]:
    """Every entry, in the order in which they are tried."""
    return tuple(
        PublishedSource(**{**entry, "use": tuple(entry["use"]), "bar": HeldTo(**entry["bar"]) if "bar" in entry else None})
        for entry in _data()["source"]
    )


@cache
def source_of(name: str) -> PublishedSource:
    """The entry of a source. Raises UnknownNameError where no entry has it."""
    for source in sources():
        if re.fullmatch(source.match, name):
            return source
    raise UnknownNameError("source of published runs", name, [source.match for source in sources()])


@cache
def bars_held() -> tuple[HeldTo, ...]:
    """Every bar of step times: those of single sources, and those of several or of a part of one."""
    own = [replace(source.bar, match=source.match) for source in sources() if source.bar is not None]
    return (*own, *(HeldTo(**entry) for entry in _data()["held"]))


@cache
def unknown_stack() -> UnknownStack:
    """What stands in for the stack of a publisher that nobody knows."""
    data = dict(_data()["unknown"])
    times_bar, rates = data.pop("times_bar"), tuple(data.pop("rates"))
    generic = {own: name for name, stacks in data.items() for own in stacks}
    return UnknownStack(times_bar=times_bar, rates=rates, generic=generic)


def band_bars() -> dict[str, Any]:
    """What bands are held to."""
    bars: dict[str, Any] = _data()["bands"]
    return bars


@cache
def serving_figures() -> tuple[ServingFigure, ...]:
    """Figures of serving runs, in the order in which they are printed."""
    return tuple(ServingFigure(**entry) for entry in _data()["serving"])
