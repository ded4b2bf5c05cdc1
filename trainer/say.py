"""The training core's own lines: `trainer: ...` on stderr, which a profiling job's outcome quotes (profiler/outcome.py)."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """One line in one write: the ranks of a job share a log, and two writes would mingle."""
    sys.stderr.write(f"trainer: {message}\n")
    sys.stderr.flush()
