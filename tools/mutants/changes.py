"""What a mutant is: one changed node of the syntax tree of one file.

Changed are numbers (doubled, 0 to 1), arithmetic operators, comparisons, and / or / not, min and max, ceil and floor and
NumPy's names of these; sums and differences also lose their last term. Docstrings, messages, annotations, decorators, raised
errors and the defaults of arguments are left alone, and so is zero times something (zeros in its shape): zero over it is the
same zeros.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("memory_model", "time_model", "specs", "autoconfig/training")
"""Packages without network or processes: what they answer is a function of their input."""
LEFT_OUT = ("specs/import_path.py", "specs/hardware/local_gpu.py")
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Pow: ast.Mult,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("ceil", "floor"),
    ("greater", "greater_equal"),
    ("less", "less_equal"),
    ("equal", "not_equal"),
    ("logical_and", "logical_or"),
    ("any", "all"),
)
CALLS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one file. The name stays while the function's other lines change; numbers count from the file's top."""

    path: str
    owner: str
    """Function or method that is changed, `Class.` or "" for what runs on import."""
    change: str
    occurrence: int
    """Which one of the owner's changes that read the same."""
    number: int
    """Which one of the file's."""
    line: int
    targets: tuple[str, ...] = ()
    """Outside of functions: the names that the changed statement sets."""

    @property
    def name(self) -> str:
        again = f" #{self.occurrence}" if self.occurrence else ""
        return f"{self.path}:{self.owner}: {self.change}{again}"

    def rank(self, seed: int) -> str:
        """Mutants of the least ranks are drawn: a change of one function leaves the draw of the others as it was."""
        return hashlib.sha256(f"{seed} {self.name}".encode()).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The node with each of its changes."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Constant) and isinstance(new.value, int | float) and not isinstance(new.value, bool):
        new.value = new.value * 2 or 1
        yield new
    elif isinstance(new, ast.BinOp) and type(new.op) in OPERATORS and not _is_text(new.left) and not _is_text(new.right):
        if isinstance(new.op, ast.Add | ast.Sub):
            yield copy.deepcopy(new.left)
        if not (isinstance(new.op, ast.Mult) and isinstance(new.left, ast.Constant) and new.left.value == 0):
            new.op = OPERATORS[type(new.op)]()
            yield new
    elif isinstance(new, ast.Compare) and len(new.ops) == 1 and type(new.ops[0]) in COMPARISONS:
        new.ops = [COMPARISONS[type(new.ops[0])]()]
        yield new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        yield new.operand
    elif isinstance(new, ast.Name) and new.id in CALLS:
        new.id = CALLS[new.id]
        yield new
    elif isinstance(new, ast.Attribute) and new.attr in CALLS:
        new.attr = CALLS[new.attr]
        yield new


@dataclass
class _Mutator(ast.NodeTransformer):
    """Applies change `wanted` (-1: none) and lists all of them."""

    wanted: int = -1
    found: list[tuple[str, str, int, tuple[str, ...]]] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    in_function: bool = False
    targets: tuple[str, ...] = ()

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return node
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            return self._body(node)
        if not self.in_function and isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            self.targets = tuple(one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
        if isinstance(node, ast.AnnAssign):
            node.value = self.visit(node.value) if node.value else None  # type: ignore[assignment]
            return node
        for change in _changes(node):
            text = " ".join(f"{ast.unparse(node)} -> {ast.unparse(change)}".split())
            self.found.append((".".join(self.owners), text[:100], node.lineno, self.targets))  # type: ignore[attr-defined]
            if len(self.found) - 1 == self.wanted:
                return ast.copy_location(change, node)
        return self.generic_visit(node)

    def _body(self, node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
        """Nested functions are part of the outer one."""
        outer = self.in_function
        if not outer:
            self.owners.append(node.name)
            self.targets = ()
        self.in_function = outer or isinstance(node, ast.FunctionDef)
        node.body = [self.visit(one) for one in node.body]  # type: ignore[misc]
        self.in_function = outer
        if not outer:
            self.owners.pop()
        return node


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutation of a file."""
    mutator, count = _Mutator(), Counter[tuple[str, str]]()
    mutator.visit(ast.parse(path.read_text(encoding="utf-8")))
    found = []
    for number, (owner, change, line, targets) in enumerate(mutator.found):
        found.append(
            Mutant(
                path=str(path.relative_to(ROOT)),
                owner=owner,
                change=change,
                occurrence=count[owner, change],
                number=number,
                line=line,
                targets=targets,
            )
        )
        count[owner, change] += 1
    return found


def mutated(text: str, number: int) -> ast.Module:
    """The source's tree with one change."""
    return ast.fix_missing_locations(_Mutator(number).visit(ast.parse(text)))  # type: ignore[return-value]


def sources() -> Iterator[Path]:
    """Files that are mutated, in a fixed order."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "__init__.py" and str(path.relative_to(ROOT)) not in LEFT_OUT:
                yield path


def drawn(seed: int, sample: int) -> list[Mutant]:
    """The sample's mutants in the order of their names; 0: all."""
    everything = sorted((one for path in sources() for one in mutants_of(path)), key=lambda one: one.rank(seed))
    return sorted(everything[: sample or None], key=lambda one: one.name)


def names_by_owner() -> dict[tuple[str, str], set[str]]:
    """Names that each function or method of the pure packages mentions, by path and owner."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sources():
        place = str(path.relative_to(ROOT))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for one in members:
                if isinstance(one, ast.FunctionDef):
                    found[place, prefix + one.name] = {
                        inner.id if isinstance(inner, ast.Name) else inner.attr
                        for inner in ast.walk(one)
                        if isinstance(inner, ast.Name | ast.Attribute)
                    }
    return found
