"""A start's file with other flags, in the file's own words: which of its names a flag has, how values stand behind it, in a
shell's command, a list of JSON or YAML, or the YAML of TensorRT-LLM's settings that a script writes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from autoconfig.engines.flags import ALIASES_OF_YAML, find
from autoconfig.engines.reading import MODEL_SETTINGS, ReadStart
from autoconfig.maps.spans import cut, quoted

Changes = Sequence[tuple[str, str, str]]
"""(flag, value before, value after) as written.changed_flags has them; `on`: a switch, empty: not given."""
_BETWEEN = r"(?:=|[ \t]+(?:\\\n\s*)?|[\"']\s*,\s*[\"']|[\"']?\s*\n\s*-\s+[\"']?)"
"""What stands between a flag and its value."""


def edited(text: str, read: ReadStart, changes: Changes) -> str | None:
    """Return the file with other flags; None where it has no place for one of them. What it says must be read again."""
    first = [change for change in changes if change[1]]
    for flag, before, after in (*first, *reversed([change for change in changes if not change[1]])):  # each right behind a flag
        changed = _changed(text, read, flag, before, after)
        if changed is None:
            return None
        text = changed
    return text


def own_words(read: ReadStart, changes: Changes) -> Changes:
    """Return the changes with flags as the file spells them."""
    return tuple((_spelled(read, flag) or flag, before, after) for flag, before, after in changes)


def diff_lines(before: str, after: str) -> tuple[str, ...]:
    """Return lines that go (`-`) and come (`+`), in order."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return tuple(line for line in list(lines)[2:] if not line.startswith("@@"))


def _setting(read: ReadStart, flag: str) -> str:
    row = find(read.engine, flag)
    return row.name if row is not None else flag.lstrip("-")


def _spelled(read: ReadStart, flag: str) -> str:
    """Return the flag's name in the command; empty where it does not say it."""
    one = read.said.get(_setting(read, flag))
    return re.split("[= ]", one.source)[0] if one is not None and one.source.startswith("-") else ""


def _changed(text: str, read: ReadStart, flag: str, before: str, after: str) -> str | None:
    name = _spelled(read, flag)
    if name:
        raw = read.said[_setting(read, flag)].source[len(name) + 1 :]  # 32k, and not 32768
        changed = _replaced(text, name, raw, after) if after else _removed(text, name, raw)
        one = after or "1" * flag.endswith("size")  # of a size that is not given
        return changed if changed is not None or not one else _assigned(text, name, raw, one)
    if key := _key(read, flag):
        value = after or {"true": "false"}.get(before, "")
        pattern = rf"^(\s*[\"']?{re.escape(key)}[\"']?\s*:\s*)[^\s#]+(?=\s*$)"
        new, count = re.subn(pattern, lambda match: match[1] + value, text, count=1, flags=re.MULTILINE)
        return new if count and value else None
    return _added(text, read, flag, "" if after == "on" else after) if after and flag.startswith("-") else None


def _assigned(text: str, name: str, before: str, after: str) -> str | None:
    """Return the text with another value of the variable that stands behind a flag, where the file sets it in one place; with
    the value in place of one that it does not set."""
    word = re.search(rf"(?<![\w-]){re.escape(name)}{_BETWEEN}[\"']?(\$(?:\{{(\w+)\}}|(\w+)|\{{(\w+)\b))", text)
    if word is None:
        return None
    variable = word[2] or word[3] or word[4]
    set_here = rf"(?:^|[\s;])(?:export\s+)?{variable}=[\"']?|\$\{{{variable}:?[-=][\"']?"
    places = list(re.finditer(rf"({set_here}){re.escape(before)}(?![\w.-])", text, flags=re.MULTILINE))
    if len(places) == 1:
        return text[: places[0].end(1)] + after + text[places[0].end() :]
    return None if places or word[4] else text[: word.start(1)] + after + text[word.end(1) :]


def _key(read: ReadStart, flag: str) -> str:
    """Return the last name of a key that a YAML beside the command has; empty where none has it."""
    setting = _setting(read, flag)
    one = read.said.get(setting)
    if one is None or one.source.startswith("-") or " of " not in one.source:
        return ""
    other = {full: short for short, full in ALIASES_OF_YAML.items()}
    return str(other.get(setting, setting)).rpartition(".")[2]


def _place(text: str, name: str, value: str) -> re.Match[str] | None:
    """Return where a flag with its value stands; None where that is nowhere, or in several places."""
    last = rf"{_BETWEEN}{re.escape(value)}" if value else ""
    places = list(re.finditer(rf"(?<![\w-]){re.escape(name)}{last}(?![\w.-])", text))
    return places[0] if len(places) == 1 else None


def _replaced(text: str, name: str, before: str, after: str) -> str | None:
    match = _place(text, name, before)
    return None if match is None else text[: match.end() - len(before)] + after + text[match.end() :]


def _removed(text: str, name: str, value: str) -> str | None:
    match = _place(text, name, value)
    return None if match is None else cut(text, quoted(text, match.span()))


def _added(text: str, read: ReadStart, flag: str, value: str) -> str | None:
    """Return the text with a flag behind the first of the command's flags, or its model, that stands in one place."""
    words = [one.source for one in read.said.values() if one.source.startswith("-")]
    for source in words:
        name, _, rest = source.partition(" ")
        if (match := _place(text, name, rest)) is not None:
            return _inserted(text, match, flag, value, "=" if "=" in match[0] else " ")
    model = read.said[MODEL_SETTINGS[read.engine]].value
    places = list(re.finditer(rf"(?<![\w/-]){re.escape(str(model))}(?![\w/.-])", text))
    return _inserted(text, places[0], flag, value, " ") if len(places) == 1 else None


def _inserted(text: str, match: re.Match[str], flag: str, value: str, joint: str) -> str:
    end = match.end()
    line = text[text.rfind("\n", 0, end) + 1 : end]
    quote = text[end : end + 1] if text[end : end + 1] in ("'", '"') else ""
    if item := re.match(r"(\s*-\s+)[\"']?\S*$", line):
        words = [f"{flag}={value}"] if joint == "=" and value else [flag, *([f'"{value}"'] if value else [])]
        end += len(quote)
        return text[:end] + "".join(f"\n{item[1]}{word}" for word in words) + text[end:]
    if quote:
        option = "".join(f", {quote}{word}{quote}" for word in (flag, value) if word)
        return text[: end + 1] + option + text[end + 1 :]
    option = f"{flag}{joint}{value}".rstrip(" =")
    if more := re.match(r"[ \t]*\\\n([ \t]*)", text[end:]):
        return f"{text[:end]} \\\n{more[1]}{option}{text[end:]}"
    return f"{text[:end]} {option}{text[end:]}"
