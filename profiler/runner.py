"""Runner: the one protocol behind which a job is started, watched and ended. Everything that a runner must remember is in the
job's folder, so that another process can go on where one was killed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

from autoconfig.profiler.folder import JobFolder
from autoconfig.specs.job import Job


class Life(enum.StrEnum):
    """What the runner knows about life and death; the outcome is `outcome.outcome_of`."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """Not running, and nothing says how it ended."""


Command = Callable[[JobFolder, Job], list[str]]
"""The command line that measures the job in a folder; it writes result.json there."""


class Runner(Protocol):
    """Starts, watches and ends jobs."""

    name: str

    def submit(self, folder: JobFolder, limit_s: float) -> None:
        """Start the job in the folder, to be ended after `limit_s`; nothing where it runs already. Raises FileError,
        RunnerError."""

    def submit_together(self, jobs: Sequence[tuple[JobFolder, float]]) -> None:
        """`submit` of several at once, each (folder, limit_s): for a scheduler one request. Raises as `submit`."""

    def poll(self, folder: JobFolder) -> Life:
        """Look again. Safe from any process."""

    def cancel(self, folder: JobFolder) -> None:
        """End it and everything that it started, and wait until that is so. Nothing where it does not run."""
