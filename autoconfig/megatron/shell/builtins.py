"""Commands of bash itself that change its variables or its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from autoconfig.megatron.shell.commands import Arithmetic, Part, Value, Word, plain_value, text_of
from autoconfig.megatron.shell.printed import printed_into
from autoconfig.megatron.shell.values import Variables
from autoconfig.specs.errors import UnsupportedError

BUILTINS = frozenset({"shift", "set", "let", "printf", "shopt", "getopts"})
_CHANGES = {
    "lastpipe": "the last command of a pipe runs in the shell itself",
    "expand_aliases": "words stand for other commands",
}
"""Options of bash that change what the lines behind them do, and that are not followed."""


def builtin(
    variables: Variables, fields: Sequence[Value], line: int, compute: Callable[[Arithmetic], bool | None]
) -> bool | None:
    """shift, `set -- WORDS`, getopts, let and `printf -v NAME`; None where they do nothing to variables. Raises
    UnsupportedError for options of bash that are not followed."""
    name, *words = map(text_of, fields)
    if name == "shopt" and "-s" in words and (odd := next((word for word in words if word in _CHANGES), "")):
        raise UnsupportedError(f"line {line}: shopt -s {odd}: {_CHANGES[odd]}, which is not followed; drop the line")
    if name == "shift":
        variables.shift(int(words[0]) if words and words[0].isdigit() and len(words[0]) < 4 else 1)
        return True
    if name == "getopts" and len(words) >= 2:
        return _getopts(variables, words[0], words[1], fields[3:])
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


def _getopts(variables: Variables, letters: str, name: str, given: Sequence[Value]) -> bool:
    """`getopts LETTERS NAME [WORDS]`: the next option of the script, or of the words; False behind the last. A script is read
    as started without arguments (--set 1=-t --set 2=4 gives some). OPTIND and OPTARG as bash sets them."""
    held = variables.values.get("@")
    words = list(given) or (held if isinstance(held, list) else [])
    while not given and not isinstance(held, list) and (value := variables.values.get(str(len(words) + 1))) is not None:
        words = [*words, value if not isinstance(value, list) else ()]
    begun, inside = variables.values.get("OPTIND"), variables.values.get(_INSIDE)
    at = int(text_of(begun)) if isinstance(begun, tuple) and text_of(begun).isdecimal() else 1
    offset = int(text_of(inside)) if isinstance(inside, tuple) else 1
    word = text_of(words[at - 1]) if at <= len(words) else ""
    if word in ("", "-", "--") or word[0] != "-":
        variables.set("OPTIND", plain_value(str(at + (word == "--"))))
        variables.set(name, plain_value("?"))
        return False
    letter, left = word[offset], word[offset + 1 :]
    takes = letter != ":" and f"{letter}:" in letters
    variables.values.pop("OPTARG", None)
    if takes and not left and at >= len(words):
        letter = ":" if letters.startswith(":") else "?"
    elif takes:
        variables.set("OPTARG", plain_value(left) if left else words[at])
        at += not left
    elif letter not in letters.replace(":", ""):
        letter = "?"
    goes_on = bool(left) and not takes
    variables.set("OPTIND", plain_value(str(at if goes_on else at + 1)))
    variables.set(_INSIDE, plain_value(str(offset + 1 if goes_on else 1)))
    variables.set(name, plain_value(letter))
    return True


_INSIDE = "OPTIND of letters"
"""Where the next letter stands in a word of several; no name that a script could use."""


def ends_at_failure(fields: Sequence[Value], *, before: bool) -> bool:
    """Whether `set -e` holds behind a command."""
    name, *words = map(text_of, fields)
    if name != "set" or words[:1] == ["--"]:
        return before
    for at, word in enumerate(words):
        if re.fullmatch(r"[-+][a-df-z]*+e[a-z]*+", word) or (word in ("-o", "+o") and words[at + 1 : at + 2] == ["errexit"]):
            before = word[0] == "-"
    return before
