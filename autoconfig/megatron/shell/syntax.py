"""Bash syntax to words and the parts of commands, with the place of every character in the file. Nothing is expanded or run.

The grammar is tree-sitter-bash's; what it cannot read is an error that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from autoconfig.megatron.shell.commands import Assignment, Part, Source, Word
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


@dataclass(frozen=True, kw_only=True)
class Simple:
    """Words of one command, with the assignments before and among them; or what a redirection adds to one."""

    words: tuple[Word | Assignment, ...] = ()
    stdin: Word | None = None
    """The word of `<<< WORD`, or the here-document."""
    output: tuple[Word, bool] | None = None
    """The file of `> FILE` and `>> FILE`, and whether it is appended to."""

    def with_(self, more: Simple) -> Simple:
        """Return the command with what stands behind it."""
        spend((len(self.words) + len(more.words)) / 8)
        stdin = self.stdin if more.stdin is None else more.stdin
        return Simple(words=(*self.words, *more.words), stdin=stdin, output=more.output or self.output)


def parse(source: Source) -> Text:
    """Read the commands of a script. Raises InputError with the line of what the grammar cannot read."""
    spend(50 + len(source.text))
    source = source.keeping(re.compile(r"()\r(?=\n)")).keeping(_SPLIT_WORD).keeping(_SUM, '"', '"').keeping(_NAMED, "${", "}")
    return Text(source, list(_tree(source).named_children) if source.text.strip() else [])


@cache
def _bash() -> Language:
    return Language(tree_sitter_bash.language())


def _tree(source: Source) -> Node:
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


def _unreadable(source: Source, node: Node) -> InputError:
    """Names the innermost first place that the grammar cannot read; `node` itself where the grammar reads all of it."""
    place, inner = node, node
    while inner := next((child for child in inner.children if child.has_error or child.is_missing), None):  # type: ignore[assignment]
        place = inner if inner.is_error or inner.is_missing else place
    opened = (child for child in place.children if not child.is_named and not child.type.isspace() and child.type not in ";&")
    place = next(opened, place)  # behind what could be read, the word or bracket that opens what is not closed
    shown = source.text[place.start_byte : place.end_byte].strip().partition("\n")[0][:60]
    what = f"{place.type} is missing" if place.is_missing else f"{shown!r} cannot be read as bash"
    return InputError(
        f"line {source.line(place.start_byte)}: {what}; close what is open there (a quote, a bracket, an if, a loop), write "
        "the line more simply, or give a file with the argument list"
    )


class Text:
    """A script with its syntax tree: what the nodes of its commands hold."""

    def __init__(self, source: Source, nodes: list[Node]) -> None:
        self.source, self.text, self.nodes, self.depth = source, source.text, nodes, 0
        self.words: dict[tuple[int, int], Word] = {}
        waiting = nodes[::-1]
        while waiting:
            node = waiting.pop()
            spend(2)
            waiting += node.named_children[::-1]
            if node.type == "command_name" and self.text[node.start_byte : node.end_byte] in _KEYWORDS:
                raise self.unreadable(node)

    def line(self, node: Node) -> int:
        return self.source.line(node.start_byte)

    def unreadable(self, node: Node) -> InputError:
        return _unreadable(self.source, node)

    def body(self, node: Node, field: str = "body") -> list[Node]:
        """Return the commands of a loop."""
        body = node.child_by_field_name(field)
        return [] if body is None else body.named_children

    def simple(self, node: Node) -> Simple:
        """Return the words of a command, and what it reads and writes."""
        words: list[Word | Assignment] = []
        redirects = [child for child in node.children if child.type in _REDIRECTS]
        for child in [node] if node.type == "variable_assignment" else node.children:
            if child.type in _REDIRECTS:
                words += self._behind_redirect(child)
            elif child.type == "variable_assignment":
                words += self._assignment(child)
            elif child.type != "comment":
                words.append(self.word(child))
        return replace(self.redirects(redirects), words=tuple(words))

    def redirects(self, nodes: Sequence[Node]) -> Simple:
        """Return what redirections add to a command."""
        more = Simple()
        for node in nodes:
            stdin = self._given(node) if node.type in _GIVES else None
            more = more.with_(Simple(words=tuple(self._behind_redirect(node)), stdin=stdin, output=self._output(node)))
        return more

    def _assignment(self, node: Node) -> list[Assignment]:
        """Of a variable, or of an element of an array."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        of_element = name is not None and name.type == "subscript"
        name = name.child_by_field_name("name") if name is not None and of_element else name
        if name is None or name.type != "variable_name":
            return []
        held: Word | tuple[Word, ...] = Word(parts=(), line=self.line(node))
        if value is not None and value.type == "array":
            held = tuple(self.word(child) for child in value.named_children if child.type != "comment")
        elif value is not None:
            held = self.word(value)
        append = self.text.startswith("+=", name.end_byte)
        return [Assignment(name=self.text[name.start_byte : name.end_byte], append=append, value=held, of_element=of_element)]

    def test(self, node: Node) -> Simple:
        """Return the words of `[ ... ]` and `[[ ... ]]`."""
        words: list[Word] = []
        waiting, end, kind = node.children[::-1], -1, ""
        while waiting:
            child = waiting.pop()
            if child.type in _EXPRESSIONS:
                waiting += child.children[::-1]
            elif child.type != "comment":
                word = self.word(child)
                if child.start_byte == end and "extglob_pattern" in (kind, child.type):  # of *"x"* the grammar makes three
                    word = replace(word, parts=(*words.pop().parts, *word.parts))
                words.append(word)
                end, kind = child.end_byte, child.type
        return Simple(words=tuple(words))

    def arithmetic(self, node: Node, start: int = -1, end: int = -1) -> Part:
        """Return the expression of `(( ))`, or that between two places of a node."""
        if start < 0:
            start, end = node.children[0].end_byte, node.children[-1].start_byte
        line = self.source.line(start)
        word = Word(parts=tuple(self._between(node, start, end, quoted=True)), line=line)
        return Part(kind="arithmetic", text=self.text[start:end], quoted=True, line=line, rest=word)

    def c_style(self, node: Node) -> list[Part]:
        """Return FIRST, TEST and NEXT of for (( FIRST; TEST; NEXT ))."""
        opening, closing = (next(child for child in node.children if child.type == sign) for sign in ("((", "))"))
        inside = [child for child in node.children if opening.end_byte <= child.start_byte < closing.start_byte]
        ends = [place for child in inside if child.type == ";" for place in (child.start_byte, child.end_byte)]
        if len(ends) != 4:
            raise self.unreadable(node)
        places = [opening.end_byte, *ends, closing.start_byte]
        return [self.arithmetic(node, *places[at : at + 2]) for at in (0, 2, 4)]

    def branches(self, node: Node) -> list[tuple[list[Node], list[Node]]]:
        """Return (condition, body) of an if in order; the last condition is empty for else."""
        clauses = [child for child in node.children if child.type in ("elif_clause", "else_clause")]
        branches = []
        for part in (node, *clauses):
            then = next((child.start_byte for child in part.children if child.type == "then"), part.start_byte)
            inside = [child for child in part.named_children if child.type not in ("elif_clause", "else_clause")]
            branches.append(
                ([one for one in inside if one.start_byte < then], [one for one in inside if one.start_byte >= then])
            )
        return branches

    def choices(self, node: Node) -> list[tuple[list[Word], list[Node]]]:
        """Return (patterns, body) of a case; behind `;&` the next body belongs to it, too."""
        branches: list[tuple[list[Word], list[Node]]] = []
        for item in reversed([child for child in node.named_children if child.type == "case_item"]):
            values, ends = item.children_by_field_name("value"), {child.type for child in item.children}
            if ";;&" in ends:
                raise self.unreadable(node)
            patterns = {child.id for child in values}
            body = [child for child in item.named_children if child.id not in patterns]
            spend(len(branches[0][1]) / 4 if branches else 0)
            branches.insert(0, (list(map(self.word, values)), body + (branches[0][1] if ";&" in ends and branches else [])))
        return branches

    def _given(self, node: Node) -> Word | None:
        """What a command reads: the word of `<<< WORD`, or a here-document, whose expansions a quoted delimiter keeps."""
        if node.type == "herestring_redirect":
            word = self.word(node.named_children[-1])
            end = Part(kind="literal", text="\n", quoted=True, line=word.line, origin=(None,))
            return replace(word, parts=(*word.parts, end))
        body = next((child for child in node.named_children if child.type == "heredoc_body"), None)
        quoted = any(self.text[child.start_byte] in "\"'\\" for child in node.named_children if child.type == "heredoc_start")
        if body is None:
            return Word(parts=(), line=self.line(node))
        start = self._start_of_body(node.start_byte, body.start_byte)
        whole = (_without_brackets(self._literal(start, body.end_byte, quoted=True)),)
        parts = whole if quoted else tuple(self._between(body, start, body.end_byte, quoted=True))
        parts = _without_tabs(parts) if self.text.startswith("<<-", node.start_byte) else parts
        return Word(parts=parts, line=self.line(node))

    def _output(self, node: Node) -> tuple[Word, bool] | None:
        """(file, whether it is appended to) of `> FILE` and `>> FILE`, also behind a here-document's delimiter."""
        if node.type == "file_redirect":
            signs, targets = {child.type for child in node.children}, node.children_by_field_name("destination")
            own = node.child_by_field_name("descriptor") is None and targets
            return (self.word(targets[0]), ">>" in signs) if own and signs & {">", ">>"} else None
        inner = (child for child in node.named_children if child.type == "file_redirect")
        return next((file for child in inner if (file := self._output(child))), None)

    def _behind_redirect(self, node: Node) -> list[Word]:
        """Words that the grammar counts to a redirection and the shell to its command."""
        if node.type == "herestring_redirect":
            return []
        if node.type == "file_redirect":
            targets = node.children_by_field_name("destination")
            closes = any(child.type in ("<&-", ">&-") for child in node.children)
            return [self.word(child) for child in targets[0 if closes else 1 :]]
        words = [self.word(child) for child in node.children_by_field_name("argument")]
        return [
            *words,
            *(word for child in node.named_children if child.type in _REDIRECTS for word in self._behind_redirect(child)),
        ]

    def word(self, node: Node) -> Word:
        """Return a word, taken apart once however often it is read."""
        key = node.start_byte, node.end_byte
        if key not in self.words:
            self._deeper(node)
            self.words[key] = Word(parts=tuple(self._parts(node, quoted=False)), line=self.line(node))
            self.depth -= 1
        return self.words[key]

    def _deeper(self, node: Node) -> None:
        self.depth += 1
        spend(5)
        if self.depth > MAX_DEPTH:
            raise InputError(f"line {self.line(node)}: structures are nested deeper than {MAX_DEPTH}; simplify the script")

    def _start_of_body(self, opened: int, start: int) -> int:
        """Where the text of a here-document begins that is `opened` in front: the grammar drops blanks before `start`."""
        blank = opened + len(self.text[opened:start].rstrip())
        first = self.text.find("\n", blank, start) + 1
        return first or self.text.rfind("\n", 0, start) + 1

    def _parts(self, node: Node, *, quoted: bool) -> Iterator[Part]:
        start, end = node.start_byte, node.end_byte
        if node.type == "string":
            yield self._literal(start + 1, start + 1, quoted=True)
            yield from self._between(node, start + 1, end - 1, quoted=True)
        elif node.type in ("raw_string", "ansi_c_string"):
            begin = self.text.index("'", start) + 1
            escaped = node.type == "ansi_c_string" and "\\" in self.text[begin : end - 1]
            part = self._literal(begin, end - 1, quoted=True)
            yield replace(part, kind="command", origin=()) if escaped else _without_brackets(part)
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

    def _expansion(self, node: Node, start: int, *, quoted: bool) -> Part:
        line, end = self.source.line(start), node.end_byte
        text = self.text[start:end]
        if node.type == "simple_expansion":
            return Part(kind="variable", text=text[1:], quoted=quoted, line=line)
        if node.type == "arithmetic_expansion":
            inside = (start + 3, end - 2) if text.startswith("$((") else (start + 2, end - 1)
            expression = Word(parts=tuple(self._between(node, *inside, quoted=True)), line=line)
            return Part(kind="arithmetic", text=self.text[slice(*inside)], quoted=quoted, line=line, rest=expression)
        match = _PARAMETER.match(text, 2, len(text) - 1) if node.type == "expansion" else None
        if match is None:
            return Part(kind="command", text=text, quoted=quoted, line=line)
        self._deeper(node)
        rest: Word | None = None
        if match[4]:
            rest = Word(parts=tuple(self._between(node, start + match.end(), end - 1, quoted=False)), line=line)
        self.depth -= 1
        prefix = {"#": "length", "!": "indirect"}.get(match[1] or "", "")
        operator = prefix + (match[3] or "") + (match[4] or "")
        return Part(kind="variable", text=match[2], quoted=quoted, line=line, operator=operator, rest=rest)

    def _between(self, node: Node, start: int, end: int, *, quoted: bool) -> Iterator[Part]:
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

    def _characters(self, start: int, end: int, *, quoted: bool) -> Iterator[Part]:
        """Literal text, with its escapes; without quotes also what the grammar leaves whole: patterns."""
        for match in (_IN_QUOTES if quoted else _PLAIN).finditer(self.text, start, end):
            kind = match.lastgroup
            if kind is None:
                yield self._literal(*match.span(), quoted=quoted)
            elif kind in ("name", "braced"):
                yield Part(kind="variable", text=match[kind], quoted=quoted, line=self.source.line(match.start()))
            elif match[kind] != "\n" or kind != "escaped":
                yield self._literal(*match.span(kind), quoted=True)

    def _literal(self, start: int, end: int, *, quoted: bool) -> Part:
        origin = tuple(self.source.origin[start:end])
        return Part(kind="literal", text=self.text[start:end], quoted=quoted, line=self.source.line(start), origin=origin)


def _without_tabs(parts: Sequence[Part]) -> tuple[Part, ...]:
    """`<<-`: the tabs that lines begin with drop out."""
    rows, behind_line_end = [], True
    for part in parts:
        if part.kind != "literal":
            rows.append(part)
            behind_line_end = False
            continue
        start = "" if behind_line_end else "(?<=\n)"
        tabs = {at for match in re.finditer(rf"(?:^{start}|(?<=\n))\t+", part.text) for at in range(*match.span())}
        left = [at for at in range(len(part.text)) if at not in tabs]
        behind_line_end = part.text.endswith("\n") or (behind_line_end and not left)
        rows.append(replace(part, text="".join(part.text[at] for at in left), origin=tuple(part.origin[at] for at in left)))
    return tuple(rows)


def _without_brackets(part: Part) -> Part:
    """Text without expansions, and without the brackets that `parse` put around names; unknown where these are not told from
    others."""
    signs = list(zip(part.text, part.origin, strict=True))
    if "${" not in part.text or None not in part.origin:
        return part
    if all(place is None for place in part.origin) or any(place is None and sign not in "${}" for sign, place in signs):
        return replace(part, kind="command", origin=())
    left = [(sign, place) for sign, place in signs if place is not None or sign == "$"]
    return replace(part, text="".join(sign for sign, _ in left), origin=tuple(place for _, place in left))
