"""Follows one command of a shell script: what it sets, prints, writes into files and starts, and text for another shell.
Nothing is run: what a command would print is not known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

from tree_sitter import Node

from autoconfig.megatron.shell.arithmetic import NotKnownError
from autoconfig.megatron.shell.branches import Exit, Leave
from autoconfig.megatron.shell.builtins import (
    DECLARES,
    QUIET,
    OwnCommand,
    assign,
    builtin,
    declare,
    ends_at_failure,
    printed,
    read_into,
)
from autoconfig.megatron.shell.commands import (
    Assignment,
    Held,
    Part,
    Source,
    Value,
    Word,
    first_reason,
    is_name,
    plain_value,
    reason_of,
    text_of,
)
from autoconfig.megatron.shell.conditions import TESTS, Supposed, condition, inside
from autoconfig.megatron.shell.expansions import script_arguments
from autoconfig.megatron.shell.launch import (
    Launch,
    Program,
    almost_a_launch,
    container_environment,
    inner_script,
    launch_of,
    remote_command,
    source_of,
)
from autoconfig.megatron.shell.syntax import Simple, Text, parse
from autoconfig.megatron.shell.unseen import anything, runs_unseen, sets_unknown_names, sourced
from autoconfig.megatron.shell.values import Variables, computed, fields_of, listed_values, pattern_of, value_of
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

MAX_CALLS = 12
MAX_INSIDE, MAX_HERE = 500, 20_000
"""Characters of a command substitution that is followed, and of one with a here-document."""
_SUCCEEDS = frozenset({"echo", "cd", "set", "mkdir", "printf", "module"})


class Unprinted(Exception):
    """What a command substitution prints cannot be said."""


@dataclass
class Calls(ABC):
    """What a script has set, printed and started up to a command, and what the command adds."""

    text: str
    program: Program
    settings: Mapping[str, str]
    variables: Variables = field(default_factory=Variables)
    functions: dict[str, tuple[Text, list[Node]]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    almost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    calls: int = 0
    depth: int = 0
    why: str = ""
    left: bool = False
    """A `break` or `continue` stands in a branch that is not decided."""
    frames: list[dict[str, Held | None]] = field(default_factory=list)
    """Of each function that runs: what its local names were before."""
    ended: int = 0
    """Line of the `exit` that ended the script, or of the command that failed under `set -e`."""
    errexit: bool = False
    supposed: Supposed = field(default_factory=Supposed)
    files: dict[str, Value] = field(default_factory=dict)
    """What the script writes into files, by the names that it gives them: here-documents, and what echo and printf print."""
    tested: int = 0
    """How many conditions the command stands in: `set -e` does not end the script there."""
    stdin: Value | None = None
    """What a pipe hands to the command; None where that is not known."""
    stdout: list[Value | None] | None = None
    """What the commands print, where a pipe or a substitution reads it; None for what is not known."""
    substitutes: bool = False
    """The commands are those of a substitution: one whose output cannot be said ends it."""

    def __post_init__(self) -> None:
        for name, value in self.settings.items():
            self.variables.values[name] = plain_value(value)
        if words := script_arguments(self.settings):
            self.variables.set_positional(words)
        self.variables.fixed, self.variables.substitute = frozenset(self.settings), self._substituted
        self.variables.odd_options = frozenset(name for name in ("nocasematch", "extglob") if name in self.text)

    @abstractmethod
    def run(self, text: Text, nodes: Sequence[Node]) -> bool | None:
        """Follow commands one after another; whether the last one succeeds, None where that is not known."""

    def _apart(self, follow: Callable[[], bool | None], *, errexit: bool | None = None) -> bool | None:
        """Commands of a shell of their own: what they set is gone behind them, their `exit` ends only them."""
        before, self.variables, outer = self.variables, self.variables.copy(), self.errexit
        self.errexit = outer if errexit is None else errexit
        try:
            return follow()
        except Exit:
            return None
        finally:
            self.variables, self.errexit = before, outer

    def _compute(self, part: Part) -> bool | None:
        try:
            return bool(computed(part, self.variables))
        except NotKnownError as error:
            self.why = str(error)
            return None

    def _fields(self, simple: Simple) -> list[Value]:
        """The words of a command as it gets them."""
        fields: list[Value] = []
        for token in simple.words:
            if isinstance(token, Word):
                tests = bool(fields) and text_of(fields[0]) == "[["
                compared = len(fields) > 1 and tests and text_of(fields[-1]) in ("=", "==", "!=")
                words = fields_of if tests else listed_values
                fields += [pattern_of(token, self.variables)] if compared else words(token, self.variables)
        spend(8 * len(fields))
        return fields

    def _called(self, simple: Simple, line: int) -> bool | None:
        """Follow a simple command, or assignments alone."""
        self.supposed.before = len(self.variables.without_value)
        if simple.words and all(isinstance(token, Assignment) for token in simple.words):
            return all(assign(self.variables, token, line) for token in simple.words)
        fields = self._fields(simple)
        untimed = _untimed(fields)
        if len(untimed) < len(fields) and all(map(_is_assignment, untimed)):
            return declare(self.variables, [], (), [plain_value("export"), *untimed], line)
        fields = untimed or [plain_value(":")]
        name = text_of(fields[0])
        stdin = self.stdin if simple.stdin is None else value_of(simple.stdin, self.variables)
        if name in DECLARES:
            self._declare(simple, fields, line)
            return True
        if name == "read" and (success := read_into(self.variables, simple, fields, stdin)) is not None:
            if simple.stdin is None:
                self.stdin = plain_value(text_of(stdin or ()).partition("\n")[2])
            return success
        shows = printed(fields, stdin)
        self._write(simple, fields, stdin, shows)
        return self._with_prefix(simple, name, fields, line, shows)

    def _declare(self, simple: Simple, fields: Sequence[Value], line: int) -> None:
        follows = declare(self.variables, self.frames, simple.words, fields, line)
        if sets_unknown_names(text_of(fields[0]), fields) or not follows:
            anything(self.variables, fields, line)

    def _write(self, simple: Simple, fields: Sequence[Value], stdin: Value | None, shows: Value | None) -> None:
        """Keep what `cat > FILE << END`, `tee FILE << END`, `echo WORDS > FILE` and `printf WORDS > FILE` write."""
        words = [text_of(value) for value in fields]
        tee = words[:1] == ["tee"] and simple.stdin is not None
        names, appends = [word for word in words[1:] if tee and not word.startswith("-")], tee and "-a" in words
        if simple.output is not None:
            names.append(text_of(value_of(simple.output[0], self.variables)))
            appends = appends or simple.output[1]
        plain = words[0] in ("cat", "echo") and not first_reason(fields)
        text = stdin if tee else shows if plain else None
        if names and text is not None:
            self._keep(names, text, appends=appends)

    def _keep(self, names: Sequence[str], text: Value, *, appends: bool) -> None:
        """Keep a text as that of files, or behind what these held."""
        spend(len(names) * sum(1 + len(self.files.get(name, ())) for name in names))
        self.files |= {name: (*(self.files.get(name, ()) if appends else ()), *text) for name in names}

    def _with_prefix(self, simple: Simple, name: str, fields: list[Value], line: int, shows: Value | None) -> bool | None:
        """`NAME=VALUE COMMAND`: the variables are the command's alone. Those of a launch stay, as what it was started with."""
        prefix = [token for token in takewhile(lambda token: isinstance(token, Assignment), simple.words)]
        before = {token.name: self.variables.values.get(token.name) for token in prefix if isinstance(token, Assignment)}
        launches = len(self.launches)
        for token in prefix:
            assign(self.variables, token, line)
        result = self._command(name, fields, line, shows if simple.output is None or shows is None else ())
        if len(self.launches) == launches:
            self.variables.restore(before)
            if runs_unseen(simple.words, fields):
                anything(self.variables, fields, line)
        return result

    def _command(self, name: str, fields: list[Value], line: int, shows: Value | None) -> bool | None:
        if name in TESTS:
            inner = inside(fields)
            self.why = first_reason(inner)
            return self.supposed.judged(condition(inner, patterns=name == "[["), fields, self.variables, line)
        if name == "exit":
            raise Exit(line, *map(text_of, fields[1:2]))
        if name in ("break", "continue", "return"):
            raise Leave(name)
        if name in self.functions:
            return self._call(name, fields[1:])
        self.errexit = ends_at_failure(fields, before=self.errexit)
        if sets_unknown_names(name, fields):
            anything(self.variables, fields, line)
            return True
        call = OwnCommand(variables=self.variables, fields=fields, line=line, compute=self._compute)
        if (done := builtin(call)) is not None:
            return done
        if self.stdout is not None and name not in QUIET:
            if self.substitutes and shows is None:
                raise Unprinted
            self.stdout.append(shows)
        return True if shows is not None else self._program(name, fields, line)

    def _program(self, name: str, fields: list[Value], line: int) -> bool | None:
        """A command that is none of bash's own: one that may start the program, or other commands."""
        if name in ("source", ".") and len(fields) > 1:
            self.notes.append(sourced(self.variables, fields, line))
            return True
        if elsewhere := remote_command(fields):
            return self._elsewhere(*elsewhere, line)
        if commands := inner_script(name, fields):
            return self._inner(*commands, apart=name != "eval")
        launch = launch_of(fields, line, self.program)
        if launch is not None:
            self.launches.append(launch)
        elif almost := almost_a_launch(fields, line, self.program):
            self.almost.append(almost)
        return None if launch is None and name not in _SUCCEEDS else True

    def _elsewhere(self, value: Value, before: list[Value], line: int) -> bool | None:
        """A command that `ssh` and the like start on another machine, where no variable of this script is set."""
        self.notes.append(f"line {line}: {text_of(before[0])} starts this on another machine, with variables of its own")
        outer = self.variables
        self.variables = Variables(fixed=outer.fixed, substitute=outer.substitute)
        self.variables.values = {name: outer.values[name] for name in outer.fixed if name in outer.values}
        try:
            return self._inner(value, before, [], apart=True)
        finally:
            self.variables = outer

    def _call(self, name: str, words: list[Value]) -> bool | None:
        if self.calls >= MAX_CALLS:
            self.notes.append(f"the function {name} is called too often to follow")
            return None
        self.calls += 1
        outer = self.variables.positional()
        self.variables.set_positional(words)
        self.frames.append({})
        try:
            return self.run(*self.functions[name])
        except Leave as leave:
            if str(leave) != "return":
                raise
            return None
        finally:
            self.calls -= 1
            self.variables.restore(self.frames.pop())
            self.variables.set_positional(outer)

    def _substituted(self, part: Part) -> Value | None:
        """The output of a command substitution of echo, printf, expr and the like; None where it cannot be said."""
        inside = part.text[2:-1] if part.text.startswith("$(") else part.text[1:-1] if part.text.startswith("`") else ""
        if not inside.strip() or len(inside) > (MAX_HERE if "<<" in inside else MAX_INSIDE) or self.calls > MAX_CALLS:
            return None
        outer = self.stdin, self.stdout, self.substitutes, self.left, self.tested, self.supposed, self.notes, self.files
        self.stdin, self.stdout, self.substitutes, self.supposed, self.notes = None, [], True, Supposed(), []
        self.files = dict(self.files)
        self.calls += 1
        try:
            text = parse(Source(text=inside, origin=[None] * len(inside), file_text=self.text))
            self._apart(lambda: self.run(text, text.nodes), errexit=False)
            value = together(self.stdout)
        except (InputError, Unprinted, Leave):
            return None
        finally:
            self.calls -= 1
            self.stdin, self.stdout, self.substitutes, self.left, self.tested, self.supposed, self.notes, self.files = outer
        return None if value is None else _without_line_ends(value)

    def _inner(self, value: Value, before: list[Value], handed_over: list[Value], *, apart: bool) -> bool | None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise InputError(f"eval and bash -c are nested deeper than {MAX_CALLS}; simplify the script")
        source, hidden = source_of(value, self.text)
        self.variables.values |= hidden
        launches = len(self.launches)
        own: dict[str, Held] = dict(container_environment(before)) if apart else {}
        own |= {"@": handed_over} if handed_over else {}
        held = {name: self.variables.values.get(name) for name in (*own, "@")}
        self.variables.values |= own
        try:
            text = parse(source)
            follow = partial(self.run, text, text.nodes)
            result = self._apart(follow, errexit=False) if apart else follow()
        finally:
            self.calls -= 1
            self.variables.restore(held)
        self.launches[launches:] = [replace(one, before=(*before, *one.before)) for one in self.launches[launches:]]
        return result


def together(shown: Sequence[Value | None] | None) -> Value | None:
    """What commands print one after another; None where a part is not known, or nothing reads it."""
    if shown is None or None in shown:
        return None
    spend(len(shown))
    return tuple(piece for value in shown for piece in value or ())


def _untimed(fields: list[Value]) -> list[Value]:
    """The words behind `time`, a word of the shell in front of a command, or of assignments."""
    while fields and text_of(fields[0]) == "time":
        spend(len(fields))
        fields = fields[2:] if text_of(fields[1] if len(fields) > 1 else ()) == "-p" else fields[1:]
    return fields


def _is_assignment(value: Value) -> bool:
    name, equals, _ = text_of(value).partition("=")
    return bool(equals) and is_name(name)


def _without_line_ends(value: Value) -> Value:
    """What a substitution gives of what is printed."""
    *before, last = value or plain_value("")
    if not reason_of(value):
        return plain_value(text_of(value).rstrip("\n"))
    before = [piece if piece.unknown else plain_value(piece.text)[0] for piece in before]
    return (*before, last if last.unknown else plain_value(last.text.rstrip("\n"))[0])
