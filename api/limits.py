"""Limits of what callers hold at once."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from autoconfig.api.problems import RefusedError

ROOM_BYTES, ROOM_BYTES_OF_ONE = 32 * 2**20, 16 * 2**20
"""Of bodies that are read and not yet answered: of all keys, of one. Without keys everybody is one."""


class Room:
    """Bytes that bodies take in this process until they are answered."""

    def __init__(self, most: int = ROOM_BYTES, most_of_one: int = ROOM_BYTES_OF_ONE) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._taken: Counter[str] = Counter()

    def take(self, owner: str, count: int, ending: ExitStack) -> int:
        """`count`, which is taken until `ending` closes. Raises RefusedError: 429 where the owner has too much, 503 where all
        have."""
        if self._taken[owner] + count > self._most_of_one:
            text = f"your questions that are not answered yet hold {self._taken[owner]:,} bytes; send the next ones later"
            raise RefusedError(429, text, {"Retry-After": "1"})
        if self._taken.total() + count > self._most:
            text = f"questions that are not answered yet hold {self._taken.total():,} bytes; try again"
            raise RefusedError(503, text, {"Retry-After": "1"})
        self._taken[owner] += count
        ending.callback(self._give, owner, count)
        return count

    def _give(self, owner: str, count: int) -> None:
        self._taken[owner] -= count
        if not self._taken[owner]:
            del self._taken[owner]
