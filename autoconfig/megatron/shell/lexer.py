"""Shell text to tokens, with the place of every character in the file. Nothing is expanded and nothing is run here.

Understood: words with quotes, `$name`, `${name...}`, `$((...))`, command substitution (kept as text), arrays, comments, line
continuations, redirections and here-documents (dropped), operators.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from autoconfig.specs.errors import InputError

MOST_DEPTH = 40
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9#?@*$!-]")
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", ";", "|", "&", "(", ")", "\n")
_REDIRECT = re.compile(r"[0-9]*(?:&>>|&>|<<<|<<-|<<|>>|>&|<&|>\||<>|>|<)")
_DIGITS = "0123456789"
_PLAIN = re.compile(r"[A-Za-z0-9_\-./:,=+@%^~\[\]*!?#{}]+")
_IN_QUOTES = re.compile(r'[^"\\$`]+')


@dataclass(frozen=True, kw_only=True)
class Source:
    """Text and, per character, its offset in the file; None for characters that no place in the file holds."""

    text: str
    origin: Sequence[int | None]
    file_text: str

    def line(self, position: int) -> int:
        """Line number in the file, for messages."""
        for at in range(max(0, position), len(self.text)):
            offset = self.origin[at]
            if offset is not None:
                return bisect.bisect_right(_line_starts(self.file_text), offset)
        last = next((offset for offset in reversed(self.origin) if offset is not None), 0)
        return bisect.bisect_right(_line_starts(self.file_text), last)


@lru_cache(maxsize=4)
def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a word. `kind`: literal, variable, arithmetic or command."""

    kind: str
    text: str
    """literal: the characters; variable: the name; arithmetic and command: what stands inside."""
    quoted: bool
    line: int
    origin: tuple[int | None, ...] = ()
    """literal: place of each character."""
    operator: str = ""
    """variable: `:-`, `[@]`, ... or empty."""
    rest: Word | None = None
    """variable: the word behind the operator."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """Parts that stand together."""

    parts: tuple[Part, ...]
    line: int

    def plain(self) -> str | None:
        """The text of an unquoted literal word (a keyword, a name), else None."""
        if all(part.kind == "literal" and not part.quoted for part in self.parts):
            return "".join(part.text for part in self.parts)
        return None


@dataclass(frozen=True, kw_only=True)
class ArrayAssignment:
    """NAME=( ... ) or NAME+=( ... )."""

    name: str
    append: bool
    words: tuple[Word, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Operator:
    """`;`, `&&`, a line end, ..."""

    text: str
    line: int


Token = Word | ArrayAssignment | Operator


def tokens_of(source: Source) -> list[Token]:
    """All tokens. Raises InputError with the line for a quote, bracket or here-document that is never closed."""
    return _Lexer(source).all()


class _Lexer:
    """Reads one source from left to right."""

    def __init__(self, source: Source, depth: int = 0) -> None:
        if depth > MOST_DEPTH:
            raise InputError(
                f"line {source.line(0)}: quotes and brackets are nested deeper than {MOST_DEPTH}; simplify the script"
            )
        self.source, self.text, self.at, self.depth = source, source.text, 0, depth
        self.heredocs: list[tuple[str, bool]] = []
        self.double_bracket = False

    def all(self) -> list[Token]:
        """Every token up to the end."""
        tokens: list[Token] = []
        while (token := self.next()) is not None:
            tokens.append(token)
        return tokens

    def next(self) -> Token | None:
        """The next token; None at the end."""
        self._skip_blanks()
        if self.at >= len(self.text):
            return None
        line = self.source.line(self.at)
        if not self.double_bracket and self._redirection():
            return self.next()
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                if operator == "\n":
                    self._skip_heredocs()
                if self.double_bracket and operator != "\n":
                    return Word(parts=(self._literal(operator, self.at - len(operator), False),), line=line)
                return Operator(text=operator, line=line)
        match = _ASSIGN.match(self.text, self.at)
        if match and self.text.startswith("(", match.end()):
            return self._array(match, line)
        word = self.word()
        if word.plain() in ("[[", "]]"):
            self.double_bracket = word.plain() == "[["
        return word

    def word(self, end: str = "") -> Word:
        """One word, up to a blank or operator; with `end`, up to that character, blanks included."""
        parts: list[Part] = []
        line = self.source.line(self.at)
        while self.at < len(self.text):
            character = self.text[self.at]
            if end and character == end:
                break
            if not end and (character in " \t\r\n;&|()" or (character in "<>" and not self.double_bracket)):
                break
            parts += self._part(quoted=False)
        return Word(parts=tuple(parts), line=line)

    def _part(self, quoted: bool) -> list[Part]:
        character = self.text[self.at]
        if character == "\\" and self.at + 1 < len(self.text):
            return self._escape(quoted)
        if character == "'" and not quoted:
            return [self._single()]
        if character == '"' and not quoted:
            return self._double()
        if character == "$":
            return [self._dollar(quoted)]
        if character == "`":
            return [self._backticks(quoted)]
        if run := _PLAIN.match(self.text, self.at):
            self.at = run.end()
            return [self._literal(run[0], run.start(), quoted)]
        self.at += 1
        return [self._literal(character, self.at - 1, quoted)]

    def _literal(self, text: str, start: int, quoted: bool) -> Part:
        return Part(
            kind="literal",
            text=text,
            quoted=quoted,
            line=self.source.line(start),
            origin=tuple(self.source.origin[start : start + len(text)]),
        )

    def _escape(self, quoted: bool) -> list[Part]:
        following = self.text[self.at + 1]
        start = self.at + 1
        self.at += 2
        if following == "\n":
            return []
        if following == "\r" and self.text.startswith("\n", self.at):
            self.at += 1
            return []
        if quoted and following not in '$`"\\':
            return [self._literal("\\" + following, start - 1, True)]
        return [self._literal(following, start, True)]

    def _single(self) -> Part:
        close = self.text.find("'", self.at + 1)
        if close < 0:
            raise self._unclosed("'", self.at)
        part = self._literal(self.text[self.at + 1 : close], self.at + 1, True)
        self.at = close + 1
        return part

    def _double(self) -> list[Part]:
        start = self.at
        self.at += 1
        parts = [Part(kind="literal", text="", quoted=True, line=self.source.line(start))]
        while self.at < len(self.text) and self.text[self.at] != '"':
            plain = _IN_QUOTES.match(self.text, self.at)
            if plain:
                parts.append(self._literal(plain[0], self.at, True))
                self.at = plain.end()
            else:
                parts += self._part(quoted=True)
        if self.at >= len(self.text):
            raise self._unclosed('"', start)
        self.at += 1
        return parts

    def _backticks(self, quoted: bool) -> Part:
        start = self.at
        close = self.text.find("`", start + 1)
        if close < 0:
            raise self._unclosed("`", start)
        self.at = close + 1
        return Part(kind="command", text=self.text[start : close + 1], quoted=quoted, line=self.source.line(start))

    def _dollar(self, quoted: bool) -> Part:
        start, line = self.at, self.source.line(self.at)
        if self.text.startswith("$((", start):
            close = self._closing(start + 1, "(", ")")
            if self.text[close - 1] == ")":
                self.at = close + 1
                return Part(kind="arithmetic", text=self.text[start + 3 : close - 1], quoted=quoted, line=line)
        if self.text.startswith("$(", start):
            close = self._closing(start + 1, "(", ")")
            self.at = close + 1
            return Part(kind="command", text=self.text[start : close + 1], quoted=quoted, line=line)
        if self.text.startswith("${", start):
            return self._braced(quoted, line)
        match = _NAME.match(self.text, start + 1)
        if match is None:
            self.at += 1
            if not quoted and self.text.startswith(("'", '"'), self.at):  # $'...' and $"..."
                return self._single() if self.text[self.at] == "'" else self._double()[-1]
            return self._literal("$", start, quoted)
        self.at = match.end()
        return Part(kind="variable", text=match[0], quoted=quoted, line=line)

    def _braced(self, quoted: bool, line: int) -> Part:
        start = self.at
        close = self._closing(start + 1, "{", "}")
        inside = self.text[start + 2 : close]
        match = re.match(r"(#|!)?([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[#?@*$!-])(\[[^\]]*\])?(:?[-=+?]|.)?", inside, re.DOTALL)
        self.at = close + 1
        if match is None:
            return Part(kind="command", text=self.text[start : close + 1], quoted=quoted, line=line)
        prefix = {"#": "length", "!": "indirect"}.get(match[1] or "", "")
        name, index, operator = match[2], match[3] or "", match[4] or ""
        rest = None
        if operator:
            begin = start + 2 + match.end()
            sub = Source(text=self.text[begin:close], origin=self.source.origin[begin:close], file_text=self.source.file_text)
            inner = _Lexer(sub, self.depth + 1)
            rest = inner.word(end="\0")
            if quoted:
                rest = Word(parts=tuple(_as_quoted(p) for p in rest.parts), line=line)
        return Part(kind="variable", text=name, quoted=quoted, line=line, operator=prefix + index + operator, rest=rest)

    def _closing(self, opening: int, left: str, right: str) -> int:
        """Position of the bracket that closes the one at `opening`; quotes inside are passed over."""
        depth, at = 0, opening
        while at < len(self.text):
            character = self.text[at]
            if character == "\\":
                at += 1
            elif character == "'" and left == "(":
                at = self.text.find("'", at + 1)
                if at < 0:
                    break
            elif character == left:
                depth += 1
            elif character == right:
                depth -= 1
                if depth == 0:
                    return at
            at += 1
        raise self._unclosed(left, opening)

    def _array(self, match: re.Match[str], line: int) -> ArrayAssignment:
        self.at = match.end() + 1
        words: list[Word] = []
        while True:
            self._skip_blanks()
            if self.at >= len(self.text):
                raise self._unclosed(f"{match[1]}=(", match.start())
            if self.text[self.at] == ")":
                self.at += 1
                return ArrayAssignment(name=match[1], append=bool(match[2]), words=tuple(words), line=line)
            if self.text[self.at] in "\n;&|<>(":
                self.at += 1
                continue
            words.append(self.word())

    def _skip_blanks(self) -> None:
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text.startswith("\\\r\n", self.at):
                self.at += 3
            elif self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _redirection(self) -> bool:
        """Pass over a redirection and its target; note a here-document. A digit word before it belongs to it."""
        match = _REDIRECT.match(self.text, self.at)
        if match is None:
            return False
        operator = match[0].lstrip(_DIGITS)
        self.at = match.end()
        if operator in ("<", ">") and self.text.startswith("(", self.at):  # process substitution
            self.at = self._closing(self.at, "(", ")") + 1
            return True
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        target = self.word()
        if operator in ("<<", "<<-"):
            self.heredocs.append(("".join(part.text for part in target.parts), operator == "<<-"))
        return True

    def _skip_heredocs(self) -> None:
        for mark, indented in self.heredocs:
            while True:
                if self.at >= len(self.text):
                    raise self._unclosed(f"<<{mark}", len(self.text) - 1)
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end].rstrip("\r")
                self.at = end + 1
                if (line.lstrip("\t") if indented else line) == mark:
                    break
        self.heredocs = []

    def _unclosed(self, what: str, position: int) -> InputError:
        return InputError(
            f"line {self.source.line(max(0, position))}: {what} is never closed; the file seems cut off, or is no shell script"
        )


def _as_quoted(part: Part) -> Part:
    return replace(part, quoted=True)
