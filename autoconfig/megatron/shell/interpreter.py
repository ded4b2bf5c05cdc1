"""Follows the commands of a shell script as far as text decides. Nothing is run: what a command would print is not known."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoconfig.megatron.shell.commands import Assignment, Chain, Choice, Command, Function, If, Loop, Not, Simple, Source, Word
from autoconfig.megatron.shell.launch import Launch, Program, almost_a_launch, launch_of
from autoconfig.megatron.shell.syntax import parse
from autoconfig.megatron.shell.values import (
    Piece,
    Value,
    Variables,
    condition,
    fields_of,
    known_text,
    plain_value,
    reason_of,
    text_of,
    value_of,
)
from autoconfig.specs.errors import InputError

MAX_STEPS = 50_000
MAX_CALLS = 12
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash"})
_TESTS = frozenset({"[", "[[", "test"})


class Exit(Exception):
    """`exit` was reached."""


@dataclass
class Reader:
    """Follows the commands of one script."""

    text: str
    program: Program
    settings: Mapping[str, str]
    variables: Variables = field(default_factory=Variables)
    functions: dict[str, tuple[Command, ...]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    almost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    calls: int = 0
    why: str = ""

    def __post_init__(self) -> None:
        for name, value in self.settings.items():
            self.variables.values[name] = plain_value(value)

    def run(self, nodes: Sequence[Command]) -> bool | None:
        """Follow commands one after another; whether the last one succeeds, None where that is not known."""
        result: bool | None = True
        for node in nodes:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise InputError(
                    f"line {node.line}: the script has more than {MAX_STEPS:,} commands; give the launch script itself"
                )
            result = self._node(node)
        return result

    def _node(self, node: Command) -> bool | None:
        if isinstance(node, Simple):
            return self._simple(node)
        if isinstance(node, Chain):
            return self._chain(node)
        if isinstance(node, Not):
            result = self._node(node.command)
            return None if result is None else not result
        if isinstance(node, If):
            return self._if(node)
        if isinstance(node, Choice):
            return self._case(node)
        if isinstance(node, Loop):
            return self._loop(node)
        if isinstance(node, Function):
            self.functions[node.name] = node.body
            return True
        return self.run(node.body)

    def _chain(self, node: Chain) -> bool | None:
        result: bool | None = True
        for joint, command in node.links:
            if not joint or (joint == "&&" and result is True) or (joint == "||" and result is False):
                result = self._node(command)
            elif result is None:
                self._either([(command,), ()], node.line)
        return result

    def _if(self, node: If) -> bool | None:
        for number, (test, body) in enumerate(node.branches):
            holds = True if not test else self.run(test)
            if holds:
                return self.run(body)
            if holds is None:
                bodies = [b for _, b in node.branches[number:]]
                self._either(bodies if not node.branches[-1][0] else [*bodies, ()], node.line)
                return None
        return True

    def _case(self, node: Choice) -> bool | None:
        self.why = reason_of(value_of(node.word, self.variables))
        subject = known_text(value_of(node.word, self.variables))
        if subject is None or any(piece.unset for piece in value_of(node.word, self.variables)):
            self._either([*(body for _, body in node.branches), ()], node.line)
            return None
        for patterns, body in node.branches:
            for pattern in patterns:
                text = known_text(value_of(pattern, self.variables))
                if text is not None and fnmatch.fnmatchcase(subject, text):
                    return self.run(body)
        return True

    def _loop(self, node: Loop) -> bool | None:
        if node.name is None:
            self._aside(node.body)
            self.notes.append(f"line {node.line}: a loop is not followed (what it sets is not read)")
            return None
        values = [value for word in node.words for value in fields_of(word, self.variables)]
        if len(values) > 1:
            self.notes.append(
                f"line {node.line}: a loop over {len(values)} values is read for the first, {text_of(values[0])[:40]}"
            )
        if not values:
            return None
        self.variables.values[node.name] = values[0]
        return self.run(node.body)

    def _aside(self, nodes: Sequence[Command]) -> None:
        """Look for launches in commands whose effect on variables must not count."""
        kept = self.variables
        self.variables = kept.copy()
        with contextlib.suppress(Exit):
            self.run(nodes)
        self.variables = kept

    def _either(self, bodies: Sequence[Sequence[Command]], line: int) -> None:
        """A condition is not known: follow every branch apart; what they set differently is not known."""
        before, outcomes = self.variables, []
        for body in bodies:
            self.variables = before.copy()
            try:
                self.run(body)
            except Exit:
                continue  # this branch ends the script: what follows is the other one
            outcomes.append(self.variables)
        self.variables = before
        if not outcomes:
            raise Exit
        names = {name for outcome in outcomes for name in outcome.values}
        for name in sorted(names):
            found = [outcome.values.get(name) for outcome in outcomes]
            if all(value == found[0] for value in found) and found[0] is not None:
                before.values[name] = found[0]
            else:
                because = f": {self.why}" if self.why else f": say --set {name}=VALUE"
                why = f"${name} depends on a condition in line {line} that is not known{because}"
                if name not in self.settings:
                    before.values[name] = (Piece(text=f"${name}", unknown=why, choices=_choices(found)),)

    def _simple(self, node: Simple) -> bool | None:
        words = list(node.words)
        while words and self._assign(words[0]):
            words.pop(0)
        if not words:
            return True if node.words else None
        fields: list[Value] = []
        for token in words:
            if isinstance(token, Word):
                fields += fields_of(token, self.variables)
        if not fields:
            return True
        name = text_of(fields[0])
        if name in _DECLARES:
            for token in words[1:]:
                self._assign(token)
            return True
        return self._command(name, fields, node.line)

    def _command(self, name: str, fields: list[Value], line: int) -> bool | None:
        if name in _TESTS:
            closing = {"[": "]", "[[": "]]"}.get(name)
            inner = fields[1:-1] if closing and text_of(fields[-1]) == closing else fields[1:]
            self.why = next((reason for value in inner if (reason := reason_of(value))), "")
            return condition(inner)
        if name == "exit":
            raise Exit
        if name in ("true", ":"):
            return True
        if name == "false":
            return False
        if name in self.functions:
            return self._call(name)
        if name in ("source", ".") and len(fields) > 1:
            self.notes.append(f"line {line}: {text_of(fields[1])[:60]} is a file of its own and is not read")
            return True
        if name in ("read", "mapfile", "readarray", "unset"):
            self._forget(fields[1:], name, line)
            return True
        commands = self._inner_script(name, fields)
        if commands is not None:
            return self._inner(*commands)
        launch = launch_of(fields, line, self.program)
        if launch is not None:
            self.launches.append(launch)
        elif almost := almost_a_launch(fields, line, self.program):
            self.almost.append(almost)
        return None if launch is None and name not in ("echo", "cd", "set", "mkdir", "printf", "module") else True

    def _call(self, name: str) -> bool | None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            self.calls -= 1
            self.notes.append(f"the function {name} is called too often to follow")
            return None
        try:
            return self.run(self.functions[name])
        finally:
            self.calls -= 1

    def _forget(self, fields: Sequence[Value], command: str, line: int) -> None:
        for value in fields:
            name = text_of(value)
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                continue
            if command == "unset":
                self.variables.values.pop(name, None)
            elif name not in self.settings:
                why = f"${name} is read while the script runs (line {line}): say --set {name}=VALUE"
                self.variables.values[name] = (Piece(text=f"${name}", unknown=why),)

    def _inner_script(self, name: str, fields: list[Value]) -> tuple[Value, list[Value], list[Value]] | None:
        """(commands as text, words before them, their "$@") of `eval TEXT` and of `... bash -c TEXT NAME WORDS`."""
        if name == "eval":
            joined: list[Piece] = []
            for value in fields[1:]:
                joined += [*plain_value(" "), *value] if joined else value
            return tuple(joined), [], []
        texts = [text_of(value) for value in fields]
        for position, text in enumerate(texts[:-2]):
            if text in _SHELLS and re.fullmatch(r"-[a-z]*c[a-z]*", texts[position + 1]):
                return fields[position + 2], fields[:position], fields[position + 4 :]
        return None

    def _inner(self, value: Value, before: list[Value], handed_over: list[Value]) -> bool | None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise InputError(f"eval and bash -c are nested deeper than {MAX_CALLS}; simplify the script")
        hidden: dict[str, Value] = {}
        text = ""
        origin: list[int | None] = []
        for piece in value:
            shown = piece.text
            if piece.unknown:  # a name of our own stands for what is not known
                shown = f"$__unknown_{len(hidden)}"
                hidden[shown[1:]] = (piece,)
            text += shown
            origin += list(piece.origin) if len(piece.origin) == len(shown) else [None] * len(shown)
        self.variables.values.update(hidden)
        known = len(self.launches)
        outer = self.variables.values.get("@")
        if handed_over:
            self.variables.values["@"] = handed_over
        try:
            result = self.run(parse(Source(text=text, origin=origin, file_text=self.text)))
        finally:
            self.calls -= 1
            if outer is not None:
                self.variables.values["@"] = outer
            else:
                self.variables.values.pop("@", None)
        self.launches[known:] = [launch.behind(before) for launch in self.launches[known:]]
        return result

    def _assign(self, token: Word | Assignment) -> bool:
        if isinstance(token, Word):
            return False
        if isinstance(token.value, Word):
            value = value_of(token.value, self.variables)
            if token.name not in self.settings:
                self._store(token.name, value, append=token.append)
            return True
        elements = [value for word in token.value for value in fields_of(word, self.variables)]
        if token.name not in self.settings:
            before = self.variables.values.get(token.name, []) if token.append else []
            self.variables.values[token.name] = [*(before if isinstance(before, list) else [before]), *elements]
        return True

    def _store(self, name: str, value: Value, *, append: bool) -> None:
        before = self.variables.values.get(name)
        if append and isinstance(before, list):
            value = (*(before[0] if before else ()), *value)
        elif append and before is not None:
            value = (*before, *value)
        self.variables.budget[0] -= len(value) + 1
        self.variables.values[name] = tuple(piece for piece in value if piece.text)


def _choices(outcomes: Sequence[Value | list[Value] | None]) -> tuple[tuple[str, ...], ...]:
    """The words of each outcome; empty where one of them is not known."""
    found = []
    for outcome in outcomes:
        values = outcome if isinstance(outcome, list) else [outcome or ()]
        if any(reason_of(value) for value in values):
            return ()
        found.append(tuple(word for value in values for word in text_of(value).split()))
    return tuple(found)
