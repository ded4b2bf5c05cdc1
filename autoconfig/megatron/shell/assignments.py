"""What assignments, `declare`, `local` and `read` do to the variables of a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoconfig.megatron.shell.arithmetic import whole_number
from autoconfig.megatron.shell.commands import NEVER_RUN, Assignment, Piece, Value, Word, plain_value, reason_of, text_of
from autoconfig.megatron.shell.values import Variables, listed_values, mapped, value_of
from autoconfig.planning.work import spend

MAX_READ = 10_000
Held = dict[str, Value | list[Value] | None]


def assign(variables: Variables, token: Word | Assignment) -> bool:
    """Take over an assignment; False for any other word."""
    if isinstance(token, Word):
        return False
    token = replace(token, name=variables.others.get(token.name, token.name))
    if token.index:
        _element(variables, token)
        return True
    if isinstance(token.value, Word):
        value = value_of(token.value, variables)
        if token.name in variables.integers:
            _count(variables, token.name, value, append=token.append)
        elif token.name not in variables.fixed and token.name not in variables.locked:
            _store(variables, token.name, value, append=token.append)
        return True
    elements = [value for word in token.value for value in listed_values(word, variables)]
    if token.name in variables.maps and _map(variables, token.name, elements):
        return True
    before = variables.values.get(token.name, []) if token.append else []
    variables.set(token.name, [*(before if isinstance(before, list) else [before]), *elements])
    return True


def _element(variables: Variables, token: Assignment) -> None:
    """NAME[INDEX]=VALUE: of an array whose elements are known, else the array is not known any more."""
    if token.name in variables.maps and isinstance(token.value, Word) and not token.append:
        variables.set(f"{token.name}[{mapped(token.index, variables)}]", value_of(token.value, variables))
        return
    found = variables.values.get(token.name, [])
    spend(len(found))
    index = int(token.index) if token.index.isdigit() and len(token.index) < 5 else -1
    if isinstance(found, list) and isinstance(token.value, Word) and 0 <= index <= len(found) and not token.append:
        value = value_of(token.value, variables)
        variables.set(token.name, [*found[:index], value, *found[index + 1 :]])
    else:
        why = f"an element of ${token.name} is set to what is not followed: say --set {token.name}=VALUE"
        variables.set(token.name, (Piece(text=f"${token.name}", unknown=why),))


def _count(variables: Variables, name: str, value: Value, *, append: bool) -> None:
    """`declare -i NAME`: what is assigned is worked out, and added by +=."""
    before = variables.values.get(name, ())
    text = f"({text_of(before)})+({text_of(value)})" if append and before and isinstance(before, tuple) else text_of(value)
    number = None if reason_of(value) or (isinstance(before, tuple) and append and reason_of(before)) else whole_number(text)
    why = f"${name} is worked out (declare -i) from what is not followed: say --set {name}=VALUE"
    variables.set(name, (Piece(text=f"${name}", unknown=why),) if number is None else plain_value(str(number)))


def _map(variables: Variables, name: str, elements: Sequence[Value]) -> bool:
    """`declare -A NAME=([KEY]=VALUE ...)`; False where the elements are written otherwise."""
    found = [re.fullmatch(r"\[([^\]]+)\]=(.*)", text_of(value), re.DOTALL) for value in elements]
    if not all(found) or any(map(reason_of, elements)):
        return False
    for match in found:
        if match is not None:
            variables.set(f"{name}[{mapped(match[1], variables)}]", plain_value(match[2]))
    return True


def _named(variables: Variables, fields: Sequence[Value], names: Sequence[str]) -> None:
    """What `declare -A` says of names; their elements together are not known."""
    words = [text_of(value) for value in fields]
    options = "".join(word[1:] for word in words[1:] if re.fullmatch(r"-[A-Za-z]+", word))
    if "i" in options and words[0] != "export":
        variables.integers |= frozenset(names)
    if "A" in options and words[0] != "readonly":
        variables.maps |= frozenset(names)
        for name in names:
            why = f"the elements of ${name} together are not followed"
            variables.set(name, (Piece(text=f"${name}", unknown=why),))


def _kept(variables: Variables, fields: Sequence[Value], names: Sequence[str], *, inside: bool) -> None:
    """`readonly`, and `declare -r` outside of functions."""
    words = [text_of(value) for value in fields]
    if words[0] == "readonly" or (not inside and any(re.fullmatch(r"-[A-Za-qs-z]*+r[A-Za-z]*+", word) for word in words[1:])):
        variables.locked |= frozenset(names)


def _store(variables: Variables, name: str, value: Value, *, append: bool) -> None:
    before = variables.values.get(name)
    if len(value) == 1 and value[0].unknown.endswith(NEVER_RUN) and not append:
        value = (replace(value[0], unknown=f"{value[0].unknown}: say --set {name}=VALUE"),)
    if append and isinstance(before, list):
        value = (*(before[0] if before else ()), *value)
    elif append and before is not None:
        value = (*before, *value)
    spend(len(value) + 1)
    variables.values[name] = tuple(piece for piece in value if piece.text)


def restore(variables: Variables, before: Mapping[str, Value | list[Value] | None]) -> None:
    """The variables have again what they had before."""
    for name, value in before.items():
        if value is None:
            variables.values.pop(name, None)
        else:
            variables.values[name] = value


def declare(variables: Variables, frames: list[Held], words: Sequence[Word | Assignment], fields: Sequence[Value]) -> bool:
    """`export`, `readonly`, and `local` and the like, whose names are the function's alone."""
    if text_of(fields[0]) in ("local", "declare", "typeset") and any(
        re.fullmatch("-[A-Za-mo-z]*+n[A-Za-z]*+", text_of(value)) for value in fields[1:]
    ):
        return _second_names(variables, words, fields)
    found = [(token.name, token) for token in words if isinstance(token, Assignment)]
    if frames and text_of(fields[0]) in ("local", "declare", "typeset") and "-g" not in map(text_of, fields):
        names = [name for name, _ in found] + [text_of(value).partition("=")[0] for value in fields[1:]]
        for name in names:
            frames[-1].setdefault(name, variables.values.get(name))
    named = [name for name, _ in found] + [text_of(value).partition("=")[0] for value in fields[1:]]
    named = [name for name in named if re.fullmatch(r"[A-Za-z_]\w*", name)]
    spend(4 * len(fields) + (len(variables.locked) + len(variables.integers) + len(variables.maps)) / 20)
    free = not variables.locked & set(named)
    _named(variables, fields, named)
    for _, token in found:
        assign(variables, token)
    for value in fields[1:]:  # `declare "$NAME=4"`
        name, equals, text = text_of(value).partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            variables.set(name, (Piece(text=f"${name}", unknown=reason_of(value)),) if reason_of(value) else plain_value(text))
    _kept(variables, fields, named, inside=bool(frames))
    return free


def _second_names(variables: Variables, words: Sequence[Word | Assignment], fields: Sequence[Value]) -> bool:
    """`declare -n NAME=OTHER`: from now on NAME stands for OTHER. False where OTHER is not known."""
    tokens = (token for token in words if isinstance(token, Assignment))
    given = [(token.name, value_of(token.value, variables)) for token in tokens if isinstance(token.value, Word)]
    names = [re.fullmatch(r"(\w+)=(\w+)", text_of(value)) for value in fields[1:]]
    given += [(match[1], plain_value(match[2])) for match in names if match is not None]
    for name, value in given:
        other = text_of(value)
        spend(len(variables.others) / 8)
        variables.others = {**variables.others, name: variables.others.get(other, other)}
    return all(not reason_of(value) and re.fullmatch(r"[A-Za-z_]\w*", text_of(value)) for _, value in given)


def take(variables: Variables, words: Sequence[Word | Assignment], fields: Sequence[Value], given: Word | None) -> bool | None:
    """`[IFS=,] read [-r] [-a] [-d ''] NAMES <<< WORD`, or a here-document: whether it succeeds, which it does not where no sign
    that ends a line is found. None where it is written otherwise, or the text is not known: nothing is set then."""
    options = _READ.fullmatch("".join(f"{text_of(value)}\0" for value in fields[1:]))
    value = value_of(given, variables) if given is not None else ()
    if options is None or given is None or any(map(reason_of, (*fields, value))):
        return None
    spend(sum(len(piece.text) for piece in value))
    flags, names = options["flags"], options["names"].split("\0")[:-1]
    split: Value | list[Value] | None = variables.values.get("IFS")
    for token in words:
        if isinstance(token, Assignment) and token.name == "IFS" and isinstance(token.value, Word):
            split = value_of(token.value, variables)
    if isinstance(split, list) or reason_of(split or ()):
        return None
    signs = " \t\n" if split is None else text_of(split)
    whole, listed = "d" in flags, "a" in flags
    text = text_of(value)
    line, end, _ = (text, "", "") if whole else text.partition("\n")
    blank, several = not signs.strip(), listed or len(names) > 1
    odd = bool(signs) and not blank and (any(sign.isspace() for sign in signs) or line[-1:] in signs)
    if odd or (several and (not signs or len(text) > MAX_READ)) or ("\\" in text and "r" not in flags):
        return None
    kept = line.strip(signs) if signs and blank else line
    every = re.compile(f"[{re.escape(signs or ' ')}]{'+' if blank else ''}")
    if listed:
        variables.set(names[0], [plain_value(word) for word in every.split(kept) if word or not blank])
    elif several:
        cut = every.split(kept, maxsplit=len(names) - 1)
        for at, name in enumerate(names):
            variables.set(name, plain_value(cut[at]) if at < len(cut) and cut[at] else ())
    else:
        origin = tuple(place for piece in value for place in piece.origin)
        start = line.index(kept) if len(origin) == len(text) else 0
        places = origin[start : start + len(kept)] if len(origin) == len(text) else (None,) * len(kept)
        variables.set(names[0], (Piece(text=kept, origin=places),) if kept else ())
    return bool(end) and not whole


_READ = re.compile(r"(?P<flags>(?:-(?:r|a|ra|ar|r?d\0)\0)*+)(?P<names>(?:[A-Za-z_]\w*+\0)++)")
"""The words behind `read`, each with a zero behind it."""


def _unset_element(variables: Variables, name: str, index: str) -> None:
    """`unset NAME[INDEX]`: of the last element of a known array; every other one leaves a gap, which is not followed."""
    found = variables.values.get(name)
    if isinstance(found, list) and found and index in ("-1", str(len(found) - 1)):
        variables.set(name, found[:-1])
    elif isinstance(found, list) and not (index.isdigit() and len(index) < 7 and int(index) >= len(found)):
        why = f"an element of ${name} is unset: say --set {name}=VALUE"
        variables.set(name, (Piece(text=f"${name}", unknown=why),))


def forget(variables: Variables, fields: Sequence[Value], command: str, line: int) -> None:
    """`unset`, `read` and `mapfile`: names that are not set, or not known, behind them."""
    for value in fields:
        name = text_of(value)
        if command == "unset" and (element := re.fullmatch(r"([A-Za-z_]\w*)\[(.+)\]", name)):
            _unset_element(variables, element[1], element[2])
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            continue
        if command == "unset":
            variables.values.pop(name, None)
        else:
            why = f"${name} is read while the script runs (line {line}): say --set {name}=VALUE"
            variables.set(name, (Piece(text=f"${name}", unknown=why),))
