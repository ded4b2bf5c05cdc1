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
from autoconfig.megatron.shell.commands import (
    NEVER_RUN,
    NOT_FOLLOWED,
    Held,
    Part,
    Piece,
    Value,
    Word,
    first_reason,
    is_name,
    joined,
    known_text,
    plain_value,
    reason_of,
    text_of,
    unknown,
)
from autoconfig.megatron.shell.expansions import Sign, edited, loose, odd_pattern, positions, shifted, whole
from autoconfig.planning.work import spend

BLANKS = " \t\n"
"""What ends a word where IFS is not set."""
MAX_LOOKUPS = 200
_ASSIGNED = re.compile(r"(?:\+\+|--)\s*+([A-Za-z_]\w*+)|(?<!\w)([A-Za-z_]\w*+)\s*+(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))")
_SPECIAL = "#?@*$!-"
_HANDED_OVER = ("@", "*")
_EVERY = ("[@]", "[*]")
"""All elements of an array; behind it, what is done to each of them."""
_TO_EACH = frozenset({"", *"/%#^,"})
_IN_BRACES = re.compile(r"\{([^{}]*+)\}")
_COUNTED_BRACES = re.compile(r"([^{}$]*+)\{(-?[1-9][0-9]{0,5}|0)\.\.(-?[1-9][0-9]{0,5}|0)\}([^{}$]*+)")
_OF_THE_MACHINE = re.compile(
    r"(?:SLURM|PBS|LSB|OMPI|PMIX?|PALS|MV2|FLUX|COBALT|SGE)_\w+|HOSTNAME|HOSTTYPE|OSTYPE|USER|HOME|PWD|UID|SHELL|PATH"
)
"""Variables that bash, the login or a scheduler sets: that the file does not set them does not say that they are empty."""


@dataclass
class Variables:
    """Shell variables while a script is read."""

    values: dict[str, Held] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    """Names whose value the caller said: the script does not change them."""
    locked: frozenset[str] = frozenset()
    """Names that `readonly` keeps as they are."""
    odd: dict[str, str] = field(default_factory=dict)
    """Names that are declared to be what is not followed (`declare -A`, `-i`) and why: what is assigned is not known."""
    substitute: Callable[[Part], Value | None] | None = None
    """What a command substitution prints, where that can be said without running it."""
    unseen: str = ""
    """Text that is not known and may have set any variable; empty where there was none."""
    sourced: list[Any] = field(default_factory=list)
    """Files that ran in the script's shell and were not read (unseen.Sourced), shared by all copies."""
    odd_options: frozenset[str] = frozenset()
    """Options of bash that change what patterns match, of which the script speaks."""
    without_value: list[str] = field(default_factory=list)
    """Names without a value that were looked up, shared by all copies."""

    def copy(self) -> Variables:
        spend((len(self.values) + len(self.odd)) / 4)
        return replace(self, values=dict(self.values), odd=dict(self.odd))

    def set(self, name: str, value: Held) -> None:
        if name not in self.fixed and name not in self.locked:
            spend(1 + len(value))
            self.values[name] = unknown(f"${name}", f"{self.odd[name]}: say --set {name}=VALUE") if name in self.odd else value

    def restore(self, before: Mapping[str, Held | None]) -> None:
        """The variables have again what they had before."""
        for name, value in before.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value

    def positional(self) -> dict[str, Held]:
        """$1, $2, ..., $@ and $#, as far as they are known."""
        spend(len(self.values) / 4)
        return {name: value for name, value in self.values.items() if name.isdigit() or name in "@#"}

    def set_positional(self, words: Sequence[Value] | dict[str, Held]) -> None:
        """The words from now on; or what `positional` told."""
        for name in self.positional():
            del self.values[name]
        self.values |= words if isinstance(words, dict) else positions(words)

    def shift(self, by: int) -> None:
        """`shift`: the first words go."""
        self.set_positional(shifted(self.positional(), by))

    def scalar(self, name: str, line: int) -> Value:
        """Return the value of a name, of an array that of its first element."""
        held = self.values.get(name)
        if held is not None:
            return held if isinstance(held, tuple) else held[0] if held else ()
        if name in _SPECIAL:
            return unknown(f"${name}", f"${name} in line {line} is known only when the script runs")
        if name.isdigit():
            why = "is an argument of the script"
        elif self.unseen:
            why = f"may be set by {self.unseen}"
        else:
            why = "is not set in the file"
            self.without_value.append(name)
        clean = not (name.isdigit() or self.unseen or _OF_THE_MACHINE.fullmatch(name))
        return (Piece(text=f"${name}", unknown=f"${name} in line {line} {why}: say --set {name}=VALUE", unset=clean),)

    def signs_between(self) -> str:
        """Return the characters that end a word: those of IFS, or blanks."""
        held = self.values.get("IFS")
        return text_of(held) if isinstance(held, tuple) and not reason_of(held) else BLANKS


@dataclass
class _Fields:
    """The words that one word becomes, while they are collected; `stays`: which of them stay where they are empty."""

    rows: list[list[Piece]] = field(default_factory=lambda: [[]])
    stays: list[bool] = field(default_factory=lambda: [False])

    def begin(self) -> None:
        self.rows.append([])
        self.stays.append(False)

    def split(self, pieces: Value, signs: str) -> None:
        """Append pieces, beginning a new word at each blank; at other signs of IFS a piece is not known."""
        for piece in pieces:
            spend(2 + len(piece.text) / 8)
            if not piece.unknown and signs != BLANKS and set(piece.text) & set(signs):
                self.rows[-1].append(replace(piece, unknown=f"how IFS={signs!r} splits {piece.text[:40]!r} is not followed"))
            elif piece.unknown:
                starts, ends = (all(not text or text[at].isspace() for text in piece.choices) for at in (0, -1))
                if piece.choices and starts:
                    self.begin()
                self.rows[-1].append(piece)
                if piece.choices and ends:
                    self.begin()
            elif signs != BLANKS:
                self.rows[-1].append(piece)
            else:
                self._split_plain(piece)

    def _split_plain(self, piece: Piece) -> None:
        for match in re.finditer(r"[ \t\n]+|[^ \t\n]+", piece.text):
            spend(2)
            if match[0].isspace():
                self.begin()
            else:
                self.rows[-1].append(Piece(text=match[0], origin=piece.origin[slice(*match.span())]))

    def add_elements(self, elements: Sequence[Value], signs: str, *, quoted: bool) -> None:
        """Append the elements of an array, each as a word of its own, or as several where it is not quoted."""
        for number, element in enumerate(elements):
            if number:
                self.begin()
            if quoted:
                self.rows[-1].extend(element)
                self.stays[-1] = True
            else:
                self.split(loose(element), signs)

    def words(self) -> list[Value]:
        pairs = zip(map(tuple, self.rows), self.stays, strict=True)
        return [value for value, stays in pairs if stays or text_of(value)]


def fields_of(word: Word, variables: Variables) -> list[Value]:
    """The words that one word becomes: unquoted variables are split at blanks, "${ARRAY[@]}" gives its elements."""
    fields = _Fields()
    spend(2 + 3 * len(word.parts))
    arrays = [_gives_elements(part, variables) for part in word.parts]
    for part, is_array in zip(word.parts, arrays, strict=True):
        if is_array:
            fields.add_elements(_elements(part, variables), variables.signs_between(), quoted=part.quoted)
            continue
        pieces = _joined(part, variables) if _is_array(part, variables) else part_value(part, variables)
        if part.quoted or part.kind == "literal":
            fields.rows[-1].extend(loose(pieces) if part.text == "@" else whole(pieces))
            fields.stays[-1] |= part.quoted and not any(arrays)
            continue
        if part.rest and any(text_of(word).split() != [text_of(word)] for word in _inner_words(part.rest, variables)):
            pieces = _unknown(part, variables)
        single = part.kind == "arithmetic" or part.text in _SPECIAL or _OF_THE_MACHINE.fullmatch(part.text)
        fields.split(pieces if single else loose(pieces), variables.signs_between())
    return fields.words()


def _gives_elements(part: Part, variables: Variables) -> bool:
    """Whether a part is an array whose elements are words of their own."""
    return _is_array(part, variables) and not (part.quoted and _is_joined(part))


def listed_values(word: Word, variables: Variables) -> list[Value]:
    """Return the values that a loop goes over, or an array holds, for one word: `fields_of`; of {1..8} those that it counts, of
    {a,b} and others, which are not followed, one that is not known; {1..$N} stays what it is, as bash expands braces before
    variables."""
    spend(sum(len(part.text) for part in word.parts) / 8)
    bare = "".join(part.text if part.kind == "literal" and not part.quoted else "$" for part in word.parts)
    if not any("," in inner or (".." in inner and "$" not in inner) for inner in _IN_BRACES.findall(bare)):
        return fields_of(word, variables)
    if counted := _COUNTED_BRACES.fullmatch(bare):
        return [plain_value(f"{counted[1]}{number}{counted[4]}") for number in _numbers(int(counted[2]), int(counted[3]))]
    shown = text_of(value_of(word, variables))
    return [
        loose(unknown(shown, f"the words that braces make of {shown[:40]} in line {word.line} are not followed: write each"))
    ]


def _numbers(first: int, last: int) -> range:
    """The numbers of {FIRST..LAST}. Raises InputError where they are too many."""
    spend(4 * abs(last - first))
    return range(first, last + 1) if first <= last else range(first, last - 1, -1)


def _inner_words(rest: Word, variables: Variables) -> list[Value]:
    """The words that "$@" gives in ${1+"$@"}: quotes keep them whole there."""
    arrays = [part for part in rest.parts if part.quoted and _is_array(part, variables) and not _is_joined(part)]
    return [word for part in arrays for word in _elements(part, variables)]


def _is_array(part: Part, variables: Variables) -> bool:
    """ "${NAME[@]}", or "$@" where the words handed over are known."""
    if part.kind != "variable":
        return False
    if part.text in _HANDED_OVER:
        return isinstance(variables.values.get("@"), list) and part.operator in _TO_EACH
    return part.operator[:3] in _EVERY and part.operator[3:] in _TO_EACH


def value_of(word: Word | None, variables: Variables) -> Value:
    """The value of a word where the shell does not split: behind NAME= and in case."""
    pieces: list[Piece] = []
    for part in word.parts if word else ():
        spend(3)
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
    return joined(_elements(part, variables), between)


def pattern_of(word: Word, variables: Variables) -> Value:
    """The value of a word that is a pattern: what stands in quotes stands for itself."""
    pieces: list[Piece] = []
    for part in word.parts:
        for piece in part_value(part, variables):
            spend(3 + len(piece.text) / 4)
            if odd_pattern(piece.text, variables.odd_options, quoted=part.quoted):
                pieces += unknown(piece.text, f"what the pattern {piece.text[:40]} in line {part.line} matches is not followed")
                continue
            text = glob.escape(piece.text) if part.quoted else piece.text.replace("[^", "[!")
            pieces.append(piece if piece.unknown or text == piece.text else plain_value(text)[0])
    return tuple(pieces)


def _elements(part: Part, variables: Variables) -> list[Value]:
    held = variables.values.get("@" if part.text in _HANDED_OVER else part.text)
    if held is None:
        return [variables.scalar(part.text, part.line)]
    elements = held if isinstance(held, list) else [held]
    spend(len(elements) + sum(len(piece.text) for element in elements for piece in element) / 4)
    how = part.operator[3:] if part.operator[:3] in _EVERY else part.operator
    return [_edited(element, how, part, variables) for element in elements] if how else elements


def _edited(value: Value, how: str, part: Part, variables: Variables) -> Value:
    """A value as `edited` leaves it, with its place in the file where nothing changes."""
    text = known_text(value)
    if text is None:
        return value
    signs: list[Sign] = []
    for one in part.rest.parts if part.rest else ():
        new = known_text(value_of(Word(parts=(one,), line=part.line), variables))
        kind = "quoted" if one.quoted else "bare" if one.kind == "literal" else "value"
        if new is None or (kind == "bare" and set(new) & set("$`\"'~")):
            return _unknown(part, variables)  # what the grammar did not take apart
        signs += [(sign, kind) for sign in new]
    changed = None if variables.odd_options else edited(text, how, signs)
    return value if changed == text else _unknown(part, variables) if changed is None else plain_value(changed)


def part_value(part: Part, variables: Variables) -> Value:
    """The value of one part."""
    if part.kind == "literal":
        spend(1 + len(part.text) / 16)
        return (Piece(text=part.text, origin=part.origin),)
    if part.kind == "command":
        shown = part.text if len(part.text) <= 60 else f"{part.text[:57]}..."
        printed = variables.substitute(part) if variables.substitute else None
        why = NEVER_RUN if part.text[:1] == "`" or part.text[1:2] == "(" else NOT_FOLLOWED
        return printed if printed is not None else unknown(part.text, f"{shown} in line {part.line} {why}")
    value = arithmetic(part, variables) if part.kind == "arithmetic" else _variable(part, variables)
    spend(2 + sum(len(piece.text) for piece in value) / 4)
    return value


def _variable(part: Part, variables: Variables) -> Value:
    """The value of ${NAME}, of an element of an array, and of either with an operator behind it."""
    name, how = part.text, part.operator
    held = variables.values.get(name)
    base = variables.scalar(name, part.line)
    index = how[1:].partition("]")[0]
    if how[:1] == "[" and index.isdecimal():
        how = how[len(index) + 2 :]
        if held is not None and not (isinstance(held, tuple) and reason_of(held)):
            base = _element(held if isinstance(held, list) else [held], int(index[:6]))
    if name in _HANDED_OVER and isinstance(variables.values.get("@"), list):
        return _unknown(part, variables)
    if how in ("", ":?", "?"):
        return base
    if how == "length[@]" and isinstance(held, list) and not first_reason(held):
        return plain_value(str(len(held)))
    if how in (":-", ":=", "-", "=", ":+", "+"):
        return _instead(part, how, base, variables)
    if name in variables.odd and reason_of(base):
        return base
    if known_text(base) is None or held is None:
        return _unknown(part, variables)
    return _edited(base, how, part, variables)


def _element(elements: Sequence[Value], number: int) -> Value:
    """An element of an array; where one in front of it may be several, that one."""
    undecided = next((one for one in elements[: number + 1] if any(piece.choices or piece.loose for piece in one)), None)
    return undecided if undecided is not None else elements[number] if number < len(elements) else ()


def _instead(part: Part, how: str, base: Value, variables: Variables) -> Value:
    """${NAME:-WORD} and ${NAME:+WORD} with their kin, of which `base` is the variable's value."""
    name, rest, is_held = part.text, value_of(part.rest, variables), part.text in variables.values
    absent = not (is_held or name in _SPECIAL or (variables.unseen and is_name(name)))
    empty = absent or known_text(base) == ""
    if how[-1] == "+":
        decided = known_text(base) is not None or (how == "+" and (is_held or absent))
        both = ("", text_of(rest)) if not reason_of(rest) else ()
        open_ = (Piece(text=f"${{{name}:+}}", unknown=reason_of(base), choices=both),)
        return open_ if not decided else () if empty else rest
    if not (empty if how[0] == ":" else absent):
        return _never_empty(base, rest)
    rest = _with_remedy(rest, name)
    if how[-1] == "=":
        variables.set(name, rest)
    return rest


def _with_remedy(rest: Value, name: str) -> Value:
    """A default: where it is not known either, the variable may be said."""
    whys = [why if not why or "--set" in why else f"{why}: say --set {name}=VALUE" for why in (piece.unknown for piece in rest)]
    return tuple(replace(piece, unknown=why) for piece, why in zip(rest, whys, strict=True))


def _never_empty(base: Value, rest: Value) -> Value:
    """A value with a default; where a condition decides whether it is empty, the default stands for the empty branch."""
    if len(base) != 1 or not base[0].choices:
        return tuple(replace(piece, choices=()) for piece in base)
    default = known_text(rest)
    choices = () if default is None else tuple(choice or default for choice in base[0].choices)
    return (replace(base[0], choices=choices),)


def _unknown(part: Part, variables: Variables) -> Value:
    handed = part.text in _HANDED_OVER and isinstance(variables.values.get("@"), list)
    shown = f"${{{part.text}{part.operator}...}}" if handed else f"${{{part.text}...}}"
    return unknown(shown, f"{shown} in line {part.line} cannot be worked out without running the script")


def arithmetic(part: Part, variables: Variables) -> Value:
    """$(( ... )) over whole numbers; what cannot be worked out is not known, with the reason."""
    shown = f"$(({part.text.strip()[:50]}))"
    try:
        return plain_value(str(computed(part, variables)))
    except NotKnownError as error:
        return unknown(shown, str(error) or f"{shown} in line {part.line} cannot be worked out")


def computed(part: Part, variables: Variables) -> int:
    """The value of an arithmetic part; sets the variables that it assigns, be they known or not. Raises NotKnownError."""
    value, depth = value_of(part.rest, variables), 0
    text = text_of(value)

    def number(name: str) -> int:
        nonlocal depth
        held = variables.scalar(name, part.line)
        depth += 1
        if (reason := reason_of(held)) or depth > MAX_LOOKUPS:
            raise NotKnownError(reason)
        return evaluate(text_of(held), number)

    try:
        if reason := reason_of(value):
            raise NotKnownError(reason)
        return evaluate(text, number, lambda name, result: variables.set(name, plain_value(str(result))))
    except NotKnownError as error:
        for match in _ASSIGNED.finditer(text):
            name = match[1] or match[2]
            variables.set(
                name, unknown(f"${name}", str(error) or f"line {part.line} sets ${name} to what cannot be worked out")
            )
        raise
