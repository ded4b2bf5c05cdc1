"""What assignments, `declare`, `local` and `read` do to the variables of a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autoconfig.megatron.shell.commands import Assignment, Word
from autoconfig.megatron.shell.values import Piece, Value, Variables, fields_of, plain_value, reason_of, text_of, value_of

Held = dict[str, Value | list[Value] | None]


def assign(variables: Variables, token: Word | Assignment) -> bool:
    """Take over an assignment; False for any other word."""
    if isinstance(token, Word):
        return False
    if token.index:
        _element(variables, token)
        return True
    if isinstance(token.value, Word):
        value = value_of(token.value, variables)
        if token.name not in variables.fixed:
            _store(variables, token.name, value, append=token.append)
        return True
    elements = [value for word in token.value for value in fields_of(word, variables)]
    before = variables.values.get(token.name, []) if token.append else []
    variables.set(token.name, [*(before if isinstance(before, list) else [before]), *elements])
    return True


def _element(variables: Variables, token: Assignment) -> None:
    """NAME[INDEX]=VALUE: of an array whose elements are known, else the array is not known any more."""
    found = variables.values.get(token.name, [])
    index = int(token.index) if token.index.isdigit() and len(token.index) < 5 else -1
    if isinstance(found, list) and isinstance(token.value, Word) and 0 <= index <= len(found) and not token.append:
        value = value_of(token.value, variables)
        variables.set(token.name, [*found[:index], value, *found[index + 1 :]])
    else:
        why = f"an element of ${token.name} is set to what is not followed: say --set {token.name}=VALUE"
        variables.set(token.name, (Piece(text=f"${token.name}", unknown=why),))


def _store(variables: Variables, name: str, value: Value, *, append: bool) -> None:
    before = variables.values.get(name)
    if append and isinstance(before, list):
        value = (*(before[0] if before else ()), *value)
    elif append and before is not None:
        value = (*before, *value)
    variables.budget[0] -= len(value) + 1
    variables.values[name] = tuple(piece for piece in value if piece.text)


def restore(variables: Variables, before: Mapping[str, Value | list[Value] | None]) -> None:
    """The variables have again what they had before."""
    for name, value in before.items():
        if value is None:
            variables.values.pop(name, None)
        else:
            variables.set(name, value)


def declare(variables: Variables, frames: list[Held], words: Sequence[Word | Assignment], fields: Sequence[Value]) -> bool:
    """`export`, `readonly`, and `local` and the like, whose names are the function's alone."""
    found = [(token.name, token) for token in words if isinstance(token, Assignment)]
    if frames and text_of(fields[0]) in ("local", "declare", "typeset") and "-g" not in map(text_of, fields):
        names = [name for name, _ in found] + [text_of(value).partition("=")[0] for value in fields[1:]]
        for name in names:
            frames[-1].setdefault(name, variables.values.get(name))
    for _, token in found:
        assign(variables, token)
    for value in fields[1:]:  # `declare "$NAME=4"`
        name, equals, text = text_of(value).partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            variables.set(name, (Piece(text=f"${name}", unknown=reason_of(value)),) if reason_of(value) else plain_value(text))
    return True


def forget(variables: Variables, fields: Sequence[Value], command: str, line: int) -> None:
    """`unset`, `read` and `mapfile`: names that are not set, or not known, behind them."""
    for value in fields:
        name = text_of(value)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            continue
        if command == "unset":
            variables.values.pop(name, None)
        else:
            why = f"${name} is read while the script runs (line {line}): say --set {name}=VALUE"
            variables.set(name, (Piece(text=f"${name}", unknown=why),))
