"""The wheel: what is in it, and what works where it is installed plainly, without extras."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.service
ROOT = Path(__file__).parents[1]
MAX_WHEEL_BYTES, MAX_DISTRIBUTIONS, MAX_INSTALLED_BYTES = 2_750_000, 16, 220_000_000
NOT_SHIPPED = ("tools", "validation")
BESIDE = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
SHIPPED = [name for name in BESIDE if name not in NOT_SHIPPED]
WHEEL_PROBE = """
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


def built(copy: Path) -> Path:
    """A wheel from a copy of the tree, its files of now: what an earlier build left behind is not in it."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in BESIDE:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copy)
    run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(copy / "dist"), ".", cwd=copy)
    (found,) = (copy / "dist").iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("tree"))


def test_the_same_tree_makes_the_same_wheel(wheel, tmp_path, monkeypatch):
    """Whenever it is built, and whatever dates its files have."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert built(tmp_path).read_bytes() == wheel.read_bytes()


def test_it_holds_the_tree_and_one_name(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [
        path for folder in SHIPPED for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    places = [path.relative_to(ROOT) for path in files]
    assert packed == {str(place if place.parts[0] == "autoconfig" else "autoconfig" / place) for place in places}


def test_it_holds_no_published_table_or_sheet(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    kept_apart = {path.name for path in (ROOT / "validation").rglob("*") if path.suffix in (".csv", ".toml", ".json", ".md")}
    assert "training_measurements.csv" in kept_apart and {name for name in names if Path(name).name in kept_apart} == set()
    assert not [name for name in names if "validation/" in name or name.endswith("measurements.csv")]


def test_both_packages_of_kernels_are_there(wheel, tmp_path):
    target = tmp_path / "target"
    run("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    (tmp_path / "elsewhere").mkdir()
    said = run("-P", "-c", WHEEL_PROBE, cwd=tmp_path / "elsewhere", env={**os.environ, "PYTHONPATH": str(target)})
    ours, operators, theirs = map(Path, said.split())
    assert ours.parent == target / "autoconfig" and operators.parent == target / "autoconfig" / "kernels"
    assert not theirs.is_relative_to(target) and not theirs.is_relative_to(ROOT / "kernels")


def needed(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """Put the distribution and all that it needs without extras into `found`."""
    if name not in found:
        found[name] = importlib.metadata.distribution(name)
        for line in found[name].requires or ():
            requirement, _, marker = line.partition(";")
            if "extra" not in marker and not re.search(r"sys_platform|python_version <|platform_system", marker):
                needed(re.match(r"[\w.-]+", requirement)[0].lower(), found)


@pytest.fixture(scope="module")
def plain(wheel, tmp_path_factory):
    """A fresh environment with our wheel and what its metadata asks for, by links to this environment's files."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    run("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--prefix", str(folder), "--ignore-installed", str(wheel))
    (own,) = importlib.metadata.distributions(path=[str(site)])
    found: dict[str, importlib.metadata.Distribution] = {"megatron-autoconfig": own}
    for line in own.requires:
        if "extra" not in line:
            needed(re.match(r"[\w.-]+", line)[0].lower(), found)
    for distribution in found.values():
        for top in {file.parts[0] for file in distribution.files} - {".."}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    return folder, found


def test_a_plain_install_is_small(wheel, plain):
    _, found = plain
    assert len(found) <= MAX_DISTRIBUTIONS, sorted(found)
    files = [one.locate_file(file) for one in found.values() for file in one.files if file.suffix != ".pyc"]
    assert sum(Path(file).stat().st_size for file in files) <= MAX_INSTALLED_BYTES
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES


TABLE = "model,gpu,num_gpus,seq,gbs,tp,pp\nllama3-8b,h100-sxm-80gb,8,4096,32,2,1\n"
SERVED = "model,gpu,num_gpus,engine,isl,osl,tp\nllama3-8b,h100-sxm-80gb,8,vllm-0.20,1000,200,1\n"
MODEL, SMALL = ("--model", "llama3-8b"), ("--model", "llama3-8b", "--gpus", "8")
WORK = (
    ("search", *SMALL, "--export", "run"), ("search", *SMALL, "--output", "plans.csv"), ("explain", "tp=2", *SMALL),
    ("export", "tp=2", *SMALL, "--output", "one"), ("check", "run/train.sh"), ("check", "run/plan.json"),
    ("convert", "run/train.sh", "--format", "bridge", "--output", "config.yaml"), ("predict", "run/train.sh"),
    ("predict", "runs.csv", "--output", "predicted.csv"), ("deployments", *SMALL, "--top", "1"), ("rl", *SMALL), ("rules",),
    ("scaling", *MODEL, "--gpus", "8:16"), ("model", "llama3-8b"), ("validate",), ("models",), ("gpus",), ("engines",),
    ("software",), ("--help",),
)  # fmt: skip
"""In order, in one folder: files of the first are read by later ones."""


def installed(plain, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [plain[0] / "bin" / "python", "-P", "-m", "autoconfig", *words]
    return subprocess.run(command, cwd=folder, env=bare, capture_output=True, text=True, timeout=120, check=False)


def test_a_plain_install_does_the_work(plain, tmp_path):
    (tmp_path / "runs.csv").write_text(TABLE)
    for words in WORK:
        done = installed(plain, tmp_path, *words)
        assert done.returncode == 0 and done.stdout + done.stderr, f"{words}: {done.stderr}"
    assert re.fullmatch(r"\d+\.\d+", (tmp_path / "predicted.csv").read_text().splitlines()[1].split(",")[1])


NEEDS = {
    "plots": ("scaling", *MODEL, "--gpus", "8", "--plot", "curve.png"),
    "tables": ("search", *SMALL, "--output", "plans.parquet"),
    "study": ("search", *SMALL, "--profile", "--study", "one"),
    "serve": ("serve",),
    "train": ("trace", "tp=2", *SMALL),
}


@pytest.mark.parametrize("extra", NEEDS)
def test_a_command_names_the_extra_that_it_needs(plain, tmp_path, extra):
    done = installed(plain, tmp_path, *NEEDS[extra])
    assert done.returncode == 2 and f"pip install 'megatron-autoconfig[{extra}]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("*.p*"))
