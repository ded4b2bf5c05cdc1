"""Follows the commands of a shell script as far as text decides: in what order they run, how often, and whether."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tree_sitter import Node

from autoconfig.megatron.shell.branches import Exit, Leave, filled_in, join, spoiled
from autoconfig.megatron.shell.calls import Calls, Unprinted, together
from autoconfig.megatron.shell.commands import (
    first_reason,
    known_text,
    plain_value,
    reason_of,
    text_of,
    unknown,
)
from autoconfig.megatron.shell.conditions import matches
from autoconfig.megatron.shell.syntax import Simple, Text
from autoconfig.megatron.shell.values import listed_values, pattern_of, value_of
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

MAX_ROUNDS, MAX_DEPTH = 500, 100

Follow = Callable[[], object]


class Reader(Calls):
    """Follows the commands of one script."""

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
                self.stdin = together(self.stdout)
        finally:
            self.stdin, self.stdout = stdin, stdout
        return result

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
        count = sum(name.isdigit() and name != "0" for name in values)  # read as started with those that --set names, or none
        values |= {} if "#" in values or (count and str(count) not in values) else {"#": plain_value(str(count))}
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
