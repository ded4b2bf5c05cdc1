"""The wheel of measured operators: found in a folder or downloaded with pip, read as tables."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"
LICENCE = "Apache-2.0"
PREFIX = "aiconfigurator_core/systems/data/"


@dataclass(frozen=True)
class Wheel:
    """An opened wheel. `members` are the names of its parquet tables below PREFIX."""

    path: Path
    members: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def open(cls, path: Path) -> Wheel:
        """Read the list of tables."""
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        return cls(path, tuple(sorted(n[len(PREFIX) :] for n in names if n.startswith(PREFIX) and n.endswith(".parquet"))))

    def member(self, system: str, family: str, framework: str, table: str) -> str | None:
        """The newest version's file; None where there is none."""
        return next(iter(self.versions(system, family, framework, table)), None)

    def versions(self, system: str, family: str, framework: str, table: str) -> list[str]:
        """Files system/family/framework/version/table.parquet, newest version first."""
        found = [m for m in self.members if m.startswith(f"{system}/{family}/{framework}/") and m.endswith(f"/{table}.parquet")]
        return sorted(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name.split("/")[3])], reverse=True)

    def table(self, member: str) -> pd.DataFrame:
        """One table; kernel_source and the like as plain strings."""
        with zipfile.ZipFile(self.path) as archive:
            return pd.read_parquet(io.BytesIO(archive.read(PREFIX + member)))


def find_wheel(folder: Path) -> Path | None:
    """The wheel in `folder`, if it was downloaded before."""
    found = sorted(folder.glob(f"{PACKAGE.replace('-', '_')}-{VERSION}-*.whl"))
    return found[0] if found else None


def fetch_wheel(folder: Path) -> Path:
    """The wheel in `folder`; downloaded there with pip if it is missing."""
    found = find_wheel(folder)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(folder), f"{PACKAGE}=={VERSION}"], check=True)
        found = find_wheel(folder)
    if found is None:
        raise FileNotFoundError(f"pip left no wheel of {PACKAGE} {VERSION} in {folder}")
    return found
