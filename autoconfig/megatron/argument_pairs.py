"""Arguments that Megatron-LM refuses together, or one without another, before it trains: a table, and two rules of numbers."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One row of `autoconfig/data/megatron_pairs.csv`: `argument`, with one of `values` where there are any, needs or excludes
    one of the `other` ones, with one of `other_values`, where `usual` is what an absent one has; not beside `unless`. `rule` is
    a row of megatron_constraints.csv where there is one, `source` of megatron-core 0.19.2. Only arguments whose rule is as old
    as they are in the Megatron-LM of 2024 and later: a script does not say its release."""

    rule: str
    argument: str
    values: str
    relation: str
    other: str
    other_values: str
    usual: str
    unless: str
    source: str


@cache
def pairs() -> tuple[Pair, ...]:
    """The table."""
    text = (resources.files("autoconfig") / "data" / "megatron_pairs.csv").read_text(encoding="utf-8")
    return tuple(Pair(**row) for row in csv.DictReader(text.splitlines()))


def refuse_pairs(a: Arguments, *, as_long: bool) -> None:
    """Raises InputError for arguments that today's Megatron-LM refuses at its start. `as_long`: sequences are as long as they
    say. Nothing is refused where a condition that is not known decides one of them."""
    for pair in pairs():
        others = pair.other.split("|")
        if any(name in a.undecided for name in (pair.argument, *others)) or pair.unless in a.given:
            continue
        if not _holds(a, pair.argument, pair.values):
            continue
        there = any(_holds(a, name, pair.other_values, pair.usual) for name in others)
        if there == (pair.relation == "excludes"):
            said = " ".join(filter(None, (pair.argument, pair.values and _value(a, pair.argument))))
            wanted = " ".join(filter(None, (" or ".join(others), pair.other_values.replace("|", " or "))))
            change = "drop one of them" if there else "add it, or drop the first"
            rule = f"{pair.rule}: " if pair.rule else ""
            raise InputError(f"{said} {pair.relation} {wanted} ({rule}Megatron-LM refuses it at the start); {change}")
    experts, groups = _number(a, "--num-experts"), _number(a, "--moe-router-num-groups")
    if "--moe-router-group-topk" in a.given and experts and groups and experts % groups:
        raise InputError(f"--moe-router-num-groups {groups} does not divide --num-experts {experts} (NV063); change one")
    length, most = _number(a, "--seq-length") if as_long else None, _number(a, "--max-position-embeddings")
    if length and most and length > most:
        raise InputError(f"--seq-length {length} is above --max-position-embeddings {most} (NV016); raise the second")


def _value(a: Arguments, name: str) -> str | None:
    """The value of an argument; None where it is not given, has none or it is not known."""
    found = a.given.get(name)
    return found.values[0] if found and found.values and found.value_positions[0] not in a.unread else None


def _number(a: Arguments, name: str) -> int | None:
    text = None if name in a.undecided else _value(a, name)
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else None


def _holds(a: Arguments, name: str, values: str, usual: str = "") -> bool:
    """The argument is given, with one of the values where there are any."""
    if not values:
        return name in a.given
    return (_value(a, name) if name in a.given else usual) in values.split("|")
