"""The planner runs without torch: a subprocess imports every planner module with torch and its like made unimportable."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = (
    "torch",
    "triton",
    "megatron",
    "transformer_engine",
    "transformers",
    "pydantic",
    "pynvml",
    "autoconfig.trainer",
    "autoconfig.kernels",
)
PLANNER = tuple(
    sorted(
        path.parent.name
        for path in (*ROOT.glob("*/__init__.py"), *(ROOT / "autoconfig").glob("*/__init__.py"))
        if path.parent.name not in ("autoconfig", "tools", "trainer", "kernels", "api")
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
    return subprocess.run(
        [sys.executable, "-c", PROBE, *modules], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_planner_modules_import_without_torch():
    assert {"specs", "time_model", "training", "cli"} < set(PLANNER)
    done = probe(*(f"autoconfig.{package}" for package in PLANNER))
    assert done.stdout.strip() == "clean", done.stderr


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


@pytest.mark.xdist_group("imports")
def test_groups_of_tests_keep_to_one_worker(request):
    """pytest-xdist groups by a suffix of the name; without it, costly fixtures run once in each worker."""
    grouped = "PYTEST_XDIST_WORKER" in os.environ and request.config.option.loadgroup
    assert request.node.nodeid.endswith("@imports") is bool(grouped)
