"""Fits the study's scatter on the recorded sweeps and writes the replay of docs/profiling.md: `make profiling-docs`.

Optuna's GPSampler is replayed where torch is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from autoconfig.accuracy.replay.docs import rewrite
from autoconfig.accuracy.replay.recorded import sweeps
from autoconfig.accuracy.replay.scatter_fit import LEAST_ROWS, write_scatter

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Everything, with a line per strategy."""

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    write_scatter(sweeps(LEAST_ROWS), ROOT / "autoconfig" / "data" / "study_scatter.json")
    rewrite(ROOT / "docs" / "profiling.md", ROOT / "docs" / "profiling_regret.svg", say)


if __name__ == "__main__":
    main()
