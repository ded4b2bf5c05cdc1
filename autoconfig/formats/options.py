"""Options of a command (`--lora_rank 8 --bf16`) and overrides (`model.seq_length=4096`) as a mapping of values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoconfig.maps.tree import NotKnown, Tree, load_yaml
from autoconfig.megatron.argument_list import is_option
from autoconfig.megatron.shell.commands import Value, reason_of, text_of
from autoconfig.megatron.shell.launch import Program
from autoconfig.megatron.shell.script import Script, read_script
from autoconfig.specs.errors import InputError


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
        text, before = text_of(script.argv[at]), text_of(script.argv[at - 1]) if at else ""
        is_value = (is_option(before) and "=" not in before) or text.startswith("-") or is_override(text)
        if not is_value and not unread.unset:
            raise InputError(f"a word that may hold any setting is not known: {unread.reason}")
    return script


def options_of(words: Sequence[Value]) -> dict[str, object]:
    """Name with `_` for `-`, without dashes -> value, values, or True; a value that is not known raises where it is read."""
    options: dict[str, list[object]] = {}
    values: list[object] = []
    for word in words:
        text = text_of(word)
        if is_option(text):
            name, equals, joined = text.partition("=")
            values = [_value(word, joined)] if equals else []
            options[name.lstrip("-").replace("-", "_")] = values
            values = [] if equals else values
        else:
            values.append(_value(word, text))
    return {name: True if not texts else texts[0] if len(texts) == 1 else texts for name, texts in options.items()}


def is_override(text: str) -> bool:
    """Whether a word is `path=value`."""
    path, equals, _ = text.lstrip("+~").partition("=")
    return bool(equals) and not path.startswith(".") and path.replace(".", "_").isidentifier()


def overrides_of(words: Sequence[Value]) -> dict[str, object]:
    """Path -> value of the words that are `path=value`."""
    parts = ((word, text_of(word).lstrip("+~").partition("=")) for word in words if is_override(text_of(word)))
    return {path: _value(word, text) for word, (path, _, text) in parts}


def processes(variables: Mapping[str, object]) -> int | None:
    """NPROC_PER_NODE x NNODES of a script; None where it does not say them."""
    each, nodes = str(variables.get("NPROC_PER_NODE", "")), str(variables.get("NNODES", "1"))
    return int(each) * int(nodes) if each.isdigit() and nodes.isdigit() and len(each + nodes) < 9 else None


def _value(word: Value, text: str) -> object:
    if reason := reason_of(word):
        return NotKnown(reason, text)
    try:
        value = load_yaml(text) if text.strip() else None
    except InputError:
        return text
    return text if isinstance(value, dict) else value
