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
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_ASSIGNS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="})


class NotKnownError(Exception):
    """The value cannot be worked out; the text says why, or is empty."""


def _divided(a: int, b: int) -> int:
    if not b:
        raise NotKnownError
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shifted(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise NotKnownError
    return a << b


def _power(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise NotKnownError
    return a**b


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divided,
    "%": lambda a, b: a - b * _divided(a, b),
    "**": _power,
    "<<": _shifted,
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
    assign: Callable[[str, int], None]
    at: int = 0
    depth: int = 0
    live: bool = True

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, *signs: str) -> str:
        found = self.peek()
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "sign" and found in signs:
            self.at += 1
            return found
        return ""

    def sequence(self) -> int:
        value = self.assignment()
        while self.take(","):
            value = self.assignment()
        return value

    def assignment(self) -> int:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotKnownError
        if self.at + 1 < len(self.tokens) and self.tokens[self.at][0] == "name" and self.tokens[self.at + 1][1] in _ASSIGNS:
            name, sign = self.peek(), self.tokens[self.at + 1][1]
            self.at += 2
            value = self.assignment()
            if sign != "=":
                value = self.joined(sign[:-1], self.lookup(name), value)
            value = self.set(name, value)
        else:
            value = self.choice()
        self.depth -= 1
        return value

    def choice(self) -> int:
        test = self.level(0)
        if not self.take("?"):
            return test
        first = self.aside(self.assignment, taken=bool(test))
        if not self.take(":"):
            raise NotKnownError
        second = self.aside(self.assignment, taken=not test)
        return first if test else second

    def aside(self, read: Callable[[], int], *, taken: bool) -> int:
        before, self.live = self.live, self.live and taken
        try:
            return read()
        finally:
            self.live = before

    def level(self, number: int) -> int:
        if number == len(_LEVELS):
            return self.power()
        value = self.level(number + 1)
        while sign := self.take(*_LEVELS[number]):
            taken = bool(value) if sign == "&&" else not value if sign == "||" else True
            right = self.aside(lambda: self.level(number + 1), taken=taken)
            value = self.joined(sign, value, right)
        return value

    def power(self) -> int:
        value = self.unary()
        return self.joined("**", value, self.power()) if self.take("**") else value

    def unary(self) -> int:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotKnownError
        sign = self.take("-", "+", "!", "~", "++", "--")
        if sign in ("++", "--"):
            kind, name = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
            if kind != "name":
                raise NotKnownError
            self.at += 1
            value = self.set(name, self.lookup(name) + (1 if sign == "++" else -1))
        elif sign:
            inner = self.unary()
            value = {"-": -inner, "+": inner, "!": int(not inner), "~": ~inner}[sign]
        else:
            value = self.atom()
        self.depth -= 1
        return value

    def atom(self) -> int:
        if self.take("("):
            value = self.sequence()
            if not self.take(")"):
                raise NotKnownError
            return value
        if self.at >= len(self.tokens):
            raise NotKnownError
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return _number(text)
        if kind != "name":
            raise NotKnownError
        value = self.lookup(text)
        if sign := self.take("++", "--"):
            self.set(text, value + (1 if sign == "++" else -1))
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
    reader = _Expression(tokens, value_of, lambda name, value: (assign(name, value), None)[1])
    value = reader.sequence() if tokens else 0
    if reader.at != len(tokens):
        raise NotKnownError
    return value


def whole_number(text: str) -> int | None:
    """The value of an expression of decimal numbers, as `[ ]` compares them; None where it is none."""
    try:
        return evaluate(re.sub(r"\b0+([0-9])", r"\1", text)) if text.strip() else None
    except NotKnownError:
        return None
