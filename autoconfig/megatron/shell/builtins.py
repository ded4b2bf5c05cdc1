"""Commands of bash itself that change its variables or its options, and what echo, expr, seq and cat print. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest

from autoconfig.megatron.shell.arithmetic import whole_number
from autoconfig.megatron.shell.commands import (
    NEVER_RUN,
    NOT_FOLLOWED,
    Assignment,
    Held,
    Part,
    Piece,
    Value,
    Word,
    first_reason,
    is_name,
    joined,
    plain_value,
    reason_of,
    text_of,
    unknown,
)
from autoconfig.megatron.shell.syntax import Simple
from autoconfig.megatron.shell.values import BLANKS, Variables, listed_values, value_of
from autoconfig.planning.work import spend
from autoconfig.specs.errors import UnsupportedError

DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_CHANGES = {
    "lastpipe": "the last command of a pipe runs in the shell itself",
    "expand_aliases": "words stand for other commands",
}
"""Options of bash that change what the lines behind them do, and that are not followed."""
_ODD = {
    "A": "an associative array (declare -A) is not followed",
    "i": "what is assigned is worked out (declare -i), which is not followed",
}


def assign(variables: Variables, token: Word | Assignment, line: int) -> bool:
    """Take over an assignment; False for any other word. Raises UnsupportedError for a readonly name."""
    if isinstance(token, Word):
        return False
    name, held = token.name, variables.values.get(token.name, ())
    if name in variables.locked:
        raise UnsupportedError(f"line {line} assigns ${name}, which is readonly: bash refuses that; drop the line")
    if token.of_element:
        why = f"an element of ${name} is set in line {line}, which is not followed: say --set {name}=VALUE"
        variables.set(name, unknown(f"${name}", why))
    elif not isinstance(token.value, Word):
        elements = [value for word in token.value for value in listed_values(word, variables)]
        variables.set(name, [*(_elements(held) if token.append else ()), *elements])
    elif name not in variables.fixed:
        value = value_of(token.value, variables)
        if token.append:
            value = (*_text(held), *value)
        elif len(value) == 1 and value[0].unknown.endswith((NEVER_RUN, NOT_FOLLOWED)):
            value = (replace(value[0], unknown=f"{value[0].unknown}: say --set {name}=VALUE"),)
        spend(len(value) + 1)
        variables.set(name, tuple(piece for piece in value if piece.text))
    return True


def _text(held: Held) -> Value:
    """What a variable holds, as a text: of an array the first element."""
    return held if isinstance(held, tuple) else held[0] if held else ()


def _elements(held: Held) -> list[Value]:
    """What a variable holds, as the elements of an array."""
    return held if isinstance(held, list) else [held] if held else []


def declare(
    variables: Variables,
    frames: list[dict[str, Held | None]],
    words: Sequence[Word | Assignment],
    fields: Sequence[Value],
    line: int,
) -> bool:
    """`export`, `readonly`, and `local` and the like, whose names are the function's alone; False for a second name of a
    variable (`declare -n`), which is not followed: it may set any."""
    kind = text_of(fields[0])
    letters = _letters(kind, fields)
    named = {name: value for value in fields[1:] if is_name(name := text_of(value).partition("=")[0])}
    names = [*(token.name for token in words if isinstance(token, Assignment)), *named]
    spend(4 * len(fields))
    if frames and kind not in ("export", "readonly") and "g" not in letters:
        for name in names:
            frames[-1].setdefault(name, variables.values.get(name))
    for letter in set(letters) & set(_ODD):
        variables.odd |= dict.fromkeys(names, _ODD[letter])
    for token in words:
        assign(variables, token, line)
    for name, value in named.items():
        _declare_text(variables, name, value)
    if kind == "readonly" or ("r" in letters and not frames):
        variables.locked |= frozenset(names)
    return "n" not in letters


def _letters(kind: str, fields: Sequence[Value]) -> str:
    """The options of a command: `gA` of `declare -g -A NAME`; those of `export` and `readonly` do not count."""
    if kind in ("export", "readonly"):
        return ""
    return "".join(text[1:] for text in map(text_of, fields[1:]) if text[:1] == "-")


def _declare_text(variables: Variables, name: str, value: Value) -> None:
    """`declare "$NAME=4"`."""
    _, equals, text = text_of(value).partition("=")
    if equals or name in variables.odd:
        variables.set(name, unknown(f"${name}", reason) if (reason := reason_of(value)) else plain_value(text))


_READS = {
    (): (False, False),
    ("-r",): (True, False),
    ("-d", ""): (False, True),
    ("-r", "-d", ""): (True, True),
    ("-rd", ""): (True, True),
}
"""Options of `read`: whether a backslash stands for itself, and whether all lines are read."""


def read_into(variables: Variables, simple: Simple, fields: Sequence[Value], stdin: Value | None) -> bool | None:
    """Follow `[IFS=,] read [-r] [-d ''] NAMES` of a text that is known: whether it succeeds, as where the line has an end.
    None where it is written otherwise, or the text is not known: nothing is set then."""
    texts = [text_of(value) for value in fields[1:]]
    names = list(takewhile(is_name, reversed(texts)))[::-1]
    mode = _READS.get(tuple(texts[: len(texts) - len(names)])) if names else None
    signs = _own_signs(variables, simple)
    if mode is None or stdin is None or first_reason((*fields, stdin, signs)):
        return None
    text, (raw, whole) = text_of(stdin), mode
    line, end, _ = (text, "", "") if whole else text.partition("\n")
    words = _split(line, text_of(signs), len(names) - 1) if raw or "\\" not in text else None
    if words is None:
        return None
    for name, word in zip_longest(names, words, fillvalue=""):
        variables.set(name, plain_value(word)[: len(word)])
    if len(names) == 1:
        variables.set(names[0], _where_it_stands(words[0], line, stdin))
    return bool(end)


def _own_signs(variables: Variables, simple: Simple) -> Value:
    """What ends a word for `IFS=SIGNS COMMAND`."""
    own = [token.value for token in simple.words if isinstance(token, Assignment) and token.name == "IFS"]
    return value_of(own[-1], variables) if own and isinstance(own[-1], Word) else plain_value(variables.signs_between())


def _split(line: str, signs: str, cuts: int) -> list[str] | None:
    """The words between blanks, or between one other sign; None for other signs, and for one at the end."""
    spend(len(line))
    if not cuts and signs in ("", BLANKS):
        return [line.strip(BLANKS) if signs else line]
    if signs == BLANKS:
        return re.split(f"[{BLANKS}]+", line.strip(BLANKS), maxsplit=cuts)
    return line.split(signs, cuts) if len(signs) == 1 and not signs.isspace() and not line.endswith(signs) else None


def _where_it_stands(word: str, line: str, stdin: Value) -> Value:
    """A word of the first line, with the places that its characters have in the file."""
    places = [place for part in stdin for place in part.origin]
    start = line.index(word)
    if not word or len(places) != len(text_of(stdin)):
        return plain_value(word)[: len(word)]
    return (Piece(text=word, origin=tuple(places[start : start + len(word)])),)


@dataclass(frozen=True, kw_only=True)
class OwnCommand:
    """A command of bash itself: its words, and what works out arithmetic."""

    variables: Variables
    fields: Sequence[Value]
    line: int
    compute: Callable[[Part], bool | None]

    @property
    def words(self) -> list[str]:
        return list(map(text_of, self.fields[1:]))

    def forget(self, names: Iterable[str], why: str) -> bool:
        """Names that are not known behind it."""
        for name in filter(is_name, names):
            self.variables.set(name, unknown(f"${name}", f"${name} {why} (line {self.line}): say --set {name}=VALUE"))
        return True


def _shift(call: OwnCommand) -> bool:
    by = "".join(call.words[:1])
    call.variables.shift(int(by) if by.isdigit() and len(by) < 4 else 1)
    return True


def _set(call: OwnCommand) -> bool | None:
    if call.words[:1] != ["--"]:
        return True
    call.variables.set_positional(call.fields[2:])
    return True


def _let(call: OwnCommand) -> bool | None:
    parts = (Part(kind="literal", text=word, quoted=True, line=call.line) for word in call.words)
    rests = (Word(parts=(part,), line=call.line) for part in parts)
    results = [call.compute(Part(kind="arithmetic", text="", quoted=True, line=call.line, rest=rest)) for rest in rests]
    return results[-1] if results else None


def _shopt(call: OwnCommand) -> None:
    """Raises UnsupportedError for options that are not followed."""
    if "-s" in call.words and (odd := next((word for word in call.words if word in _CHANGES), "")):
        raise UnsupportedError(f"line {call.line}: shopt -s {odd}: {_CHANGES[odd]}, which is not followed; drop the line")


def _getopts(call: OwnCommand) -> bool:
    """Of a script without options: there is none. Raises UnsupportedError for one that is given some."""
    if call.variables.values.get("@") or "1" in call.variables.values:
        why = "getopts is followed for a script without options only; leave them out, and say what they set"
        raise UnsupportedError(f"line {call.line}: {why} (--set NAME=VALUE)")
    call.variables.set("OPTIND", plain_value("1"))
    for name in call.words[1:2]:
        call.variables.set(name, plain_value("?"))
    return False


def _printf(call: OwnCommand) -> bool | None:
    """`printf -v NAME FORMAT WORDS`, which is not worked out; None for one that prints."""
    return call.forget(call.words[1:2], "is what printf -v makes") if call.words[:1] == ["-v"] else None


def _unset(call: OwnCommand) -> bool:
    """Names; an element of an array leaves a gap, which is not followed."""
    for word in call.words:
        name, bracket, _ = word.partition("[")
        if is_name(word):
            call.variables.values.pop(word, None)
        elif bracket and isinstance(call.variables.values.get(name), list):
            call.forget([name], "has an element unset")
    return True


_BUILTINS: dict[str, Callable[[OwnCommand], bool | None]] = {
    "true": lambda call: True,
    ":": lambda call: True,
    "false": lambda call: False,
    "shift": _shift,
    "set": _set,
    "let": _let,
    "shopt": _shopt,
    "getopts": _getopts,
    "printf": _printf,
    "unset": _unset,
    **dict.fromkeys(("read", "mapfile", "readarray"), lambda call: call.forget(call.words, "is read while the script runs")),
}
QUIET = frozenset({*_BUILTINS, "cd"} - {"printf"})
"""Commands that print nothing."""


def builtin(call: OwnCommand) -> bool | None:
    """Follow a command of bash itself; None for others and where they change nothing. Raises UnsupportedError for what changes
    how the lines behind it are read and is not followed."""
    follow = _BUILTINS.get(text_of(call.fields[0]))
    return None if follow is None else follow(call)


def ends_at_failure(fields: Sequence[Value], *, before: bool) -> bool:
    """Whether `set -e` holds behind a command."""
    name, *words = map(text_of, fields)
    if name != "set" or words[:1] == ["--"]:
        return before
    for at, word in enumerate(words):
        letters = word[1:] if word[:1] in ("-", "+") and word[1:].isalpha() and word.islower() else ""
        if "e" in letters or (letters == "o" and words[at + 1 : at + 2] == ["errexit"]):
            before = word[0] == "-"
    return before


_OF_EXPR = re.compile(r"[0-9]+|[-+*/%()]|[<>]=?|!=")


def printed(fields: Sequence[Value], stdin: Value | None) -> Value | None:
    """Return what echo, expr, `seq FIRST LAST` and cat print; None for all other commands, and where it is not known."""
    name, *words = map(text_of, fields)
    match name.rsplit("/", 1)[-1]:
        case "echo":
            return _echo(fields[1:])
        case "cat":
            return None if words else stdin
        case "expr" if not first_reason(fields) and all(map(_OF_EXPR.fullmatch, words)):
            number = whole_number(" ".join(words))
            return None if number is None else plain_value(f"{number}\n")
        case "seq" if len(words) == 2 and all(word.isdecimal() and len(word) < 4 for word in words):
            return plain_value("".join(f"{number}\n" for number in range(int(words[0]), int(words[1]) + 1)))
    return None


def _echo(fields: Sequence[Value]) -> Value | None:
    """The words, with the places in the file that those have of which a part is not known; None where -e changes other signs
    than line ends and tabs."""
    texts = list(map(text_of, fields))
    options = "".join(takewhile(lambda text: len(text) > 1 and text[0] == "-" and set(text[1:]) <= set("neE"), texts))
    value = joined(fields[options.count("-") :], plain_value(" "))
    changes = "e" in options and "\\" in text_of(value)
    if first_reason(fields):
        return None if changes or texts[0].startswith("-") else (*value, *plain_value("\n"))
    text = text_of(value).replace("\\n", "\n").replace("\\t", "\t") if changes else text_of(value)
    return None if changes and "\\" in text else plain_value(text if "n" in options else f"{text}\n")
