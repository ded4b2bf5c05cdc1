"""Limits of what callers hold at once, and of how many wrong keys an address may try."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from contextlib import ExitStack
from typing import Any

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


WRONG_KEYS, WRONG_KEYS_PER_SECOND = 20, 5.0
"""That an address may try at once, and later on."""
MOST_REMEMBERED = 10_000


class Logins:
    """Wrong keys by address: who tries too many is refused before the database is asked, but for keys that were right before:
    they may come from the same address, of a proxy or a gateway."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Address -> (tries left, at which moment)."""
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def refuse(self, address: str, key: str) -> None:
        """Raises RefusedError (429)."""
        if _digest(key) in self._right:
            return
        left = self._left(address)
        if left < 1:
            wait = (1 - left) / WRONG_KEYS_PER_SECOND
            text = f"too many wrong keys from this address; wait {wait:.1f} s"
            raise RefusedError(429, text, {"Retry-After": str(max(1, round(wait)))})

    def tell(self, address: str, key: str, right: bool) -> None:
        """What the database said of a key."""
        if right:
            _remember(self._right, _digest(key), None)
            return
        self._right.pop(_digest(key), None)
        _remember(self._levels, address, (self._left(address) - 1, time.monotonic()))

    def _left(self, address: str) -> float:
        level, since = self._levels.get(address, (float(WRONG_KEYS), 0.0))
        return min(level + (time.monotonic() - since) * WRONG_KEYS_PER_SECOND, float(WRONG_KEYS))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _remember(known: OrderedDict[Any, Any], key: object, value: object) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > MOST_REMEMBERED:
        known.popitem(last=False)
