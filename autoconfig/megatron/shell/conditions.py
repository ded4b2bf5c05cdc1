"""Whether the conditions of a shell script hold, as far as text decides."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoconfig.megatron.shell.arithmetic import whole_number
from autoconfig.megatron.shell.commands import Value, known_text, text_of
from autoconfig.megatron.shell.values import Variables
from autoconfig.planning.work import spend

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


TESTS = frozenset({"[", "[[", "test"})


@dataclass(kw_only=True)
class Supposed:
    """Tests that variables decide which the script does not set, and which count as empty."""

    tests: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """The test as it is read, its line and the variables."""
    turned: str = ""
    """One of them that is read as if it said the contrary."""
    before: int = 0
    """How many variables without a value had been asked for in front of the command."""

    def judged(self, holds: bool | None, fields: Sequence[Value], variables: Variables, line: int) -> bool | None:
        """What a test says, or the contrary where it is turned over."""
        names = tuple(dict.fromkeys(variables.without_value[self.before :]))
        if holds is None or not names:
            return holds
        test = " ".join(map(text_of, fields))
        spend(len(test) / 4)
        self.tests.setdefault(test, (line, names))
        return holds != (test == self.turned)


def inside(fields: Sequence[Value]) -> list[Value]:
    """The words of `[ ... ]`, `[[ ... ]]` and `test ...` without the command itself."""
    closing = {"[": "]", "[[": "]]"}.get(text_of(fields[0]))
    return list(fields[1:-1] if closing and text_of(fields[-1]) == closing else fields[1:])


def condition(values: Sequence[Value], *, patterns: bool = False) -> bool | None:
    """Whether `[ ... ]`, `[[ ... ]]` (which compares with `patterns`) or `test ...` holds; None where that cannot be known.
    What is not set counts as empty."""
    words = [known_text(value) for value in values]
    spend(5 * len(values))
    for joint, decisive in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if joint in words:
            at = words.index(joint)
            sides = [condition(side, patterns=patterns) for side in (values[:at], values[at + 1 :])]
            return decisive if decisive in sides else None if None in sides else not decisive
    if words[:1] == ["!"]:
        inner = condition(values[1:], patterns=patterns)
        return None if inner is None else not inner
    match words:
        case [str(text)] | ["-n", str(text)]:
            return bool(text)
        case ["-z", str(text)]:
            return not text
        case [str(first), operator, str(second)]:
            return _compared(first, operator or "", second, patterns)
    return None


def matches(text: str, pattern: str) -> bool:
    """Whether a pattern of `case` or `[[ ]]` is the whole text."""
    spend(20 + len(pattern) + len(text) * (1 + pattern.count("*")) / 20)
    return fnmatch.fnmatchcase(text, pattern)


def _compared(left: str, sign: str, right: str, patterns: bool) -> bool | None:
    if sign in ("=", "==", "!="):
        alike = matches(left, right) if patterns else left == right
        return alike != (sign == "!=")
    if sign in _COMPARE:
        if patterns and any(re.match(r"[-+ ]*0[0-9]", text) for text in (left, right)):
            return None  # octal, or an error
        a, b = whole_number(left), whole_number(right)
        return None if a is None or b is None else _COMPARE[sign](a, b)
    return None
