"""`autoconfig` and `python -m autoconfig`: the command line, on streams that the caller may have closed, and with Ctrl-C clean
even while it is loaded or ends."""

import atexit
import gc
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def leave(*_: object) -> None:
    """End at once, with nothing to end in order."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C raises KeyboardInterrupt, but in an import, where what is raised may be lost or shown with its traceback."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def open_streams() -> None:
    """What the caller closed (`>&-`) is opened on the null device: Python has None for it, and the next file to be opened would
    get its number, and what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))


LISTENS = signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""Whether Ctrl-C is ours: not where the caller ignores it, as of a job in the background."""
if LISTENS:
    signal.signal(signal.SIGINT, leave)
open_streams()
gc.set_threshold(50_000, 20, 20)  # what a start loads lives to the end: looking for garbage among it finds none
atexit.register(gc.freeze)  # nor is it looked through, three times, at the end: a tenth of a search

from autoconfig.cli.main import main as run  # noqa: E402


def main() -> None:
    """The command; exits with its code."""
    if LISTENS:
        signal.signal(signal.SIGINT, interrupt)
    try:
        run()
    finally:
        if LISTENS:
            signal.signal(signal.SIGINT, leave)


if __name__ == "__main__":
    main()
