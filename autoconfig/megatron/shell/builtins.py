"""Commands of bash itself that change its variables or its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from autoconfig.megatron.shell.commands import Arithmetic, Part, Word
from autoconfig.megatron.shell.printed import printed_into
from autoconfig.megatron.shell.values import Value, Variables, text_of
from autoconfig.specs.errors import UnsupportedError

BUILTINS = frozenset({"shift", "set", "let", "printf", "shopt"})
_CHANGES = {
    "lastpipe": "the last command of a pipe runs in the shell itself",
    "expand_aliases": "words stand for other commands",
}
"""Options of bash that change what the lines behind them do, and that are not followed."""


def builtin(
    variables: Variables, fields: Sequence[Value], line: int, compute: Callable[[Arithmetic], bool | None]
) -> bool | None:
    """shift, `set -- WORDS`, let and `printf -v NAME`; None where they do nothing to variables. Raises UnsupportedError for
    options of bash that are not followed."""
    name, *words = map(text_of, fields)
    if name == "shopt" and "-s" in words and (odd := next((word for word in words if word in _CHANGES), "")):
        raise UnsupportedError(f"line {line}: shopt -s {odd}: {_CHANGES[odd]}, which is not followed; drop the line")
    if name == "shift":
        variables.shift(int(words[0]) if words and words[0].isdigit() and len(words[0]) < 4 else 1)
        return True
    if name == "set" and words[:1] == ["--"]:
        variables.set_positional(fields[2:])
        return True
    if name == "let":
        parts = (Word(parts=(Part(kind="literal", text=word, quoted=True, line=line),), line=line) for word in words)
        rounds = (Part(kind="arithmetic", text="", quoted=True, line=line, rest=word) for word in parts)
        return [compute(Arithmetic(part=part, line=line)) for part in rounds][-1] if words else None
    if name == "printf" and words[:1] == ["-v"] and len(words) > 2:
        printed_into(variables, fields[1:], line)
        return True
    return None


def ends_at_failure(fields: Sequence[Value], *, before: bool) -> bool:
    """Whether `set -e` holds behind a command."""
    name, *words = map(text_of, fields)
    if name != "set" or words[:1] == ["--"]:
        return before
    for at, word in enumerate(words):
        if re.fullmatch(r"[-+][a-z]*e[a-z]*", word) or (word in ("-o", "+o") and words[at + 1 : at + 2] == ["errexit"]):
            before = word[0] == "-"
    return before
