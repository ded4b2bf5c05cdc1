"""The command line in this process, and as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from autoconfig.cli.main import cli

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0


def run_in_process(*arguments: str) -> Result:
    """The command line without a new process. Anything but an exit is raised."""
    result = CliRunner().invoke(cli, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_process(*arguments: str | bytes, **options: Any) -> subprocess.CompletedProcess[Any]:
    """`python -m autoconfig` for real."""
    given = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "timeout": PATIENCE_S, **options}
    return subprocess.run([sys.executable, "-m", "autoconfig", *arguments], capture_output=True, check=False, **given)
