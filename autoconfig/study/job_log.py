"""What the logs of a study's own jobs say, by the readers that `diagnose` has (autoconfig.evidence)."""

from __future__ import annotations

from collections import Counter

from autoconfig.evidence.read import read_files, read_texts
from autoconfig.evidence.records import ClockSample, Evidence
from autoconfig.evidence.steps import statistics
from autoconfig.profiler.folder import JobFolder
from autoconfig.specs.errors import AutoconfigError

TRAINER = "trainer"
"""Format of the training core's lines of timed steps."""
MAX_LINES = 400
LOWERED = ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake")
"""Reasons for a lower clock that no healthy GPU gives for long; a power cap at full load is usual."""
OFTEN = 0.10
"""Share of the samples."""


def timed_steps(folder: JobFolder) -> list[float]:
    """Seconds of the timed steps so far, in order, as far as they are times; empty before the first."""
    evidence = read_texts({"log": "\n".join(folder.last_lines(MAX_LINES))})
    return [line.seconds for line in evidence.steps if line.format == TRAINER and line.seconds is not None]


def noticed(folder: JobFolder) -> list[str]:
    """What the job's log and the samples beside it say against its measurement: GPUs that were slowed down, steps that grow or
    pause. Nothing where they cannot be read."""
    files = [file for file in (folder.log_file, folder.nvml_file) if file.exists()]
    try:
        evidence = read_files(files)
    except AutoconfigError:
        return []
    return [*_of_clocks(evidence.clocks), *_of_steps(evidence)]


def _of_clocks(samples: tuple[ClockSample, ...]) -> list[str]:
    counts = Counter(reason for sample in samples for reason in sample.reasons if reason in LOWERED)
    return [
        f"a GPU was slowed down ({reason.replace('_', ' ')}) in {count / len(samples):.0%} of the samples"
        for reason, count in counts.most_common()
        if count >= OFTEN * len(samples)
    ]


def _of_steps(evidence: Evidence) -> list[str]:
    found = statistics([line for line in evidence.steps if line.format == TRAINER])
    if found is None:
        return []
    said = [f"steps grow by {found.slope:.0%} within the run"] if found.growing else []
    if found.pauses:
        said.append(
            f"{len(found.pauses)} of {found.count} steps paused, {max(one.excess for one in found.pauses):.3g} s at most"
        )
    return said
