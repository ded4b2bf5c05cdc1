"""What bash makes of a text inside ${...} (ends cut off, parts replaced, other letters), and of the words that are handed over
to a script or a function: $1, $2, ..., $@ and $#.

Only what every bash since 4.3 reads alike, in every locale: None for all else, which the caller then says is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoconfig.megatron.shell.commands import Held, Piece, Value, plain_value, reason_of, text_of, unknown
from autoconfig.planning.work import spend

MAX_TEXT = 10_000
_SPECIAL = frozenset("*?[]()\\")
"""Signs that do not stand for themselves in a pattern."""

Sign = tuple[str, str]
"""A character, and where it comes from: "bare" text of the script, "quoted" (it stands for itself), "value" of a variable."""


def edited(text: str, how: str, signs: Sequence[Sign]) -> str | None:
    """Return the text of ${name%text}, ${name%text*}, ${name#text} and ${name#*text} (doubled: the longest), ${name/text/text},
    ${name^^} and ${name,,}; `how` is the first sign, `signs` what stands behind it. None for everything else."""
    behind = "".join(sign for sign, _ in signs)
    spend((len(text) + len(signs)) / 4)
    if len(text) > MAX_TEXT or not (text + behind).isascii():
        return None
    doubled = signs[:1] == [(how, "bare")]
    signs = signs[doubled:]
    if how in ("^", ",") and doubled and len(behind) == 1:
        return text.upper() if how == "^" else text.lower()
    if how == "/":
        return _replaced(text, signs, every=doubled)
    return _trimmed(text, how, signs, longest=doubled) if how in ("%", "#") else None


def _trimmed(text: str, how: str, signs: Sequence[Sign], *, longest: bool) -> str | None:
    """Without a plain text at an end, or all that stands between it and that end. None for other patterns."""
    in_front = how == "#"
    starred = (signs[:1] if in_front else signs[-1:]) == [("*", "bare")]
    plain = _plain(signs[starred:] if in_front else signs[: len(signs) - starred])
    if plain is None or (starred and not plain):
        return None
    if not starred:
        return text.removeprefix(plain) if in_front else text.removesuffix(plain)
    before, mark, behind = text.partition(plain) if in_front != longest else text.rpartition(plain)
    return text if not mark else behind if in_front else before


def _replaced(text: str, signs: Sequence[Sign], *, every: bool) -> str | None:
    """With another text in the first place of a plain one, or in `every` one. None for patterns."""
    end = next((at for at, sign in enumerate(signs) if sign == ("/", "bare")), len(signs))
    old, new = (_plain(side, "&#%") for side in (signs[:end], signs[end + 1 :]))  # &: what is there, from bash 5.2 on
    return text.replace(old, new, -1 if every else 1) if text and old and new is not None and "\\" not in new else None


def _plain(signs: Sequence[Sign], more: str = "") -> str | None:
    """The text of signs that stand for themselves; None where one does not."""
    odd = any(sign in _SPECIAL or sign in more for sign, origin in signs if origin != "quoted")
    return None if odd else "".join(sign for sign, _ in signs)


def odd_pattern(text: str, options: frozenset[str], *, quoted: bool) -> bool:
    """Whether a pattern may match otherwise than `fnmatch` does: letters of either case, [[:digit:]], +(...)."""
    if "nocasematch" in options and any(map(str.isalpha, text)):
        return True
    return not quoted and any(mark in text for mark in ("[:", "[=", "[.", "?(", "*(", "+(", "@(", "!("))


Handed = dict[str, Held]
MAX_NAMED = 99
"""Largest number of an argument of the script that the caller may say (--set 12=VALUE)."""
_DOUBTED = 9
"""Positions that are not known where a word may be several."""


def loose(pieces: Sequence[Piece]) -> Value:
    """Pieces outside quotes: what is not known of them may be no word or several."""
    return tuple(replace(piece, loose=True) if piece.unknown else piece for piece in pieces)


def whole(pieces: Sequence[Piece]) -> Value:
    """Pieces in quotes, which are one word whatever they are."""
    return tuple(replace(piece, loose=False) if piece.loose else piece for piece in pieces)


def positions(words: Sequence[Value]) -> Handed:
    """What the words are called; behind one that may be none or several, no position is known."""
    first = next((at for at, word in enumerate(words) if any(piece.loose for piece in word)), None)
    if len(words) == 1 and first == 0 and text_of(words[0]) == "$@":
        return {}  # those of the script itself, whose names say what is not known
    spend(2 * len(words))
    named: Handed = {**{str(at): word for at, word in enumerate(words, 1)}, "@": list(words)}
    if first is None:
        return {**named, "#": plain_value(str(len(words)))}
    if first < len(words) - 1:
        named[str(first + 1)] = tuple(replace(piece, unset=False) for piece in words[first])
    behind = text_of(words[first])[:40]
    for at in range(first + 2, max(len(words), _DOUBTED) + 1):
        why = f"${at} stands behind {behind}, which may be no word or several ({reason_of(words[first])})"
        named[str(at)] = unknown(f"${at}", why)
    return named


def shifted(held: Handed, by: int) -> Handed:
    """What is left when the first `by` words go."""
    words = held.get("@")
    spend(len(held))
    if not isinstance(words, list):
        left = {str(int(at) - by): value for at, value in held.items() if at.isdigit() and int(at) > by}
        return {**left, "#": plain_value(str(len(left)))} if "#" in held else left
    doubted = next((word for word in words[:by] if any(piece.loose for piece in word)), None)
    if doubted is None:
        return positions(words[by:])
    why = f"which words are left by shift is not known: {reason_of(doubted)}"
    return positions([loose(unknown("$1", why))])


def script_arguments(settings: Mapping[str, str]) -> list[Value]:
    """The script's own arguments where the caller says some (--set 1=VALUE): as many as the last of them."""
    numbers = [int(name) for name in settings if name.isdigit() and 1 <= int(name) <= MAX_NAMED]
    return [
        plain_value(settings[str(at)])
        if str(at) in settings
        else unknown(f"${at}", f"${at} is an argument of the script: say --set {at}=VALUE")
        for at in range(1, max(numbers, default=0) + 1)
    ]
