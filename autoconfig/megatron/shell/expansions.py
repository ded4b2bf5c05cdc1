"""What bash makes of a text inside ${...} (ends cut off, patterns replaced, a part of it, other letters), and of the words that
are handed over to a script or a function: $1, $2, ..., $@ and $#.

Only what every bash since 4.3 reads alike, in every locale: None for all else, which the caller then says is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoconfig.megatron.shell.commands import Held, Piece, Value, plain_value, reason_of, text_of, unknown
from autoconfig.planning.work import spend

MAX_TEXT = 10_000
MAX_TRIES = 5_000_000
_NUMBER = r"-?(?:0|[1-9]\d{0,5})"
_SLICE = re.compile(rf"\s*(?:({_NUMBER})|\(({_NUMBER})\))\s*(?::\s*({_NUMBER})\s*)?")

Sign = tuple[str, str]
"""A character, and where it comes from: "bare" text of the script, "quoted" (it stands for itself), "value" of a variable."""


def edited(text: str, how: str, signs: Sequence[Sign]) -> str | None:
    """${name%pattern}, ${name#pattern} (doubled: the longest), ${name/pattern/text} and its kin, ${name:start:length},
    ${name^^}, ${name,,}; `how` is the first sign, `signs` what stands behind it. None for everything else."""
    pattern = "".join(sign for sign, _ in signs)
    spend((len(text) + len(signs)) / 4)
    if len(text) > MAX_TEXT or not (text + pattern).isascii():
        return None
    if how in ("^", ",") and pattern in ("", how):
        change = str.upper if how == "^" else str.lower
        return change(text) if pattern else change(text[:1]) + text[1:]
    if how == "/":
        return _replaced(text, signs)
    if how == ":" and (span := sliced(pattern)):
        return _part(text, *span)
    return _trimmed(text, how, signs) if how in ("%", "#") else None


def sliced(pattern: str) -> tuple[int, int | None] | None:
    """(start, length) of `START:LENGTH`; None where it is no plain number."""
    cut = _SLICE.fullmatch(pattern)
    return None if cut is None else (int(cut[1] or cut[2]), None if cut[3] is None else int(cut[3]))


def _part(text: str, start: int, length: int | None) -> str | None:
    """Negative numbers count from the end; a start in front of the text leaves nothing. None where bash ends with an error."""
    start += len(text) if start < 0 else 0
    end = len(text) if length is None else len(text) + length if length < 0 else start + length
    if start < 0 or start > len(text):
        return ""
    return None if end < start else text[start:end]


def _trimmed(text: str, how: str, signs: Sequence[Sign]) -> str | None:
    longest = signs[:1] == [(how, "bare")]
    wanted = _compiled(text, signs[1:] if longest else signs)
    if wanted is None:
        return None
    cuts = range(len(text) + 1) if (how == "#") != longest else range(len(text), -1, -1)
    for cut in cuts:
        if wanted.fullmatch(text[cut:] if how == "%" else text[:cut]):
            return text[:cut] if how == "%" else text[cut:]
    return text


def _replaced(text: str, signs: Sequence[Sign]) -> str | None:
    """The first place of a plain text; all of them behind //; something in front of all behind /#, at the end behind /%."""
    kind = signs[0][0] if signs and signs[0][0] in "/#%" and signs[0][1] == "bare" else ""
    signs = signs[len(kind) :]
    old, new = _sides(signs)
    odd = any(sign in "*?[]()\\&#%" and origin != "quoted" for sign, origin in signs)
    if odd or "\\" in new or not text or (old and kind in ("#", "%")):
        return None  # & is what was found, from bash 5.2 on
    if not old:
        return {"#": new + text, "%": text + new}.get(kind)
    return text.replace(old, new, -1 if kind == "/" else 1)


def _sides(signs: Sequence[Sign]) -> tuple[str, str]:
    """What is looked for, and behind a bare / what takes its place."""
    end = next((at for at, sign in enumerate(signs) if sign == ("/", "bare")), len(signs))
    return "".join(sign for sign, _ in signs[:end]), "".join(sign for sign, _ in signs[end + 1 :])


def _compiled(text: str, signs: Sequence[Sign]) -> re.Pattern[str] | None:
    """A pattern of bash as one of Python, for use on `text`. It has no choices but its stars, so that the greedy match is the
    longest. None for what is not surely read: brackets, extglob, patterns from variables."""
    out = ""
    for sign, origin in signs:
        if origin == "quoted" or sign not in "*?[]()\\":
            out += re.escape(sign)
        elif origin == "value" or sign not in "*?":
            return None
        elif sign == "?":
            out += "."
        elif not out.endswith(".*"):
            out += ".*"
    tries = (len(text) + 1) ** (out.count(".*") + 1)
    if tries > MAX_TRIES:
        return None
    spend((tries + len(text)) / 200 + len(out))
    return re.compile(out, re.DOTALL)


def odd_pattern(text: str, options: frozenset[str], *, quoted: bool) -> bool:
    """Whether a pattern may match otherwise than `fnmatch` does: letters of either case, [[:digit:]], +(...)."""
    if "nocasematch" in options and re.search("[A-Za-z]", text):
        return True
    return not quoted and re.search(r"\[[:=.]|[?*+@!]\(", text) is not None


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
