"""Follows the commands of a shell script as far as text decides. Nothing is run: what a command would print is not known."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from autoconfig.megatron.shell.arithmetic import NotKnownError
from autoconfig.megatron.shell.assignments import Held, assign, declare, forget, restore, take
from autoconfig.megatron.shell.branches import Exit, Leave, LockedName, filled_in, join, spoiled
from autoconfig.megatron.shell.builtins import BUILTINS, builtin, ends_at_failure
from autoconfig.megatron.shell.commands import (
    Arithmetic,
    Assignment,
    Block,
    Chain,
    Choice,
    Command,
    Function,
    If,
    Loop,
    Not,
    Part,
    Piece,
    Simple,
    Value,
    While,
    Word,
    known_text,
    plain_value,
    reason_of,
    text_of,
)
from autoconfig.megatron.shell.conditions import TESTS, Supposed, condition, inside, matches
from autoconfig.megatron.shell.expansions import said
from autoconfig.megatron.shell.launch import (
    Launch,
    Program,
    almost_a_launch,
    container_environment,
    inner_script,
    launch_of,
    source_of,
)
from autoconfig.megatron.shell.launch import remote_command as remote
from autoconfig.megatron.shell.printed import output_of, searched, substituted
from autoconfig.megatron.shell.syntax import parse
from autoconfig.megatron.shell.unseen import anything, runs_unseen, sets_unknown_names, sourced
from autoconfig.megatron.shell.values import Variables, computed, fields_of, listed_values, pattern_of, value_of
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

MAX_STEPS = 50_000
MAX_CALLS, MAX_ROUNDS = 12, 500
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})


@dataclass
class Reader:
    """Follows the commands of one script."""

    text: str
    program: Program
    settings: Mapping[str, str]
    variables: Variables = field(default_factory=Variables)
    functions: dict[str, tuple[Command, ...]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    almost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    calls: int = 0
    why: str = ""
    left: bool = False
    """A `break` or `continue` stands in a branch that is not decided."""
    frames: list[Held] = field(default_factory=list)
    """Of each function that runs: what its local names were before."""
    ended: int = 0
    """Line of the `exit` that ended the script, or of the command that failed under `set -e`."""
    errexit: bool = False
    supposed: Supposed = field(default_factory=Supposed)
    files: dict[str, Value] = field(default_factory=dict)
    """What the script writes into files, by the names that it gives them: here-documents, and what echo and printf print."""
    tested: int = 0
    """How many conditions the command stands in: `set -e` does not end the script there."""

    def __post_init__(self) -> None:
        for name, value in self.settings.items():
            self.variables.values[name] = plain_value(value)
        if words := said(self.settings):
            self.variables.set_positional(words)
        self.variables.fixed, self.variables.substitute = frozenset(self.settings), self._printed
        self.variables.odd_options = frozenset(name for name in ("nocasematch", "extglob") if name in self.text)

    def run_script(self, nodes: Sequence[Command]) -> None:
        """Follow a whole script."""
        line = 0
        try:
            for node in nodes:
                if node.line != line or not line:
                    try:
                        self.run((node,))
                        line = 0
                    except LockedName as dropped:
                        line = dropped.args[0]
        except Exit as end:
            self.ended = end.args[0] if end.args else 0
        except Leave:
            pass

    def run(self, nodes: Sequence[Command]) -> bool | None:
        """Follow commands one after another; whether the last one succeeds, None where that is not known."""
        result: bool | None = True
        for node in nodes:
            self.steps += 1
            spend(20)
            if self.steps > MAX_STEPS:
                raise InputError(
                    f"line {node.line}: the script has more than {MAX_STEPS:,} commands; give the launch script itself"
                )
            result = self._node(node)
        return result

    def _node(self, node: Command) -> bool | None:
        if isinstance(node, Not):
            result = self._tested((node.command,))
            return None if result is None else not result
        if isinstance(node, Function):
            self.functions[node.name] = node.body
            return True
        if isinstance(node, Block):
            found = searched(node.body, self.variables) if node.apart else None
            return found if found is not None else self._apart(node.body) if node.apart else self.run(node.body)
        follow: dict[type, Callable[[Any], bool | None]] = {
            Simple: self._simple,
            Arithmetic: self._compute,
            Chain: self._chain,
            If: self._if,
            Choice: self._case,
            Loop: self._loop,
            While: self._while,
        }
        result = follow[type(node)](node)
        if result is False and isinstance(node, Simple | Arithmetic) and self.errexit and not self.tested:
            raise Exit(node.line)
        return result

    def _tested(self, nodes: Sequence[Command]) -> bool | None:
        """Follow commands whose failure a condition reads."""
        self.tested += 1
        try:
            return self.run(nodes)
        finally:
            self.tested -= 1

    def _apart(self, nodes: Sequence[Command], *, errexit: bool | None = None) -> bool | None:
        """Commands of a shell of their own: what they set is gone behind them, their `exit` ends only them."""
        before, self.variables, outer = self.variables, self.variables.copy(), self.errexit
        self.errexit = outer if errexit is None else errexit
        try:
            return self.run(nodes)
        except (Exit, LockedName):
            return None
        finally:
            self.variables, self.errexit = before, outer

    def _compute(self, node: Arithmetic) -> bool | None:
        try:
            return bool(computed(node.part, self.variables))
        except NotKnownError as error:
            self.why = str(error)
            return None

    def _chain(self, node: Chain) -> bool | None:
        result: bool | None = True
        for at, (joint, command) in enumerate(node.links, 1):
            if not joint or (joint == "&&" and result is True) or (joint == "||" and result is False):
                result = self._node(command) if at == len(node.links) else self._tested((command,))
            elif result is None:
                self._either([(command,), ()], node.line)
        return result

    def _if(self, node: If) -> bool | None:
        for number, (test, body) in enumerate(node.branches):
            holds = True if not test else self._tested(test)
            if holds:
                with filled_in(self.variables, self.notes, test):
                    holds = self.run(body)
                return holds
            if holds is None:
                bodies = [b for _, b in node.branches[number:]]
                self._either(bodies if not node.branches[-1][0] else [*bodies, ()], node.line)
                return None
        return True

    def _case(self, node: Choice) -> bool | None:
        self.why = reason_of(value_of(node.word, self.variables))
        subject = known_text(value_of(node.word, self.variables))
        if subject is None or any(piece.unset for piece in value_of(node.word, self.variables)):
            self._either([*(body for _, body in node.branches), ()], node.line)
            return None
        for number, (patterns, body) in enumerate(node.branches):
            for pattern in patterns:
                text = known_text(value := pattern_of(pattern, self.variables))
                if text is None:
                    self.why = reason_of(value)
                    self._either([*(body for _, body in node.branches[number:]), ()], node.line)
                    return None
                if matches(subject, text):
                    return self.run(body)
        return True

    def _loop(self, node: Loop) -> bool | None:
        values = [value for word in node.words for value in listed_values(word, self.variables)]
        if any(map(reason_of, values)):
            self.variables.set(node.name, next(value for value in values if reason_of(value)))
            return self._any_number_of_times(node.body, node.line)
        launches, result = len(self.launches), None
        for value in values:
            self.variables.set(node.name, value)
            result, goes_on = self._round(node.body, node.line, node.name)
            if len(self.launches) > launches and len(values) > 1:
                self.notes.append(
                    f"line {node.line}: a loop over {len(values)} values is read for the first, {text_of(value)[:40]}"
                )
                return result
            if not goes_on:
                break
        return result

    def _while(self, node: While) -> bool | None:
        values = self.variables.values
        given = sum(name.isdigit() and name != "0" for name in values)  # read as started with those that --set names, or none
        values |= {} if "#" in values or (given and str(given) not in values) else {"#": plain_value(str(given))}
        for _ in range(MAX_ROUNDS):
            holds = self._tested(node.test) if node.test else True
            if holds is None:
                break
            if holds == node.until:
                self.variables.values.pop("#", None)
                return True
            if not self._round(node.body, node.line)[1]:
                return None
        self.variables.values.pop("#", None)
        return self._any_number_of_times(node.body, node.line)

    def _round(self, body: Sequence[Command], line: int, name: str = "") -> tuple[bool | None, bool]:
        """(result, whether the loop goes on) of one round; an undecided `break` leaves open how many there are."""
        self.left = False
        try:
            result = self.run(body)
        except Leave as leave:
            if str(leave) == "return":
                raise
            return True, str(leave) == "continue"
        if self.left:
            self.left = False
            if name:
                self.variables.set(name, (Piece(text=f"${name}", unknown=f"${name} is set by the loop in line {line}"),))
            return self._any_number_of_times(body, line), False
        return result, True

    def _any_number_of_times(self, body: Sequence[Command], line: int) -> bool | None:
        """A loop whose rounds are not known: what its body sets is not known behind it, nor in its other rounds; None."""
        self.notes.append(f"line {line}: how often a loop runs is not known (what it sets is not read)")
        for _ in range(3):
            before, inner = self.variables, self.variables.copy()
            self.variables = inner
            with contextlib.suppress(Exit, Leave, LockedName):
                self.run(body)
            self.variables = before
            if not spoiled(before, inner, line):
                break
        return None

    def _either(self, bodies: Sequence[Sequence[Command]], line: int) -> None:
        """A condition is not known: follow every branch apart. What they set differently is not known but for what is common in
        front: a variable that one branch appends to keeps what it had."""
        before, outcomes, why, errexit = self.variables, [], self.why, self.errexit
        for body in bodies:
            self.variables, self.errexit = before.copy(), errexit
            try:
                self.run(body)
            except (Exit, LockedName):
                continue  # this branch ends the script: what follows is the other one
            except Leave as leave:
                if str(leave) == "return":
                    continue
                self.left = True
            outcomes.append(self.variables)
        self.variables, self.errexit = before, errexit
        if not outcomes:
            raise Exit(line)
        join(before, outcomes, line, why)

    def _simple(self, node: Simple) -> bool | None:
        words, self.supposed.before = list(node.words), len(self.variables.asked)
        if words and all(isinstance(token, Assignment) for token in words):
            if any(isinstance(token, Assignment) and token.name in self.variables.locked for token in words):
                raise Exit(node.line) if self.errexit else LockedName(node.line)
            return all(assign(self.variables, token) for token in words)
        fields: list[Value] = []
        for token in words:
            if isinstance(token, Word):
                compared = len(fields) > 1 and text_of(fields[0]) == "[[" and text_of(fields[-1]) in ("=", "==", "!=")
                fields += [pattern_of(token, self.variables)] if compared else fields_of(token, self.variables)
        spend(8 * len(fields))
        while fields and text_of(fields[0]) == "time":  # a word of the shell in front of a command, or of assignments
            spend(len(fields))
            fields = fields[2:] if text_of(fields[1] if len(fields) > 1 else ()) == "-p" else fields[1:]
            if all(re.match(r"[A-Za-z_]\w*=", text_of(value)) for value in fields):
                return declare(self.variables, [], (), [plain_value("export"), *fields])
        name = text_of(fields[0]) if fields else ":"
        self._write(node, fields)
        if name == "read" and (taken := take(self.variables, words, fields, node.given)) is not None:
            return taken
        if name in _DECLARES:
            known = declare(self.variables, self.frames, words, fields)
            if sets_unknown_names(name, fields) or (not known and not self.variables.locked):
                anything(self.variables, fields, node.line)
            return known
        return self._with_prefix(words, name, fields, node.line)

    def _write(self, node: Simple, fields: Sequence[Value]) -> None:
        """Keep what `cat > FILE << END`, `tee FILE << END`, `echo WORDS > FILE` and `printf WORDS > FILE` write."""
        words = [text_of(value) for value in fields]
        tee = words[:1] == ["tee"] and node.given is not None
        names = [word for word in words[1:] if not word.startswith("-")] if tee else []
        names += [text_of(value_of(node.output, self.variables))] if node.output is not None else []
        if not names or not words:
            return
        if node.given is not None and words[0] in ("cat", "tee"):
            text: Value | None = value_of(node.given, self.variables)
        else:
            shown = None if any(map(reason_of, fields)) or words[0] not in ("echo", "printf") else output_of(words)
            text = None if shown is None else plain_value(shown)
        if text is not None:
            spend(len(names) * sum(1 + len(self.files.get(name, ())) for name in names))
            added = node.appends or (tee and "-a" in words)
            self.files |= {name: (*(self.files.get(name, ()) if added else ()), *text) for name in names}

    def _with_prefix(self, words: Sequence[Word | Assignment], name: str, fields: list[Value], line: int) -> bool | None:
        """`NAME=VALUE COMMAND`: the variables are the command's alone. Those of a launch stay, as what it was started with."""
        prefix = list(takewhile(lambda token: isinstance(token, Assignment), words))
        before = {token.name: self.variables.values.get(token.name) for token in prefix if isinstance(token, Assignment)}
        launches = len(self.launches)
        for token in prefix:
            assign(self.variables, token)
        result = self._command(name, fields, line)
        if len(self.launches) == launches:
            restore(self.variables, before)
            if runs_unseen(words, fields):
                anything(self.variables, fields, line)
        return result

    def _command(self, name: str, fields: list[Value], line: int) -> bool | None:
        if name in TESTS:
            inner = inside(fields)
            self.why = next((reason for value in inner if (reason := reason_of(value))), "")
            return self.supposed.judged(condition(inner, patterns=name == "[["), fields, self.variables, line)
        if name == "exit":
            raise Exit(line, *map(text_of, fields[1:2]))
        if name in ("break", "continue", "return"):
            raise Leave(name)
        if name in ("true", ":", "false"):
            return name != "false"
        if name in self.functions:
            return self._call(name, fields[1:])
        self.errexit = ends_at_failure(fields, before=self.errexit)
        if name in ("printf", "read", "mapfile", "readarray", "unset") and sets_unknown_names(name, fields):
            anything(self.variables, fields, line)
            return True
        if name in BUILTINS and (done := builtin(self.variables, fields, line, self._compute)) is not None:
            return done
        if name in ("source", ".") and len(fields) > 1:
            self.notes.append(sourced(self.variables, fields, line))
            return True
        if name in ("read", "mapfile", "readarray", "unset"):
            forget(self.variables, fields[1:], name, line)
            return True
        if elsewhere := remote(fields):
            return self._elsewhere(*elsewhere, line)
        if commands := inner_script(name, fields):
            return self._inner(*commands, apart=name != "eval")
        launch = launch_of(fields, line, self.program)
        if launch is not None:
            self.launches.append(launch)
        elif almost := almost_a_launch(fields, line, self.program):
            self.almost.append(almost)
        return None if launch is None and name not in ("echo", "cd", "set", "mkdir", "printf", "module") else True

    def _call(self, name: str, given: list[Value]) -> bool | None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            self.calls -= 1
            self.notes.append(f"the function {name} is called too often to follow")
            return None
        outer, others = self.variables.positional(), self.variables.others
        self.variables.set_positional(given)
        self.frames.append({})
        try:
            return self.run(self.functions[name])
        except Leave as leave:
            if str(leave) != "return":
                raise
            return None
        finally:
            self.calls -= 1
            self.variables.others = others
            restore(self.variables, self.frames.pop())
            self.variables.set_positional(outer)

    def _printed(self, part: Part) -> Value | None:
        if self.calls > MAX_CALLS:
            return None
        self.calls += 1
        try:
            return substituted(part, self.variables, self.text)
        finally:
            self.calls -= 1

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

    def _inner(self, value: Value, before: list[Value], handed_over: list[Value], *, apart: bool) -> bool | None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise InputError(f"eval and bash -c are nested deeper than {MAX_CALLS}; simplify the script")
        source, hidden = source_of(value, self.text)
        self.variables.values.update(hidden)
        known = len(self.launches)
        outer = self.variables.values.get("@")
        if handed_over:
            self.variables.values["@"] = handed_over
        given = container_environment(before) if apart else {}
        held = {name: self.variables.values.get(name) for name in given}
        self.variables.values |= given
        try:
            nodes = parse(source)
            result = self._apart(nodes, errexit=False) if apart else self.run(nodes)
        finally:
            self.calls -= 1
            restore(self.variables, held)
            if outer is not None:
                self.variables.values["@"] = outer
            else:
                self.variables.values.pop("@", None)
        self.launches[known:] = [launch.behind(before) for launch in self.launches[known:]]
        return result
