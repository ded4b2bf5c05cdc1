"""Arithmetic of the shell over whole numbers: `$(( ))`, `(( ))`, `let`, C-style `for`. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from autoconfig.planning.work import spend

MAX_CHARACTERS = 500
MAX_VALUE = 10**18
MAX_DEPTH = 40
_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|[0-9]+)|(?P<name>[A-Za-z_]\w*)|(?P<sign><<=|>>=|\*\*|\+\+|--|<<|>>|[-+*/%<>=!&|^]=|&&|\|\||[-+*/%<>=!~&|^?:(),]))"
)
_LEVELS = tuple(map(str.split, (",", "", "?", "||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %", "**")))
"""Operators from the weakest on."""
_STRENGTH = {sign: level for level, signs in enumerate(_LEVELS, 1) for sign in signs}
_ASSIGNMENT = 2
_ASSIGNS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="})


class NotKnownError(Exception):
    """The value cannot be worked out; the text says why, or is empty."""


def _divided(a: int, b: int) -> int:
    if not b:
        raise NotKnownError
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _small(b: int) -> int:
    if not 0 <= b < 64:
        raise NotKnownError
    return b


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    ",": lambda a, b: b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
    "**": lambda a, b: a ** _small(b),
    "<<": lambda a, b: a << _small(b),
    ">>": lambda a, b: a >> min(max(b, 0), 64),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&&": lambda a, b: int(bool(a) and bool(b)),
    "||": lambda a, b: int(bool(a) or bool(b)),
}


def _number(text: str) -> int:
    base = 16 if text[:2].lower() == "0x" else 8 if text[0] == "0" else 10
    try:
        return int(text, base)
    except ValueError:
        raise NotKnownError from None


@dataclass
class _Expression:
    """Reads tokens from the left; where `live` is False (the side of && or ?: that is not taken) nothing is assigned."""

    tokens: list[tuple[str, str]]
    value_of: Callable[[str], int]
    assign: Callable[[str, int], object]
    at: int = 0
    depth: int = 0
    live: bool = True

    def sign(self) -> str:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        return text if kind == "sign" else ""

    def take(self, *signs: str) -> str:
        sign = self.sign()
        self.at += sign in signs
        return sign if sign in signs else ""

    def level(self, least: int) -> int:
        """Return the value of what binds at least as strongly as `least`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotKnownError
        value = self.unary(least)
        while _STRENGTH.get(sign := self.sign(), 0) >= least:
            self.at += 1
            if sign == "?":
                first = self.aside(_ASSIGNMENT, taken=bool(value))
                if not self.take(":"):
                    raise NotKnownError
                second = self.aside(_ASSIGNMENT, taken=not value)
                value = first if value else second
                continue
            taken = bool(value) if sign == "&&" else not value if sign == "||" else True
            right = self.aside(_STRENGTH[sign] + (sign != "**"), taken=taken)
            value = self.joined(sign, value, right)
        self.depth -= 1
        return value

    def aside(self, least: int, *, taken: bool) -> int:
        before, self.live = self.live, self.live and taken
        value = self.level(least)
        self.live = before
        return value

    def unary(self, least: int) -> int:
        if self.take("("):
            value = self.level(1)
            if not self.take(")"):
                raise NotKnownError
            return value
        if sign := self.take("-", "+", "!", "~"):
            inner = self.level(len(_LEVELS) + 1)
            return {"-": -inner, "+": inner, "!": int(not inner), "~": ~inner}[sign]
        step = self.take("++", "--")
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        self.at += 1
        if kind == "number" and not step:
            return _number(text)
        if kind != "name":
            raise NotKnownError
        return self.variable(text, step, assigns=least <= _ASSIGNMENT)

    def variable(self, name: str, step: str, *, assigns: bool) -> int:
        """Return the value of a name, which `++` and an assignment change."""
        if assigns and not step and (sign := self.take(*_ASSIGNS)):
            value = self.level(_ASSIGNMENT)
            return self.set(name, value if sign == "=" else self.joined(sign[:-1], self.lookup(name), value))
        value = self.lookup(name)
        if step:
            return self.set(name, value + (1 if step == "++" else -1))
        if behind := self.take("++", "--"):
            self.set(name, value + (1 if behind == "++" else -1))
        return value

    def lookup(self, name: str) -> int:
        return self.value_of(name) if self.live else 0

    def set(self, name: str, value: int) -> int:
        if self.live:
            self.assign(name, value)
        return value

    def joined(self, sign: str, left: int, right: int) -> int:
        value = _OPERATIONS[sign](left, right) if self.live else 0
        if abs(value) >= MAX_VALUE:
            raise NotKnownError
        return value


def _refuse(name: str, value: int = 0) -> int:
    raise NotKnownError


def evaluate(text: str, value_of: Callable[[str], int] = _refuse, assign: Callable[[str, int], object] = _refuse) -> int:
    """The value of an expression; names by `value_of`, assignments through `assign`. Raises NotKnownError."""
    if len(text) > MAX_CHARACTERS:
        raise NotKnownError
    spend(3 + 2 * len(text))
    tokens, at, text = [], 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or (match["number"] and len(match["number"]) > 18):
            raise NotKnownError
        tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
        at = match.end()
    reader = _Expression(tokens, value_of, assign)
    value = reader.level(1) if tokens else 0
    if reader.at != len(tokens):
        raise NotKnownError
    return value


def whole_number(text: str) -> int | None:
    """The value of an expression of decimal numbers, as `[ ]` compares them; None where it is none."""
    try:
        return evaluate(re.sub(r"\b0+([0-9])", r"\1", text)) if text.strip() else None
    except NotKnownError:
        return None
