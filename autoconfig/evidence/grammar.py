"""The formats of log lines as data/log_lines.toml has them, and how the pairs and figures of a line are read."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

MOST_PAIRS = 400
"""Of a line; verl prints about 120."""
_NUMBER = re.compile(
    r"\s{0,9}[\"'(]{0,3}(?:np\.float\d\d\()?([+-]?(?:\d[\d,]{0,29}\.?\d{0,30}|\.\d{1,30})(?:[eE][+-]?\d{1,4})?)([KMGT]?)"
)
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_DICT = re.compile(r"[\"']([\w/() #.-]{1,80})[\"']: ?(?:\"([^\"]{0,80})\"|'([^']{0,80})'|(-?[\d.][\d.eE+-]{0,40})(?=[\s,}]))")
_EQUALS = re.compile(r"\b([a-z][\w/]{0,40}(?: \(tokens/gpu/second\))?)=([\d.e+-]{1,40})(?=[\s,]|$)")
_CLOCK = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)([.,]\d{1,9})?")
_SPAN = re.compile(r"(?:(\d{1,5})d ?)?(?:(\d{1,3})h ?)?(?:(\d{1,3})m ?)?(?:(\d{1,3})s)?")
WHOLE = frozenset(
    (
        *("step", "steps_total", "samples", "tokens", "batch_size", "skipped", "rank", "running"),
        *("waiting", "pending", "swapped", "preempted", "gpu", "calls", "count"),
    )
) | {"size_bytes", "retries", "mask"}
"""Fields of records that are whole numbers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Format:
    """One row of the table."""

    name: str
    tool: str
    source: str
    record: str
    pattern: re.Pattern[str]
    has: tuple[bytes, ...] = ()
    any_of: tuple[bytes, ...] = ()
    pairs: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
    """`any`: the line is none of this format where no pair of it is known."""
    factor: Mapping[str, float] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    suffixes: bool = False
    """Figures end in K, M, G or T."""


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """The whole table."""

    formats: tuple[Format, ...]
    words: tuple[tuple[tuple[bytes, ...], tuple[bytes, ...], Format], ...]
    """(words of which one must be in a line, words that must all be in it, format): the first find most lines to be none."""
    keys: Mapping[str, Mapping[str, Any]]
    figures: Mapping[str, Any]
    timer_levels: Mapping[str, int]
    ranks: tuple[re.Pattern[str], ...]
    reasons: Mapping[int, str]


@cache
def grammar() -> Grammar:
    """The table that ships."""
    table = tomllib.loads((resources.files("autoconfig") / "data" / "log_lines.toml").read_text(encoding="utf-8"))
    keys = table["keys"]
    formats = tuple(_format(row, keys) for row in table["format"])
    return Grammar(
        formats=formats,
        words=tuple((row.any_of, row.has, row) if row.any_of else (row.has[:1], row.has[1:], row) for row in formats),
        keys=keys,
        figures=table["figures"],
        timer_levels=table["timer_levels"],
        ranks=tuple(re.compile(pattern) for pattern in table["ranks"]["patterns"]),
        reasons={int(bit): name for bit, name in table["clock_reasons"].items()},
    )


def _format(row: Mapping[str, Any], keys: Mapping[str, Any]) -> Format:
    entry: dict[str, Any] = dict(row)
    words: dict[str, Any] = {
        key: tuple(word.encode() for word in entry.pop(name, ())) for key, name in (("has", "has"), ("any_of", "any"))
    }
    return Format(
        pattern=re.compile(entry.pop("pattern")), keys=keys[entry.pop("keys")] if "keys" in entry else {}, **words, **entry
    )


def formats_for(line: bytes) -> tuple[Format, ...]:
    """The formats of whose words a line, or its shape without digits, holds those that it must."""
    formats = []
    for some, every, row in grammar().words:
        for word in some:
            if word in line:
                if not every or all(word in line for word in every):
                    formats.append(row)
                break
    return tuple(formats)


def number(text: str, *, suffixes: bool = False) -> float | None:
    """The figure that a text begins with: quotes, commas and numpy's names around it do not matter, what follows neither
    (`13372.8/13364.7`, `615.5 (avg 615.5)`). None where there is none or it is not finite."""
    match = _NUMBER.match(text)
    if match is None:
        return None
    value = float(match[1].replace(",", "")) * (_SUFFIX[match[2]] if suffixes else 1.0)
    return value if math.isfinite(value) else None


def moment(text: str) -> float | None:
    """A time of day in seconds since 1970, read as UTC; a number is seconds already."""
    match = _CLOCK.search(text)
    if match is None:
        return number(text)
    try:
        whole = datetime(*(int(part) for part in match.groups()[:6]), tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]
    except ValueError:
        return None
    return whole + float((match[7] or "0").replace(",", "."))


def duration(text: str) -> float | None:
    """`0:02:03`, `05:23`, `1m 3s`, `23d 14h 27m 6s` in seconds."""
    text = text.strip().strip("'\"")
    if ":" in text:
        parts = text.split(":")
        if len(parts) > 4 or not all(part.isdigit() and len(part) < 10 for part in parts):
            return None
        units = (1.0, 60.0, 3600.0, 86400.0)
        return sum(int(part) * unit for part, unit in zip(reversed(parts), units, strict=False))
    match = _SPAN.fullmatch(text)
    if match is None or not any(match.groups()):
        return number(text)
    return sum(int(part or 0) * unit for part, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True))


def pairs_of(how: str, text: str) -> Iterator[tuple[str, str]]:
    """(key, value) of the rest of a line, by the kind of pairs that its format has."""
    if how == "dict":
        for pair in _DICT.finditer(text):
            yield pair[1], next(value for value in pair.groups()[1:] if value is not None)
        return
    if how == "equals":
        yield from (pair.groups() for pair in _EQUALS.finditer(text))  # type: ignore[misc]
        return
    for piece in text.split({"bar": "|", "comma": ",", "dash": " - "}[how], MOST_PAIRS):
        key, between, value = piece.partition(":")
        if not between or ("=" in key and "(" not in key):
            key, between, value = piece.partition("=")
        if between and (key := key.strip()):
            yield key, value.strip(" |]})\t")


def read_field(how: Any, key: str, text: str, *, suffixes: bool = False) -> Iterator[tuple[str, float]]:
    """(field of the record, value) that the text of a key gives; `how` is the key's entry in the table."""
    name, factor, *special = how if isinstance(how, list) else (how, 1.0)
    if name in ("at", "elapsed"):
        value = moment(text) if name == "at" else duration(text)
    elif name == "mask":
        value = mask(text)
    else:
        value = number(text, suffixes=suffixes)
    if value is None:
        return
    if special == ["inverse"]:
        if value > 0:
            yield name, factor / value
        return
    yield name, value * factor
    if special and special[0] in ("of", "first and last"):
        last = number(text.rpartition("/")[2])
        if last is not None and "/" in text:
            yield special[1], last * (special[2] if len(special) > 2 else 1.0)


def mask(text: str) -> float | None:
    """A bit mask: `0x0000000000000004`, `4`."""
    text = text.strip().strip("'\"")
    try:
        return float(int(text, 16 if text[:2].lower() == "0x" else 10)) if len(text) < 24 else None
    except ValueError:
        return None


def fields_of(row: Format, match: re.Match[str], rest: str) -> tuple[dict[str, Any], dict[str, float], int]:
    """(fields of the record, other figures of the line in their own words, how many pairs were known)."""
    fields: dict[str, Any] = dict(row.set)
    others: dict[str, float] = {}
    for name, text in match.groupdict().items():
        if text is not None:
            _take(fields, name, read_group(row, name, text))
    known = 0
    for key, text in pairs_of(row.pairs, rest) if row.pairs else ():
        how = row.keys.get(key)
        if how is None:
            continue
        if how == "fields":
            if (value := number(text, suffixes=row.suffixes)) is not None:
                known, others[key] = known + 1, value
            continue
        read = list(read_field(how, key, text, suffixes=row.suffixes))
        for name, value in read:
            known += 1
            _take(fields, name, value)
        if not read and row.record == "step" and (how if isinstance(how, str) else how[0]) == "seconds":
            fields["unread"] = True
    return fields, others, known


def read_group(row: Format, name: str, text: str) -> Any:
    """What a named group of a pattern holds: a figure in the record's unit, or a text."""
    if name == "at":
        return moment(text)
    if name == "elapsed":
        return duration(text)
    if name in ("value", "name", "key", "number", "unit", "old_unit", "reason"):
        return text.strip()
    value = number(text)
    return None if value is None else value * row.factor.get(name, 1.0)


def _take(found: dict[str, Any], name: str, value: Any) -> None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return
    found[name] = int(value) if name in WHOLE else value
