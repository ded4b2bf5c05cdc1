"""Small mutations of the pure packages, each run against the tests nearest to it; prints the share that survives.

    python -m tools.mutants [--sample N] [--seed N] [--only PATH]     (what `make mutants` runs, N = 200)

A mutation changes one node of the syntax tree: a number, an arithmetic operator, a comparison, min or max, ceil or floor. It is
written to a copy of the tree under build/mutants; the tests of its package run there at low priority, those that import the
module first. A mutant survives where they pass. Results are kept by source and mutation (build/mutants/results.json): the same
command goes on where it was stopped, and a changed file is tried anew. The same seed draws the same mutants.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "mutants"
RESULTS = FOLDER / "results.json"
PACKAGES = ("memory_model", "time_model", "specs")
"""Packages without files, network or processes: their tests are functions of numbers."""
LEFT_OUT = ("specs/import_path.py", "specs/hardware/local_gpu.py")
TIMEOUT_S = 180
"""A mutant whose tests take longer hangs, and counts as killed."""
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Pow: ast.Mult,
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `number` counts the file's mutations in the order of the tree."""

    path: str
    number: int
    line: int
    change: str
    source: str
    """Hash of the file that was mutated."""

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.change} #{self.number} {self.source}"


def _changed(node: ast.AST) -> tuple[ast.AST, str] | None:
    """The node with its one mutation and what it is, or None."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Constant) and isinstance(new.value, int | float) and not isinstance(new.value, bool):
        number: float = new.value
        new.value = 1 if number == 0 else number * 2
        return new, f"{number} -> {new.value!r}"
    if isinstance(new, ast.BinOp) and type(new.op) in OPERATORS and not isinstance(new.left, ast.Constant | ast.JoinedStr):
        new.op = OPERATORS[type(new.op)]()
    elif isinstance(new, ast.Compare) and len(new.ops) == 1 and type(new.ops[0]) in COMPARISONS:
        new.ops = [COMPARISONS[type(new.ops[0])]()]
    elif isinstance(new, ast.Name) and new.id in CALLS:
        new.id = CALLS[new.id]
    elif isinstance(new, ast.Attribute) and new.attr in CALLS:
        new.attr = CALLS[new.attr]
    else:
        return None
    return new, f"{ast.unparse(node)} -> {ast.unparse(new)}"


class _Mutator(ast.NodeTransformer):
    """Applies mutation `wanted` (none: only counts); annotations, decorators, raises and string formats are left alone."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.found = wanted, list[tuple[int, str]]()

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return node
        if isinstance(node, ast.AnnAssign):
            node.value = self.visit(node.value) if node.value else None  # type: ignore[assignment]
            return node
        if isinstance(node, ast.FunctionDef):
            node.body = [self.visit(one) for one in node.body]  # type: ignore[misc]
            return node
        change = _changed(node)
        if change is not None:
            self.found.append((node.lineno, change[1]))  # type: ignore[attr-defined]
            if len(self.found) - 1 == self.wanted:
                return change[0]
        return self.generic_visit(node)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutation of a file."""
    text = path.read_text(encoding="utf-8")
    mutator = _Mutator()
    mutator.visit(ast.parse(text))
    source = hashlib.sha256(text.encode()).hexdigest()[:8]
    for number, (line, change) in enumerate(mutator.found):
        yield Mutant(str(path.relative_to(ROOT)), number, line, " ".join(change.split())[:80], source)


def mutated(text: str, number: int) -> str:
    """The source with one mutation."""
    return ast.unparse(_Mutator(number).visit(ast.parse(text)))


def sources() -> Iterator[Path]:
    """Files that are mutated, in a fixed order."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "__init__.py" and str(path.relative_to(ROOT)) not in LEFT_OUT:
                yield path


def nearest_tests(path: str) -> list[str]:
    """Test files of the package that import the module, then all of the package's."""
    module = "autoconfig." + path.removesuffix(".py").replace("/", ".")
    package = path.split("/")[0]
    files = sorted((ROOT / "tests").glob("*/test_*.py"))
    names = (module, f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]}")
    found = [str(one.relative_to(ROOT)) for one in files if any(name in one.read_text(encoding="utf-8") for name in names)]
    return [*(one for one in found if one.startswith(f"tests/{package}/")), f"tests/{package}"]


def prepare(tree: Path) -> None:
    """A fresh copy of what git tracks, importable from its own build/import."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    links = [sys.executable, "-P", "specs/import_path.py"]
    subprocess.run(links, cwd=tree, check=True, capture_output=True, env=_environment(tree))


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'build' / 'import'}:{tree}", "PYTHONDONTWRITEBYTECODE": "1"}


def passes(tree: Path, tests: list[str]) -> bool:
    """Whether the tests pass in the copy; False where they hang."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, timeout=TIMEOUT_S, env=_environment(tree), check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout.decode()[-2000:]}")
    return done.returncode == 0


def run(chosen: list[Mutant], tree: Path) -> dict[str, str]:
    """killed or survives, by mutant; results that are known are taken as they are."""
    known: dict[str, str] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    checked = set[tuple[str, ...]]()
    for place, mutant in enumerate(chosen):
        if mutant.name in known:
            continue
        tests, target = nearest_tests(mutant.path), tree / mutant.path
        if tuple(tests) not in checked and not passes(tree, tests):
            raise RuntimeError(f"{' '.join(tests)} fail without a mutation; mend them first")
        checked.add(tuple(tests))
        text = target.read_text(encoding="utf-8")
        try:
            target.write_text(mutated((ROOT / mutant.path).read_text(encoding="utf-8"), mutant.number), encoding="utf-8")
            known[mutant.name] = "survives" if passes(tree, tests) else "killed"
        finally:
            target.write_text(text, encoding="utf-8")
        RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(f"{place + 1}/{len(chosen)} {known[mutant.name]:8} {mutant.name}", flush=True)
    return {mutant.name: known[mutant.name] for mutant in chosen}


def main() -> None:
    """Draw mutants, run them, print the survivors and their share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="how many mutants are drawn (0: all)")
    parser.add_argument("--seed", type=int, default=20, help="of the draw")
    parser.add_argument("--only", default="", help="only files whose path starts with this")
    asked = parser.parse_args()
    os.nice(15)
    everything = [one for path in sources() if str(path.relative_to(ROOT)).startswith(asked.only) for one in mutants_of(path)]
    chosen = everything
    if asked.sample:
        chosen = random.Random(asked.seed).sample(everything, min(asked.sample, len(everything)))
    tree = FOLDER / "tree"
    prepare(tree)
    found = run(sorted(chosen, key=lambda one: (one.path, one.number)), tree)
    survivors = [name for name, result in found.items() if result == "survives"]
    share = 100 * len(survivors) / max(len(found), 1)
    print(f"{len(survivors)} of {len(found)} survive ({share:.1f} %), {len(everything):,} in all")
    print("\n".join(f"  {name}" for name in survivors))


if __name__ == "__main__":
    main()
