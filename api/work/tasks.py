"""One search as the code that answers it sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class LeavingError(Exception):
    """The process is to end: the search is neither ended nor failed, the next worker begins it again."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A search that a worker has taken up."""

    id: str
    body: dict[str, Any]
    spent_seconds: float = 0.0
    """While workers before had it."""
    spend: Callable[[float], None]
    """Keeps the seconds while workers had it, these and those before, for a worker that follows."""
    calibration: Callable[[], str | None]
    """The one of the caller's own measurements, as JSON."""
    say: Callable[[str, dict[str, Any]], None]
    """(kind, data) of an event."""
    cancelled: Callable[[], bool]
    stopping: Callable[[], bool]
    """Whether this process is to end."""

    def check(self) -> None:
        """Raises LeavingError where there is no reason to go on."""
        if self.stopping() or self.cancelled():
            raise LeavingError


Answering = Callable[[Task], tuple[int, bytes]]
"""(status, rendered answer)."""
