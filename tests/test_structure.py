"""The shape of the house, and what an import loads."""

import ast
import os
import subprocess
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import pytest

from tools.modules_used import Walk

ROOT = Path(__file__).parents[1]
BESIDE = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
NOT_SHIPPED = ("tools", "validation")
SHIPPED = [name for name in BESIDE if name not in NOT_SHIPPED]
MAX_MODULES, MANY_LINES, MAX_FUNCTION_LINES = 15, 600, 60
MAX_UNFORMATTED = 50
LONG_FUNCTIONS: dict[str, str] = {
    "time_model/serving/simulation.py:simulate": "one loop over one state: every step of it needs all of it",
}


FILES = [
    path.relative_to(ROOT)
    for folder in (*SHIPPED, "tools", "validation", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
pytestmark = pytest.mark.xdist_group("structure")


@pytest.fixture(scope="module")
def shipped():
    """Every file of the product with its tree."""
    return {path: ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in FILES if path.parts[0] in SHIPPED}


def test_no_folder_is_crowded():
    count: dict[str, int] = defaultdict(int)
    for path in FILES:
        count[str(path.parent)] += path.name != "__init__.py"
    assert {folder for folder, modules in count.items() if modules > MAX_MODULES} == set()


def test_no_tests_folder_is_a_package():
    """A lone tests/kernels/__init__.py takes the place of `kernels` in any import mode."""
    assert [path for path in FILES if path.parts[0] == "tests" and path.name == "__init__.py"] == []


def test_packages_hold_no_code(shipped):
    """But for the Python API, and the version that transformers looks up in any `kernels` it finds."""
    for path, tree in shipped.items():
        if path.name == "__init__.py" and str(path) != "autoconfig/__init__.py":
            code = [ast.unparse(node) for node in tree.body[1:]]
            assert code == (["__version__ = '0.0.0'"] if str(path) == "kernels/__init__.py" else []), path
            assert ast.get_docstring(tree), path


def test_one_name_is_one_class(shipped):
    places = defaultdict(set)
    for path, tree in shipped.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(str(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.filterwarnings("default:.* lines:UserWarning")
def test_functions_fit_on_a_screen_and_long_modules_are_told(shipped):
    """A long module may hold one subject all the same: it is a warning, a long function is a failure."""
    long = set()
    for path, tree in shipped.items():
        if (lines := max((node.end_lineno or 0 for node in tree.body), default=0)) > MANY_LINES:
            warnings.warn(f"{path} has {lines} lines: does it hold one subject?", stacklevel=1)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
            ):
                long.add(f"{path}:{node.name}")
    assert long - set(LONG_FUNCTIONS) == set()


def test_who_expects_bad_json_expects_deep_json(shipped):
    """Python's reader raises RecursionError for brackets a thousand deep, which is no ValueError."""
    missing = []
    for path, tree in shipped.items():
        for tried in (node for node in ast.walk(tree) if isinstance(node, ast.Try)):
            reads = any("json.loads" in ast.unparse(statement) for statement in tried.body)
            caught = " ".join(ast.unparse(handler.type) for handler in tried.handlers if handler.type)
            if reads and "ValueError" in caught and "RecursionError" not in caught:
                missing.append(f"{path}:{tried.lineno}")
    assert not missing


def test_few_statements_are_laid_out_by_hand():
    """Outside the tests, whose tables of cases are."""
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in FILES if path.parts[0] != "tests"]
    assert sum(text.count("# fmt: ") for text in texts) <= MAX_UNFORMATTED


@pytest.mark.parametrize(
    ("module", "function", "modules", "climbs", "returns"),
    [
        ("autoconfig.training.answer", "answer", 10, 2, 30),
        ("autoconfig.serving.answer", "answer", 10, 2, 30),
        ("autoconfig.post_training.answer", "answer", 10, 2, 30),
    ],
)
def test_a_request_goes_a_short_way(module, function, modules, climbs, returns):
    """How far `request` goes through the calls that pass it on: a review counted 14 modules and 4 climbs in the first."""
    walk = Walk(module, function, "request")
    assert len(walk.modules) <= modules and len(walk.climbs) <= climbs and walk.returns <= returns, walk.steps


HEAVY = (
    "torch", "triton", "megatron", "transformer_engine", "transformers", "pydantic", "pynvml", "autoconfig.trainer",
    "autoconfig.kernels",
)  # fmt: skip
PLANNER = tuple(
    sorted(
        path.parent.name
        for path in (*ROOT.glob("*/__init__.py"), *(ROOT / "autoconfig").glob("*/__init__.py"))
        if path.parent.name not in ("autoconfig", "tools", "validation", "trainer", "kernels", "api")
    )
)
FORMULA_TESTS = ("specs", "memory_model", "time_model")
PROBE = f"""
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if any(name == heavy or name.startswith(heavy + ".") for heavy in {HEAVY!r}):
            raise ModuleNotFoundError(f"planning imported {{name}}")

sys.meta_path.insert(0, Refuse())
for package in sys.argv[1:]:
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(getattr(found, "__path__", []), package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
loaded = sorted(set(sys.modules) & set({HEAVY!r}))
assert not loaded, loaded
print("clean")
"""


def probe(*modules: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROBE, *modules], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.service
def test_planner_modules_import_without_torch():
    assert {"specs", "time_model", "training", "cli"} < set(PLANNER)
    done = probe(*(f"autoconfig.{package}" for package in PLANNER))
    assert done.stdout.strip() == "clean", done.stderr


@pytest.mark.service
def test_the_probe_notices():
    done = probe("autoconfig.kernels")
    assert done.returncode != 0 and "planning imported autoconfig.kernels" in done.stderr


def imported_names(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_tests_of_formulas_do_not_import_torch():
    files = [path for folder in FORMULA_TESTS for path in (ROOT / "tests" / folder).rglob("*.py")]
    assert files
    assert {path.name: names for path in files if (names := {n for n in imported_names(path) if n.startswith(HEAVY)})} == {}


def test_groups_of_tests_keep_to_one_worker(request):
    """pytest-xdist groups by a suffix of the name; without it, costly fixtures run once in each worker."""
    grouped = "PYTEST_XDIST_WORKER" in os.environ and request.config.option.loadgroup
    assert request.node.nodeid.endswith("@structure") is bool(grouped)
