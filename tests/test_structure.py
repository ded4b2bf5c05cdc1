"""The shape of the house: folders a person can hold in mind, packages without code of their own, one class for one name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = [
    "autoconfig",
    *sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("autoconfig", "tools")),
]
FILES = {
    path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
    for folder in (*SHIPPED, "tools", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
SHIPPED_FILES = {path: tree for path, tree in FILES.items() if path.parts[0] in SHIPPED}
MAX_MODULES, MAX_LINES, MAX_FUNCTION_LINES = 15, 420, 60
LONG_MODULES = {
    "specs/models/huggingface_families.py": "one function for each family of models, and their table",
}
LONG_FUNCTIONS: dict[str, str] = {
    "time_model/serving/simulation.py:simulate": "one loop over one state: every step of it needs all of it",
    "autoconfig/engines/export.py:kubernetes_objects": "one template of YAML",
}


def test_no_folder_is_crowded():
    count: dict[str, int] = defaultdict(int)
    for path in FILES:
        count[str(path.parent)] += path.name != "__init__.py"
    assert {folder for folder, modules in count.items() if modules > MAX_MODULES} == set()


def test_no_tests_folder_is_a_package():
    """A lone tests/kernels/__init__.py takes the place of `kernels` in any import mode."""
    assert [path for path in FILES if path.parts[0] == "tests" and path.name == "__init__.py"] == []


def test_packages_hold_no_code():
    """But for the Python API, and the version that transformers looks up in any `kernels` it finds."""
    for path, tree in FILES.items():
        if path.name == "__init__.py" and str(path) != "autoconfig/__init__.py":
            code = [ast.unparse(node) for node in tree.body[1:]]
            assert code == (["__version__ = '0.0.0'"] if str(path) == "kernels/__init__.py" else []), path
            assert ast.get_docstring(tree), path


def test_one_name_is_one_class():
    places = defaultdict(set)
    for path, tree in SHIPPED_FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_modules_and_functions_fit_on_a_few_screens():
    long = {str(path) for path, tree in SHIPPED_FILES.items() if _end(tree) > MAX_LINES} - set(LONG_MODULES)
    for path, tree in SHIPPED_FILES.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
            ):
                long.add(f"{path}:{node.name}")
    assert long - set(LONG_FUNCTIONS) == set()


def _end(tree: ast.Module) -> int:
    return max((node.end_lineno or 0 for node in tree.body), default=0)
