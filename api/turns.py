"""Whose question is next: round robin over the keys that wait, and never every process to one key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Turns(Generic[Item]):
    """Items that wait in a line of each owner, and how many processes each owner holds.

    The line that stands first gives its first item, and goes behind the others (round robin: John Nagle, RFC 970, 1985). With
    `spare` the last free process is for an owner that holds none, whoever waits: an owner's next question may be long, and what
    has begun is not taken from it.
    """

    def __init__(self, processes: int, *, spare: bool) -> None:
        self._processes, self._spare = processes, spare
        self._lines: dict[str, dict[Item, None]] = {}
        self._held: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Items that wait, each once."""
        return len({item for line in self._lines.values() for item in line})

    def waiting_of(self, owner: str) -> int:
        """Items in an owner's line."""
        return len(self._lines.get(owner, ()))

    @property
    def owners(self) -> list[str]:
        """Whose items wait."""
        return [*self._lines]

    def add(self, owner: str, item: Item) -> None:
        """Behind the owner's others. An item may stand in the lines of several owners."""
        self._lines.setdefault(owner, {})[item] = None

    def remove(self, item: Item) -> None:
        """Out of every line."""
        for owner, line in [*self._lines.items()]:
            line.pop(item, None)
            if not line:
                del self._lines[owner]

    def clear(self) -> list[Item]:
        """Everything that waited."""
        found = [*dict.fromkeys(item for line in self._lines.values() for item in line)]
        self._lines.clear()
        return found

    def begin(self) -> tuple[str, Item] | None:
        """(owner, item) that takes a process now; None: nobody may."""
        free = self._processes - self._held.total()
        for owner in self._lines if free > 0 else ():
            if self._spare and free == 1 and self._held[owner]:
                continue
            line = self._lines.pop(owner)
            self._lines[owner] = line
            item = next(iter(line))
            self.remove(item)
            self._held[owner] += 1
            return owner, item
        return None

    def end(self, owner: str) -> None:
        """The owner gives a process back."""
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
