"""Bash syntax to commands and words, with the place of every character in the file. Nothing is expanded and nothing is run.

The grammar is tree-sitter-bash's; what it cannot read is an error that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from autoconfig.megatron.shell import commands
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

MAX_DEPTH = 60
CHUNK = 512
MAX_READS = 6
"""How often the parser may come back to each chunk: on hostile text it would be thousands of times."""
MAX_OF = {"|": 4_000, "`": 400, "<<<": 100}
"""Of these in a script: the time that the parser takes grows with the square of their number, or faster."""
_PARAMETER = re.compile(r"(#|!)?([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[#?@*$!-])(\[[^\]]*\])?(:?[-=+?]|.)?", re.DOTALL)
_SPLIT_WORD = re.compile(r"^([^#\n']*[^\s\\#'])\\\n(?=[^\s#])", re.MULTILINE)
"""A line that ends in a backslash inside a word: the grammar would begin a new word behind it."""
_PLACEHOLDER = re.compile(r"(?<!<)<[A-Za-z](?:[^<>|&;$\n\"'()]*[^\s<>|&;$\"'()])?>(?=[\s\"'/_\\]|$)", re.MULTILINE)
"""`<path to the data>`, as published scripts have it: a word, not a redirection from and to files."""
_BEFORE_KEYWORD = re.compile(
    r"""((?<![^\s;()`])[A-Za-z_]\w*+=[^\s"'#;`$()]*+[ \t]++[A-Za-z_]\w*+=[^\s"'#;`$()]*+[ \t]*+)"""
    r"\n(?=[ \t]*+(?:elif|else|fi|done|esac)\b)"
)
"""`A=1 B=2` at the end of a branch: the grammar would take the keyword of the next line for the name of a command."""
_NAMED = re.compile(r"(?:\\.|\$\$|[^\\$]|\$(?![A-Za-z_0-9?]))++|\$([A-Za-z_]\w*|[0-9?])", re.DOTALL | re.ASCII)
"""`$NAME`, read as `${NAME}`: the grammar loses the second name of `$A/$B-c`, and takes `$10` for one name."""
_SUM = re.compile(r"(?<=:[-=+?])(\$\(\((?:[^()\"'`]|\([^()\"'`]*\)){0,250}\)\))(?=\})")
"""`$((...))` as the value of `${NAME:=...}`, read in quotes: the grammar would take it for a command."""
_PLAIN = re.compile(
    r"""\\(?P<escaped>.)|\$(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9#?@*$!-])|\$\{(?P<braced>[A-Za-z_]\w*|[0-9])\}|'(?P<single>[^']*)'|"(?P<double>[^"\\$`]*)"|[^\\$'"]+|.""",
    re.DOTALL,
)
_IN_QUOTES = re.compile(r"\\(?P<escaped>[$`\"\\\n])|[^\\]+|\\", re.S)
_KEYWORDS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "{", "}"})
_EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution"}
)
_EXPRESSIONS = frozenset(
    {"binary_expression", "unary_expression", "parenthesized_expression", "redirected_statement", "command", "command_name"}
)
_QUOTES = frozenset({"string", "raw_string", "ansi_c_string", "translated_string"})
_GIVES = frozenset({"heredoc_redirect", "herestring_redirect"})
_REDIRECTS = _GIVES | {"file_redirect"}


def parse(source: commands.Source) -> tuple[commands.Command, ...]:
    """The commands of a script. Raises InputError with the line of what the grammar cannot read."""
    spend(50 + len(source.text))
    source = source.without(re.compile(r"()\r(?=\n)")).without(_SPLIT_WORD).inserting(_SUM, '"', '"')
    source = source.inserting(_NAMED, "${", "}")
    if not source.text.strip():
        return ()
    return _Reader(source).body(_tree(source).named_children)


@cache
def _bash() -> Language:
    return Language(tree_sitter_bash.language())


def _tree(source: commands.Source) -> Node:
    """The root of the syntax tree, whose offsets are those of the text's characters."""
    text = _BEFORE_KEYWORD.sub(r"\1;", _PLACEHOLDER.sub(lambda match: "\x01" * len(match[0]), source.text))
    data = re.sub(r"[^ -~\n\t\r]", "\x01", text).encode() + b"\n\n"
    left = MAX_READS * (len(data) // CHUNK + 20)
    for sign, most in MAX_OF.items():
        if source.text.count(sign) > most:
            raise InputError(f"line {source.line(0)}: more than {most:,} {sign} in a script are not read; simplify it")

    def read(at: int, _: object) -> bytes:
        nonlocal left
        left -= 1
        return data[at : at + CHUNK] if left > 0 else b""

    root = Parser(_bash()).parse(read).root_node
    if left <= 0:
        raise InputError(f"line {source.line(0)}: this takes too long to read as a shell script; simplify it")
    if root.has_error:
        raise _unreadable(source, root)
    return root


def _unreadable(source: commands.Source, node: Node) -> InputError:
    """Names the innermost first place that the grammar cannot read; `node` itself where the grammar reads all of it."""
    found, inner = node, node
    while inner := next((child for child in inner.children if child.has_error or child.is_missing), None):  # type: ignore[assignment]
        found = inner if inner.is_error or inner.is_missing else found
    opened = (child for child in found.children if not child.is_named and not child.type.isspace() and child.type not in ";&")
    found = next(opened, found)  # behind what could be read, the word or bracket that opens what is not closed
    shown = source.text[found.start_byte : found.end_byte].strip().partition("\n")[0][:60]
    what = f"{found.type} is missing" if found.is_missing else f"{shown!r} cannot be read as bash"
    return InputError(
        f"line {source.line(found.start_byte)}: {what}; close what is open there (a quote, a bracket, an if, a loop), write "
        "the line more simply, or give a file with the argument list"
    )


class _Reader:
    """Turns nodes of the syntax tree into commands and words."""

    def __init__(self, source: commands.Source) -> None:
        self.source, self.text, self.depth = source, source.text, 0

    def body(self, nodes: Iterable[Node]) -> tuple[commands.Command, ...]:
        return tuple(self._placed(node) for node in nodes if node.type not in ("comment", "heredoc_body"))

    def _placed(self, node: Node) -> commands.Command:
        command, behind = self._command(node), node.next_sibling
        beside = behind is not None and behind.type == "&"
        return commands.Block(body=(command,), line=command.line, apart=True) if beside else command

    def _deeper(self, node: Node) -> None:
        self.depth += 1
        spend(5)
        if self.depth > MAX_DEPTH:
            raise InputError(f"line {self._line(node)}: structures are nested deeper than {MAX_DEPTH}; simplify the script")

    def _command(self, node: Node) -> commands.Command:
        self._deeper(node)
        read = _COMMANDS.get(node.type)
        if read is None:
            raise _unreadable(self.source, node)
        command = read(self, node)
        self.depth -= 1
        return command

    def _line(self, node: Node) -> int:
        return self.source.line(node.start_byte)

    def _simple(self, node: Node) -> commands.Command:
        words: list[commands.Word | commands.Assignment] = []
        given: commands.Word | None = None
        output: tuple[commands.Word, bool] | None = None
        for child in node.children:
            if child.type in _REDIRECTS:
                given = self._given(child) if child.type in _GIVES else given
                output = self._output(child) or output
                words += self._behind_redirect(child)
            elif child.type == "variable_assignment":
                words += self._assignment(child)
            elif child.type != "comment":
                words.append(self._word(child))
        first = words[0] if words else None
        if isinstance(first, commands.Word) and "".join(p.text for p in first.parts if not p.quoted) in _KEYWORDS:
            raise _unreadable(self.source, node)
        return commands.redirected(commands.Simple(words=tuple(words), line=self._line(node)), given, output)

    def _assignment(self, node: Node) -> list[commands.Assignment]:
        """Of a variable, or of an element of an array."""
        name, value, index = node.child_by_field_name("name"), node.child_by_field_name("value"), ""
        if name is not None and name.type == "subscript":
            inside = name.child_by_field_name("index")
            index = "?" if inside is None else self.text[inside.start_byte : inside.end_byte]
            name = name.child_by_field_name("name")
        if name is None or name.type != "variable_name":
            return []
        found: commands.Word | tuple[commands.Word, ...] = commands.Word(parts=(), line=self._line(node))
        if value is not None and value.type == "array":
            found = tuple(self._word(child) for child in value.named_children if child.type != "comment")
        elif value is not None:
            found = self._word(value)
        append = self.text.startswith("+=", name.end_byte)
        return [commands.Assignment(name=self.text[name.start_byte : name.end_byte], append=append, value=found, index=index)]

    def _test(self, node: Node) -> commands.Command:
        if node.children[0].type == "((":
            return self._compute(node, node.children[0].end_byte, node.children[-1].start_byte)
        words: list[commands.Word] = []
        waiting, end, kind = node.children[::-1], -1, ""
        while waiting:
            child = waiting.pop()
            if child.type in _EXPRESSIONS:
                waiting += child.children[::-1]
            elif child.type != "comment":
                word = self._word(child)
                if child.start_byte == end and "extglob_pattern" in (kind, child.type):  # of *"x"* the grammar makes three
                    word = replace(word, parts=(*words.pop().parts, *word.parts))
                words.append(word)
                end, kind = child.end_byte, child.type
        return commands.Simple(words=tuple(words), line=self._line(node))

    def _list(self, node: Node) -> commands.Command:
        links: list[tuple[str, commands.Command]] = []
        first = node
        while first.type == "list":  # && and || bind from the left
            left, joint, right = (child for child in first.children if child.type != "comment")
            links.append((joint.type, self._command(right)))
            first = left
        return commands.Chain(links=(("", self._command(first)), *reversed(links)), line=self._line(node))

    def _group(self, node: Node) -> commands.Command:
        if node.children[0].type == "((":
            return self._compute(node, node.children[0].end_byte, node.children[-1].start_byte)
        apart = node.type in ("pipeline", "subshell")
        return commands.Block(body=self.body(node.named_children), line=self._line(node), apart=apart)

    def _if(self, node: Node) -> commands.Command:
        branches = []
        for part in (node, *(child for child in node.children if child.type in ("elif_clause", "else_clause"))):
            test: list[Node] = []
            body = test if part.type != "else_clause" else []
            for child in part.children:
                if child.type == "then":
                    body = []
                elif child.is_named and child.type not in ("elif_clause", "else_clause"):
                    body.append(child)
            branches.append((self.body(test), self.body(body)))
        return commands.If(branches=tuple(branches), line=self._line(node))

    def _compute(self, node: Node, start: int, end: int) -> commands.Arithmetic:
        """The expression between two places of a node."""
        line = self.source.line(start)
        word = commands.Word(parts=tuple(self._between(node, start, end, quoted=True)), line=line)
        text = self.text[start:end]
        return commands.Arithmetic(
            part=commands.Part(kind="arithmetic", text=text, quoted=True, line=line, rest=word), line=line
        )

    def _while(self, node: Node) -> commands.Command:
        body = node.child_by_field_name("body")
        tests = (child for child in node.children_by_field_name("condition") if child.is_named)
        return commands.While(
            test=self.body(tests),
            body=() if body is None else self.body(body.named_children),
            until=node.children[0].type == "until",
            line=self._line(node),
        )

    def _c_style_for(self, node: Node) -> commands.Command:
        """for (( FIRST; TEST; NEXT )) as FIRST and a while loop whose body ends in NEXT; `set -e` ends at neither."""
        body = node.child_by_field_name("body")
        opening = next(child for child in node.children if child.type == "((")
        closing = next(child for child in node.children if child.type == "))")
        inside = (child for child in node.children if opening.end_byte <= child.start_byte < closing.start_byte)
        signs = [child for child in inside if child.type == ";"]
        if len(signs) != 2:
            raise _unreadable(self.source, node)
        between = (place for sign in signs for place in (sign.start_byte, sign.end_byte))
        places = [opening.end_byte, *between, closing.start_byte]
        computed, test, last = (self._compute(node, *places[at : at + 2]) for at in (0, 2, 4))
        first, after = (commands.Not(command=one, line=one.line) for one in (computed, last))
        found, line = () if body is None else self.body(body.named_children), self._line(node)
        loop = commands.While(test=(test,) if test.part.text.strip() else (), body=(*found, after), until=False, line=line)
        return commands.Block(body=(first, loop), line=line)

    def _loop(self, node: Node) -> commands.Command:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if name is None or node.children[0].type == "select":
            raise _unreadable(self.source, node)
        return commands.Loop(
            name=self.text[name.start_byte : name.end_byte],
            words=tuple(map(self._word, node.children_by_field_name("value"))),
            body=() if body is None else self.body(body.named_children),
            line=self._line(node),
        )

    def _case(self, node: Node) -> commands.Command:
        branches: list[tuple[tuple[commands.Word, ...], tuple[commands.Command, ...]]] = []
        for item in reversed([child for child in node.named_children if child.type == "case_item"]):
            values, ends = item.children_by_field_name("value"), {child.type for child in item.children}
            if ";;&" in ends:
                raise _unreadable(self.source, node)
            patterns = {child.id for child in values}
            body = self.body(child for child in item.named_children if child.id not in patterns)
            spend(len(branches[0][1]) / 4 if branches else 0)
            falls = branches[0][1] if ";&" in ends and branches else ()
            branches.insert(0, (tuple(map(self._word, values)), (*body, *falls)))
        return commands.Choice(word=self._word(node.named_children[0]), branches=tuple(branches), line=self._line(node))

    def _function(self, node: Node) -> commands.Command:
        name, body = node.named_children[0], self._command(node.named_children[-1])
        inside = body.body if isinstance(body, commands.Block) and not body.apart else (body,)
        return commands.Function(name=self.text[name.start_byte : name.end_byte], body=inside, line=self._line(node))

    def _redirected(self, node: Node) -> commands.Command:
        """A statement and its redirections, which drop out; words and commands behind them belong to it."""
        body = node.child_by_field_name("body")
        command: commands.Command = commands.Simple(words=(), line=self._line(node)) if body is None else self._command(body)
        for redirect in node.children_by_field_name("redirect"):
            command = commands.with_words(command, self._behind_redirect(redirect))
            given = self._given(redirect) if redirect.type in _GIVES else None
            command = commands.redirected(command, given, self._output(redirect))
            for child in redirect.named_children:
                if child.type == "pipeline":
                    command = commands.Block(body=(command, *self.body(child.named_children)), line=command.line)
            joint, right = redirect.child_by_field_name("operator"), redirect.child_by_field_name("right")
            if joint is not None and right is not None:
                command = commands.Chain(links=(("", command), (joint.type, self._command(right))), line=command.line)
        return command

    def _given(self, node: Node) -> commands.Word | None:
        """What a command reads: the word of `<<< WORD`, or a here-document, whose expansions a quoted delimiter keeps."""
        if node.type == "herestring_redirect":
            return commands.with_line_end(self._word(node.named_children[-1]))
        body = next((child for child in node.named_children if child.type == "heredoc_body"), None)
        kept = any(self.text[child.start_byte] in "\"'\\" for child in node.named_children if child.type == "heredoc_start")
        if body is None:
            return commands.Word(parts=(), line=self._line(node))
        start = commands.start_of_body(self.text, node.start_byte, body.start_byte)
        whole = (commands.without_brackets(self._literal(start, body.end_byte, quoted=True)),)
        parts = whole if kept else tuple(self._between(body, start, body.end_byte, quoted=True))
        parts = commands.without_tabs(parts) if self.text.startswith("<<-", node.start_byte) else parts
        return commands.Word(parts=parts, line=self._line(node))

    def _output(self, node: Node) -> tuple[commands.Word, bool] | None:
        """(file, whether it is appended to) of `> FILE` and `>> FILE`, also behind a here-document's delimiter."""
        if node.type == "file_redirect":
            signs, targets = {child.type for child in node.children}, node.children_by_field_name("destination")
            own = node.child_by_field_name("descriptor") is None and targets
            return (self._word(targets[0]), ">>" in signs) if own and signs & {">", ">>"} else None
        inner = (child for child in node.named_children if child.type == "file_redirect")
        return next((found for child in inner if (found := self._output(child))), None)

    def _behind_redirect(self, node: Node) -> list[commands.Word]:
        """Words that the grammar counts to a redirection and the shell to its command."""
        if node.type == "herestring_redirect":
            return []
        if node.type == "file_redirect":
            targets = node.children_by_field_name("destination")
            closes = any(child.type in ("<&-", ">&-") for child in node.children)
            return [self._word(child) for child in targets[0 if closes else 1 :]]
        words = [self._word(child) for child in node.children_by_field_name("argument")]
        return [
            *words,
            *(word for child in node.named_children if child.type in _REDIRECTS for word in self._behind_redirect(child)),
        ]

    def _word(self, node: Node) -> commands.Word:
        self._deeper(node)
        word = commands.Word(parts=tuple(self._parts(node, quoted=False)), line=self._line(node))
        self.depth -= 1
        return word

    def _parts(self, node: Node, *, quoted: bool) -> Iterator[commands.Part]:
        start, end = node.start_byte, node.end_byte
        if node.type == "string":
            yield self._literal(start + 1, start + 1, quoted=True)
            yield from self._between(node, start + 1, end - 1, quoted=True)
        elif node.type in ("raw_string", "ansi_c_string"):
            begin = self.text.index("'", start) + 1
            escaped = node.type == "ansi_c_string" and "\\" in self.text[begin : end - 1]
            part = self._literal(begin, end - 1, quoted=True)
            yield commands.unescaped(part) if escaped else commands.without_brackets(part)
        elif node.type == "translated_string":
            yield from self._parts(node.children[-1], quoted=True)
        elif node.type in _EXPANSIONS:
            yield self._expansion(node, self._opening(start), quoted=quoted)
        else:
            yield from self._between(node, start, end, quoted=False)

    def _opening(self, start: int) -> int:
        """Where an expansion or a quote begins: in quotes the grammar counts blanks and broken lines in front to it."""
        while self.text[start] in " \t\n" or self.text.startswith("\\\n", start):
            start += 1
        return start

    def _expansion(self, node: Node, start: int, *, quoted: bool) -> commands.Part:
        line, end = self.source.line(start), node.end_byte
        text = self.text[start:end]
        if node.type == "simple_expansion":
            return commands.Part(kind="variable", text=text[1:], quoted=quoted, line=line)
        if node.type == "arithmetic_expansion":
            inside = (start + 3, end - 2) if text.startswith("$((") else (start + 2, end - 1)
            expression = commands.Word(parts=tuple(self._between(node, *inside, quoted=True)), line=line)
            return commands.Part(kind="arithmetic", text=self.text[slice(*inside)], quoted=quoted, line=line, rest=expression)
        match = _PARAMETER.match(text, 2, len(text) - 1) if node.type == "expansion" else None
        if match is None:
            return commands.Part(kind="command", text=text, quoted=quoted, line=line)
        self._deeper(node)
        rest: commands.Word | None = None
        if match[4]:
            rest = commands.Word(parts=tuple(self._between(node, start + match.end(), end - 1, quoted=False)), line=line)
        self.depth -= 1
        prefix = {"#": "length", "!": "indirect"}.get(match[1] or "", "")
        operator = prefix + (match[3] or "") + (match[4] or "")
        return commands.Part(kind="variable", text=match[2], quoted=quoted, line=line, operator=operator, rest=rest)

    def _between(self, node: Node, start: int, end: int, *, quoted: bool) -> Iterator[commands.Part]:
        """Parts of a stretch of a node: its expansions and quotes, and the characters between them."""
        waiting = node.children[::-1]
        while waiting:
            child = waiting.pop()
            if child.type not in _EXPANSIONS | _QUOTES:
                waiting += child.children[::-1]
            elif child.start_byte >= start and child.end_byte <= end:
                parts = list(self._parts(child, quoted=quoted))
                yield from self._characters(start, self._opening(child.start_byte), quoted=quoted)
                yield from parts
                start = child.end_byte
        yield from self._characters(start, end, quoted=quoted)

    def _characters(self, start: int, end: int, *, quoted: bool) -> Iterator[commands.Part]:
        """Literal text, with its escapes; without quotes also what the grammar leaves whole: patterns."""
        for match in (_IN_QUOTES if quoted else _PLAIN).finditer(self.text, start, end):
            kind = match.lastgroup
            if kind is None:
                yield self._literal(*match.span(), quoted=quoted)
            elif kind in ("name", "braced"):
                yield commands.Part(kind="variable", text=match[kind], quoted=quoted, line=self.source.line(match.start()))
            elif match[kind] != "\n" or kind != "escaped":
                yield self._literal(*match.span(kind), quoted=True)

    def _literal(self, start: int, end: int, *, quoted: bool) -> commands.Part:
        origin = tuple(self.source.origin[start:end])
        return commands.Part(
            kind="literal", text=self.text[start:end], quoted=quoted, line=self.source.line(start), origin=origin
        )


_COMMANDS: dict[str, Callable[[_Reader, Node], commands.Command]] = {
    **dict.fromkeys(("command", "variable_assignments", "declaration_command", "unset_command"), _Reader._simple),
    **dict.fromkeys(("pipeline", "subshell", "compound_statement"), _Reader._group),
    "for_statement": _Reader._loop,
    "c_style_for_statement": _Reader._c_style_for,
    "while_statement": _Reader._while,
    "variable_assignment": lambda reader, node: commands.Simple(words=tuple(reader._assignment(node)), line=reader._line(node)),
    "test_command": _Reader._test,
    "negated_command": lambda reader, node: commands.Not(
        command=reader._command(node.named_children[-1]), line=reader._line(node)
    ),
    "list": _Reader._list,
    "if_statement": _Reader._if,
    "case_statement": _Reader._case,
    "function_definition": _Reader._function,
    "redirected_statement": _Reader._redirected,
}
