"""Shell tokens to commands: simple commands, if, for, while, case, functions, groups. Nothing is run."""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.megatron.shell.lexer import ArrayAssignment, Operator, Token, Word
from autoconfig.specs.errors import InputError

MOST_DEPTH = 60
_ENDS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})


@dataclass(frozen=True, kw_only=True)
class Simple:
    """Words of one command; assignments in front are words or ArrayAssignments."""

    words: tuple[Word | ArrayAssignment, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Commands joined by && and ||: (operator before it, command)."""

    links: tuple[tuple[str, Node], ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class If:
    """(condition, body) in order; the last condition is empty for else."""

    branches: tuple[tuple[tuple[Node, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Loop:
    """for NAME in WORDS (name is None for while, until and for ((...)))."""

    name: str | None
    words: tuple[Word, ...]
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """case WORD in PATTERNS) BODY ;; ... esac."""

    word: Word
    branches: tuple[tuple[tuple[Word, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Function:
    """NAME() { ... }."""

    name: str
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """{ ... } or ( ... )."""

    body: tuple[Node, ...]
    line: int


Node = Simple | Chain | If | Loop | Case | Function | Group


def parse(tokens: list[Token]) -> tuple[Node, ...]:
    """The commands of a script. Raises InputError with the line where a structure is not closed."""
    parser = _Parser(tokens)
    nodes = parser.body(frozenset())
    if parser.at < len(tokens):
        token = tokens[parser.at]
        raise InputError(f"line {token.line}: {_text(token)!r} closes nothing; the file seems to be cut, or is no shell script")
    return nodes


def _text(token: Token) -> str:
    if isinstance(token, Operator):
        return token.text
    return (token.plain() or "") if isinstance(token, Word) else token.name


class _Parser:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def body(self, ends: frozenset[str]) -> tuple[Node, ...]:
        """Commands up to one of the closing words (not consumed) or the end."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise InputError(f"line {self._line()}: structures are nested deeper than {MOST_DEPTH}; simplify the script")
        nodes: list[Node] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                if token.text in ends or token.text == ")":
                    break
                if token.text == "(":
                    nodes.append(self._chain())
                    continue
                if token.text in (";;", ";&", ";;&"):
                    break
                self.at += 1
                continue
            if isinstance(token, Word) and token.plain() in _ENDS:
                break
            nodes.append(self._chain())
        self.depth -= 1
        return tuple(nodes)

    def _chain(self) -> Node:
        """A command and what && or || joins to it; pipes count as separate commands."""
        line = self._line()
        links: list[tuple[str, Node]] = [("", self._command())]
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if not (isinstance(token, Operator) and token.text in ("&&", "||")):
                break
            self.at += 1
            self._skip_lines()
            if self.at >= len(self.tokens):
                break
            links.append((token.text, self._command()))
        return links[0][1] if len(links) == 1 else Chain(links=tuple(links), line=line)

    def _command(self) -> Node:
        token, line = self.tokens[self.at], self._line()
        if isinstance(token, Operator) and token.text == "(":
            return self._parenthesis(line)
        word = token.plain() if isinstance(token, Word) else None
        if word == "if":
            return self._if(line)
        if word in ("while", "until", "for", "select"):
            return self._loop(word, line)
        if word == "case":
            return self._case(line)
        if word == "{":
            self.at += 1
            body = self.body(frozenset())
            self._close("}", line)
            return Group(body=body, line=line)
        if word == "!":
            self.at += 1
            return self._command() if self.at < len(self.tokens) else Simple(words=(), line=line)
        if word == "function" or self._is_function():
            return self._function(line)
        return self._simple(line)

    def _parenthesis(self, line: int) -> Node:
        if self.at + 1 < len(self.tokens) and _text(self.tokens[self.at + 1]) == "(":  # (( arithmetic ))
            depth = 0
            while self.at < len(self.tokens):
                text = _text(self.tokens[self.at]) if isinstance(self.tokens[self.at], Operator) else ""
                depth += {"(": 1, ")": -1}.get(text, 0)
                self.at += 1
                if depth == 0:
                    return Simple(words=(), line=line)
            raise InputError(f"line {line}: (( is never closed; the file seems to be cut off")
        self.at += 1
        body = self.body(frozenset({")"}))
        self._close(")", line)
        return Group(body=body, line=line)

    def _is_function(self) -> bool:
        following = self.tokens[self.at + 1 : self.at + 3]
        return (
            len(following) == 2
            and all(isinstance(t, Operator) for t in following)
            and [_text(t) for t in following] == ["(", ")"]
        )

    def _function(self, line: int) -> Node:
        if _text(self.tokens[self.at]) == "function":
            self.at += 1
        name = _text(self.tokens[self.at]) if self.at < len(self.tokens) else ""
        self.at += 1
        while self.at < len(self.tokens) and _text(self.tokens[self.at]) in ("(", ")", "\n"):
            self.at += 1
        if self.at >= len(self.tokens):
            raise InputError(f"line {line}: the function {name} has no body; the file seems to be cut off")
        body = self._command()
        return Function(name=name, body=body.body if isinstance(body, Group) else (body,), line=line)

    def _if(self, line: int) -> Node:
        branches: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = []
        self.at += 1
        while True:
            condition = self.body(frozenset())
            self._close("then", line)
            branches.append((condition, self.body(frozenset())))
            word = _text(self.tokens[self.at]) if self.at < len(self.tokens) else ""
            if word == "elif":
                self.at += 1
                continue
            if word == "else":
                self.at += 1
                branches.append(((), self.body(frozenset())))
            self._close("fi", line)
            return If(branches=tuple(branches), line=line)

    def _loop(self, word: str, line: int) -> Node:
        self.at += 1
        name: str | None = None
        words: list[Word] = []
        if word in ("for", "select") and self.at < len(self.tokens) and isinstance(self.tokens[self.at], Word):
            name = _text(self.tokens[self.at])
            self.at += 1
            self._skip_lines()
            if self.at < len(self.tokens) and _text(self.tokens[self.at]) == "in":
                self.at += 1
                while self.at < len(self.tokens):
                    token = self.tokens[self.at]
                    if not isinstance(token, Word):
                        break
                    words.append(token)
                    self.at += 1
            self._skip_separators()
        elif word == "for":
            self._parenthesis(line)
            self._skip_separators()
        else:
            self.body(frozenset())
        self._close("do", line)
        body = self.body(frozenset())
        self._close("done", line)
        return Loop(name=name, words=tuple(words), body=body, line=line)

    def _case(self, line: int) -> Node:
        self.at += 1
        subject = self.tokens[self.at] if self.at < len(self.tokens) else None
        if not isinstance(subject, Word):
            raise InputError(f"line {line}: case without a word; the file seems to be cut off")
        self.at += 1
        self._skip_lines()
        self._close("in", line)
        branches: list[tuple[tuple[Word, ...], tuple[Node, ...]]] = []
        while True:
            self._skip_separators()
            if self.at >= len(self.tokens):
                raise InputError(f"line {line}: case is never closed with esac; the file seems to be cut off")
            if _text(self.tokens[self.at]) == "esac":
                self.at += 1
                return Case(word=subject, branches=tuple(branches), line=line)
            patterns: list[Word] = []
            while self.at < len(self.tokens) and _text(self.tokens[self.at]) != ")":
                token = self.tokens[self.at]
                if isinstance(token, Word):
                    patterns.append(token)
                self.at += 1
            self.at += 1
            branches.append((tuple(patterns), self.body(frozenset())))

    def _simple(self, line: int) -> Simple:
        words: list[Word | ArrayAssignment] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                if token.text in ("(", ")") and words and token.text == "(":
                    self.at += 1
                    continue
                break
            words.append(token)
            self.at += 1
        return Simple(words=tuple(words), line=line)

    def _close(self, word: str, line: int) -> None:
        if self.at >= len(self.tokens) or _text(self.tokens[self.at]) != word:
            raise InputError(
                f"line {line}: {word!r} is missing behind this line; the file seems to be cut off, or is no shell script"
            )
        self.at += 1

    def _skip_lines(self) -> None:
        while self.at < len(self.tokens) and _text(self.tokens[self.at]) == "\n":
            self.at += 1

    def _skip_separators(self) -> None:
        while self.at < len(self.tokens) and isinstance(self.tokens[self.at], Operator):
            if _text(self.tokens[self.at]) not in ("\n", ";", ";;", ";&", ";;&", "("):
                return
            self.at += 1

    def _line(self) -> int:
        return self.tokens[min(self.at, len(self.tokens) - 1)].line
