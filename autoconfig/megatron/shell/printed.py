"""What printf, echo, expr and a few others of their kind would print: text in, text out; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from autoconfig.megatron.shell.arithmetic import NotKnownError, whole_number
from autoconfig.megatron.shell.commands import (
    Arithmetic,
    Assignment,
    Block,
    Chain,
    Command,
    If,
    Not,
    Part,
    Piece,
    Simple,
    Source,
    Value,
    Word,
    plain_value,
    reason_of,
    text_of,
)
from autoconfig.megatron.shell.conditions import TESTS, condition, inside
from autoconfig.megatron.shell.syntax import parse
from autoconfig.megatron.shell.values import Variables, computed, fields_of, pattern_of, value_of
from autoconfig.specs.errors import InputError

MAX_INSIDE = 500
_SQUEEZES = (r"s/  \+/ /g", r"s/ \+/ /g", "s/  */ /g", "s/ +/ /g", "s/  +/ /g")
MAX_CHARACTERS = 20_000
_LITERAL = re.compile(r"[\w =,:/|-]+")
"""Patterns of grep that mean themselves."""
_FORMAT = re.compile(r"%(?:%|([-0 +#]*)([0-9]{0,3})(\.[0-9]{0,2})?([sdibqeEfgGxXo]))")
_ESCAPE = re.compile(r"\\([\\nt\"'r]|0?[0-7]{1,3})")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1]) or chr(int(match[1], 8)), text)


def formatted(words: Sequence[str]) -> str | None:
    """What `printf` makes of its format and arguments, the format used again until all are; None where it is not known."""
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        return None
    pattern, left, out = _unescaped(words[0]), list(words[1:]), ""
    while True:
        before, at = len(left), 0
        for match in _FORMAT.finditer(pattern):
            out += pattern[at : match.start()]
            at = match.end()
            if match[4] is None:
                out += "%"
                continue
            one = _one(match, left.pop(0) if left else "")
            if one is None:
                return None
            out += one
        out += pattern[at:]
        if len(out) > MAX_CHARACTERS or (left and len(left) == before):
            return None
        if not left:
            return out


def printed_into(variables: Variables, fields: Sequence[Value], line: int) -> None:
    """`printf -v NAME FORMAT ARGUMENTS`."""
    words = [text_of(value) for value in fields]
    reason = next((reason for value in fields if (reason := reason_of(value))), "")
    text = None if reason else formatted(words[2:])
    why = reason or f"what printf puts into ${words[1]} in line {line} cannot be worked out"
    variables.set(words[1], (Piece(text=f"${words[1]}", unknown=why),) if text is None else plain_value(text))


def _one(match: re.Match[str], word: str) -> str | None:
    flags, width, digits, kind = match[1], match[2], match[3] or "", match[4]
    if kind in "sbq":
        return f"%{flags.replace('0', '')}{width}{digits}s" % word
    try:
        value = int(word or "0", 0) if kind in "dixXo" else float(word or "0")
    except ValueError:
        return None
    return f"%{flags}{width}{digits}{'d' if kind == 'i' else kind}" % value


def output_of(words: Sequence[str]) -> str | None:
    """What a command prints that prints nothing but its words; None for every other command."""
    name, rest = words[0].rsplit("/", 1)[-1], list(words[1:])
    if name == "printf":
        return formatted(rest)
    if name == "echo":
        return _echo(rest)
    text = _one_line(name, rest)
    return None if text is None else f"{text}\n"


def _echo(rest: list[str]) -> str | None:
    signs = ""
    while rest and re.fullmatch(r"-[neE]+", rest[0]):
        signs += rest.pop(0)[1:]
    text = " ".join(rest)
    if signs.rfind("e") > signs.rfind("E") and "\\" in text:
        if re.fullmatch(r"(?:[^\\]|\\[nt\\])*", text, re.DOTALL) is None:
            return None
        text = re.sub(r"\\(.)", lambda match: _ESCAPED[match[1]], text)
    return text if "n" in signs else f"{text}\n"


def _one_line(name: str, rest: list[str]) -> str | None:
    if name == "expr":
        plain = all(re.fullmatch(r"[0-9]+|[-+*/%()]|[<>]=?|!=", word) for word in rest)
        number = whole_number(" ".join(rest)) if plain else None
        return None if number is None else str(number)
    if name == "basename" and 1 <= len(rest) <= 2 and not rest[0].startswith("-"):
        base = rest[0].rstrip("/").rsplit("/", 1)[-1]
        return base.removesuffix(rest[1]) if len(rest) == 2 and base != rest[1] else base
    if name == "seq" and 1 <= len(rest) <= 3:
        return _sequence([whole_number(word) for word in rest])
    return None


def _sequence(numbers: Sequence[int | None]) -> str | None:
    known = [number for number in numbers if number is not None]
    if len(known) != len(numbers):
        return None
    first, step, last = {1: (1, 1, known[-1]), 2: (known[0], 1, known[-1])}.get(len(known)) or (known[0], known[1], known[-1])
    if not step or abs(last - first) // abs(step) > 1000:
        return None
    return "\n".join(map(str, range(first, last + (1 if step > 0 else -1), step)))


def piped(text: str, words: Sequence[str]) -> str | None:
    """What `echo TEXT | bc`, `| cat`, `| xargs` and `| tr` print; None for every other command behind a pipe."""
    if words[0] == "cat" and len(words) == 1:
        return text
    if words[0] == "xargs" and len(words) == 1:
        return " ".join(text.split())
    if (words[0] == "sed" and words[-1] in _SQUEEZES) or words == ["tr", "-s", " "]:
        return re.sub(" +", " ", text)
    if words[0] == "tr" and len(words) == 3 and (words[1] == "-d" or len(_unescaped(words[2])) == 1):
        old, new = (words[2], "") if words[1] == "-d" else (words[1], _unescaped(words[2]))
        plain = "-" not in old and "[" not in old
        return "".join(new if sign in _unescaped(old) else sign for sign in text) if plain else None
    if words[0] == "bc" and len(words) == 1:
        number = whole_number(text)
        return None if number is None else str(number)
    return None


def searched(steps: Sequence[Command], variables: Variables) -> bool | None:
    """Whether `echo TEXT | grep -q WORD` finds it; None where that is not known, and for every other pipe."""
    if isinstance(steps[0], Not):  # of the whole pipe, where the grammar has it on the first command
        found = searched((steps[0].command, *steps[1:]), variables)
        return None if found is None else not found
    last = steps[-1] if len(steps) > 1 else None
    words = [text_of(value) for word in last.words for value in _fields(word, variables)] if isinstance(last, Simple) else []
    options = "".join(word[1:] for word in words[1:] if re.fullmatch("-[qFEiw]+", word))
    patterns = [word for word in words[1:] if word != "--" and not re.fullmatch("-[qFEiw]+", word)]
    if words[:1] != ["grep"] or "q" not in options or len(patterns) != 1 or not _LITERAL.fullmatch(patterns[0]):
        return None
    text = _through(steps[:-1], variables)
    if text is None or reason_of(text) or ("|" in patterns[0] and "E" not in options):
        return None
    any_of = rf"(?<!\w)(?:{patterns[0]})(?!\w)" if "w" in options else patterns[0]
    return re.search(any_of, text_of(text), re.IGNORECASE if "i" in options else 0) is not None


def _fields(word: Word | Assignment, variables: Variables) -> list[Value]:
    return fields_of(word, variables) if isinstance(word, Word) else []


def _joined(first: Command, second: Command, variables: Variables) -> Value | None:
    """`IFS=,; echo "${NAME[*]}"`: the elements with the first character of IFS between them."""
    if not (isinstance(first, Simple) and isinstance(second, Simple) and len(first.words) == 1 and len(second.words) == 2):
        return None
    assigned, name, word = first.words[0], second.words[0], second.words[1]
    if not isinstance(assigned, Assignment) or assigned.name != "IFS" or not isinstance(assigned.value, Word):
        return None
    if not isinstance(name, Word) or not isinstance(word, Word):
        return None
    part = next((part for part in word.parts if part.kind == "variable"), None)
    found = variables.values.get(part.text) if part is not None and part.operator == "[*]" and part.quoted else None
    others = any(part.text for part in word.parts if part.kind != "variable") or text_of(value_of(name, variables)) != "echo"
    if others or not isinstance(found, list) or any(map(reason_of, found)):
        return None
    return plain_value(text_of(value_of(assigned.value, variables))[:1].join(map(text_of, found)))


def _decided(nodes: Sequence[Command], variables: Variables) -> tuple[str, bool] | None:
    """(what tests, `&&`, `||` and `if` around echo and the like print, whether they succeed); None where it cannot be said."""
    shown, result = "", True
    for node in nodes:
        one: tuple[str, bool] | None = ("", result)
        if isinstance(node, Chain):
            for joint, command in node.links:
                if joint and (joint == "&&") != result:
                    continue
                found = _decided((command,), variables)
                if found is None:
                    return None
                shown, result = shown + found[0], found[1]
            continue
        if isinstance(node, If):
            one = _branch(node, variables)
        elif isinstance(node, Not):
            inner = _decided((node.command,), variables)
            one = inner and (inner[0], not inner[1])
        elif isinstance(node, Simple | Arithmetic):
            one = _leaf(node, variables)
        else:
            return None
        if one is None:
            return None
        shown, result = shown + one[0], one[1]
    return shown, result


def _branch(node: If, variables: Variables) -> tuple[str, bool] | None:
    shown = ""
    for test, body in node.branches:
        holds = _decided(test, variables) if test else ("", True)
        if holds is None:
            return None
        shown += holds[0]
        if holds[1]:
            found = _decided(body, variables)
            return found and (shown + found[0], found[1])
    return shown, True


def _leaf(node: Simple | Arithmetic, variables: Variables) -> tuple[str, bool] | None:
    if isinstance(node, Arithmetic):
        try:
            return "", bool(computed(node.part, variables.copy()))
        except NotKnownError:
            return None
    if not node.words or not all(isinstance(word, Word) for word in node.words):
        return None
    fields = [value for word in node.words if isinstance(word, Word) for value in fields_of(word, variables)]
    name = text_of(fields[0]) if fields else ""
    if name in TESTS:
        if name == "[[" and any(text_of(value) in ("=", "==", "!=") for value in fields[2:]):
            compared = [pattern_of(word, variables) for word in node.words[3:] if isinstance(word, Word)]
            fields = [*fields[:3], *compared] if len(fields) == len(node.words) else fields
        holds = condition(inside(fields), patterns=name == "[[")
        return None if holds is None else ("", holds)
    if not fields or any(map(reason_of, fields)):
        return None
    if name in ("true", ":", "false"):
        return "", name != "false"
    text = output_of([text_of(value) for value in fields])
    return None if text is None else (text, True)


def substituted(part: Part, variables: Variables, file_text: str) -> Value | None:
    """The output of a command substitution of echo, printf, expr and the like; None where it cannot be said."""
    inside = part.text[2:-1] if part.text.startswith("$(") else part.text[1:-1] if part.text.startswith("`") else ""
    if not inside.strip() or len(inside) > (MAX_CHARACTERS if "<<" in inside else MAX_INSIDE):
        return None
    try:
        nodes = parse(Source(text=inside, origin=[None] * len(inside), file_text=file_text))
        if len(nodes) == 2:
            return _joined(nodes[0], nodes[1], variables)
        if len(nodes) == 1 and isinstance(nodes[0], Chain | If):
            shown = _decided(nodes, variables)
            return None if shown is None else plain_value(shown[0].rstrip("\n"))
        if len(nodes) != 1:
            return None
        return _through(nodes[0].body if isinstance(nodes[0], Block) else nodes, variables)
    except InputError:
        return None


def _through(steps: Sequence[Command], variables: Variables) -> Value | None:
    """What a pipe prints, or a command alone. Of `echo WORDS | tr ...` what is not known stays, the rest is changed."""
    found: Value = ()
    for number, step in enumerate(steps):
        if not isinstance(step, Simple):
            return None
        fields = [value for word in step.words for value in _fields(word, variables)]
        words = [text_of(value) for value in fields]
        if not number and words == ["cat"] and step.given is not None:
            found = value_of(step.given, variables)
        elif not number and words[:1] == ["echo"] and len(steps) > 1 and not any(word.startswith("-") for word in words[1:2]):
            joined = [piece for value in fields[1:] for piece in (*plain_value(" "), *value)]
            found = (*joined[1:], *plain_value("\n"))
        elif not fields or any(map(reason_of, fields)):
            return None
        elif not number:
            text = output_of(words)
            if text is None:
                return None
            found = plain_value(text)
        else:
            whole = found if any(piece.unknown for piece in found) else plain_value(text_of(found))
            pieces = [piece.text if piece.unknown else piped(piece.text, words) for piece in whole]
            if any(text is None for text in pieces) or (len(pieces) > 1 and words[0] in ("bc", "xargs")):
                return None
            found = tuple(
                piece if piece.unknown else plain_value(text or "")[0] for piece, text in zip(whole, pieces, strict=True)
            )
    last = found[-1] if found else None
    if last is None or last.unknown:
        return found
    end = last.text.rstrip("\n")
    return (*found[:-1], replace(last, text=end, origin=last.origin[: len(end)]))
