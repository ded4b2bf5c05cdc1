"""`make mutants`: what is changed, that a changed formula is noticed, and the record of the last run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

from tools.mutants.changes import ROOT, _Mutator, mutants_of

SOURCE = '''
"""A module of 2 numbers."""
LIMIT: int = 3

class Shape:
    width: float = 0.5

    def area(self, x: int = 7) -> float:
        """Docstring with 1 number."""
        if not x or x < LIMIT:
            raise ValueError(f"{x + 1} is too small")
        return max(x, 0) + self.width
'''
CHANGES = {
    ("", "3 -> 6"), ("Shape", "0.5 -> 1.0"), ("Shape.area", "not x or x < LIMIT -> not x and x < LIMIT"),
    ("Shape.area", "not x -> x"), ("Shape.area", "x < LIMIT -> x <= LIMIT"), ("Shape.area", "max -> min"),
    ("Shape.area", "0 -> 1"), ("Shape.area", "max(x, 0) + self.width -> max(x, 0)"),
    ("Shape.area", "max(x, 0) + self.width -> max(x, 0) - self.width"),
}  # fmt: skip


def test_formulas_are_changed_and_nothing_else():
    mutator = _Mutator()
    mutator.visit(ast.parse(SOURCE))
    assert {(owner, change) for owner, change, _, _ in mutator.found} == CHANGES and len(mutator.found) == len(CHANGES)
    assert [targets for owner, _, _, targets in mutator.found if owner in ("", "Shape")] == [("LIMIT",), ("width",)]


PROBE = """
import json, sys
from tools.mutants.child import ask
print(json.dumps([ask(question, 100) for question in json.loads(sys.argv[1])]))
"""


def test_a_changed_formula_fails_a_test_and_the_same_formula_none():
    test = "tests/memory_model/test_terms.py"
    name = f"{test}::test_every_kind_of_parallelism_has_its_communicators_a_pipeline_two"
    of_file = mutants_of(ROOT / "memory_model" / "predict.py")
    wanted = next(one for one in of_file if one.owner == "nccl_bytes" and one.change == "2.0 -> 4.0")
    common = {"files": [test], "tests": [name]}
    questions = [{"mutant": [wanted.path, number], **common} for number in (wanted.number, -1)]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(questions)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [{"killer": name}, {"killer": None}]
