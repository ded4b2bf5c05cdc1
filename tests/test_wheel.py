"""Our wheel beside Hugging Face's `kernels`: one name on the top level, and every file of the tree."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tools")
PROBE = """
import importlib.metadata, autoconfig, autoconfig.kernels, autoconfig.specs, kernels
from autoconfig.specs.models.model_catalogue import load_model
assert kernels.__version__ == importlib.metadata.version("kernels") and kernels.get_kernel
assert load_model("llama3-8b").num_layers == 32
print(autoconfig.__file__, autoconfig.kernels.__file__, kernels.__file__, sep="\\n")
"""


def run(*command: str, **options) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=600, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the tree: what an earlier build left behind is not in it."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in (*SHIPPED, "tools"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(copy / "dist"), ".", cwd=copy)
    (found,) = (copy / "dist").iterdir()
    return found


def test_it_holds_the_tree_and_one_name(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [
        path for folder in SHIPPED for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    places = [path.relative_to(ROOT) for path in files]
    assert packed == {str(place if place.parts[0] == "autoconfig" else "autoconfig" / place) for place in places}


def test_both_packages_of_kernels_are_there(wheel, tmp_path):
    target = tmp_path / "target"
    run("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    (tmp_path / "elsewhere").mkdir()
    said = run("-P", "-c", PROBE, cwd=tmp_path / "elsewhere", env={**os.environ, "PYTHONPATH": str(target)})
    ours, operators, theirs = map(Path, said.split())
    assert ours.parent == target / "autoconfig" and operators.parent == target / "autoconfig" / "kernels"
    assert not theirs.is_relative_to(target) and not theirs.is_relative_to(ROOT / "kernels")
