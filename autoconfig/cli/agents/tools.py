"""What an agent may ask: a tool is a command, its arguments are the command's options, its answer is the command's JSON.

On this machine the command itself is run. Over HTTP the arguments are the body of the service's own question, read first as the
command line reads them, so that both refuse a wrong one in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import click

from autoconfig.cli.main import COMMANDS, cli, load, no_such_option
from autoconfig.planning.commands import option_words, value_texts
from autoconfig.planning.request_fields import ARGUMENTS, COMPARED
from autoconfig.planning.resolve import Field
from autoconfig.specs.errors import InputError, option_name

NOT_FOR_TOOLS = ("output", "profile", "runner", "plan", "serving_output", "post_training_output")
"""Groups of options that write files, measure, or say again what another option says."""
WRITES = ("apply_to", "force", "calibrate", "download", "format", "fail_slower_than")
"""Options that write or fetch, or say how a verdict is shown."""
NOT_LISTED = ("architecture",)
"""Groups that a tool takes and does not list one by one."""
ONLY = "only"
MOST_WORDS, LONGEST_WORD = 512, 2_000
SHOWN = 3
"""Plans, deployments or placements of an answer where nothing is said: an answer is read whole by a model."""
Schema = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A command as a tool."""

    name: str
    """The command's."""
    kind: str
    """The question of the service, the last part of its path."""
    bare: Mapping[str, str] = field(default_factory=dict)
    """Argument -> its entry of ARGUMENTS, of those that the command takes without a name, in their order."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Likewise of what a body has in place of files."""
    needs: tuple[str, ...] = ("model",)
    """Arguments without which there is no answer."""

    @property
    def command(self) -> click.Command:
        """The command behind it."""
        module, _, name = COMMANDS[self.name].partition(":")
        return load(module, name)

    def fields(self) -> dict[str, Field]:
        """Its arguments by name, but for those without an option."""
        options = (getattr(param, "field", None) for param in self.command.params)
        named = {one.name: one for one in options if one is not None}
        return {name: one for name, one in named.items() if one.group not in NOT_FOR_TOOLS and name not in WRITES}

    def description(self) -> str:
        """What it is for, by the command's own help, and what comes out."""
        first = " ".join((self.command.help or "").replace("\b", "").split("\n\n")[0].split())
        return f"{first} Answers with the JSON of `autoconfig {self.name} --json`; {ONLY} names the keys that are wanted."

    def schema(self, *, remote: bool = False) -> Schema:
        """The JSON Schema of its arguments, each with what it means, its unit and an example."""
        bare = self.texts if remote else {}
        arguments = {name: ARGUMENTS[entry] for name, entry in (bare or self.bare).items()}
        listed = {name: one for name, one in self.fields().items() if one.group not in NOT_LISTED}
        if remote:
            listed = {name: replace(one, many=one.many and name not in COMPARED) for name, one in listed.items() if one.remote}
            listed |= {"trace": ARGUMENTS["rows"]} if "trace" in listed else {}
        properties = {name: _property(one, remote=remote) for name, one in {**arguments, **listed}.items()}
        if "top" in properties:
            properties["top"]["default"] = SHOWN
        keys = {"type": "array", "items": {"type": "string"}, "examples": [["plans", "assumed"]]}
        properties[ONLY] = {**keys, "description": "Keys of the answer that are wanted; without it the whole answer."}
        if any(one.group in NOT_LISTED for one in self.fields().values()):
            said = "Also num_layers, hidden_size and the other sizes that Megatron has arguments for: they change the model."
            properties["model"]["description"] += f" {said}"
        return {"type": "object", "properties": properties, "required": list(self.needs)}

    def check_names(self, arguments: Mapping[str, Any]) -> None:
        """Raises InputError for an option of the command that no tool takes; unknown names are the command's to refuse."""
        taken = {*self.fields(), *self.bare, *self.texts}
        options = {name for param in self.command.params for name in (param.name, *param.opts)}
        for name in arguments:
            if name not in taken and {name, _option(name)} & {*options, "--help", "-h"}:
                raise InputError(
                    f"{name} is not for a tool, which only answers: `autoconfig {self.name} {_option(name)}` in a shell"
                )

    def words(self, arguments: Mapping[str, Any], *, remote: bool = False) -> list[str]:
        """The command line that these arguments are. Raises InputError for an option that no tool takes. `remote`: to be read
        only, with a word for each thing that is no text."""
        self.check_names(arguments)
        values = {name: value for name, value in arguments.items() if value is not None}
        fields = self.fields()
        if "top" in fields:
            values.setdefault("top", SHOWN)
        words = [self.name]
        for name, value in values.items():
            if name not in self.bare and not (remote and self._stands_for_file(name, value, fields.get(name))):
                words += option_words(name, value, fields.get(name))
        return [*words, "--json", "--", *(word for name in self.bare for word in self._bare_words(name, values, remote=remote))]

    def _stands_for_file(self, name: str, value: Any, one: Field | None) -> bool:
        """Whether an argument of a body is what a file would hold, which no command line can say."""
        return name == "trace" or name in self.texts or (isinstance(value, Mapping) and not (one is not None and one.many))

    def _bare_words(self, name: str, values: Mapping[str, Any], *, remote: bool) -> list[str]:
        """The words of an argument that the command takes without a name; `-` for a text that stands in a file's place."""
        if remote and self.texts and name not in self.texts:
            return ["-"]
        value = values.get(name)
        return [] if value is None or (remote and isinstance(value, Mapping)) else value_texts(value)

    def read(self, arguments: Mapping[str, Any]) -> None:
        """Read the arguments as the command line does. Raises InputError in its words."""
        try:
            self.context(self.words(arguments, remote=True))
        except click.NoSuchOption as error:
            raise InputError(no_such_option(error).format_message()) from None
        except click.UsageError as error:
            raise InputError(error.format_message()) from None

    def _short(self, arguments: Mapping[str, Any]) -> bool:
        """Whether they could be a command line; what is longer the service refuses before anything reads it."""
        said = [value for name, value in arguments.items() if name not in self.texts]
        return len(said) <= MOST_WORDS and all(len(one) <= _most(one) for one in said if isinstance(one, str | list | Mapping))

    def context(self, words: list[str]) -> click.Context:
        """What click makes of a command line. Raises its errors."""
        name, *rest = words
        return self.command.make_context(name, rest, parent=click.Context(cli, **cli.context_settings))

    def body(self, arguments: Mapping[str, Any]) -> bytes:
        """The body of the service's question. Raises InputError in the words of the command line."""
        if self._short(arguments):
            self.read(arguments)
        fields = self.fields()
        several = {name for name, one in fields.items() if one.many and name not in COMPARED}
        body: dict[str, Any] = {name: True for name, one in fields.items() if one.default is True}  # as on the command line
        body |= {"top": SHOWN} if "top" in fields else {}
        for name, value in arguments.items():
            if value is not None:
                body[name] = value_texts(value) if name in several else value
        return json.dumps(body).encode()


_FILES = {"text": "text", "settings": "settings"}
_LOGS = {"files": "texts", "plan": "plan"}
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(name="search", kind="plans"),
        Tool(name="explain", kind="explain", bare={"plan": "plan"}, needs=("plan",)),
        Tool(name="check", kind="check", bare={"file": "file"}, texts=_FILES, needs=()),
        Tool(name="diagnose", kind="diagnose", bare={"files": "files", "plan": "plan"}, texts=_LOGS, needs=()),
        Tool(name="deployments", kind="deployments"),
        Tool(name="rl", kind="post-training"),
        Tool(name="model", kind="model", bare={"model": "counted"}),
        Tool(name="budget", kind="budget", needs=()),
    )
}
"""By name, which is the command's."""


def _option(name: str) -> str:
    return option_name(name.lstrip("-"))


def _property(one: Field, *, remote: bool) -> Schema:
    """An argument's schema. A number may be a text with a unit; over HTTP an object may stand for its file."""
    unit = f" Unit: {one.unit}." if one.unit else ""
    found: Schema = {"description": f"{one.help.rstrip('.')}.{unit}", "examples": [example(one)]}
    kinds: list[str]
    if one.choices:
        return {"enum": list(one.choices), **found}
    if isinstance(one.example, Mapping):
        kinds = ["object"]
    elif isinstance(one.example, list):
        return {"type": "array", "items": {"type": "object"}, **found}
    elif one.type is bool:
        kinds = ["boolean"]
    elif one.type in (int, float):
        kinds = ["integer" if one.type is int else "number", "string"]
    else:
        kinds = ["string"]
    if one.many:
        return {"type": ["array", *kinds], "items": {"type": kinds[0]}, **found}
    if remote and one.name in ("model", "cluster"):
        kinds = ["string", "object"] if one.name == "model" else ["object"]
    return {"type": kinds if len(kinds) > 1 else kinds[0], **found}


def example(one: Field) -> Any:
    """A value of a field as somebody would give it."""
    if one.example is not None:
        return one.example
    return True if one.type is bool else one.choices[0] if one.choices else one.default


def _most(value: Any) -> int:
    return LONGEST_WORD if isinstance(value, str) else MOST_WORDS
