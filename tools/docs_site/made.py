"""Fill the made blocks of a page: what a command prints, or a table of the laws of serving engines.

A page of docs/ holds the block with one line in it; the site has the result in its place.

    ```made
    autoconfig diagnose --model llama3-70b --gpus 64 PLAN socket.txt
    ```

A command runs in a folder with the logs of docs/examples/diagnose and, where it names day.csv, a trace that
benchmarks/made_traces.py draws.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from autoconfig.cli.main import cli
from benchmarks import made_traces
from tools.docs_site.engine_memory import TABLES

LOGS = Path(__file__).resolve().parents[2] / "docs" / "examples" / "diagnose"
WIDTH = "124"
FRONTIER_LINES = 3
"""Title, header and first row (one user alone) of the last table of a serving answer; what follows is left out."""
_BLOCK = re.compile(r"^```made\n(autoconfig|table) (.+)\n```$", re.MULTILINE)


def filled(text: str) -> str:
    """Return the page with every made block in full. Raises ValueError for a block that nothing makes."""
    text = _BLOCK.sub(lambda block: _made(block[1], block[2]), text)
    if "```made" in text:
        raise ValueError(f"a made block holds `autoconfig ...` or `table NAME`: {text.partition('```made')[2][:80]!r}")
    return text


def _made(kind: str, words: str) -> str:
    if kind == "autoconfig":
        return f"```text\n$ autoconfig {words}\n{printed(words)}\n```"
    if words not in TABLES:
        raise ValueError(f"no table {words!r}; there are {', '.join(TABLES)}")
    return TABLES[words]()


@functools.cache
def printed(command: str) -> str:
    """Return what a command prints on WIDTH columns, a serving answer up to the first row of its Pareto frontier."""
    out = io.StringIO()
    environment = mock.patch.dict(os.environ, COLUMNS=WIDTH)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), environment:
        for log in LOGS.iterdir():
            shutil.copy(log, folder)
        if "day.csv" in command:
            made_traces.main("day.csv")
        with contextlib.redirect_stdout(out):
            cli.main(shlex.split(command), standalone_mode=False)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    frontier = next((i for i, line in enumerate(lines) if line.startswith("Pareto frontier")), len(lines))
    return "\n".join(lines[: frontier + FRONTIER_LINES])
