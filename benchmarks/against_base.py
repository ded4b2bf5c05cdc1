"""`make bench BASE=REVISION`: the time of whole searches, of a revision and of the files as they lie here, run in turn.

    python -m benchmarks.against_base REVISION [RUNS] [--smoke]      # --smoke: the last question alone, once

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

from tools.revision import ROOT, installed

SMOKE = "--smoke" in sys.argv[1:]
QUESTIONS = (*(() if SMOKE else (("deepseek-v3", 2048), ("qwen3-235b-a22b", 256))), ("175b", 1024))
"""The last one's modules are counted."""
RUNS = 1 if SMOKE else 15


def seconds(command: Sequence[str | Path], environment: dict[str, str], folder: Path) -> tuple[float, float]:
    """(wall, processor) seconds of a command."""
    before = time.perf_counter()
    process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{command}: exit code {process.returncode}"
    return time.perf_counter() - before, used.ru_utime + used.ru_stime


def main(base: str, runs: int = RUNS) -> None:
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
                seconds(command, environment, place)
            taken = [[seconds(command, environment, place) for command in three] for _ in range(runs)]
            print(f"autoconfig {' '.join(question)}, whole process, median of {runs}")
            for number, kind in enumerate(("wall", "processor")):
                old, new, alone = (statistics.median(run[number] for run in side) for side in zip(*taken, strict=True))
                print(
                    f"  {kind} time: {base} {old:.3f} s, here {new:.3f} s, ratio {new / old:.3f}; "
                    f"import numpy {alone:.3f} s, {new / alone:.1f} times that"
                )
    if (ROOT / "tools" / "modules_used.py").exists():
        subprocess.run([sys.executable, "-m", "tools.modules_used", *question], cwd=ROOT, check=True)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--smoke"]
    main(words[0], *map(int, words[1:2]))
