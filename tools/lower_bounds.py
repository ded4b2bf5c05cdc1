"""The lower bounds of pyproject.toml, tried: `make bounds`.

Every `name>=version` of the package and of its extras is installed at exactly that version, in an environment of its own
(build/bounds). There the main commands run, then the quick tests of what the dependencies do, a service with a worker on SQLite
and PostgreSQL among them. Last, an older click beside `pip install .` must be replaced.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.release import QUIET, CommandError, run

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "bounds"
BIN = FOLDER / "bin"
EXTRAS = ("plots", "tables", "study", "postgres", "serve", "mcp")
LEFT_OUT = {"train": "torch alone is 5 GB, and pinned", "gpu": "needs CUDA", "ray": "make ray installs it at its bound"}
"""Extras that are not tried, and why."""
TEST_TOOLS = ("pytest", "pytest-xdist", "hypothesis", "jsonschema")
OLDER = "click"
"""Of an older release of it every command would fail at its import."""
SMALL = ("--model", "llama3-8b", "--gpus", "8")
COMMANDS = (
    ("search", *SMALL, "--export", "run"), ("search", *SMALL, "--output", "plans.parquet"), ("explain", "tp=2", *SMALL),
    ("scaling", "--model", "llama3-8b", "--gpus", "8:16", "--plot", "curve.png"), ("check", "run/train.sh"),
    ("convert", "run/train.sh", "--format", "bridge", "--output", "config.yaml"), ("deployments", *SMALL, "--top", "3"),
    ("rl", *SMALL), ("model", "llama3-8b"), ("rules",), ("validate",), ("gpus", "--json"), ("keys", "list"), ("--help",),
)  # fmt: skip
TESTS = (
    "tests/cli/test_cli.py", "tests/megatron/test_shell_script.py", "tests/notebook/test_api.py",
    "tests/render/test_output_files.py", "tests/runs/test_predict.py",
    "tests/study/test_proposal.py", "tests/study/test_storages.py", "tests/api/test_answers.py",
    "tests/api/test_postgresql.py", "tests/api/test_searches.py::test_a_pool_that_has_failed_is_started_again",
    "tests/cli/agents/test_servers.py", "tests/cli/agents/test_over_http.py", "tests/cli/agents/test_tasks.py",
)  # fmt: skip
LEFT_TO_OTHERS = "tests/render/test_output_files.py::test_files_are_what_the_tool_writes_in_few_lines"
"""Published schemas are written with a developer's pydantic; each release writes them a little differently."""
PLAIN = "not (browser or torch or slurm or ray or judge or soak)"
_REQUIREMENT = re.compile(r"([\w.-]+)(\[[\w,.-]+\])?\s*(.*)")
_BOUND = re.compile(r">=\s*([\w.]+)")


def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def requirements(table: dict[str, Any], extras: Iterable[str] = EXTRAS) -> Iterator[tuple[str, str, str]]:
    """(name, [extras], version bounds) of every requirement of the package with these extras; its own name is left out."""
    lines = [*table["dependencies"], *(line for extra in extras for line in table["optional-dependencies"][extra])]
    for line in lines:
        name, more, bounds = _REQUIREMENT.fullmatch(line.partition(";")[0].strip()).groups()  # type: ignore[union-attr]
        if name != table["name"]:
            yield name, more or "", bounds


def lower_bounds(table: dict[str, Any], extras: Iterable[str] = EXTRAS) -> dict[str, str]:
    """Name -> the oldest version that is allowed. Raises ValueError where a name has none, or two."""
    oldest: dict[str, str] = {}
    for name, _, bounds in requirements(table, extras):
        bound = _BOUND.search(bounds)
        if bound is None:
            raise ValueError(f"{name} has no lower bound in pyproject.toml")
        if oldest.setdefault(name, bound[1]) != bound[1]:
            raise ValueError(f"{name} has the lower bounds {oldest[name]} and {bound[1]} in pyproject.toml; give one")
    return oldest


def constraints(table: dict[str, Any]) -> list[str]:
    """Lines for `pip install --constraint`."""
    tools = {name: bounds for name, _, bounds in requirements(table, ("dev",)) if name in TEST_TOOLS}
    pinned = lower_bounds(table) | {name: _BOUND.search(bounds)[1] for name, bounds in tools.items()}  # type: ignore[index]
    return [f"{name}=={version}" for name, version in sorted(pinned.items())]


def pip(*arguments: str) -> None:
    """`pip install` in the environment."""
    run(BIN / "python", "-m", "pip", "install", *QUIET, *arguments, path=BIN)


def main() -> None:
    """Install, run, say how long it took; exits with what a command said that fails."""
    try:
        bounds()
    except CommandError as error:
        sys.exit(f"bounds: {error}")


def bounds() -> None:
    """Try the package at its lower bounds. Raises CommandError."""
    started, table = time.monotonic(), project()

    def say(what: str) -> None:
        print(f"bounds: {time.monotonic() - started:4.0f} s  {what}", flush=True)

    venv.create(FOLDER, clear=True, with_pip=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        pinned = place / "constraints.txt"
        pinned.write_text("\n".join(constraints(table)) + "\n", encoding="utf-8")
        pip("--constraint", str(pinned), "--editable", f".[{','.join(EXTRAS)}]", *TEST_TOOLS)
        say(f"installed: {' '.join(constraints(table))}")
        for words in COMMANDS:
            run(BIN / "autoconfig", *words, cwd=place, path=BIN)
        say(f"{len(COMMANDS)} commands")
    for extra, why in LEFT_OUT.items():
        say(f"left out: {extra} ({why})")
    how = ("-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "-m", PLAIN, "--deselect", LEFT_TO_OTHERS)
    say(run(BIN / "python", "-m", "pytest", *how, *TESTS, path=BIN).splitlines()[-1])
    pip(f"{OLDER}<{lower_bounds(table)[OLDER]}")
    pip(".")
    run(BIN / "autoconfig", "search", *SMALL, path=BIN)
    say(f"pip install . beside an older {OLDER} replaced it")


if __name__ == "__main__":
    main()
