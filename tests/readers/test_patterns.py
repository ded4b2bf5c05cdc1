"""Every regular expression of the product is linear on hostile text.

Three shapes are refused. *Nested*: an unbounded repetition in one, where the inner one can end at several places and the
outer one begin again there. *Overlapping*: two unbounded repetitions behind each other that can share a text, before something
that can fail. *Begun anywhere*: a pattern that is searched for and whose first unbounded repetition can be begun at each
character of what it runs over; blanks behind `^` under MULTILINE are of this kind, as they run over lines. Possessive
repetitions and atomic groups end at one place only. What stands in a look-ahead is not looked at.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from re import _constants as constants
from re import _parser as parser
from typing import Any

import pytest

MANY = 256
"""Repetitions from which on one counts as unbounded."""
ALPHABET = [*map(chr, range(128)), "\u00e9", "\u20ac"]
EVERY = frozenset(ALPHABET)
WORD = frozenset(sign for sign in ALPHABET if re.match(r"\w", sign))
_CATEGORIES = {
    constants.CATEGORY_DIGIT: r"\d",
    constants.CATEGORY_NOT_DIGIT: r"\D",
    constants.CATEGORY_SPACE: r"\s",
    constants.CATEGORY_NOT_SPACE: r"\S",
    constants.CATEGORY_WORD: r"\w",
    constants.CATEGORY_NOT_WORD: r"\W",
}
Chars = frozenset[str]


@dataclass(frozen=True)
class One:
    """One character of these."""

    chars: Chars


@dataclass(frozen=True)
class Many:
    """A repetition of one of several sequences."""

    bodies: tuple[tuple[Any, ...], ...]
    least: int
    most: float
    possessive: bool

    @property
    def unbounded(self) -> bool:
        return self.most > MANY

    @property
    def chars(self) -> Chars:
        return frozenset().union(*(consumed(body) for body in self.bodies))


@dataclass(frozen=True)
class Guard:
    """What consumes nothing: characters that may not stand in front of it; `here`: what it asks of its place else."""

    refused_before: Chars
    here: str = ""


def _sequences(tree: Any, flags: int, *, possessive: bool = False) -> list[tuple[Any, ...]]:
    """Every sequence that a pattern may be, with alternatives written out."""
    rows: list[list[tuple[Any, ...]]] = []
    for code, value in tree:
        rows.append(_items(code, value, flags, possessive=possessive))
    found = [tuple(item for part in chosen for item in part) for chosen, _ in zip(product(*rows), range(400), strict=False)]
    return found or [()]


def _items(code: Any, value: Any, flags: int, *, possessive: bool) -> list[tuple[Any, ...]]:
    if code in (constants.LITERAL, constants.NOT_LITERAL, constants.IN, constants.ANY, constants.RANGE, constants.CATEGORY):
        return [(One(_chars(code, value, flags)),)]
    if code is constants.SUBPATTERN:
        _, add, drop, inner = value
        return _sequences(inner, (flags | add) & ~drop, possessive=possessive)
    if code is constants.ATOMIC_GROUP:
        return _sequences(value, flags, possessive=True)
    if code is constants.BRANCH:
        return [sequence for branch in value[1] for sequence in _sequences(branch, flags, possessive=possessive)]
    if code in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
        least, most, inner = value
        bodies = tuple(_sequences(inner, flags, possessive=possessive))
        kept = possessive or code is constants.POSSESSIVE_REPEAT
        return [(Many(bodies, least, float("inf") if most is constants.MAXREPEAT else most, kept),)]
    if code is constants.AT:
        return [(_guard(value, flags),)]
    if code in (constants.ASSERT, constants.ASSERT_NOT):
        direction, inner = value
        if direction > 0:
            return [()]
        before = frozenset().union(*(consumed(one) for one in _sequences(inner, flags)))
        return [(Guard(before if code is constants.ASSERT_NOT else EVERY - before),)]
    return [()]  # a reference to a group, or a condition


def _guard(at: Any, flags: int) -> Guard:
    if at is constants.AT_BOUNDARY:
        return Guard(frozenset(), "boundary")
    if at is constants.AT_BEGINNING_STRING or (at is constants.AT_BEGINNING and not flags & re.MULTILINE):
        return Guard(EVERY)
    return Guard(EVERY - {"\n"}) if at is constants.AT_BEGINNING else Guard(frozenset())


def _chars(code: Any, value: Any, flags: int) -> Chars:
    if code is constants.ANY:
        return EVERY if flags & re.DOTALL else EVERY - {"\n"}
    if code is constants.LITERAL:
        return frozenset(_cases(chr(value), flags))
    if code is constants.NOT_LITERAL:
        return EVERY - {chr(value)}
    if code is constants.RANGE:
        found = {sign for sign in ALPHABET if value[0] <= ord(sign) <= value[1]}
        return frozenset(other for sign in found for other in _cases(sign, flags))
    if code is constants.CATEGORY:
        return frozenset(sign for sign in ALPHABET if re.match(_CATEGORIES[value], sign))
    inside = [one for one in value if one[0] is not constants.NEGATE]
    found = frozenset().union(*(_chars(kind, what, flags) for kind, what in inside))
    return EVERY - found if len(inside) < len(value) else found


def _cases(sign: str, flags: int) -> set[str]:
    return {sign, sign.lower(), sign.upper()} if flags & re.IGNORECASE else {sign}


def consumed(sequence: tuple[Any, ...]) -> Chars:
    """Every character that a sequence may hold."""
    return frozenset().union(*(item.chars for item in sequence if not isinstance(item, Guard)))


def nullable(sequence: tuple[Any, ...]) -> bool:
    """Whether a sequence may be nothing."""
    return all(map(_may_be_nothing, sequence))


def _may_be_nothing(item: Any) -> bool:
    return isinstance(item, Guard) or (isinstance(item, Many) and (not item.least or any(map(nullable, item.bodies))))


def first(sequence: tuple[Any, ...]) -> Chars:
    """The characters that it may begin with."""
    found: Chars = frozenset()
    for item in sequence:
        if isinstance(item, One):
            return found | item.chars
        if isinstance(item, Many):
            found |= frozenset().union(*map(first, item.bodies))
            if not nullable((item,)):
                return found
    return found


def faults(pattern: str, flags: int = 0, how: str = "search") -> list[str]:
    """What is not linear in a pattern, which is used by `how`: search (also sub, findall, ...), match or fullmatch."""
    tree = parser.parse(pattern, flags)
    found: list[str] = []
    for sequence in _sequences(tree, tree.state.flags):
        found += _nested(sequence, frozenset())
        found += _overlapping(sequence, whole=how == "fullmatch")
        found += _begun_anywhere(sequence) if how == "search" else []
    return list(dict.fromkeys(found))


def _nested(sequence: tuple[Any, ...], outer: Chars, *, loops: bool = False) -> Iterator[str]:
    """`outer`: what may follow the sequence in the loop that it stands in."""
    for at, item in enumerate(sequence):
        if not isinstance(item, Many) or not item.unbounded:
            continue
        rest = sequence[at + 1 :]
        behind = first(rest) | (outer if nullable(rest) else frozenset())
        if loops and not item.possessive and item.chars & behind:
            yield "nested"
        starts = [first(body) for body in item.bodies]
        if not item.possessive and any(one & other for one, other in combinations(starts, 2)):
            yield "nested"
        for body in item.bodies:
            again = frozenset().union(*map(first, item.bodies))
            if nullable(body) and any(isinstance(one, Many) for one in body):
                yield "nested"
            yield from _nested(body, again, loops=not item.possessive)


def _overlapping(sequence: tuple[Any, ...], *, whole: bool) -> Iterator[str]:
    for at, item in enumerate(sequence):
        if not isinstance(item, Many) or not item.unbounded:
            continue
        for body in item.bodies:
            yield from _overlapping(body, whole=whole)
        if item.possessive:
            continue
        for place, other in enumerate(sequence[at + 1 :], at + 1):
            rest = sequence[place + 1 :]
            if isinstance(other, Many) and other.unbounded and first((other,)) & item.chars:
                fails = any(not nullable((one,)) for one in rest) or (whole and other.chars != EVERY)
                if fails:
                    yield "overlapping"
            if not isinstance(other, Guard) and not nullable((other,)) and not first((other,)) & item.chars:
                break


def _begun_anywhere(sequence: tuple[Any, ...]) -> Iterator[str]:
    refused: Chars = frozenset()
    before: list[Chars] = []
    boundary = False
    for at, item in enumerate(sequence):
        if isinstance(item, Guard):
            refused |= item.refused_before
            boundary |= item.here == "boundary"
            continue
        if isinstance(item, Many) and item.unbounded:
            stopped = item.chars <= refused or (boundary and item.chars <= WORD) or any(not one & item.chars for one in before)
            if not stopped and any(not nullable((one,)) for one in sequence[at + 1 :] if not isinstance(one, Guard)):
                yield "begun anywhere"
        if not nullable((item,)):
            before.append(item.chars)


ROOT = Path(__file__).parents[2]
FOLDERS = ("autoconfig", "specs", "api")
FUNCTIONS = {"match", "search", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
ALLOWED = {r"\s*(\S.*?)\s*,\s*([0-9.]+)\s*": "a line of nvidia-smi, which runs here"}


def _files():
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def _namespace(path):
    """The module's names, in which a pattern is written; none where a package is not installed."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    try:
        return vars(importlib.import_module(".".join(parts if parts[0] == "autoconfig" else ("autoconfig", *parts))))
    except ImportError:
        return {"re": re}


def _value(node, names):
    """What an expression is; of a text that is put together at run time, its constant parts with x between them."""
    try:
        return eval(compile(ast.Expression(node), "pattern", "eval"), dict(names))
    except Exception:
        if isinstance(node, ast.JoinedStr):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        return None


def _patterns():
    """(place, pattern, flags, how it is used) of every call of `re`."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _files()}
    used = defaultdict(set)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
                used[ast.unparse(node.value).rpartition(".")[2]].add(node.attr)
    for path, tree in trees.items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        calls = [call for call in calls if ast.unparse(call.func.value) == "re"]
        if not calls:
            continue
        names = _namespace(path)
        targets = {id(node.value): ast.unparse(node.targets[0]) for node in ast.walk(tree) if isinstance(node, ast.Assign)}
        for call in calls:
            how = call.func.attr
            if how not in {*FUNCTIONS, "compile"} or not call.args:
                continue
            pattern = _value(call.args[0], names)
            given = [
                _value(one, names) for one in (*call.args[1:], *(word.value for word in call.keywords if word.arg == "flags"))
            ]
            flags = next((int(one) for one in given if isinstance(one, re.RegexFlag)), 0)
            if how == "compile":
                ways = used.get(targets.get(id(call), ""), {"search"})
                how = "fullmatch" if ways <= {"fullmatch"} else "match" if ways <= {"fullmatch", "match"} else "search"
            if isinstance(pattern, str):
                yield (
                    f"{path.relative_to(ROOT)}:{call.lineno}",
                    pattern,
                    flags,
                    how if how in ("match", "fullmatch") else "search",
                )


def test_every_pattern_is_linear():
    found = list(_patterns())
    assert len(found) > 250
    odd = {
        place: (pattern[:100], wrong)
        for place, pattern, flags, how in found
        if pattern not in ALLOWED and (wrong := faults(pattern, flags, how))
    }
    assert odd == {}


@pytest.mark.parametrize(
    ("pattern", "flags", "how", "fault"),
    [
        (r"(a+)+b", 0, "match", "nested"),
        (r"(?:a|ab*)*c", 0, "match", "nested"),
        (r"(?:\w+\s*)*:", 0, "match", "nested"),
        (r"[\w .-]*\s*:", 0, "match", "overlapping"),
        (r"\{[^{}]*(?:\.\.|,)[^{}]*\}", 0, "search", "overlapping"),
        (r"a.*b.*c", 0, "match", "overlapping"),
        (r"[^,]*/[^,]*", 0, "fullmatch", "overlapping"),
        (r"^\s*#", re.MULTILINE, "search", "begun anywhere"),
        (r"\w+=", 0, "search", "begun anywhere"),
        (r"\b[\w.]+=", 0, "search", "begun anywhere"),
        (r"\$\{[^}]*\}", 0, "search", "begun anywhere"),
    ],
)
def test_what_is_refused(pattern, flags, how, fault):
    assert fault in faults(pattern, flags, how)


@pytest.mark.parametrize(
    ("pattern", "flags", "how"),
    [
        (r"(?:a++)+b", 0, "match"),
        (r"(?:[0-9]+,)*[0-9]+", 0, "match"),
        (r"[\w .-]*+:", 0, "match"),
        (r"\{([^{}]*+)\}", 0, "search"),
        (r"^[^\S\n]*+#", re.MULTILINE, "search"),
        (r"(?<!\w)\w+=", 0, "search"),
        (r"\b\w+=", 0, "search"),
        (r"\$\{[^${}]*\}", 0, "search"),
        (r"[A-Za-z_]\w*", 0, "search"),
        (r"\w{1,80}=", 0, "search"),
    ],
)
def test_what_is_linear(pattern, flags, how):
    assert faults(pattern, flags, how) == []
