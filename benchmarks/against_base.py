"""`make bench BASE=REVISION`: the time of whole searches, of a revision and of the files as they lie here, run in turn.

    python -m benchmarks.against_base REVISION [--smoke]      # --smoke: the last question alone, once

Each has an environment of its own with the same dependencies. The machine's other work falls on both alike: what counts is the
ratio of the medians, of wall time and of processor time. `import numpy` in a process of its own runs in turn with them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tools.revision import ROOT, installed

SMOKE = "--smoke" in sys.argv[1:]
QUESTIONS = (*(() if SMOKE else (("deepseek-v3", 2048), ("qwen3-235b-a22b", 256))), ("175b", 1024))
"""The last one's modules are counted."""
RUNS = 1 if SMOKE else 15


class Used(NamedTuple):
    """Seconds by the clock and of the processor, and megabytes at the peak."""

    wall: float
    processor: float
    megabytes: float


def used(command: Sequence[str | Path], environment: dict[str, str] | None = None, folder: Path | None = None) -> Used:
    """What a command takes."""
    before = time.perf_counter()
    process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 3), f"{command}: exit code {process.returncode}"
    return Used(time.perf_counter() - before, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main(base: str) -> None:
    """Time both and print the ratios, and how many modules the search uses here where a tool counts them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        commands = [stack.enter_context(installed(who, place / folder))[0] for who, folder in ((base, "a"), (None, "b"))]
        numpy: list[str | Path] = [commands[1].parent / "python", "-P", "-c", "import numpy"]
        for model, gpus in QUESTIONS:
            question = ["search", "--model", model, "--gpus", str(gpus)]
            three: list[list[str | Path]] = [*([command, *question] for command in commands), numpy]
            for command in three:  # once for the bytecode, which is kept
                used(command, environment, place)
            taken = [[used(command, environment, place) for command in three] for _ in range(RUNS)]
            print(f"autoconfig {' '.join(question)}, whole process, median of {RUNS}")
            for number, kind in enumerate(("wall", "processor")):
                old, new, alone = (statistics.median(run[number] for run in side) for side in zip(*taken, strict=True))
                print(
                    f"  {kind} time: {base} {old:.3f} s, here {new:.3f} s, ratio {new / old:.3f}; "
                    f"import numpy {alone:.3f} s, {new / alone:.1f} times that"
                )
    if (ROOT / "tools" / "modules_used.py").exists():
        subprocess.run([sys.executable, "-m", "tools.modules_used", *question], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
