"""An end to what a file may take of a command's time, beside the counted budget of its readers (planning/work.py)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from autoconfig.specs.errors import InputError

LIMIT_S = 60.0
"""Seconds on the clock to read a file and to answer on it; published scripts on 16,384 GPUs take 4."""
AGAIN_S = 1.0
"""The alarm comes again where the first one ended a callback only."""


class _TimeIsUp(BaseException):
    """No Exception, so that no reader takes it for an error of the file."""


@contextmanager
def time_limit(file: Path) -> Iterator[None]:
    """Raises InputError where what is done on `file` inside takes longer than LIMIT_S.

    By SIGALRM, which Python's regular expressions look for, too, and which leaves Ctrl-C as it is; in another thread than the
    main one there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    armed = True

    def ring(_number: int, _frame: FrameType | None) -> None:
        if armed:
            raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, AGAIN_S)
    try:
        yield
    except _TimeIsUp:
        armed = False
        name = str(file) if len(str(file)) <= 200 else f"{str(file)[:197]}..."
        raise InputError(
            f"{name!r} takes longer than {LIMIT_S:,.0f} s to read and to answer on; give the launch script or the "
            "configuration itself, or fewer GPUs"
        ) from None
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
