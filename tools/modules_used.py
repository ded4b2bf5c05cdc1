"""Which of the project's modules an `autoconfig` command uses: those of which at least one function ran to answer it.

    python -m tools.modules_used [search --model 175b --gpus 1024]

The command runs in a process of its own whose calls are watched (sys.setprofile, all threads). What runs while a module is
imported does not count: decorators, comprehensions and tables at its top are a part of loading it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = ("search", "--model", "175b", "--gpus", "1024")
CHILD = """
import atexit, sys, threading

used, target, sys.argv = set(), sys.argv[1], ["autoconfig", *sys.argv[2:]]

def importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False

def watch(frame, event, argument):
    name, code = frame.f_globals.get("__name__") or "", frame.f_code
    if event == "call" and name.startswith("autoconfig.") and name not in used and not code.co_filename.startswith("<"):
        if code.co_flags & 2 and not importing(frame):  # 2: a function, not the body of a module or a class
            used.add(name)

def write():
    sys.setprofile(None)
    with open(target, "w") as file:
        file.write("\\n".join(sorted(used)))

from autoconfig.__main__ import main
atexit.register(write)
threading.setprofile(watch)
sys.setprofile(watch)
main()
"""


def modules_used(command: tuple[str, ...] = COMMAND, python: str = sys.executable) -> list[str]:
    """Names of the modules, sorted. Raises CalledProcessError where the command fails."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "used"
        subprocess.run([python, "-P", "-c", CHILD, str(target), *command], check=True, stdout=subprocess.DEVNULL, timeout=300)
        return target.read_text(encoding="utf-8").split()


def main() -> None:
    """Print the modules and their number."""
    command = tuple(sys.argv[1:]) or COMMAND
    found = modules_used(command)
    print("\n".join(found))
    print(f"{len(found)} modules in autoconfig {' '.join(command)}")


if __name__ == "__main__":
    main()
