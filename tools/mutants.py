"""The share of small mutations of the formulas that no test notices (`make mutants SAMPLE=50 FLAGS='--seed 38'`).

    python -m tools.mutants [--sample N] [--seed N]

mutmut (`[tool.mutmut]` of pyproject.toml) mutates the functions of memory_model and time_model in a copy of the package as it
is imported, build/mutants, and runs each drawn mutant against the tests that reach its function.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from autoconfig.specs.import_path import import_path
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import copy_src_dir

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "mutants"
BESIDE = ("tests", "memory_model", "time_model", "specs", "validation", "docs", "pyproject.toml")
"""What the tests read beside the package."""
JOBS = os.cpu_count() or 1
"""Mutants at once."""
SPINNER = tuple("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
NOTICED = ("killed", "timeout", "segfault", "suspicious")


def make_tree() -> None:
    """Lays out FOLDER: the package as files (mutmut follows no links), the rest as links."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(import_path() / "autoconfig", FOLDER / "autoconfig", ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        (FOLDER / name).symlink_to(ROOT / name)


def results() -> dict[str, str]:
    """Name of each mutant, and what became of it: "not checked", "killed", "survived", "no tests", ..."""
    files = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("mutants/autoconfig/**/*.meta")))
    return {name: status_by_exit_code[code] for file in files for name, code in file["exit_code_by_key"].items()}


def main() -> None:
    """Draw, run, print the survivors and their share. Exits 1 where mutmut stopped: a test that fails without a mutation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="how many mutants are drawn (0: all)")
    parser.add_argument("--seed", type=int, default=random.randrange(1000), help="of the draw")
    options = parser.parse_args()
    from mutmut.__main__ import create_mutants  # which says how this process starts others

    make_tree()
    os.chdir(FOLDER)  # mutmut's configuration and paths are those of the working directory
    copy_src_dir()
    with contextlib.redirect_stdout(None):
        create_mutants(JOBS)
    names = list(results())
    drawn = random.Random(options.seed).sample(names, min(options.sample or len(names), len(names)))
    print(f"seed {options.seed}: {len(drawn)} of {len(names)} mutants", flush=True)
    mutmut = str(Path(sys.executable).with_name("mutmut"))
    command = [mutmut, "run", "--max-children", str(JOBS), *drawn]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if not line.startswith(SPINNER)]
        sys.exit("\n".join([*lines, "mutmut stopped: what it printed says why"]))
    outcome = results()
    survivors = [name for name in drawn if outcome[name] not in NOTICED]
    for name in sorted(survivors):
        subprocess.run([mutmut, "show", name], check=False)
    print(f"seed {options.seed}: {len(survivors)} of {len(drawn)} mutants survive ({100 * len(survivors) / len(drawn):.1f} %)")
    print(", ".join(f"{count} {status}" for status, count in Counter(outcome[name] for name in drawn).items()))


if __name__ == "__main__":
    main()
