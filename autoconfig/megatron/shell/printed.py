"""What printf, echo, expr and a few others of their kind would print: text in, text out; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autoconfig.megatron.shell.arithmetic import whole_number
from autoconfig.megatron.shell.commands import Assignment, Block, Command, Part, Simple, Source, Word
from autoconfig.megatron.shell.syntax import parse
from autoconfig.megatron.shell.values import Value, Variables, fields_of, plain_value, reason_of, text_of, value_of
from autoconfig.specs.errors import InputError

MAX_INSIDE = 500
MAX_CHARACTERS = 20_000
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
        while rest and re.fullmatch(r"-[neE]+", rest[0]):
            rest.pop(0)
        return " ".join(rest)
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
    """What `echo TEXT | bc` and `| cat` print; None for every other command behind a pipe."""
    if words[0] == "cat" and len(words) == 1:
        return text
    if words[0] == "bc" and len(words) == 1:
        number = whole_number(text)
        return None if number is None else str(number)
    return None


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


def substituted(part: Part, variables: Variables, file_text: str) -> Value | None:
    """The output of a command substitution of echo, printf, expr and the like; None where it cannot be said."""
    inside = part.text[2:-1] if part.text.startswith("$(") else part.text[1:-1] if part.text.startswith("`") else ""
    if not inside.strip() or len(inside) > MAX_INSIDE:
        return None
    try:
        nodes = parse(Source(text=inside, origin=[None] * len(inside), file_text=file_text))
        if len(nodes) == 2:
            return _joined(nodes[0], nodes[1], variables)
        if len(nodes) != 1:
            return None
        text: str | None = ""
        for number, step in enumerate(nodes[0].body if isinstance(nodes[0], Block) else nodes):
            if not isinstance(step, Simple):
                return None
            fields = [value for word in step.words if isinstance(word, Word) for value in fields_of(word, variables)]
            if not fields or any(map(reason_of, fields)):
                return None
            words = [text_of(value) for value in fields]
            text = piped(text or "", words) if number else output_of(words)
            if text is None:
                return None
        return plain_value((text or "").rstrip("\n"))
    except InputError:
        return None
