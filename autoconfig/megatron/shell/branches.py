"""How branches and scripts end, and what variables hold behind branches of which text does not say which is taken."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from autoconfig.megatron.shell.values import Piece, Value, Variables, reason_of, text_of


class Exit(Exception):
    """`exit` was reached; holds the line."""


class Leave(Exception):
    """`break`, `continue` or `return` was reached; holds the word."""


class LockedName(Exception):
    """A `readonly` name was assigned: bash drops the command of the script that does so; holds the line."""


def join(before: Variables, outcomes: Sequence[Variables], line: int, why: str) -> None:
    """What the branches of line `line` set alike holds behind them; the rest is not known."""
    for name in sorted({name for outcome in outcomes for name in outcome.values}):
        found = [outcome.values.get(name) for outcome in outcomes]
        if all(value == found[0] for value in found) and found[0] is not None:
            before.values[name] = found[0]
        else:
            because = f": {why}" if why else f": say --set {name}=VALUE"
            reason = f"${name} depends on a condition in line {line} that is not known{because}"
            before.set(name, merged(found, f"${name}", reason))


def merged(outcomes: Sequence[Value | list[Value] | None], shown: str, why: str) -> Value | list[Value]:
    """What is common in front, and behind it what is not known, with its choices."""
    if any(isinstance(outcome, list) for outcome in outcomes):
        rows = [outcome if isinstance(outcome, list) else [outcome] if outcome is not None else [] for outcome in outcomes]
        kept = _common(rows)
        texts = [(" ".join(map(text_of, row[kept:])), any(map(reason_of, row[kept:]))) for row in rows]
        return [*rows[0][:kept], (_undecided(texts, shown, why),)]
    values = [outcome if isinstance(outcome, tuple) else () for outcome in outcomes]
    kept = _common(values)
    return (*values[0][:kept], _undecided([(text_of(v[kept:]), bool(reason_of(v[kept:]))) for v in values], shown, why))


def _common(rows: Sequence[Sequence[object]]) -> int:
    """How many elements in front are the same in all rows."""
    return sum(1 for _ in takewhile(lambda same: all(one == same[0] for one in same), zip(*rows, strict=False)))


def _undecided(texts: Sequence[tuple[str, bool]], shown: str, why: str) -> Piece:
    """`texts`: of each branch, and whether a part of it is not known."""
    known = not any(odd for _, odd in texts)
    return Piece(text=shown, unknown=why, choices=tuple(text for text, _ in texts) if known else ())
