"""Fits the study's scatter on the recorded sweeps and writes the replay of docs/profiling.md: `make profiling-docs`.

Optuna's GPSampler is replayed where torch is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from validation.replay.docs import MIN_ROWS, rewrite, write_scatter
from validation.replay.replay import sweeps

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Everything, with a line per strategy."""

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    write_scatter(sweeps(MIN_ROWS), ROOT / "autoconfig" / "data" / "study_scatter.json")
    rewrite(ROOT / "docs" / "profiling.md", say)


if __name__ == "__main__":
    main()
