"""The words handed over to a script or a function: $1, $2, ..., $@ and $#."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoconfig.megatron.shell.commands import Piece, Value, plain_value, reason_of, text_of

Handed = dict[str, Value | list[Value]]
MAX_NAMED = 99
"""Largest number of an argument of the script that the caller may say (--set 12=VALUE)."""
_DOUBTED = 9
"""Positions that are not known where a word may be several."""


def loose(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces outside quotes: what is not known of them may be no word or several."""
    return [replace(piece, loose=bool(piece.unknown)) for piece in pieces]


def whole(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces in quotes, which are one word whatever they are."""
    return [replace(piece, loose=False) if piece.loose else piece for piece in pieces]


def positions(words: Sequence[Value]) -> Handed:
    """What the words are called; behind one that may be none or several, no position is known."""
    if len(words) == 1 and text_of(words[0]) == "$@" and _first_loose(words) is not None:
        return {}  # those of the script itself, whose names say what is not known
    found: Handed = {**{str(at): word for at, word in enumerate(words, 1)}, "@": list(words)}
    first = _first_loose(words)
    if first is None:
        return {**found, "#": plain_value(str(len(words)))}
    if first < len(words) - 1:
        found[str(first + 1)] = tuple(replace(piece, unset=False) for piece in words[first])
    behind = text_of(words[first])[:40]
    for at in range(first + 2, max(len(words), _DOUBTED) + 1):
        why = f"${at} stands behind {behind}, which may be no word or several ({reason_of(words[first])})"
        found[str(at)] = (Piece(text=f"${at}", unknown=why),)
    return found


def shifted(held: Handed, by: int) -> Handed:
    """What is left when the first `by` words go."""
    words = held.get("@")
    if not isinstance(words, list):
        return {str(int(at) - by): value for at, value in held.items() if at.isdigit() and int(at) > by}
    if _first_loose(words[:by]) is None:
        return positions(words[by:])
    why = f"which words are left by shift is not known: {reason_of(words[_first_loose(words) or 0])}"
    return positions([(Piece(text="$1", unknown=why, loose=True),)])


def _first_loose(words: Sequence[Value]) -> int | None:
    return next((at for at, word in enumerate(words) if any(piece.loose for piece in word)), None)


def said(settings: Mapping[str, str]) -> list[Value]:
    """The script's own arguments where the caller says some (--set 1=VALUE): as many as the last of them."""
    numbers = [int(name) for name in settings if name.isdigit() and 1 <= int(name) <= MAX_NAMED]
    return [
        plain_value(settings[str(at)])
        if str(at) in settings
        else (Piece(text=f"${at}", unknown=f"${at} is an argument of the script: say --set {at}=VALUE"),)
        for at in range(1, max(numbers, default=0) + 1)
    ]
