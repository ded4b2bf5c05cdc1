"""A budget of work for what reads foreign text: counted, not timed, so that a text costs the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from autoconfig.specs.errors import InputError

MAX_WORK = 1_000_000
"""Units of one text. A unit is about a microsecond of one core: an element of a list that is copied, four characters that are
kept, eight that a pattern passes over. Published scripts take a thirtieth of it at most."""
MAX_CHARACTERS = 300_000
"""Of a text that is looked at at all; each format has its own limit below it."""


class WorkError(InputError):
    """A text takes more work than any file of a run does."""


@dataclass
class WorkLeft:
    """What is left of a budget, in units of MAX_WORK."""

    left: float = MAX_WORK

    def spend(self, units: float) -> None:
        """Count work before it is done. Raises WorkError where that is too much."""
        self.left -= units
        if self.left < 0:
            raise WorkError(
                f"reading this takes more than {MAX_WORK:,} steps of work, far more than the file of any run; give the launch "
                "script or the configuration itself, without lists that grow in loops"
            )


_current: ContextVar[WorkLeft | None] = ContextVar("work", default=None)


@contextmanager
def bounded(most: float = MAX_WORK) -> Iterator[WorkLeft]:
    """Whatever is read inside counts into one budget: that of an outer `bounded`, where there is one. A decorator, too."""
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    work = WorkLeft(most)
    token = _current.set(work)
    try:
        yield work
    finally:
        _current.reset(token)


def spend(units: float) -> None:
    """Count work into the budget in force. Raises WorkError where it is spent."""
    work = _current.get()
    if work is not None:
        work.spend(units)


def require_short(text: str, what: str = "text", most: int = MAX_CHARACTERS) -> None:
    """Raises InputError for a text that is too long to be looked at."""
    if len(text) > most:
        raise InputError(f"the {what} has {len(text):,} characters, more than {most:,}; give the launch script itself")
