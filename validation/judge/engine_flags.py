"""Whether a start command has the flags of its engine's release, by engine_options.csv: no engine and no GPU is needed.

engine_options.csv: one row for each flag of a command; `values` is how many words follow it, as argparse's nargs (0, 1, + one
or more, ? at most one, * any); `choices` are divided by | and empty where any value goes; `source` names the file read: of the
release's wheel, or of a public repository's commit. vLLM's --kv-cache-dtype and --quantization have the names that its
configuration takes, since its parser leaves these to that.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("engine_options.csv")
FITS = {"0": (0, 0), "1": (1, 1), "+": (1, None), "?": (0, 1), "*": (0, None)}
"""Fewest and most words after a flag."""
LAUNCHERS = ("trtllm-llmapi-launch",)
"""Programs that start the rest of their line, without flags of their own."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag of one command."""

    values: str
    choices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of one release."""

    engine: str
    release: str
    flags: dict[str, Flag]


def table() -> dict[str, Command]:
    """{command: its release and flags}."""
    commands: dict[str, Command] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            command = commands.setdefault(row["command"], Command(engine=row["engine"], release=row["release"], flags={}))
            assert (command.engine, command.release) == (row["engine"], row["release"]), row
            choices = tuple(row["choices"].split("|")) if row["choices"] else ()
            command.flags[row["flag"]] = Flag(values=row["values"], choices=choices)
    return commands


def refusals(words: Sequence[str], commands: dict[str, Command]) -> list[str]:
    """What is wrong with the words of a started command, program first; empty where every flag is one of its release."""
    words = words[1:] if words[0] in LAUNCHERS else words
    text = " ".join(words) + " "
    names = [name for name in commands if text.startswith(name + " ")]
    if not names:
        return [f"{text}: no such command"]
    name = max(names, key=len)
    rest = list(words[len(name.split()) :])
    at = next((number for number, word in enumerate(rest) if word.startswith("--")), len(rest))
    wrong = [f"{name}: {rest[:at]} before the first flag"] if at > 1 else []
    while at < len(rest):
        end = next((number for number in range(at + 1, len(rest)) if rest[number].startswith("--")), len(rest))
        wrong += [f"{name}: {problem}" for problem in _problems(rest[at], rest[at + 1 : end], commands[name])]
        at = end
    return wrong


def _problems(flag: str, values: list[str], command: Command) -> list[str]:
    row = command.flags.get(flag)
    if row is None:
        return [f"{flag} is no flag of {command.engine} {command.release}"]
    fewest, most = FITS[row.values]
    if len(values) < fewest or (most is not None and len(values) > most):
        return [f"{flag} takes {row.values} values, not {values}"]
    strange = [value for value in values if row.choices and value not in row.choices]
    return [f"{flag} is one of {', '.join(row.choices)}, not {value}" for value in strange]
