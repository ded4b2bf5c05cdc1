"""What bash makes of a text inside ${...}: ends cut off, patterns replaced, a part of it, other letters."""

from __future__ import annotations

import fnmatch
import re

MAX_TEXT = 10_000
_SLICE = re.compile(r"\s*\(?(-?\d{1,6})\)?\s*(?::\s*(-?\d{1,6})\s*)?")


def edited(text: str, how: str, pattern: str) -> str | None:
    """${name%pattern}, ${name#pattern} (doubled: the longest), ${name/pattern/text} and its kin, ${name:start:length},
    ${name^^}, ${name,,}; `how` is the first sign, `pattern` what stands behind it. None for everything else."""
    if len(text) > MAX_TEXT:
        return None
    if how in ("^", ",") and pattern in ("", how):
        change = str.upper if how == "^" else str.lower
        return change(text) if pattern else change(text[:1]) + text[1:]
    if how == "/":
        return _replaced(text, pattern)
    if how == ":" and (cut := _SLICE.fullmatch(pattern)):
        return _sliced(text, int(cut[1]), None if cut[2] is None else int(cut[2]))
    return _trimmed(text, how, pattern) if how in ("%", "#") else None


def _trimmed(text: str, how: str, pattern: str) -> str:
    longest = pattern.startswith(how)
    pattern = pattern.removeprefix(how)
    cuts = range(len(text) + 1) if (how == "#") != longest else range(len(text), -1, -1)
    for cut in cuts:
        piece = text[cut:] if how == "%" else text[:cut]
        if fnmatch.fnmatchcase(piece, pattern):
            return text[:cut] if how == "%" else text[cut:]
    return text


def _sliced(text: str, start: int, length: int | None) -> str:
    """Negative numbers count from the end; a start in front of the text leaves nothing."""
    if start < 0:
        start += len(text)
    end = len(text) if length is None else len(text) + length if length < 0 else start + length
    return text[start:end] if start >= 0 else ""


def _replaced(text: str, pattern: str) -> str:
    """The first longest match; all of them behind //, at the start behind /#, at the end behind /%."""
    kind = pattern[:1] if pattern[:1] in ("/", "#", "%") else ""
    old, _, new = pattern[len(kind) :].partition("/")
    if not old:
        return text
    inner = re.sub(r"^\(\?s:(.*)\)\\[zZ]$", r"(?s:\1)", fnmatch.translate(old), flags=re.DOTALL)
    wanted = {"#": rf"\A{inner}", "%": rf"{inner}\Z"}.get(kind, inner)
    return re.sub(wanted, lambda match: new if match[0] else "", text, count=0 if kind == "/" else 1)
