"""Commands of bash itself that change its variables or its options: assignments, `declare`, `read`, `set`, `shift`, `unset`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from autoconfig.megatron.shell.commands import (
    NEVER_RUN,
    Assignment,
    Held,
    Part,
    Piece,
    Value,
    Word,
    first_reason,
    is_name,
    plain_value,
    reason_of,
    text_of,
    unknown,
)
from autoconfig.megatron.shell.printed import formatted
from autoconfig.megatron.shell.syntax import Simple
from autoconfig.megatron.shell.values import Variables, listed_values, value_of
from autoconfig.planning.work import spend
from autoconfig.specs.errors import UnsupportedError

MAX_READ = 10_000
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
    if token.index:
        _set_element(variables, token)
    elif not isinstance(token.value, Word):
        elements = [value for word in token.value for value in listed_values(word, variables)]
        variables.set(name, [*(_elements(held) if token.append else ()), *elements])
    elif name not in variables.fixed:
        value = value_of(token.value, variables)
        if token.append:
            value = (*_text(held), *value)
        elif len(value) == 1 and value[0].unknown.endswith(NEVER_RUN):
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


def _set_element(variables: Variables, token: Assignment) -> None:
    """NAME[INDEX]=VALUE: of an array whose elements are known, else the array is not known any more."""
    held = variables.values.get(token.name, [])
    spend(len(held))
    index = int(token.index) if token.index.isdigit() and len(token.index) < 5 else -1
    if isinstance(held, list) and isinstance(token.value, Word) and 0 <= index <= len(held) and not token.append:
        variables.set(token.name, [*held[:index], value_of(token.value, variables), *held[index + 1 :]])
    else:
        why = f"an element of ${token.name} is set to what is not followed: say --set {token.name}=VALUE"
        variables.set(token.name, unknown(f"${token.name}", why))


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


def read_into(variables: Variables, simple: Simple, fields: Sequence[Value], stdin: Value | None) -> bool | None:
    """`[IFS=,] read [-r] [-d ''] NAMES` of a text that is known: whether it succeeds, which it does not where no sign that
    ends a line is found. None where it is written otherwise, or the text is not known: nothing is set then."""
    match = _READ.fullmatch("".join(f"{text_of(value)}\0" for value in fields[1:]))
    signs = _own_signs(variables, simple)
    if match is None or stdin is None or first_reason((*fields, stdin, signs)):
        return None
    text, flags, names = text_of(stdin), match["flags"], match["names"].split("\0")[:-1]
    spend(len(text))
    line, end, _ = (text, "", "") if "d" in flags else text.partition("\n")
    words = _split(line, text_of(signs), 0 if "a" in flags else len(names))
    if words is None or ("\\" in text and "r" not in flags):
        return None
    values = [plain_value(word) if word else () for word in words]
    if "a" in flags:
        variables.set(names[0], values)
        return bool(end)
    if len(names) == 1 and values[0]:
        values = [_where_it_stands(values[0][0], line, stdin)]
    for name, value in zip_longest(names, values, fillvalue=()):
        variables.set(str(name), value)
    return bool(end)


def _where_it_stands(piece: Piece, line: str, stdin: Value) -> Value:
    """A word of the first line, with the places that its characters have in the file."""
    places = [place for part in stdin for place in part.origin]
    start = line.index(piece.text)
    known = len(places) == len(text_of(stdin))
    return (replace(piece, origin=tuple(places[start : start + len(piece.text)])) if known else piece,)


def _own_signs(variables: Variables, simple: Simple) -> Value:
    """What ends a word for `IFS=SIGNS COMMAND`."""
    own = [token.value for token in simple.words if isinstance(token, Assignment) and token.name == "IFS"]
    return value_of(own[-1], variables) if own and isinstance(own[-1], Word) else plain_value(variables.signs_between())


def _split(line: str, signs: str, most: int) -> list[str] | None:
    """The words of a line that `read` takes, the rest in the last of `most` (0: all); None where it is odd."""
    blank = not signs.strip()
    if not blank and (any(sign.isspace() for sign in signs) or line[-1:] in signs):
        return None
    left = line.strip(signs) if signs and blank else line
    if most == 1:
        return [left]
    if not signs or len(line) > MAX_READ:
        return None
    return re.split(f"[{re.escape(signs)}]{'+' if blank else ''}", left, maxsplit=max(0, most - 1))


_READ = re.compile(r"(?P<flags>(?:-(?:r|a|ra|ar|r?d\0)\0)*+)(?P<names>(?:[A-Za-z_]\w*+\0)++)")
"""The words behind `read`, each with a zero behind it."""


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

    def forget(self, why: str) -> bool:
        """Names that are not known behind it."""
        for name in filter(is_name, self.words):
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
    """`printf -v NAME FORMAT WORDS`; None for one that prints."""
    flag, name, *words = [*call.words, "", ""][: max(2, len(call.words))]
    if flag != "-v" or not words:
        return None
    reason = first_reason(call.fields)
    text = None if reason else formatted(words)
    why = reason or f"what printf puts into ${name} in line {call.line} cannot be worked out"
    call.variables.set(name, unknown(f"${name}", why) if text is None else plain_value(text))
    return True


def _unset(call: OwnCommand) -> bool:
    """Names, and the last element of an array; every other element leaves a gap, which is not followed."""
    for word in call.words:
        name, _, index = word.removesuffix("]").partition("[")
        held = call.variables.values.get(name)
        if not index and is_name(name):
            call.variables.values.pop(name, None)
        elif index and isinstance(held, list) and held and index in ("-1", str(len(held) - 1)):
            call.variables.set(name, held[:-1])
        elif index and isinstance(held, list) and not (index.isdigit() and len(index) < 7 and int(index) >= len(held)):
            call.variables.set(name, unknown(f"${name}", f"an element of ${name} is unset: say --set {name}=VALUE"))
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
    **dict.fromkeys(("read", "mapfile", "readarray"), lambda call: call.forget("is read while the script runs")),
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
        if re.fullmatch(r"[-+][a-df-z]*+e[a-z]*+", word) or (word in ("-o", "+o") and words[at + 1 : at + 2] == ["errexit"]):
            before = word[0] == "-"
    return before
