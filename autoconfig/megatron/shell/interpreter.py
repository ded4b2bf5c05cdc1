"""Follows the commands of a shell script as far as text decides. Nothing is run: what a command would print is not known."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

from tree_sitter import Node

from autoconfig.megatron.shell.arithmetic import NotKnownError
from autoconfig.megatron.shell.branches import Exit, Leave, filled_in, join, spoiled
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
    known_text,
    plain_value,
    reason_of,
    text_of,
    unknown,
)
from autoconfig.megatron.shell.conditions import TESTS, Supposed, condition, inside, matches
from autoconfig.megatron.shell.expansions import script_arguments
from autoconfig.megatron.shell.launch import (
    Launch,
    Program,
    almost_a_launch,
    container_environment,
    inner_script,
    launch_of,
    source_of,
)
from autoconfig.megatron.shell.syntax import Simple, Text, parse
from autoconfig.megatron.shell.unseen import anything, runs_unseen, sets_unknown_names, sourced
from autoconfig.megatron.shell.values import Variables, computed, fields_of, listed_values, pattern_of, value_of
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

MAX_CALLS, MAX_ROUNDS, MAX_DEPTH = 12, 500, 100
MAX_INSIDE, MAX_HERE = 500, 20_000
"""Characters of a command substitution that is followed, and of one with a here-document."""
_SUCCEEDS = frozenset({"echo", "cd", "set", "mkdir", "printf", "module"})

Follow = Callable[[], object]


class Unprinted(Exception):
    """What a command substitution prints cannot be said."""


@dataclass
class Reader:
    """Follows the commands of one script."""

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

    def run_script(self, text: Text) -> None:
        """Follow a whole script."""
        try:
            self.run(text, text.nodes)
        except Exit as end:
            self.ended = end.args[0] if end.args else 0
        except Leave:
            pass

    def run(self, text: Text, nodes: Sequence[Node]) -> bool | None:
        """Follow commands one after another; whether the last one succeeds, None where that is not known."""
        result: bool | None = True
        for node in nodes:
            if node.type in ("comment", "heredoc_body"):
                continue
            spend(20)
            behind = node.next_sibling
            follow = partial(self._node, text, node)
            result = self._apart(follow) if behind is not None and behind.type == "&" else follow()
        return result

    def _node(self, text: Text, node: Node, more: Simple = Simple()) -> bool | None:  # noqa: B008
        """Follow one command; `more`: what redirections behind it add."""
        follow = _FOLLOWS.get(node.type)
        self.depth += 1
        if follow is None:
            raise text.unreadable(node)
        if self.depth > MAX_DEPTH:
            raise InputError(f"line {text.line(node)}: structures are nested deeper than {MAX_DEPTH}; simplify the script")
        try:
            result = follow(self, text, node, more)
        finally:
            self.depth -= 1
        fails = result is False and (node.type in _FAILS or node.children[0].type == "((")
        if fails and self.errexit and not self.tested:
            raise Exit(text.line(node))
        return result

    def _tested(self, follow: Callable[[], bool | None]) -> bool | None:
        """Follow commands whose failure a condition reads."""
        self.tested += 1
        try:
            return follow()
        finally:
            self.tested -= 1

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

    def _not(self, text: Text, node: Node, more: Simple) -> bool | None:
        result = self._tested(partial(self._node, text, node.named_children[-1], more))
        return None if result is None else not result

    def _function(self, text: Text, node: Node, _: Simple) -> bool:
        name, body = node.named_children[0], node.named_children[-1]
        inside = body.named_children if body.type == "compound_statement" and body.children[0].type == "{" else [body]
        self.functions[text.text[name.start_byte : name.end_byte]] = text, inside
        return True

    def _group(self, text: Text, node: Node, _: Simple) -> bool | None:
        if node.children[0].type == "((":
            return self._compute(text.arithmetic(node))
        if node.type == "subshell":
            return self._apart(lambda: self.run(text, node.named_children))
        return self.run(text, node.named_children)

    def _pipeline(self, text: Text, node: Node, _: Simple) -> bool | None:
        steps = [one for one in node.named_children if one.type != "comment"]
        negated = steps[0].type == "negated_command"  # of the whole pipe, where the grammar has it on the first command
        first = steps[0].named_children[-1] if negated else steps[0]
        result = self._piped([partial(self._node, text, one) for one in (first, *steps[1:])])
        return result if result is None or not negated else not result

    def _piped(self, steps: Sequence[Callable[[], bool | None]]) -> bool | None:
        """Follow commands of which each reads what the one before prints, in a shell of its own."""
        stdin, stdout, result = self.stdin, self.stdout, None
        try:
            for at, step in enumerate(steps, 1):
                self.stdout = stdout if at == len(steps) else []
                result = self._apart(step)
                self.stdin = _together(self.stdout)
        finally:
            self.stdin, self.stdout = stdin, stdout
        return result

    def _compute(self, part: Part) -> bool | None:
        try:
            return bool(computed(part, self.variables))
        except NotKnownError as error:
            self.why = str(error)
            return None

    def _chain(self, text: Text, node: Node, more: Simple) -> bool | None:
        links: list[tuple[str, Node]] = []
        while node.type == "list":  # && and || bind from the left
            node, joint, right = (child for child in node.children if child.type != "comment")
            links.insert(0, (joint.type, right))
        return self._links(text, partial(self._tested, partial(self._node, text, node)), links, more)

    def _links(
        self, text: Text, first: Callable[[], bool | None], links: Sequence[tuple[str, Node]], more: Simple
    ) -> bool | None:
        """Follow a command and what && and || join to it."""
        result = first()
        for at, (joint, node) in enumerate(links, 1):
            behind = more if at == len(links) else Simple()
            follow = partial(self._node, text, node, behind)
            if result is (joint == "&&"):
                result = follow() if at == len(links) else self._tested(follow)
            elif result is None:
                self._either([follow, lambda: None], text.line(node))
        return result

    def _redirected(self, text: Text, node: Node, more: Simple) -> bool | None:
        """A statement and its redirections; words and commands behind them belong to it."""
        body, redirects = node.child_by_field_name("body"), node.children_by_field_name("redirect")
        more = text.redirects(redirects).with_(more)

        def first() -> bool | None:
            return self._called(more, text.line(node)) if body is None else self._node(text, body, more)

        for redirect in redirects:
            pipes = [one for child in redirect.named_children if child.type == "pipeline" for one in child.named_children]
            if pipes:
                return self._piped([first, *(partial(self._node, text, one) for one in pipes)])
            joint, right = redirect.child_by_field_name("operator"), redirect.child_by_field_name("right")
            if joint is not None and right is not None:
                return self._links(text, partial(self._tested, first), [(joint.type, right)], Simple())
        return first()

    def _if(self, text: Text, node: Node, _: Simple) -> bool | None:
        branches = text.branches(node)
        for number, (test, body) in enumerate(branches):
            holds = True if not test else self._tested(partial(self.run, text, test))
            if holds:
                with filled_in(self.variables, self.notes, text, test):
                    holds = self.run(text, body)
                return holds
            if holds is None:
                left = [body for _, body in branches[number:]] + ([[]] if branches[-1][0] else [])
                self._either(self._bodies(text, left), text.line(node))
                return None
        return True

    def _bodies(self, text: Text, bodies: Sequence[Sequence[Node]]) -> list[Follow]:
        return [partial(self.run, text, body) for body in bodies]

    def _case(self, text: Text, node: Node, _: Simple) -> bool | None:
        branches = text.choices(node)
        subject = value_of(text.word(node.named_children[0]), self.variables)
        self.why = reason_of(subject)
        if known_text(subject) is None or any(piece.unset for piece in subject):
            self._either(self._bodies(text, [*(body for _, body in branches), []]), text.line(node))
            return None
        for number, (patterns, body) in enumerate(branches):
            for pattern in patterns:
                shown = known_text(value := pattern_of(pattern, self.variables))
                if shown is None:
                    self.why = reason_of(value)
                    self._either(self._bodies(text, [*(body for _, body in branches[number:]), []]), text.line(node))
                    return None
                if matches(text_of(subject), shown):
                    return self.run(text, body)
        return True

    def _for(self, text: Text, node: Node, _: Simple) -> bool | None:
        variable, line = node.child_by_field_name("variable"), text.line(node)
        if variable is None or node.children[0].type == "select":
            raise text.unreadable(node)
        name = text.text[variable.start_byte : variable.end_byte]
        words = map(text.word, node.children_by_field_name("value"))
        values = [value for word in words for value in listed_values(word, self.variables)]
        body = self._bodies(text, [text.body(node)])[0]
        if first_reason(values):
            self.variables.set(name, next(value for value in values if reason_of(value)))
            self._any_number_of_times(body, line)
            return None
        launches, result = len(self.launches), None
        for value in values:
            self.variables.set(name, value)
            result, goes_on = self._round(body, line, name)
            if len(self.launches) > launches and len(values) > 1:
                how = f"a loop over {len(values)} values is read for the first, {text_of(value)[:40]}"
                self.notes.append(f"line {line}: {how}")
                return result
            if not goes_on:
                break
        return result

    def _c_style_for(self, text: Text, node: Node, _: Simple) -> bool | None:
        """FIRST and a while loop whose body ends in NEXT; `set -e` ends at neither."""
        first, test, after = text.c_style(node)
        self._compute(first)

        def body() -> None:
            self.run(text, text.body(node))
            self._compute(after)

        return self._rounds(lambda: self._compute(test) if test.text.strip() else True, body, text.line(node))

    def _while(self, text: Text, node: Node, _: Simple) -> bool | None:
        tests = [child for child in node.children_by_field_name("condition") if child.is_named]
        until, body = node.children[0].type == "until", self._bodies(text, [text.body(node)])[0]

        def test() -> bool | None:
            result = self._tested(partial(self.run, text, tests))
            return result if result is None else result != until

        return self._rounds(test, body, text.line(node))

    def _rounds(self, test: Callable[[], bool | None], body: Follow, line: int) -> bool | None:
        values = self.variables.values
        given = sum(name.isdigit() and name != "0" for name in values)  # read as started with those that --set names, or none
        values |= {} if "#" in values or (given and str(given) not in values) else {"#": plain_value(str(given))}
        for _ in range(MAX_ROUNDS):
            holds = test()
            if holds is None:
                break
            if not holds:
                self.variables.values.pop("#", None)
                return True
            if not self._round(body, line)[1]:
                return None
        self.variables.values.pop("#", None)
        self._any_number_of_times(body, line)
        return None

    def _round(self, body: Follow, line: int, name: str = "") -> tuple[bool | None, bool]:
        """(result, whether the loop goes on) of one round; an undecided `break` leaves open how many there are."""
        self.left = False
        try:
            result = body()
        except Leave as leave:
            if str(leave) == "return":
                raise
            return True, str(leave) == "continue"
        if self.left:
            self.left = False
            if name:
                self.variables.set(name, unknown(f"${name}", f"${name} is set by the loop in line {line}"))
            self._any_number_of_times(body, line)
            return None, False
        return bool(result) if result is not None else None, True

    def _any_number_of_times(self, body: Follow, line: int) -> None:
        """A loop whose rounds are not known: what its body sets is not known behind it, nor in its other rounds."""
        self.notes.append(f"line {line}: how often a loop runs is not known (what it sets is not read)")
        with self._undecided():
            for _ in range(3):
                before, inner = self.variables, self.variables.copy()
                self.variables = inner
                with contextlib.suppress(Exit, Leave):
                    body()
                self.variables = before
                if not spoiled(before, inner, line):
                    break

    @contextlib.contextmanager
    def _undecided(self) -> Iterator[None]:
        """Commands of which it is not known whether they run: nor is what is printed."""
        if self.substitutes:
            raise Unprinted
        stdout, self.stdout = self.stdout, None
        yield
        self.stdout = stdout
        if stdout is not None:
            stdout.append(None)

    def _either(self, bodies: Sequence[Follow], line: int) -> None:
        """A condition is not known: follow every branch apart. What they set differently is not known but for what is common in
        front: a variable that one branch appends to keeps what it had."""
        before, outcomes, why, errexit = self.variables, [], self.why, self.errexit
        with self._undecided():
            for body in bodies:
                self.variables, self.errexit = before.copy(), errexit
                try:
                    body()
                except Exit:
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

    def _simple(self, text: Text, node: Node, more: Simple) -> bool | None:
        return self._called(text.simple(node).with_(more), text.line(node))

    def _test(self, text: Text, node: Node, more: Simple) -> bool | None:
        if node.children[0].type == "((":
            return self._compute(text.arithmetic(node))
        return self._called(text.test(node).with_(more), text.line(node))

    def _fields(self, simple: Simple) -> list[Value]:
        """The words of a command as it gets them."""
        fields: list[Value] = []
        for token in simple.words:
            if isinstance(token, Word):
                compared = len(fields) > 1 and text_of(fields[0]) == "[[" and text_of(fields[-1]) in ("=", "==", "!=")
                fields += [pattern_of(token, self.variables)] if compared else fields_of(token, self.variables)
        spend(8 * len(fields))
        return fields

    def _called(self, simple: Simple, line: int) -> bool | None:
        """Follow a simple command, or assignments alone."""
        self.supposed.before = len(self.variables.asked)
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
        if commands := inner_script(name, fields):
            return self._inner(*commands, apart=name != "eval")
        launch = launch_of(fields, line, self.program)
        if launch is not None:
            self.launches.append(launch)
        elif almost := almost_a_launch(fields, line, self.program):
            self.almost.append(almost)
        return None if launch is None and name not in _SUCCEEDS else True

    def _call(self, name: str, given: list[Value]) -> bool | None:
        if self.calls >= MAX_CALLS:
            self.notes.append(f"the function {name} is called too often to follow")
            return None
        self.calls += 1
        outer = self.variables.positional()
        self.variables.set_positional(given)
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
            value = _together(self.stdout)
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


def _together(shown: Sequence[Value | None] | None) -> Value | None:
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


_SIMPLE = ("command", "variable_assignments", "variable_assignment", "declaration_command", "unset_command")
_FAILS = frozenset({*_SIMPLE, "test_command"})
"""Commands whose failure ends a script under `set -e`, as that of `(( ))` does."""
_FOLLOWS: dict[str, Callable[[Reader, Text, Node, Simple], bool | None]] = {
    **dict.fromkeys(_SIMPLE, Reader._simple),
    **dict.fromkeys(("subshell", "compound_statement"), Reader._group),
    "pipeline": Reader._pipeline,
    "for_statement": Reader._for,
    "c_style_for_statement": Reader._c_style_for,
    "while_statement": Reader._while,
    "test_command": Reader._test,
    "negated_command": Reader._not,
    "list": Reader._chain,
    "if_statement": Reader._if,
    "case_statement": Reader._case,
    "function_definition": Reader._function,
    "redirected_statement": Reader._redirected,
}
