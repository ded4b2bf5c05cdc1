"""InProcessRunner: a function answers at once. For tests and recorded oracles: everything above a runner works without a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoconfig.profiler.folder import JobFolder, write_json, write_text
from autoconfig.profiler.outcome import EXITED, outcome_of
from autoconfig.profiler.runner import Life
from autoconfig.specs.job import Job
from autoconfig.specs.measurement import Measurement, measurement_text


class InProcessRunner:
    """Calls `measure` in `submit`."""

    name = "in-process"

    def __init__(self, measure: Callable[[Job], Measurement]) -> None:
        """`measure` answers for a job."""
        self._measure = measure

    def submit(self, folder: JobFolder, limit_s: float) -> None:
        """Measure now; nothing where it was measured."""
        if folder.result_file.exists():
            return
        measurement = self._measure(folder.job())
        write_text(folder.result_file, measurement_text(measurement))
        write_json(folder.end_file, {"reason": EXITED, "exit_code": measurement.exit_code, "seconds": measurement.wall_seconds})

    def submit_together(self, jobs: Sequence[tuple[JobFolder, float]]) -> None:
        """One by one."""
        for folder, limit_s in jobs:
            self.submit(folder, limit_s)

    def poll(self, folder: JobFolder) -> Life:
        """Ended once there is a result."""
        return Life.ENDED if outcome_of(folder) is not None else Life.LOST

    def cancel(self, folder: JobFolder) -> None:
        """Nothing runs."""
