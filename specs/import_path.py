"""The folder from which another Python imports `autoconfig` as this one does.

A wheel's files lie as they are imported. In a checkout the subpackages lie beside `autoconfig/` (setup.py maps them), so the
folder is made of links: `build/import/autoconfig/specs` -> `specs`. Type checker and import-linter read the same folder.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

NOT_SHIPPED = ("autoconfig", "tools", "validation")
"""Folders of a checkout that are no subpackages; setup.py says the same."""


def import_path() -> Path:
    """What PYTHONPATH must name for `python -m autoconfig.trainer`. Raises OSError where no link can be made."""
    found = find_spec("autoconfig")
    assert found is not None and found.origin is not None
    package = Path(found.origin).resolve().parent
    if (package / "specs").exists():
        return package.parent
    for place in (package.parent / "build" / "import", Path(tempfile.gettempdir()) / f"autoconfig-import-{os.getuid()}"):
        try:
            _link(package, place / "autoconfig")
        except PermissionError:
            continue
        return place
    raise PermissionError(f"neither {package.parent} nor {tempfile.gettempdir()} can be written")


def with_import_path(environment: dict[str, str]) -> dict[str, str]:
    """The environment with this `autoconfig` first on PYTHONPATH."""
    paths = (str(import_path()), environment.get("PYTHONPATH", ""))
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _link(package: Path, place: Path) -> None:
    """Links to all that makes up the package, and none to what is gone. Others may do the same at the same time."""
    place.mkdir(parents=True, exist_ok=True)
    beside = [path.parent for path in package.parent.glob("*/__init__.py") if path.parent.name not in NOT_SHIPPED]
    wanted = {path.name: path for path in [*package.iterdir(), *beside] if path.name != "__pycache__"}
    for link in place.iterdir():
        if link.is_symlink() and wanted.get(link.name) != link.readlink():
            link.unlink(missing_ok=True)
    for name, target in wanted.items():
        with contextlib.suppress(FileExistsError):
            (place / name).symlink_to(target)


if __name__ == "__main__":
    print(import_path())
