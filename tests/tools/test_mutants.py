"""`make mutants`: what mutmut mutates, where it runs, and how its outcomes are read."""

import json
import tomllib
from fnmatch import fnmatch

import pytest

pytest.importorskip("mutmut")
from tools import mutants


def test_the_formulas_are_mutated_in_a_tree_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "FOLDER", tmp_path / "tree")
    mutants.make_tree()
    configuration = tomllib.loads((tmp_path / "tree" / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    (package,) = configuration["source_paths"]
    files = [path.relative_to(tmp_path / "tree") for path in (tmp_path / "tree" / package).rglob("*.py")]
    mutated = [path for path in files if any(fnmatch(str(path), pattern) for pattern in configuration["only_mutate"])]
    assert {path.parts[1] for path in mutated} == {"memory_model", "time_model"}
    assert not any((tmp_path / "tree" / path.parent).is_symlink() for path in mutated)
    beside = [*configuration["also_copy"], *configuration["pytest_add_cli_args_test_selection"]]
    assert all((tmp_path / "tree" / name).exists() for name in beside)


def test_outcomes_are_read_by_the_names_of_the_mutants(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "FOLDER", tmp_path)
    place = tmp_path / "mutants" / "autoconfig" / "time_model" / "job.py.meta"
    place.parent.mkdir(parents=True)
    codes = {"a__mutmut_1": 1, "a__mutmut_2": 0, "a__mutmut_3": None, "b__mutmut_1": 33, "b__mutmut_2": -24}
    place.write_text(json.dumps({"exit_code_by_key": codes}), encoding="utf-8")
    outcome = mutants.results()
    assert list(outcome.values()) == ["killed", "survived", "not checked", "no tests", "timeout"]
    assert [name for name, status in outcome.items() if status in mutants.NOTICED] == ["a__mutmut_1", "b__mutmut_2"]
