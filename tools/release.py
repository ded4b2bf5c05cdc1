"""Build what a release uploads and try it where nothing else is installed: `make release`. Nothing is uploaded.

dist/ gets the source distribution and the wheel that is built from it. twine checks both. Then the wheel is installed in a
fresh environment (build/release) of each Python in PYTHONS and does the main job there, away from the checkout. A Python that
this machine does not have is named in the last lines.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
FOLDER = ROOT / "build" / "release"
PYTHONS = ("3.11", "3.12", "3.13")
MAIN_JOB = ("search", "--model", "175b", "--gpus", "1024")
QUIET = ("--quiet", "--root-user-action=ignore", "--disable-pip-version-check")
_WORKS = "import ensurepip, sys, venv; print('.'.join(map(str, sys.version_info[:2])), sys.executable)"


class CommandError(Exception):
    """A command failed; the message has what it printed."""


def run(*command: str | Path, cwd: Path = ROOT, path: Path | None = None) -> str:
    """Return what a command prints that sees nothing of this Python, with a folder before PATH. Raises CommandError where it
    fails."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AUTOCONFIG"))}
    places = {"PATH": f"{path}:{os.environ['PATH']}"} if path else {}
    done = subprocess.run(command, cwd=cwd, env={**bare, **places}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(
            f"{' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}"
        )
    return done.stdout


def candidates(version: str) -> Iterator[Path]:
    """Yield the programs that may be this Python: on PATH, then those that pyenv keeps."""
    name = f"python{version}"
    for folder in os.get_exec_path():
        if (Path(folder) / name).exists():
            yield Path(folder) / name
    if pyenv := shutil.which("pyenv"):
        versions = Path(run(pyenv, "root").strip()) / "versions"
        yield from sorted(versions.glob(f"{version}.*/bin/{name}"), reverse=True)


def interpreter(version: str) -> Path | None:
    """Return a Python of this version that can make environments, or None where the machine has none."""
    for program in candidates(version):
        done = subprocess.run((program, "-c", _WORKS), capture_output=True, text=True, check=False)
        number, _, path = done.stdout.strip().partition(" ")
        if done.returncode == 0 and number == version:
            return Path(path)
    return None


def environment(python: Path, folder: Path, *packages: str | Path) -> Path:
    """Make an environment with these packages alone. Returns its bin folder."""
    run(python, "-m", "venv", "--clear", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", *QUIET, *packages)
    return folder / "bin"


def build() -> tuple[Path, Path]:
    """Write the source distribution and the wheel, checked by twine. Returns both."""
    shutil.rmtree(DIST, ignore_errors=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    programs = environment(Path(sys.executable), FOLDER / "tools", *extras["release"])
    run(programs / "python", "-m", "build", "--outdir", DIST, ROOT)
    [source], [wheel] = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    run(programs / "python", "-m", "twine", "check", "--strict", source, wheel)
    return source, wheel


def first_plan(python: Path, version: str, wheel: Path) -> str:
    """Return the line of the main job that names the plan, by the wheel in a fresh environment."""
    programs = environment(python, FOLDER / version, wheel)
    with tempfile.TemporaryDirectory() as elsewhere:
        answer = run(programs / "autoconfig", *MAIN_JOB, cwd=Path(elsewhere))
    lines = [line for line in answer.splitlines() if line.startswith("START")]
    if not lines:
        raise CommandError(f"autoconfig {' '.join(MAIN_JOB)} on Python {version} names no plan:\n{answer}")
    return lines[0]


def main() -> None:
    """Build, check, install, run. Exits with 1 where one of it fails, or the machine has none of the Pythons."""
    try:
        source, wheel = build()
        plans: dict[str, str] = {}
        for version in PYTHONS:
            if python := interpreter(version):
                plans[version] = first_plan(python, version, wheel)
                print(f"release: Python {version} ({python}): {plans[version]}", flush=True)
    except CommandError as error:
        sys.exit(f"release: {error}")
    if len(set(plans.values())) != 1:
        sys.exit("release: the plans differ" if plans else f"release: none of Python {', '.join(PYTHONS)} is on this machine")
    for path in (source, wheel):
        size, digest = path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"release: {path.relative_to(ROOT)} {size / 2**20:.1f} MiB sha256 {digest}")
    for version in PYTHONS:
        if version not in plans:
            print(f"release: NOT tried on Python {version}: none that makes environments is on PATH or kept by pyenv")


if __name__ == "__main__":
    main()
