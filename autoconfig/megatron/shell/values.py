"""What words of a shell script stand for: variables, defaults, arrays, arithmetic. Pure text: no command is ever run.

A value is a row of pieces, each with the place of its characters in the file, so that it can be edited there. What cannot be
known without running something (a command's output, a variable that only the environment holds) is a piece with the reason.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.megatron.shell.arithmetic import NotKnownError, evaluate
from autoconfig.megatron.shell.commands import NEVER_RUN, Part, Piece, Value, Word, known_text, plain_value, reason_of, text_of
from autoconfig.megatron.shell.expansions import (
    Sign,
    edited,
    loose,
    odd_pattern,
    positions,
    shifted,
    sliced,
    split_into,
    whole,
    with_remedy,
)
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

MAX_BRACES = 10_000
MAX_LOOKUPS = 200
_ASSIGNED = re.compile(r"(?:\+\+|--)\s*+([A-Za-z_]\w*+)|(?<!\w)([A-Za-z_]\w*+)\s*+(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))")
_SPECIAL = "#?@*$!-"
_HANDED_OVER = ("@", "*")
_EVERY = re.compile(r"\[[@*]\]([/%#^,]?)")
"""All elements of an array, with what is done to each of them."""
_OF_THE_MACHINE = re.compile(
    r"(?:SLURM|PBS|LSB|OMPI|PMIX?|PALS|MV2|FLUX|COBALT|SGE)_\w+|HOSTNAME|HOSTTYPE|OSTYPE|USER|HOME|PWD|UID|SHELL|PATH"
)
"""Variables that bash, the login or a scheduler sets: that the file does not set them does not say that they are empty."""


@dataclass
class Variables:
    """Shell variables while a script is read; a list is an array."""

    values: dict[str, Value | list[Value]] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    """Names whose value the caller said: the script does not change them."""
    locked: frozenset[str] = frozenset()
    """Names that `readonly` keeps as they are."""
    integers: frozenset[str] = frozenset()
    """Names of `declare -i`."""
    maps: frozenset[str] = frozenset()
    """Names of `declare -A`: an element is kept as `NAME[KEY]`."""
    substitute: Callable[[Part], Value | None] | None = None
    """What a command substitution prints, where that can be said without running it."""
    unseen: str = ""
    """Text that is not known and may have set any variable; empty where there was none."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Second names of variables (`declare -n NAME=OTHER`)."""
    sourced: list[Any] = field(default_factory=list)
    """Files that ran in the script's shell and were not read (unseen.Sourced), shared by all copies."""
    odd_options: frozenset[str] = frozenset()
    """Options of bash that change what patterns match, of which the script speaks."""
    asked: list[str] = field(default_factory=list)
    """Names without a value that were looked up, shared by all copies."""

    def copy(self) -> Variables:
        spend(len(self.values) / 4)
        return replace(self, values=dict(self.values))

    def set(self, name: str, value: Value | list[Value]) -> None:
        name = self.others.get(name, name)
        if name not in self.fixed and name not in self.locked:
            spend(1 + (len(value) if isinstance(value, list) else 0))
            self.values[name] = value

    def positional(self) -> dict[str, Value | list[Value]]:
        """$1, $2, ..., $@ and $#, as far as they are known."""
        spend(len(self.values) / 4)
        return {name: value for name, value in self.values.items() if name.isdigit() or name in "@#"}

    def set_positional(self, given: Sequence[Value] | dict[str, Value | list[Value]]) -> None:
        """The words of `given` from now on; or what `positional` told."""
        for name in self.positional():
            del self.values[name]
        self.values |= given if isinstance(given, dict) else positions(given)

    def shift(self, by: int) -> None:
        """`shift`: the first words go."""
        self.set_positional(shifted(self.positional(), by))

    def scalar(self, name: str, line: int) -> Value:
        name = self.others.get(name, name)
        found = self.values.get(name)
        if isinstance(found, list):
            return found[0] if found else ()
        if found is not None:
            return found
        if name in _SPECIAL:
            return (Piece(text=f"${name}", unknown=f"${name} in line {line} is known only when the script runs"),)
        if name.isdigit():
            why = f"${name} in line {line} is an argument of the script: say --set {name}=VALUE"
        elif self.unseen:
            why = f"${name} in line {line} may be set by {self.unseen}: say --set {name}=VALUE"
        else:
            why = f"${name} in line {line} is not set in the file: say --set {name}=VALUE"
            self.asked.append(name)
        clean = not (name.isdigit() or self.unseen or _OF_THE_MACHINE.fullmatch(name))
        return (Piece(text=f"${name}", unknown=why, unset=clean),)


def fields_of(word: Word, variables: Variables) -> list[Value]:
    """The words that one word becomes: unquoted variables are split at blanks, "${ARRAY[@]}" gives
    its elements."""
    fields: list[list[Piece]] = [[]]
    kept = [False]
    spend(2 + 3 * len(word.parts))
    arrays = [_is_array(part, variables) and not (part.quoted and _is_joined(part)) for part in word.parts]
    for part, is_array in zip(word.parts, arrays, strict=True):
        if is_array:
            for number, element in enumerate(_elements(part, variables)):
                if number:
                    fields.append([])
                    kept.append(False)
                if part.quoted:
                    fields[-1].extend(element)
                    kept[-1] = True
                else:
                    split_into(fields, tuple(loose(element)), _signs_between(variables))
                    kept += [False] * (len(fields) - len(kept))
            continue
        pieces = _joined(part, variables) if _is_array(part, variables) else part_value(part, variables)
        if part.quoted or part.kind == "literal":
            fields[-1].extend(loose(pieces) if part.text == "@" else whole(pieces))
            kept[-1] |= part.quoted and not any(arrays)
            continue
        if part.rest and any(re.search(r"\s", text_of(word)) for word in _inner_words(part.rest, variables)):
            pieces = _unknown(part, variables)
        single = part.kind == "arithmetic" or part.text in _SPECIAL or _OF_THE_MACHINE.fullmatch(part.text)
        split_into(fields, pieces if single else tuple(loose(pieces)), _signs_between(variables))
        kept += [False] * (len(fields) - len(kept))
    found = zip((tuple(pieces) for pieces in fields), kept, strict=True)
    return [value for value, keep in found if keep or text_of(value)]


_BRACES = re.compile(r"([^{},]*+)\{(?:(-?[0-9]{1,6})\.\.(-?[0-9]{1,6})(?:\.\.-?([0-9]{1,6}))?|([^{},]*+,[^{}]*+))\}([^{},]*+)")

_IN_BRACES = re.compile(r"\{([^{}]*+)\}")


def listed_values(word: Word, variables: Variables) -> list[Value]:
    """The values that a loop goes over, or an array holds, for one word: `fields_of`, and for {1..8..2} and {a,b} each that the
    braces give; {1..$N} stays what it is, as bash expands braces before variables."""
    bare = not any(part.quoted for part in word.parts)
    bare = bare and any(part.kind == "literal" and _listed(part.text) for part in word.parts)
    match = _BRACES.fullmatch(text_of(value_of(word, variables))) if bare else None
    if match is None or reason_of(value_of(word, variables)):
        return fields_of(word, variables)
    if match[5] is not None:
        inner = match[5].split(",")
    else:
        first, last, step = int(match[2]), int(match[3]), int(match[4] or 1) or 1
        if abs(last - first) // step > MAX_BRACES:
            raise InputError(f"line {word.line}: a list of more than {MAX_BRACES:,} values is not read; simplify the script")
        inner = [str(at) for at in range(first, last + 1, step)] or [str(at) for at in range(first, last - 1, -step)]
    spend(len(inner) * (2 + len(match[1] + match[6]) / 4) + len(match[0]) / 4)
    return [plain_value(f"{match[1]}{text}{match[6]}") for text in inner]


def _listed(text: str) -> bool:
    """Whether braces hold a list: {a,b} or {1..8}."""
    spend(len(text) / 8)
    return any("," in match[1] or ".." in match[1] for match in _IN_BRACES.finditer(text))


def _signs_between(variables: Variables) -> str:
    held = variables.values.get("IFS")
    return text_of(held) if isinstance(held, tuple) and not reason_of(held) else " \t\n"


def _inner_words(rest: Word, variables: Variables) -> list[Value]:
    """The words that "$@" gives in ${1+"$@"}: quotes keep them whole there."""
    arrays = [part for part in rest.parts if part.quoted and _is_array(part, variables) and not _is_joined(part)]
    return [word for part in arrays for word in _elements(part, variables)]


def _is_array(part: Part, variables: Variables) -> bool:
    """ "${NAME[@]}", or "$@" where the words handed over are known."""
    if part.kind != "variable":
        return False
    if part.text in _HANDED_OVER:
        return isinstance(variables.values.get("@"), list) and part.operator in ("", "/", "%", "#", "^", ",", ":")
    return _EVERY.fullmatch(part.operator) is not None


def value_of(word: Word, variables: Variables) -> Value:
    """The value of a word where the shell does not split: behind NAME= and in case."""
    pieces: list[Piece] = []
    spend(1 + 2 * len(word.parts))
    for part in word.parts:
        pieces += _joined(part, variables) if _is_array(part, variables) else part_value(part, variables)
    return tuple(pieces)


def _is_joined(part: Part) -> bool:
    """$* and ${NAME[*]}, which are one word in quotes."""
    return part.text == "*" or part.operator.startswith("[*]")


def _joined(part: Part, variables: Variables) -> Value:
    """The elements as one word: with the first character of IFS between them, or a blank."""
    between: Value = plain_value(" ")
    if _is_joined(part) and "IFS" in variables.values:
        between = variables.scalar("IFS", part.line)
        between = between if reason_of(between) else plain_value(text_of(between)[:1])
    pieces: list[Piece] = []
    for number, element in enumerate(_elements(part, variables)):
        pieces += [*between, *element] if number else element
    return tuple(pieces)


def pattern_of(word: Word, variables: Variables) -> Value:
    """The value of a word that is a pattern: what stands in quotes stands for itself."""
    pieces: list[Piece] = []
    for part in word.parts:
        for piece in part_value(part, variables):
            spend(3 + len(piece.text) / 4)
            if odd_pattern(piece.text, variables.odd_options, quoted=part.quoted):
                why = f"what the pattern {piece.text[:40]} in line {part.line} matches is not followed"
                pieces.append(Piece(text=piece.text, unknown=why))
                continue
            text = glob.escape(piece.text) if part.quoted else piece.text.replace("[^", "[!")
            pieces.append(piece if piece.unknown or text == piece.text else plain_value(text)[0])
    return tuple(pieces)


def _elements(part: Part, variables: Variables) -> list[Value]:
    name = "@" if part.text in _HANDED_OVER else part.text
    found = variables.values.get(variables.others.get(name, name))
    if found is None:
        return [variables.scalar(part.text, part.line)]
    elements = found if isinstance(found, list) else [found]
    spend(len(elements))
    spend(sum(len(piece.text) for element in elements for piece in element) / 4)
    match = _EVERY.fullmatch(part.operator)
    how = match[1] if match else part.operator
    if not how:
        return elements
    if how == ":":
        return _some_words(elements, part, variables)
    return [_edited(element, how, part, variables) for element in elements]


def _some_words(words: list[Value], part: Part, variables: Variables) -> list[Value]:
    """${@:START:LENGTH}; a word that is not known may be none or several."""
    cut = sliced(text_of(rest)) if not reason_of(rest := value_of(part.rest, variables) if part.rest else ()) else None
    if cut is None or cut[0] == 0 or (cut[1] or 0) < 0:
        return [_unknown(part, variables)]
    start = cut[0] - 1 if cut[0] > 0 else len(words) + cut[0]
    if any(map(reason_of, words[: start if cut[0] > 0 and cut[1] is None else None])):
        return [_unknown(part, variables)]
    return words[start : None if cut[1] is None else start + cut[1]] if start >= 0 else []


def _signs(word: Word | None, variables: Variables) -> list[Sign] | None:
    """The characters of what stands behind the sign of ${NAME/...} and its kin; None where they are not known."""
    signs: list[Sign] = []
    for part in word.parts if word else ():
        text = known_text(value_of(replace(word, parts=(part,)), variables)) if word else None
        if text is None:
            return None
        kind = "quoted" if part.quoted else "bare" if part.kind == "literal" else "value"
        if kind == "bare" and set(text) & set("$`\"'~"):
            return None  # what the grammar did not take apart
        signs += [(sign, kind) for sign in text]
    return signs


def _edited(value: Value, how: str, part: Part, variables: Variables) -> Value:
    """A value as `edited` leaves it, with its place in the file where nothing changes."""
    text, signs = known_text(value), _signs(part.rest, variables)
    if text is None or signs is None:
        return value if text is None else _unknown(part, variables)
    changed = None if how != ":" and variables.odd_options else edited(text, how, signs)
    return value if changed == text else _unknown(part, variables) if changed is None else plain_value(changed)


def part_value(part: Part, variables: Variables) -> Value:
    """The value of one part."""
    if part.kind == "literal":
        spend(1 + len(part.text) / 16)
        return (Piece(text=part.text, origin=part.origin),)
    if part.kind == "command":
        printed = variables.substitute(part) if variables.substitute else None
        if printed is not None:
            return printed
        shown = part.text if len(part.text) <= 60 else f"{part.text[:57]}..."
        return (Piece(text=part.text, unknown=f"{shown} in line {part.line} {NEVER_RUN}"),)
    if part.kind == "arithmetic":
        return arithmetic(part, variables)
    value = _variable(part, variables)
    spend(2 + sum(len(piece.text) for piece in value) / 4)
    return value


def _variable(part: Part, variables: Variables) -> Value:
    name, how = variables.others.get(part.text, part.text), part.operator
    if name in variables.maps and (key := re.match(r"\[([^\]]+)\]", how)):
        name, how = f"{name}[{mapped(key[1], variables)}]", how[key.end() :]
    index = re.match(r"\[([0-9]+)\]", how)
    found = variables.values.get(name)
    if index:
        how = how[index.end() :]
        elements = found if isinstance(found, list) else [found] if found is not None else []
        number = int(index[1]) if len(index[1]) < 7 else 0
        base: Value = elements[number] if number < len(elements) else ()
        if found is None or (isinstance(found, tuple) and reason_of(found)):
            base = variables.scalar(name, part.line)
        undecided = next((element for element in elements[: number + 1] if any(piece.choices for piece in element)), None)
        if undecided is not None:
            return undecided
    else:
        base = variables.scalar(name, part.line)
    if not how:
        return base
    if name in _HANDED_OVER and isinstance(variables.values.get("@"), list):
        return _of_the_words(part, variables)
    rest = with_remedy(value_of(part.rest, variables), name, how) if part.rest else ()
    absent = found is None and not (variables.unseen and re.match("[A-Za-z_]", name))
    empty = known_text(base) == "" or (absent and name not in _SPECIAL)
    if how in (":-", ":=", "-", "="):
        given = rest if (empty if how[0] == ":" else absent) else _never_empty(base, rest)
        if how[-1] == "=" and given is rest:
            variables.set(name, rest)
        return given
    if how in (":+", "+"):
        if known_text(base) is None and (how == ":+" or (found is None and not absent)):
            both = ("", text_of(rest)) if not reason_of(rest) else ()
            return (Piece(text=f"${{{name}:+}}", unknown=reason_of(base), choices=both),)
        return () if empty else rest
    if how in (":?", "?"):
        return base
    text = known_text(base)
    if how in ("length[@]", "length[*]", "length"):
        if isinstance(found, list) and (reason := next((r for r in map(reason_of, found) if r), "")):
            return (Piece(text=f"${{#{name}}}", unknown=reason),)
        length = len(found) if isinstance(found, list) and how != "length" else None if text is None else len(text)
        return plain_value(str(length)) if length is not None and found is not None else _unknown(part, variables)
    if text is None or found is None:
        return _unknown(part, variables)
    return _edited(base, how, part, variables)


def _of_the_words(part: Part, variables: Variables) -> Value:
    """${#@}, ${@:-WORD} and ${@:+WORD} where the words handed over are known."""
    how, words = part.operator, _elements(replace(part, operator=""), variables)
    if any(map(reason_of, words)) or how not in ("length", ":-", "-", ":+", "+"):
        return _unknown(part, variables)
    if how == "length":
        return plain_value(str(len(words)))
    given = bool("".join(map(text_of, words)) if how[0] == ":" else words)
    if given == (how[-1] == "+"):
        return value_of(part.rest, variables) if part.rest else ()
    return _unknown(part, variables) if given else ()


def mapped(key: str, variables: Variables) -> str:
    """The key of an element of an associative array, `tp`, `"tp"` or `$NAME`."""
    bare = re.sub(r"""["']""", "", key)
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda match: text_of(variables.scalar(match[1], 0)), bare)


def _never_empty(base: Value, rest: Value) -> Value:
    """A value with a default; where a condition decides whether it is empty, the default stands for the empty branch."""
    if len(base) != 1 or not base[0].choices:
        return tuple(replace(piece, choices=()) for piece in base)
    default = known_text(rest)
    choices = () if default is None else tuple(choice or default for choice in base[0].choices)
    return (replace(base[0], choices=choices),)


def _unknown(part: Part, variables: Variables) -> Value:
    known = part.text in _HANDED_OVER and isinstance(variables.values.get("@"), list)
    shown = f"${{{part.text}{part.operator}...}}" if known else f"${{{part.text}...}}"
    return (Piece(text=shown, unknown=f"{shown} in line {part.line} cannot be worked out without running the script"),)


def arithmetic(part: Part, variables: Variables) -> Value:
    """$(( ... )) over whole numbers; what cannot be worked out is not known, with the reason."""
    shown = f"$(({part.text.strip()[:50]}))"
    try:
        return plain_value(str(computed(part, variables)))
    except NotKnownError as error:
        return (Piece(text=shown, unknown=str(error) or f"{shown} in line {part.line} cannot be worked out"),)


def computed(part: Part, variables: Variables) -> int:
    """The value of an arithmetic part; sets the variables that it assigns, be they known or not. Raises NotKnownError."""
    value = value_of(part.rest, variables) if part.rest else ()
    text, depth = text_of(value), 0

    def number(name: str) -> int:
        nonlocal depth
        found = variables.scalar(name, part.line)
        if reason := reason_of(found):
            raise NotKnownError(reason)
        depth += 1
        if depth > MAX_LOOKUPS:
            raise NotKnownError
        return evaluate(text_of(found), number)

    try:
        if reason := reason_of(value):
            raise NotKnownError(reason)
        return evaluate(text, number, lambda name, result: variables.set(name, plain_value(str(result))))
    except NotKnownError as error:
        for match in _ASSIGNED.finditer(text):
            name = match[1] or match[2]
            why = str(error) or f"line {part.line} sets ${name} to what cannot be worked out"
            variables.set(name, (Piece(text=f"${name}", unknown=why),))
        raise
