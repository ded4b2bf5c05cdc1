"""Options of a command (`--lora_rank 8 --bf16`) and overrides (`model.seq_length=4096`) as a mapping of values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoconfig.maps.tree import NotKnown, Tree, load_yaml
from autoconfig.megatron.shell.commands import Value, reason_of, text_of
from autoconfig.megatron.shell.launch import Program
from autoconfig.megatron.shell.script import Script, read_script
from autoconfig.specs.errors import InputError

OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Names:
    """Every name that matches a pattern."""

    pattern: re.Pattern[str]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.pattern.fullmatch(name) is not None


def read_command(text: str, settings: Tree, name: str, decisive: frozenset[str], pattern: str) -> Script:
    """The command of a script that hands over an option among `decisive`. Raises InputError where there is none."""
    program = Program(name=name, arguments=Names(re.compile(pattern)), decisive=decisive, refuse=lambda program, line: None)
    script = read_script(text, program, settings)
    for at, unread in script.unread().items():
        said, before = text_of(script.argv[at]), text_of(script.argv[at - 1]) if at else ""
        is_value = re.match(r"--?[A-Za-z][\w.-]*$", before) or re.match(r"(?:--?|[+~]{0,2}[A-Za-z_][\w.]*=)", said)
        if not is_value and not unread.unset:
            raise InputError(f"a word that may hold any setting is not known: {unread.reason}")
    return script


def options_of(words: Sequence[Value]) -> dict[str, object]:
    """Name with `_` for `-`, without dashes -> value, values, or True; a value that is not known raises where it is read."""
    found: dict[str, object] = {}
    at = 0
    while at < len(words):
        name, equals, joined = text_of(words[at]).partition("=")
        at += 1
        if not re.fullmatch(r"--?[A-Za-z][\w.-]*", name):
            continue
        key = name.lstrip("-").replace("-", "_")
        if equals:
            found[key] = _value(words[at - 1], joined)
            continue
        start = at
        while at < len(words) and not re.match(r"--?[A-Za-z]", text_of(words[at])):
            at += 1
        values = [_value(word, text_of(word)) for word in words[start:at]]
        found[key] = True if not values else values[0] if len(values) == 1 else values
    return found


def is_override(text: str) -> bool:
    """Whether a word is `path=value`."""
    return OVERRIDE.fullmatch(text) is not None


def overrides_of(words: Sequence[Value]) -> dict[str, object]:
    """Path -> value of the words that are `path=value`."""
    matches = ((word, OVERRIDE.fullmatch(text_of(word))) for word in words)
    return {match[1]: _value(word, match[2]) for word, match in matches if match}


def processes(variables: Mapping[str, object]) -> int | None:
    """NPROC_PER_NODE x NNODES of a script; None where it does not say them."""
    each, nodes = str(variables.get("NPROC_PER_NODE", "")), str(variables.get("NNODES", "1"))
    return int(each) * int(nodes) if each.isdigit() and nodes.isdigit() and len(each + nodes) < 9 else None


def _value(word: Value, text: str) -> object:
    if reason := reason_of(word):
        return NotKnown(reason, text)
    try:
        found = load_yaml(text) if text.strip() else None
    except InputError:
        return text
    return text if isinstance(found, dict | list) and not isinstance(found, list) else found
