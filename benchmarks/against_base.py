"""`make bench BASE=REVISION`: the wall time of a whole search, of a revision and of the files as they lie here, run in turn.

    python -m benchmarks.against_base REVISION [RUNS]

Each has an environment of its own with the same dependencies. The machine's other work falls on both alike: what counts is the
ratio of the medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tools.revision import ROOT, installed

QUESTION = ("search", "--model", "175b", "--gpus", "1024")
RUNS = 15


def seconds(command: Path, environment: dict[str, str]) -> float:
    before = time.perf_counter()
    subprocess.run([command, *QUESTION], env=environment, cwd=command.parent, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - before


def main(base: str, runs: int = RUNS) -> None:
    """Time both and print the ratio, and how many modules the search uses here where a tool counts them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        commands = [stack.enter_context(installed(who, place / folder))[0] for who, folder in ((base, "a"), (None, "b"))]
        for command in commands:  # once for the bytecode, which is kept
            seconds(command, environment)
        taken = [[seconds(command, environment) for command in commands] for _ in range(runs)]
    old, new = (statistics.median(side) for side in zip(*taken, strict=True))
    print(f"autoconfig {' '.join(QUESTION)}, whole process, median of {runs}: {base} {old:.3f} s, here {new:.3f} s")
    print(f"ratio {new / old:.3f}")
    if (ROOT / "tools" / "modules_used.py").exists():
        subprocess.run([sys.executable, "-m", "tools.modules_used", *QUESTION], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
