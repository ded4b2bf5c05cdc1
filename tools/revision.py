"""A revision of the product in an environment of its own, without any of the checkout that this program runs in."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT, COMMAND = "megatron-autoconfig", "autoconfig"

CHECK = """
import importlib.metadata, json, sys
(point,) = importlib.metadata.entry_points(group="console_scripts", name=sys.argv[1])
point.load()
print(json.dumps({name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}))
"""
"""Loads what the command starts, and names every module that came with it, and its file."""


class RevisionError(Exception):
    """A revision that cannot be checked out, installed, or is not what runs."""


def _run(*command: str, cwd: Path | None = None) -> str:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_"))}
    done = subprocess.run(command, cwd=cwd, env=bare, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RevisionError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextmanager
def checkout(revision: str | None, place: Path) -> Iterator[Path]:
    """The files of a revision; without one a copy of the files as they lie here, those that git ignores left out."""
    folder = place / "code"
    if revision is None:
        names = _run("git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        for name in names:
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        yield folder
        return
    try:
        _run("git", "-C", str(ROOT), "worktree", "add", "--force", "--detach", str(folder), revision)
        yield folder
    finally:
        with suppress(RevisionError):
            _run("git", "-C", str(ROOT), "worktree", "remove", "--force", str(folder))


def _dependencies(folder: Path) -> Path:
    """A folder of links to the packages of this environment: without the project, and without files that run at the start."""
    folder.mkdir()
    places = [path for path in dict.fromkeys(sys.path) if path.endswith("-packages")]
    distributions = importlib.metadata.distributions(name=PROJECT, path=places)
    own = {file.parts[0] for distribution in distributions for file in distribution.files or []}
    for entry in (entry for place in places for entry in sorted(Path(place).iterdir())):
        hidden = entry.name in own or entry.name.startswith("__editable__") or entry.suffix in (".pth", ".egg-link")
        if not hidden and entry.name != "__pycache__":
            with suppress(FileExistsError):  # the first on the path counts
                (folder / entry.name).symlink_to(entry)
    return folder


def environment(code: Path, place: Path) -> Path:
    """A virtual environment that runs `code` and has the dependencies of this one; its command."""
    folder = place / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    packages = Path(_run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "dependencies.pth").write_text(f"{_dependencies(place / 'dependencies')}\n", encoding="utf-8")
    _run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
         "--disable-pip-version-check", "--editable", str(code))  # fmt: skip
    return folder / "bin" / COMMAND


def verify(command: Path, code: Path) -> None:
    """Make sure that the command runs the files of `code` and none of another checkout."""
    modules = _run(str(command.with_name("python")), "-P", "-c", CHECK, COMMAND, cwd=command.parent)
    files = {name: Path(file).resolve() for name, file in json.loads(modules).items() if file}
    own = {name.split(".")[0] for name, file in files.items() if file.is_relative_to(code.resolve())}
    elsewhere = [
        f"{name} of {file}"
        for name, file in files.items()
        if (name.split(".")[0] in own and not file.is_relative_to(code.resolve()))
        or (file.is_relative_to(ROOT) and "site-packages" not in file.parts)
    ]
    if not own or elsewhere:
        raise RevisionError(f"{command} does not run {code} alone: {', '.join(elsewhere[:5]) or 'nothing of it'}")


@contextmanager
def installed(revision: str | None, place: Path) -> Iterator[tuple[Path, Path]]:
    """The command of a revision (None: the files as they lie here) in an environment of its own under `place`, and its files;
    nothing of it is left afterwards but what the caller writes."""
    place.mkdir(parents=True, exist_ok=True)
    place = place.resolve()
    with checkout(revision, place) as code:
        command = environment(code, place)
        verify(command, code)
        yield command, code
