"""Kernels, collectives and process groups by name, as data/kernel_parts.toml has them."""

from __future__ import annotations

import tomllib
from functools import cache, lru_cache
from importlib import resources
from typing import Any

COMMUNICATION = "communication"
COLLECTIVES = frozenset((COMMUNICATION, "expert_exchange_seconds"))
"""Parts whose kernels talk to other GPUs."""
UNKNOWN = "unknown"
LONGEST = 2_000
"""Characters of a kernel's name that are looked at; templates may be longer."""


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((resources.files("autoconfig") / "data" / "kernel_parts.toml").read_text(encoding="utf-8"))


def _without_brackets(name: str, kept_depth: int = 0) -> str:
    """A name without what stands in < > and ( ), but for `kept_depth` levels."""
    plain: list[str] = []
    depth = 0
    for sign in name:
        if sign in "<(":
            depth += 1
            if 0 < depth <= kept_depth:
                plain.append(" ")
        elif sign in ">)":
            depth = max(0, depth - 1)
        elif depth <= kept_depth:
            plain.append(sign)
    return "".join(plain)


@lru_cache(maxsize=20_000)
def base_name(name: str) -> str:
    """A kernel's name in lower case without return type, template arguments and arguments; of a wrapper that says nothing the
    first template argument's."""
    name = name[:LONGEST].replace("(anonymous namespace)::", "").strip().lower().removeprefix("void ")
    base = _without_brackets(name).strip()
    inner = name.partition("<")[2]
    if inner and base.startswith(tuple(_table()["wrappers"])):
        return f"{_without_brackets(inner, 1)[:400].strip()} {base}"
    return base or name


@lru_cache(maxsize=20_000)
def part_of(name: str) -> str:
    """The part of `explain` that a kernel belongs to; communication or unknown where its name does not say more."""
    base = base_name(name)
    for row in _table()["row"]:
        for word in row["words"]:
            if base.startswith(word[1:]) if word[0] == "^" else word in base:
                return str(row["part"])
    return UNKNOWN


@lru_cache(maxsize=4_000)
def collective_of(name: str) -> str:
    """all_gather, reduce_scatter, ...; other where a name says none."""
    lower = name.lower()
    return next((str(found) for word, found in _table()["collectives"].items() if word in lower), "other")


@lru_cache(maxsize=4_000)
def group_of(description: str) -> str:
    """tp, cp, ep, pp, dp, fsdp; the description itself where it is none of these."""
    lower = description.lower()
    return next((str(name) for word, name in _table()["groups"].items() if word in lower), description[:60])


def part_of_group(group: str, collective: str) -> str:
    """The part of `explain` of a collective in a group; communication where the group is not known."""
    parts = _table()["parts_of_groups"].get(group)
    return COMMUNICATION if parts is None else str(parts.get(collective, parts["*"]))


@lru_cache(maxsize=20_000)
def fallback_of(name: str) -> str:
    """The slow path that a kernel's name gives away, or nothing."""
    base = base_name(name)
    return next((str(found) for word, found in _table()["fallbacks"].items() if word in base), "")


@lru_cache(maxsize=4_000)
def host_call(name: str) -> str:
    """What a call of the driver or runtime does: launch, graph, copy, synchronize, allocate; "" for anything else."""
    lower, calls = name.lower(), _table()["host"]
    if lower in calls["blocking"]:
        return "synchronize"
    for kind in ("synchronize", "graph", "launch", "copy", "allocate"):
        if any(word in lower for word in calls[kind]):
            return kind
    return ""


@lru_cache(maxsize=50_000)
def marks(name: str) -> str:
    """What a range of the host or a Python function says by its name: data, save, collection, or nothing."""
    lower = name.lower()
    return next(
        (kind for kind, names in _table()["marks"].items() if any(all(word in lower for word in words) for words in names)), ""
    )


def type_bytes(name: str) -> int:
    """Bytes of an element; 0 for a type that is not known."""
    return int(_table()["type_bytes"].get(name, 0))
