"""What long work shows on a terminal: from two seconds on a line with a bar, the seconds and what is worked on."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time

import click

FROM_SECONDS = 2.0
EVERY_SECONDS = 0.25
BAR = 20
WIDTH = 79
_COUNTED = re.compile(r"(?<![0-9,])([0-9,]++) of ([0-9,]++)")


def line(text: str, seconds: float) -> str:
    """The bar is filled by what the text counts ("3 of 12"); where it counts nothing, a piece of it moves."""
    counted = _COUNTED.search(text)
    if counted:
        done, total = (int(number.replace(",", "")) for number in counted.groups())
        bar = "#" * min(BAR, round(BAR * done / max(1, total)))
    else:
        bar = " " * (int(seconds / EVERY_SECONDS) % (BAR - 2)) + "###"
    return f"[{bar:<{BAR}}] {seconds:3.0f} s  {text}"[: WIDTH - 1]


class ProgressBar:
    """Draws on standard error until it is cleared; called with what is worked on."""

    def __init__(self) -> None:
        self._text = ""
        self._over = threading.Event()
        self._drawn = False
        self._thread = threading.Thread(target=self._draw, daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> None:
        self._text = text

    def _draw(self) -> None:
        begun = time.monotonic()
        wait = FROM_SECONDS
        while not self._over.wait(wait):
            wait, self._drawn = EVERY_SECONDS, True
            _say(f"\r{line(self._text, time.monotonic() - begun):<{WIDTH - 1}}")

    def clear(self) -> None:
        """Ends it and clears its line."""
        self._over.set()
        self._thread.join()
        if self._drawn:
            _say("\r" + " " * WIDTH + "\r")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is closed: the command ends in its own way
        click.echo(text, nl=False, err=True)


_KEY = "autoconfig.progress"


def progress() -> ProgressBar | None:
    """The bar of this command, begun by the first call; None where standard error is no terminal."""
    if not sys.stderr.isatty():
        return None
    meta = click.get_current_context().meta
    if _KEY not in meta:
        meta[_KEY] = ProgressBar()
    found: ProgressBar = meta[_KEY]
    return found


def clear_progress() -> None:
    """Ends the bar, if there is one."""
    context = click.get_current_context(silent=True)
    bar = None if context is None else context.meta.pop(_KEY, None)
    if bar is not None:
        bar.clear()
