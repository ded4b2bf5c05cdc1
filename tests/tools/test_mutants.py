"""`make mutants`: what is changed, that a changed formula is noticed, and the record of the last run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tools.mutants.__main__ import RECORD, RECORDED, answered, selected
from tools.mutants.changes import ROOT, Mutant, _Mutator, mutants_of, sources
from tools.mutants.child import BrokenError, OutOfTimeError

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


def mutant_of(path: str, owner: str, change: str) -> Mutant:
    return next(one for one in mutants_of(ROOT / path) if (one.owner, one.change) == (owner, change))


@pytest.mark.service
def test_a_changed_formula_fails_a_test_and_another_spelling_of_the_same_none():
    """Powers of a prime divide a number exactly, as integer or as float."""
    cases = [
        (mutant_of("memory_model/predict.py", "nccl_bytes", "2.0 -> 4.0"), "tests/memory_model/test_predict.py",
         "test_every_kind_of_parallelism_has_its_communicators_a_pipeline_two"),
        (mutant_of("autoconfig/training/nearest.py", "_power", "number // prime -> number / prime"),
         "tests/training/test_nearest.py", "test_the_odd_factor_is_what_batch_heads_and_sequence_leave_over"),
    ]  # fmt: skip
    questions = [{"mutant": [one.path, one.number], "files": [file], "tests": [f"{file}::{name}"]} for one, file, name in cases]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(questions)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [{"killer": questions[0]["tests"][0]}, {"killer": None}]


@pytest.mark.parametrize(("answers", "killer"), [
    ([{"killer": None}], None), ([{"killer": "a"}], "a"), ([OutOfTimeError("slow"), {"killer": None}], None),
    ([RuntimeError("no memory"), {"killer": "a"}], "a"), ([OutOfTimeError("slow"), OutOfTimeError("still slow")], "still slow"),
    ([BrokenError("no memory"), BrokenError("ended with 1: {}")], "ended with 1"),
])  # fmt: skip
def test_what_load_did_is_asked_again(monkeypatch, answers, killer):
    asked = []

    def ask(question, cpu_s):
        asked.append(cpu_s)
        found = answers[len(asked) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("tools.mutants.__main__.ask", ask)
    assert answered({}, 10) == killer and asked == [10, 30][: len(answers)]


def test_a_process_that_was_ended_from_outside_twice_is_no_kill(monkeypatch):
    def ask(question, cpu_s):
        raise RuntimeError("no memory")

    monkeypatch.setattr("tools.mutants.__main__.ask", ask)
    with pytest.raises(RuntimeError, match="no memory"):
        answered({}, 10)


def test_tests_of_the_function_and_of_its_package_come_first_and_the_budget_holds():
    mutant = Mutant(path="memory_model/predict.py", owner="nccl_bytes", change="", occurrence=0, number=0, line=1)
    place = ("memory_model/predict.py", "nccl_bytes")
    near, named, far = "tests/memory_model/test_x.py", "tests/memory_model/test_predict.py", "tests/runs/test_predict.py"
    tests = {
        f"{near}::slow": (8.0, [place]), f"{near}::quick": (1.0, [place]), f"{near}::other": (0.1, [("a.py", "f")]),
        f"{named}::one": (2.0, [place]), f"{far}::far": (5.0, [place]), f"{far}::farther": (9.0, [place]),
    }  # fmt: skip
    found = selected(mutant, tests, {place: set()}, 20.0)
    assert found == [[f"{named}::one", f"{near}::quick", f"{near}::slow"], [f"{far}::far"]]
    new = Mutant(path="memory_model/new.py", owner="came_since", change="", occurrence=0, number=0, line=1)
    assert selected(new, tests, {place: {"came_since"}, (new.path, new.owner): set()}, 20.0) != []


def test_survivors_of_the_record_have_reasons_and_reasons_their_mutations():
    """A reason whose line has changed is taken out by hand; a mutation that survives has one."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    now = {one.name for path in sources() for one in mutants_of(path)}
    assert sorted(record["reasons"].keys() - now) == [], "these lines changed: take their reasons out of tests/mutants.json"
    for seed, run in record["seeds"].items():
        assert run["mutants"] >= RECORDED and len(run["killed"]) + len(run["survivors"]) == run["mutants"], seed
        assert [name for name in run["survivors"] if name in now and not record["reasons"].get(name)] == [], seed
        assert run["percent"] == round(100 * len(run["survivors"]) / run["mutants"], 1) <= 8, seed
