"""Edits of a text where its words stand: what is between two places is replaced or cut, and every other character stays."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def replaced(text: str, edits: Iterable[tuple[Span, str]]) -> str:
    """Return the text with other words at these spans, none: cut. Raises ValueError where two of them overlap."""
    before = len(text)
    for (start, end), words in sorted(edits, reverse=True):
        if end > before:
            raise ValueError("two of the changed values stand in the same place")
        text, before = f"{text[:start]}{words}{text[end:]}" if words else cut(text, (start, end)), start
    return text


def quoted(text: str, span: Span) -> Span:
    """Return the span of a word with the quotes around it."""
    start, end = span
    quotes = text[start - 1 : start], text[end : end + 1]
    return (start - 1, end + 1) if quotes in (("'", "'"), ('"', '"')) else span


def cut(text: str, span: Span) -> str:
    """Return the text without a word: with its line where nothing but a list's dash or a comment stands there, and with the
    backslash that led to it where the command ends there; else with the comma before a quoted word, or blanks on one side."""
    start, end = span
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last
    before, after = text[first:start], text[end:last].rstrip("\r")
    rest, above = f"{before}{after}".strip(), text[: max(0, first - 1)].rstrip("\r")
    continued = above.endswith("\\")
    if rest in ("\\", "-") or (not continued and (not rest or rest.startswith("#"))):
        return text[:first] + text[last + 1 :]
    if continued and not rest:
        return above[:-1].rstrip(" \t") + text[last:]
    listed = text[:start].rstrip()
    if text[start] in "\"'" and listed.endswith(","):
        return listed[:-1] + text[end:]
    if before.strip() and before[-1] in " \t":
        return text[:first] + before.rstrip(" \t") + text[end:]
    blanks = len(after) - len(after.lstrip(" \t"))
    return text[:start] + text[end + blanks * (after.strip()[:1] not in ("\\", "#", "")) :]
