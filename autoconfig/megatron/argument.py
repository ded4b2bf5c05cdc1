"""One argument of a Megatron-LM command line: the flag, its values, and why it is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GROUPS = ("model", "plan", "batch", "numerics", "optimizer", "overlap", "data", "run")
"""Sections of a script, in the order in which they are written."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A flag with its values (none for a switch)."""

    group: str
    flag: str
    values: tuple[str, ...] = ()
    comment: str = ""
    """What it means here; one line, shown behind the flag in a script."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words on the command line."""
        return (self.flag, *self.values)


class Collector:
    """Collects the arguments of one group: `add("num-layers", 96, "...")`; True or None as value means a switch."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.arguments: list[Argument] = []

    def add(self, name: str, *values: object, why: str = "") -> None:
        """Append `--name value...`."""
        texts = tuple(str(value) for value in values)
        self.arguments.append(Argument(group=self.group, flag=f"--{name}", values=texts, comment=why))


def words(arguments: Iterable[Argument]) -> list[str]:
    """The argument list that the training process receives."""
    return [word for argument in arguments for word in argument.words]
