"""A launch script, read without running anything: the argument list that it would hand to a program, and its number of GPUs.

Assignments, arrays, defaults, arithmetic, if, case, for, functions, eval and `bash -c` are followed as far as text decides.
docs/check.md says what is understood and what is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from autoconfig.megatron.shell.commands import Assignment, Part, Source, Value, Word, plain_value, text_of
from autoconfig.megatron.shell.conditions import Supposed
from autoconfig.megatron.shell.interpreter import Reader
from autoconfig.megatron.shell.launch import Launch, Program, argument_name, gpus_of, node_of, over_booked, slurm_variables
from autoconfig.megatron.shell.syntax import parse
from autoconfig.megatron.shell.unseen import NOT_READ, may_differ
from autoconfig.megatron.shell.values import Variables, fields_of
from autoconfig.planning.work import bounded, require_short, spend
from autoconfig.specs.errors import InputError

MAX_CHARACTERS = 100_000
HANDED_OVER = ("$@", "$*", "${@...}", "${*...}")
"""The script's own arguments behind the program: none, it is read as started without any."""
_SETTINGS = ("config", "deepspeed", "recipe")
"""Words in options of other trainers whose value is a file of settings."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A word that is not known."""

    reason: str
    unset: bool = False
    """Of variables that the file does not set: nothing, in a clean environment."""
    choices: tuple[tuple[str, ...], ...] = ()
    """The words that it may be, where a condition decides; empty where these are not known either."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a launch script says."""

    argv: tuple[Value, ...]
    """Words behind the program, each with its place in the file."""
    program: str
    num_gpus: int | None
    gpus_reason: str
    gpus_per_node: int | None = None
    notes: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the script's variables hold at its end, as far as it is known."""
    before: tuple[str, ...] = ()
    """Words in front of the arguments: the launcher and its options."""
    supposed: Mapping[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """Tests that variables decide which the file does not set and which count as empty: their line and the variables."""

    @property
    def connections(self) -> str:
        """What the script sets CUDA_DEVICE_MAX_CONNECTIONS to; empty where it does not, or it is not known."""
        return self.variables.get("CUDA_DEVICE_MAX_CONNECTIONS", "")

    def words(self) -> list[str]:
        return [text_of(value) for value in self.argv]

    def unread(self) -> dict[int, Unread]:
        """Positions of words that cannot be known without running something."""
        return {at: unread for at, value in enumerate(self.argv) if (unread := _unread(value)) is not None}


def _unread(value: Value) -> Unread | None:
    odd = [piece for piece in value if piece.unknown]
    if not odd:
        return None
    alone = len([piece for piece in value if piece.text]) == 1
    return Unread(
        reason=odd[-1].unknown,
        unset=all(piece.unset for piece in odd),
        choices=tuple(tuple(text.split()) for text in odd[0].choices) if alone else (),
    )


@bounded()
def follow(text: str, program: Program, settings: Mapping[str, str], turned: str = "") -> Reader:
    """Follow a whole script. Raises InputError for one that is too long or cannot be read."""
    require_short(text, "script", MAX_CHARACTERS)
    reader = Reader(text, program, {**slurm_variables(text), **settings}, supposed=Supposed(turned=turned))
    reader.run_script(parse(Source(text=text, origin=range(len(text)), file_text=text)))
    return reader


@bounded()
def read_script(text: str, program: Program, settings: Mapping[str, str] | None = None, turned: str = "") -> Script:
    """The launch of a program in a script; `settings` are variables that the caller knows, `turned` a test of `supposed` that
    is read as if it said the contrary. Raises InputError saying what to do.
    No command is run, no other file is opened, no environment variable of this process is read."""
    reader = follow(text, program, settings or {}, turned)
    launch = _best_launch(reader) or _arguments_in_variables(reader)
    if why := over_booked(launch, text, total=not settings):
        raise InputError(why)
    num_gpus, reason = gpus_of(launch, text)
    if reader.variables.unseen:
        reader.notes.append(f"{reader.variables.unseen}, may set any variable: none that was assigned in front of it is read")
    notes = (*reader.notes, *may_differ(reader.variables, text, functions=bool(reader.functions)))
    return Script(
        argv=tuple(value for value in launch.arguments if text_of(value) not in HANDED_OVER),
        program=launch.program,
        num_gpus=num_gpus,
        gpus_reason=reason,
        gpus_per_node=node_of(launch, text),
        notes=tuple(dict.fromkeys(notes)),
        variables={name: text for name, value in reader.variables.values.items() if (text := _known_text(value))},
        before=tuple(map(text_of, launch.before)),
        supposed=reader.supposed.tests,
    )


def _known_text(value: Value | list[Value] | None) -> str:
    if not value or isinstance(value, list) or any(piece.unknown for piece in value):
        return ""
    return text_of(value)


@bounded()
def read_array(text: str, settings: Mapping[str, str]) -> tuple[Value, ...]:
    """The words of a list as they would stand in the brackets of an array. Raises InputError."""
    require_short(text, "argument list", MAX_CHARACTERS)
    head = "A=(\n"
    origin = [*([None] * len(head)), *range(len(text)), None, None]
    read = parse(Source(text=f"{head}{text}\n)", origin=origin, file_text=text))
    array = read.simple(read.nodes[0]).words[0] if [node.type for node in read.nodes] == ["variable_assignment"] else None
    if not isinstance(array, Assignment) or isinstance(array.value, Word):
        raise InputError("this argument list holds an unpaired bracket; quote it, or give the launch script")
    variables = Variables(values={name: plain_value(value) for name, value in settings.items()})
    return tuple(value for word in array.value for value in fields_of(word, variables))


def _best_launch(reader: Reader) -> Launch | None:
    """The first launch with a decisive argument, else the first that hands over several known ones. Raises UnsupportedError
    where only programs that do something else (generation, a conversion) are given decisive ones."""
    if not reader.launches:
        return None
    best = max(reader.launches, key=lambda launch: (launch.is_decisive and not launch.refused, launch.is_decisive))
    if best.refused is not None:
        raise best.refused
    others = [launch for launch in reader.launches if launch.is_decisive and launch is not best and not launch.refused]
    if others:
        lines = ", ".join(str(line) for line in [*dict.fromkeys(other.line for other in others if other.line != best.line)][:5])
        where = f" (others in line {lines})" if lines else ""
        reader.notes.append(f"line {best.line}: the first of several launches is read{where}")
    return best


def _settings_file(text: str) -> str:
    """The files that commands of another trainer are given, by an option that says so or by their place."""
    files: dict[str, None] = {}
    for line in re.sub(r"(?:^|(?<=\s))#.*", "", text.replace("\\\n", " "), flags=re.MULTILINE).splitlines():
        words = line.translate(dict.fromkeys(map(ord, "\"';|&<>"), " ")).split()
        for before, word in pairwise(["", *words]):
            name, equals, value = word.rpartition("=")
            named, file = f"-{name}" if equals else before, value[:80]
            is_wanted = named[:1] != "-" or named.lower().startswith("-c") or any(one in named.lower() for one in _SETTINGS)
            if is_wanted and file.endswith((".yaml", ".yml", ".toml", ".json")):
                files[file] = None
    return f"the file that the command names ({', '.join([*files][:3])}; its settings are read there), " if files else ""


def _arguments_in_variables(reader: Reader) -> Launch:
    """No launch was seen: the arguments that variables and arrays hold."""
    values: list[Value] = []
    wanted, program = reader.program, ""
    for held in reader.variables.values.values():
        spend(3 * len(held))
        variable = Word(parts=(Part(kind="variable", text="v", quoted=False, line=1),), line=1)
        elements = held if isinstance(held, list) else fields_of(variable, Variables(values={"v": held}))
        names = [argument_name(text_of(value)) for value in elements]
        values += elements[next((at for at, name in enumerate(names) if name in wanted.arguments), len(names)) :]
        if wanted.decisive & set(names):
            texts = map(text_of, elements)
            program = next((text for text in texts if text.endswith(".py") and not text.startswith("-")), program)
    if program:
        wanted.refuse(program, 1)
    if not any(text_of(value).replace("_", "-") in wanted.decisive for value in values):
        raise _no_launch(reader)
    reader.notes.append("no launch command was found: the arguments that the script's variables hold are read together")
    return Launch(arguments=tuple(values), program=program, before=(), line=1, is_decisive=True)


def _no_launch(reader: Reader) -> InputError:
    why = reader.almost[0] if reader.almost else f"no command has a .py file and {min(reader.program.decisive, key=len)}"
    if reader.ended:
        why += f"; the script ends with the exit of line {reader.ended}, which its conditions lead to"
        asks = [str(number) for number in range(1, 10) if re.search(rf"\${{?{number}\b", reader.text)]
        why += f": it may want arguments, as --set {asks[0]}=VALUE says them" if asks else ""
    why += "".join(f"; {note}" for note in [note for note in reader.notes if note.endswith(NOT_READ)][:1])
    return InputError(
        f"no launch of {reader.program.name} was found: {why}; give {_settings_file(reader.text)}the script that "
        "starts training, a file with its argument list, or a plan.json (docs/check.md)"
    )
