"""Writes what the commands of docs/diagnose.md print. `python docs/generate_diagnose.py` (again after every refit); a test
fails when the page is stale."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from unittest import mock

from autoconfig.cli.main import cli

PAGE = Path(__file__).with_name("diagnose.md")
LOGS = PAGE.parent / "examples" / "diagnose"
WIDTH = "124"
BLOCK = re.compile(r"^```\n\$ autoconfig (diagnose [^\n]*)\n.*?^```", re.MULTILINE | re.DOTALL)


def printed(command: str) -> str:
    """What a command prints in the folder of the example logs."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, COLUMNS=WIDTH), contextlib.chdir(LOGS):
        cli.main(shlex.split(command), standalone_mode=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def page(text: str) -> str:
    """The page with every example made anew."""
    return BLOCK.sub(lambda found: f"```\n$ autoconfig {found[1]}\n{printed(found[1])}\n```", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
