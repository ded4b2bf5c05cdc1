"""What printf, echo, expr and a few others of their kind print: text in, text out; nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from autoconfig.megatron.shell.arithmetic import whole_number
from autoconfig.megatron.shell.commands import Value, first_reason, joined, plain_value, text_of

MAX_CHARACTERS = 20_000
_FORMAT = re.compile(r"%(?:%|([-0 +#]*)([0-9]{0,3})(\.[0-9]{0,2})?([sdibqeEfgGxXo]))")
_ESCAPE = re.compile(r"\\([\\nt\"'r]|0?[0-7]{1,3})")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}
_LITERAL = re.compile(r"[\w =,:/|-]+")
"""Patterns of grep that mean themselves."""
_SQUEEZE = re.compile(r"s/( +)(\*|\\?\+)/ /g")
"""Several blanks that sed makes one."""


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1]) or chr(int(match[1], 8)), text)


def formatted(words: Sequence[str]) -> str | None:
    """What `printf` makes of its format and arguments, the format used again until all are; None where it is not known."""
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        return None
    pattern, left, out = _unescaped(words[0]), list(words[1:]), ""
    try:
        while True:
            before = len(left)
            out += _FORMAT.sub(lambda match: _one(match, left), pattern)
            if len(out) > MAX_CHARACTERS or (left and len(left) == before):
                return None
            if not left:
                return out
    except ValueError:
        return None


def _one(match: re.Match[str], left: list[str]) -> str:
    """The next argument in its format. Raises ValueError where it is no number."""
    flags, width, digits, kind = match[1], match[2], match[3] or "", match[4]
    if kind is None:
        return "%"
    word = left.pop(0) if left else ""
    if kind in "sbq":
        return f"%{flags.replace('0', '')}{width}{digits}s" % word
    value = int(word or "0", 0) if kind in "dixXo" else float(word or "0")
    return f"%{flags}{width}{digits}{'d' if kind == 'i' else kind}" % value


def _echo(rest: Sequence[str]) -> str | None:
    options = "".join(word[1:] for word in rest[: _options(rest)])
    text = " ".join(rest[_options(rest) :])
    if options.rfind("e") > options.rfind("E") and "\\" in text:
        if re.fullmatch(r"(?:[^\\]|\\[nt\\])*", text, re.DOTALL) is None:
            return None
        text = _unescaped(text)
    return text if "n" in options else f"{text}\n"


def _has_only(word: str, letters: str) -> bool:
    """Whether a word is an option of these letters."""
    return word[:1] == "-" and word != "-" and set(word[1:]) <= set(letters)


def _options(rest: Sequence[str]) -> int:
    """How many options of echo stand in front."""
    return next((at for at, word in enumerate(rest) if not _has_only(word, "neE")), len(rest))


def _expr(rest: Sequence[str]) -> str | None:
    plain = all(re.fullmatch(r"[0-9]+|[-+*/%()]|[<>]=?|!=", word) for word in rest)
    number = whole_number(" ".join(rest)) if plain else None
    return None if number is None else f"{number}\n"


def _basename(rest: Sequence[str]) -> str | None:
    if not 1 <= len(rest) <= 2 or rest[0].startswith("-"):
        return None
    base = rest[0].rstrip("/").rsplit("/", 1)[-1]
    return f"{base.removesuffix(rest[1]) if len(rest) == 2 and base != rest[1] else base}\n"


def _seq(rest: Sequence[str]) -> str | None:
    numbers = [number for word in rest if (number := whole_number(word)) is not None]
    if len(numbers) != len(rest) or not 1 <= len(rest) <= 3:
        return None
    first, step, last = {1: (1, 1), 2: (numbers[0], 1), 3: tuple(numbers[:2])}[len(numbers)] + (numbers[-1],)
    if not step or abs(last - first) // abs(step) > 1000:
        return None
    return "\n".join(map(str, range(first, last + (1 if step > 0 else -1), step))) + "\n"


_OUTPUTS: dict[str, Callable[[Sequence[str]], str | None]] = {
    "echo": _echo,
    "printf": formatted,
    "expr": _expr,
    "basename": _basename,
    "seq": _seq,
}
"""Commands that print nothing but what their words say."""


def _tr(text: str, words: Sequence[str]) -> str | None:
    if list(words) == ["-s", " "]:
        return _squeezed(text)
    if len(words) != 2 or (words[0] != "-d" and len(_unescaped(words[1])) != 1):
        return None
    old, new = (words[1], "") if words[0] == "-d" else (words[0], _unescaped(words[1]))
    return None if "-" in old or "[" in old else "".join(new if sign in _unescaped(old) else sign for sign in text)


def _squeezed(text: str) -> str:
    return re.sub(" +", " ", text)


def _sed(text: str, words: Sequence[str]) -> str | None:
    """`s/  */ /g` and `s/ \\+/ /g`, with -E `s/ +/ /g`."""
    match = _SQUEEZE.fullmatch(words[-1]) if words and set(words[:-1]) <= {"-E", "-r", "-e"} else None
    one_or_more = "+" if {"-E", "-r"} & set(words) else "\\+"
    squeezes = match and (match[2] == one_or_more or (match[2] == "*" and len(match[1]) > 1))
    return _squeezed(text) if squeezes else None


def _bc(text: str, words: Sequence[str]) -> str | None:
    return None if words or (number := whole_number(text)) is None else f"{number}\n"


_FILTERS: dict[str, Callable[[str, Sequence[str]], str | None]] = {
    "cat": lambda text, words: None if words else text,
    "tr": _tr,
    "sed": _sed,
    "xargs": lambda text, words: None if words else " ".join(text.split()) + "\n",
    "bc": _bc,
}
"""What commands make of the text that a pipe hands them."""


def printed(fields: Sequence[Value], stdin: Value | None) -> tuple[Value, bool] | None:
    """Return (what a command prints, whether it succeeds) of those that print their words or change what they are `stdin`;
    None for all others, and where it is not known."""
    words = [text_of(value) for value in fields]
    name, reason = words[0].rsplit("/", 1)[-1], first_reason(fields)
    if name == "echo" and reason and not words[1].startswith("-"):
        return (*joined(fields[1:], plain_value(" ")), *plain_value("\n")), True
    if reason or (name not in _OUTPUTS and stdin is None):
        return None
    if name in _OUTPUTS:
        text = _OUTPUTS[name](words[1:]) if words[1:2] != ["-v"] else None
        return None if text is None else (plain_value(text), True)
    if name == "grep":
        return _searched(words, stdin or ())
    value = _filtered(_FILTERS[name], stdin or (), words) if name in _FILTERS else None
    return None if value is None else (value, True)


def _filtered(change: Callable[[str, Sequence[str]], str | None], stdin: Value, words: Sequence[str]) -> Value | None:
    """A text that a command changes; of one with parts that are not known these stay, where that is not by line."""
    if words == ["cat"]:
        return stdin
    if not first_reason((stdin,)):
        text = change(text_of(stdin), words[1:])
        return None if text is None else plain_value(text)
    texts = [piece.text if piece.unknown else change(piece.text, words[1:]) for piece in stdin]
    if words[0] in ("bc", "xargs") or None in texts:
        return None
    return tuple(one if one.unknown else plain_value(text or "")[0] for one, text in zip(stdin, texts, strict=True))


def _searched(words: Sequence[str], stdin: Value) -> tuple[Value, bool] | None:
    """`grep -q WORD`."""
    options = "".join(word[1:] for word in words[1:] if _has_only(word, "qFEiw"))
    patterns = [word for word in words[1:] if word != "--" and not _has_only(word, "qFEiw")]
    if "q" not in options or len(patterns) != 1 or not _LITERAL.fullmatch(patterns[0]) or first_reason((stdin,)):
        return None
    if "|" in patterns[0] and "E" not in options:
        return None
    any_of = rf"(?<!\w)(?:{patterns[0]})(?!\w)" if "w" in options else patterns[0]
    return (), re.search(any_of, text_of(stdin), re.IGNORECASE if "i" in options else 0) is not None
