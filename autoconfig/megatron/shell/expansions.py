"""What bash makes of a text inside ${...}: ends cut off, patterns replaced, a part of it, other letters; and of the words that
are handed over to a script or a function: $1, $2, ..., $@ and $#.

Only what every bash since 4.3 reads alike, in every locale: None for all else, which the caller then says is not known.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoconfig.megatron.shell.commands import Piece, Value, plain_value, reason_of, text_of
from autoconfig.planning.work import spend

MAX_TEXT = 10_000
MAX_TRIES = 5_000_000
_NUMBER = r"-?(?:0|[1-9]\d{0,5})"
_SLICE = re.compile(rf"\s*(?:({_NUMBER})|\(({_NUMBER})\))\s*(?::\s*({_NUMBER})\s*)?")
_CLASSES = {
    "digit": string.digits,
    "alpha": string.ascii_letters,
    "alnum": string.ascii_letters + string.digits,
    "upper": string.ascii_uppercase,
    "lower": string.ascii_lowercase,
    "space": " \t\n\r\v\f",
    "blank": " \t",
}

Sign = tuple[str, str]
"""A character, and where it comes from: "bare" text of the script, "quoted" (it stands for itself), "value" of a variable."""


def with_remedy(default: Value, name: str, how: str) -> Value:
    """What stands in for a variable that is not set: where it is not known either, the variable may be said."""
    if how not in (":-", ":=", "-", "="):
        return default
    open_pieces = [bool(piece.unknown) and "--set" not in piece.unknown for piece in default]
    said = f": say --set {name}=VALUE"
    return tuple(replace(one, unknown=one.unknown + said) if it else one for one, it in zip(default, open_pieces, strict=True))


def signs_text(signs: Sequence[Sign]) -> str:
    """The characters alone."""
    return "".join(sign for sign, _ in signs)


def edited(text: str, how: str, signs: Sequence[Sign]) -> str | None:
    """${name%pattern}, ${name#pattern} (doubled: the longest), ${name/pattern/text} and its kin, ${name:start:length},
    ${name^^}, ${name,,}; `how` is the first sign, `signs` what stands behind it. None for everything else."""
    pattern = signs_text(signs)
    spend((len(text) + len(signs)) / 4)
    if len(text) > MAX_TEXT or not (text + pattern).isascii():
        return None
    if how in ("^", ",") and pattern in ("", how):
        change = str.upper if how == "^" else str.lower
        return change(text) if pattern else change(text[:1]) + text[1:]
    if how == "/":
        return _replaced(text, signs)
    if how == ":":
        found = sliced(pattern)
        return None if found is None else _part(text, *found)
    return _trimmed(text, how, signs) if how in ("%", "#") else None


def sliced(pattern: str) -> tuple[int, int | None] | None:
    """(start, length) of `START:LENGTH`; None where it is no plain number."""
    cut = _SLICE.fullmatch(pattern)
    return None if cut is None else (int(cut[1] or cut[2]), None if cut[3] is None else int(cut[3]))


def _part(text: str, start: int, length: int | None) -> str | None:
    """Negative numbers count from the end; a start in front of the text leaves nothing. None where bash ends with an error."""
    if start < 0:
        start += len(text)
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
    """The first longest match; all of them behind //, at the start behind /#, at the end behind /%."""
    kind = signs[0][0] if signs and signs[0][0] in "/#%" and signs[0][1] == "bare" else ""
    signs = signs[len(kind) :]
    end = next((at for at, sign in enumerate(signs) if sign == ("/", "bare")), len(signs))
    old, behind = signs[:end], signs[end + 1 :]
    new = signs_text(behind)
    if "\\" in new or ("&", "bare") in behind or ("&", "value") in behind or not text:
        return None  # & is what was found, from bash 5.2 on
    if not old:
        return {"#": new + text, "%": text + new}.get(kind)
    if not kind and old[0][0] in "#%" and old[0][1] == "value":
        return None
    wanted = _compiled(text, old)
    if wanted is None:
        return None
    if kind == "%":
        start = next((at for at in range(len(text)) if wanted.fullmatch(text, at)), None)
        return text if start is None else text[:start] + new
    if kind == "#":
        first = wanted.match(text)
        return text if first is None else new + text[first.end() :]
    return wanted.sub(lambda match: new if match[0] else "", text, count=0 if kind == "/" else 1)


def _compiled(text: str, signs: Sequence[Sign]) -> re.Pattern[str] | None:
    """A pattern of bash as one of Python, for use on `text`. It has no choices but its stars, so that the greedy match is the
    longest. None for what is not surely read: brackets with escapes, collating classes, extglob, patterns from variables."""
    out, at = "", 0
    while at < len(signs):
        sign, origin = signs[at]
        at += 1
        if origin == "quoted" or sign not in "*?[]()\\":
            out += re.escape(sign)
        elif origin == "value" or sign in "]()\\":
            return None
        elif sign == "[":
            found = _bracket(text, signs, at)
            if found is None:
                return None
            members, at = found
            out += members
        elif sign == "?":
            out += "."
        elif not out.endswith(".*"):
            out += ".*"
    tries = (len(text) + 1) ** (out.count(".*") + 1)
    if tries > MAX_TRIES:
        return None
    spend((tries + len(text)) / 200 + len(out))
    return re.compile(out, re.DOTALL)


def _bracket(text: str, signs: Sequence[Sign], at: int) -> tuple[str, int] | None:
    """(the set as Python writes it, the place behind it) of `[...]` from behind its bracket; None where it is not plain."""
    bare = "".join(sign if origin == "bare" else "\0" for sign, origin in signs[at:])
    match = re.match(r"([!^]?)((?:\[:[a-z]+:\]|[^\]\[\\\0])+)\]", bare)
    if match is None or match[2][0] in "!^":
        return None
    members: set[str] = set()
    spans = re.findall(r"\[:([a-z]+):\]|(.)-(.)|(.)", match[2], re.DOTALL)
    for name, first, last, one in spans:
        if name and name not in _CLASSES:
            return None
        if first and not any({first, last} <= set(_CLASSES[kind]) for kind in ("digit", "lower", "upper")):
            return None
        members |= set(_CLASSES[name] if name else one or map(chr, range(ord(first), ord(last) + 1)))
    ranges = any(first.isalpha() for _, first, _, _ in spans)
    if ranges and any(sign.isalpha() and sign not in members and sign.swapcase() in members for sign in text):
        return None  # [a-z] holds B in some locales
    if not members:
        return None
    inside = "".join(map(re.escape, sorted(members)))
    return f"[{'^' if match[1] else ''}{inside}]", at + match.end()


def odd_pattern(text: str, options: frozenset[str], *, quoted: bool) -> bool:
    """Whether a pattern may match otherwise than `fnmatch` does: letters of either case, [[:digit:]], +(...)."""
    if "nocasematch" in options and re.search("[A-Za-z]", text):
        return True
    return not quoted and re.search(r"\[[:=.]|[?*+@!]\(", text) is not None


def split_into(fields: list[list[Piece]], pieces: Value, signs: str) -> None:
    """Append pieces, beginning a new field at each blank outside quotes, or at each of `signs`, of IFS."""
    sign = f"[{re.escape(signs)}]" if signs else "(?!)"
    odd = re.compile(rf"^{sign}|{sign}$|{sign}{sign}|\s" if signs.strip() else "(?!)")
    for piece in pieces:
        spend(2 + len(piece.text) / 8)
        if not piece.unknown and odd.search(piece.text):
            why = f"how IFS={signs!r} splits {piece.text[:40]!r} is not followed"
            fields[-1].append(replace(piece, unknown=why))
            continue
        if piece.unknown:
            if piece.choices and all(not text or text[0].isspace() for text in piece.choices):
                fields.append([])
            fields[-1].append(piece)
            if piece.choices and all(not text or text[-1].isspace() for text in piece.choices):
                fields.append([])
            continue
        for match in re.finditer(rf"({sign}+)|(?:(?!{sign}).)+", piece.text, re.DOTALL):
            spend(2)
            if match[1]:
                fields.append([])
            else:
                fields[-1].append(Piece(text=match[0], origin=piece.origin[match.start() : match.end()]))


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
    spend(2 * len(words))
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
    spend(len(held))
    if not isinstance(words, list):
        left = {str(int(at) - by): value for at, value in held.items() if at.isdigit() and int(at) > by}
        return {**left, "#": plain_value(str(len(left)))} if "#" in held else left
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
