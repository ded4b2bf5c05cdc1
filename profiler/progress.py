"""The steps that a running job has printed: `step 3/7 (timed): 0.412 s, loss ...`, one line a step, by the training core."""

from __future__ import annotations

import re

from autoconfig.profiler.folder import JobFolder

_STEP = re.compile(r"step (\d+)/(\d+) \(timed\): ([0-9.eE+-]+) s\b")
MAX_LINES = 400


def timed_steps(folder: JobFolder) -> list[float]:
    """Seconds of the timed steps so far, in order; empty before the first."""
    found = []
    for line in folder.last_lines(MAX_LINES):
        if match := _STEP.search(line):
            found.append(float(match[3]))
    return found
