"""What each source of published runs is used for, and why: `autoconfig/data/sources.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.errors import UnknownNameError

USES = ("calibrate", "bands", "memory", "fits")


@dataclass(frozen=True, kw_only=True)
class HeldTo:
    """Most mean absolute error of step times, with constants that have not seen the source or the model."""

    name: str
    leave_out: str
    most: float


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
    listed: bool = True
    """Whether the accuracy page lists rows that resist, not only counts them."""
    bar: HeldTo | None = None
    regret: float | None = None
    """Most mean regret of the first choice."""


@dataclass(frozen=True, kw_only=True)
class HarderReading:
    """How the figure of a bar is read in a harder way."""

    bar: str
    why: str
    also: str = ""
    """Pattern of sources that count too."""
    zero: tuple[str, ...] = ()
    """Times of the software stack that are set to zero, and the calibration fitted again."""


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
    return tomllib.loads((resources.files("autoconfig") / "data" / "sources.toml").read_text(encoding="utf-8"))


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
def harder_readings() -> tuple[HarderReading, ...]:
    """Readings that are named there."""
    return tuple(HarderReading(**{**entry, "zero": tuple(entry.get("zero", ()))}) for entry in _data()["reading"])


@cache
def serving_figures() -> tuple[ServingFigure, ...]:
    """Figures of serving runs, in the order in which they are printed."""
    return tuple(ServingFigure(**entry) for entry in _data()["serving"])
