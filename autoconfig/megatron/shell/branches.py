"""How branches and scripts end, and what variables hold behind branches of which text does not say which is taken."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from tree_sitter import Node

from autoconfig.megatron.shell.commands import Held, Piece, Value, plain_value, text_of, unknown
from autoconfig.megatron.shell.syntax import Text
from autoconfig.megatron.shell.values import Variables
from autoconfig.planning.work import spend


class Exit(Exception):
    """`exit` was reached; holds the line, and of `exit STATUS` the status."""


class Leave(Exception):
    """`break`, `continue` or `return` was reached; holds the word."""


_ASKS = re.compile(r"""(?:test|\[\[?)\s+-z\s+"?\$\{?([A-Za-z_]\w*)\}?"?\s*\]{0,2}""")


@contextmanager
def filled_in(variables: Variables, notes: list[str], text: Text, test: Sequence[Node]) -> Iterator[None]:
    """Goes on behind a template's `if [ -z "$NAME" ]; then echo ...; exit 1; fi`: what the user is to fill in is not known and
    not empty. Every other end goes through."""
    try:
        yield
    except Exit as end:
        line, status = end.args if len(end.args) > 1 else (0, "")
        asks = _ASKS.fullmatch(text.text[test[0].start_byte : test[0].end_byte]) if len(test) == 1 else None
        if asks is None or not (status.isdecimal() and status.strip("0")):
            raise
        notes.append(f"line {line}: the script stops there while ${asks[1]} is empty: it is read as if it were filled in")
        why = f"${asks[1]} is to be filled in (line {line}): say --set {asks[1]}=VALUE"
        variables.set(asks[1], unknown(f"${asks[1]}", why))


def join(before: Variables, outcomes: Sequence[Variables], line: int, why: str) -> None:
    """What the branches of line `line` set alike holds behind them; the rest is not known."""
    before.unseen = next((outcome.unseen for outcome in outcomes if outcome.unseen), "")
    for name in sorted({name for outcome in outcomes for name in outcome.values}):
        values = [outcome.values.get(name) for outcome in outcomes]
        spend(sum(1 + (len(value) if isinstance(value, list) else 0) for value in values))
        if all(value == values[0] for value in values) and values[0] is not None:
            before.values[name] = values[0]
        else:
            because = f": {why}" if why else f": say --set {name}=VALUE"
            reason = f"${name} depends on a condition in line {line} that is not known{because}"
            before.set(name, merged(values, f"${name}", reason))


def spoiled(before: Variables, inner: Variables, line: int) -> bool:
    """What a round of a loop in line `line` sets, of which it is not known how often it runs, is not known: whether that is
    anything."""
    spend(sum(1 + (len(value) if isinstance(value, list) else 0) for value in inner.values.values()))
    changed = [name for name in inner.values if inner.values[name] != before.values.get(name) and not name.isdigit()]
    for name in changed:
        why = f"${name} is set in a loop in line {line} whose rounds are not known: say --set {name}=VALUE"
        before.set(name, unknown(f"${name}", why))
    before.unseen = before.unseen or inner.unseen
    return bool(changed)


def merged(outcomes: Sequence[Held | None], shown: str, why: str) -> Held:
    """What is common in front, and behind it what is not known, with its choices."""
    if any(isinstance(outcome, list) for outcome in outcomes):
        rows = [outcome if isinstance(outcome, list) else [outcome] if outcome is not None else [] for outcome in outcomes]
        length = _common(rows)
        texts = [(" ".join(map(text_of, row[length:])), any(map(_hidden, row[length:]))) for row in rows]
        return [*rows[0][:length], (_undecided(texts, shown, why),)]
    values = [outcome if isinstance(outcome, tuple) else () for outcome in outcomes]
    length = _common(values)
    front = _front([value[length:] for value in values])
    rest = [(text_of(value[length:])[len(front) :], _hidden(value[length:])) for value in values]
    return (*values[0][:length], *(plain_value(front) if front else ()), _undecided(rest, shown, why))


def _front(values: Sequence[Value]) -> str:
    """The whole words with which the text of all of them begins, which stands at several places of the file."""
    spend(sum(len(piece.text) for value in values for piece in value))
    texts = ["".join(piece.text for piece in takewhile(lambda piece: not piece.unknown, value)) for value in values]
    same = "".join(row[0] for row in takewhile(lambda row: len(set(row)) == 1, zip(*texts, strict=False)))
    whole = all(len(text) == len(same) or text[len(same)].isspace() for text in texts)
    return same if whole else same[: max(same.rfind(space) for space in " \t\n") + 1]


def _hidden(value: Value) -> bool:
    """Whether it may be any words: a variable that nothing sets stands for itself, as in `--load /w/run_$NAME`."""
    return any(piece.unknown and not piece.unset for piece in value)


def _common(rows: Sequence[Sequence[object]]) -> int:
    """How many elements in front are the same in all rows."""
    return sum(1 for _ in takewhile(lambda same: all(one == same[0] for one in same), zip(*rows, strict=False)))


def _undecided(texts: Sequence[tuple[str, bool]], shown: str, why: str) -> Piece:
    """`texts`: of each branch, and whether a part of it is not known."""
    whole = not any(odd for _, odd in texts)
    return Piece(text=shown, unknown=why, choices=tuple(text for text, _ in texts) if whole else ())
