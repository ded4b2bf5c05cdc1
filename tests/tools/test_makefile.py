"""What the Makefile, README and docs offer can be started: modules and files that targets name exist; benchmarks run."""

import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.service
ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = sorted(set(re.search(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE)[1].split()) - {"help", "clean"})
NAMED = re.compile(r"python3?(?: -P)? -m ([\w.]+)|(?<![\w./])((?:[\w-]+/)+[\w-]+\.(?:py|sh|txt))|bin/autoconfig ([\w-]+)")


ELSEWHERE = {"mkdocs"}
"""Modules of the extra docs, which has an environment of its own."""


def recipe(target: str) -> str:
    """The commands of a target and of what it needs, with every variable replaced."""
    done = subprocess.run(["make", "-n", "-B", target, "PART=kernels"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_starts_what_is_there(target):
    from autoconfig.cli.main import COMMANDS

    named = NAMED.findall(recipe(target))
    assert named
    for module, file, command in named:
        if module:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of pip, where a test before this one has imported distutils
                there = (ROOT / f"{module.replace('.', '/')}.py").exists() or module in ELSEWHERE or find_spec(module)
            assert there, module
        elif file and not file.startswith("build/"):  # but for what the recipe writes
            assert (ROOT / file).exists(), file
        elif command:
            assert command in COMMANDS, command


def test_help_names_every_target():
    named = set(re.findall(r"make ([a-z-]+)", MAKEFILE[MAKEFILE.index("help:") : MAKEFILE.index("demo:")]))
    assert set(TARGETS) - named == {"services"}


@pytest.mark.judge  # seconds each, and two environments are installed for the last
@pytest.mark.parametrize(("benchmark", "says"), [
    (("bench",), r"whole process .*\nrl, .*\npredict, .*\nloading: .*\nserving, .*peak memory of this benchmark: \d+ MB"),
    (("service_load",), r"repeated +1 .*\nfresh +1 .*\nRSS after 20 requests \d+ MiB"),
    (("against_base", "HEAD"), r"wall time: HEAD [\d.]+ s, here [\d.]+ s, .*\d+ modules in autoconfig search"),
])  # fmt: skip
def test_a_benchmark_runs(benchmark, says):
    name, *words = benchmark
    command = [sys.executable, "-m", f"benchmarks.{name}", *words, "--smoke"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(says.replace(r"\n", r"\n(?:.*\n)*?"), done.stdout, re.DOTALL), done.stdout
