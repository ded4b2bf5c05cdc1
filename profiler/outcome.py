"""What became of a job: result.json decides, the watcher's end.json only says how a job without a result ended."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from autoconfig.profiler.folder import JobFolder, read_json
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.measurement import ExitCode, ImplausibleError, Measurement, read_measurement


class Kind(enum.StrEnum):
    """How a job ended."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out_of_memory"
    """A constraint learned, no failure."""
    FAILED = "failed"
    CRASHED = "crashed"
    GARBAGE = "garbage"
    IMPLAUSIBLE = "implausible"
    """Its figures are none that the job can have measured: not finite, contradicting one another, or beyond all prediction."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its node or its watcher died, or the scheduler does not know it any more."""


FINAL = frozenset(Kind) - {Kind.CANCELLED, Kind.LOST}
"""Never run again. Cancelled and lost jobs may be."""
ABOUT_THIS_MACHINE = frozenset({ExitCode.MISSING_PACKAGE, ExitCode.NO_DEVICE, ExitCode.DISK})
"""Exit codes that every other job here would end with too."""

CORE_SAYS = "trainer: "
CONSEQUENCES = tuple(
    f"{CORE_SAYS}{code.name.lower().replace('_', ' ')}: "
    for code in (ExitCode.TERMINATED, ExitCode.INTERRUPTED, ExitCode.PEER_LOST)
)
"""How a rank begins that only followed another one's end."""
SEARCHED_LINES = 5_000
"""Below what the core says, torchrun prints a traceback of its own and six lines for every rank of the node."""
EXITED, TIMEOUT, CANCEL, LOSS = "exited", "timeout", "cancelled", "lost"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One job's end."""

    kind: Kind
    message: str = ""
    measurement: Measurement | None = None

    exit_code: int | None = None

    @property
    def hopeless(self) -> bool:
        return self.exit_code in ABOUT_THIS_MACHINE


def outcome_of(folder: JobFolder) -> Outcome | None:
    """What the folder's files say; None while neither a result nor an end is there."""
    if folder.result_file.exists():
        return _from_result(folder)
    end = read_json(folder.end_file)
    if not end:
        return None
    reason, log = end.get("reason"), _tail(folder)
    if reason == TIMEOUT:
        return Outcome(kind=Kind.TIMED_OUT, message=f"no result after {end.get('seconds', 0):.0f} s, its time limit{log}")
    if reason == CANCEL:
        return Outcome(kind=Kind.CANCELLED, message="cancelled")
    if reason == LOSS:
        return Outcome(kind=Kind.LOST, message=str(end.get("detail") or "its node or watcher was lost"))
    # what torchrun says the first failed rank ended with; torchrun itself always ends with 1
    ranks = re.findall(r"exitcode\s*: (-?\d+)", "\n".join(folder.last_lines(SEARCHED_LINES)))
    code = int(ranks[-1]) if ranks else None
    shown = end.get("exit_code") if code is None else code
    return Outcome(kind=Kind.CRASHED, message=f"ended with exit code {shown} and no result{log}", exit_code=code)


def _from_result(folder: JobFolder) -> Outcome:
    try:
        measurement = read_measurement(folder.result_file)
        expected = folder.job().content_hash
    except AutoconfigError as error:
        kind = Kind.IMPLAUSIBLE if isinstance(error, ImplausibleError) else Kind.GARBAGE
        return Outcome(kind=kind, message=f"{folder.result_file}: {error}")
    if measurement.job_hash != expected:
        return Outcome(kind=Kind.GARBAGE, message=f"{folder.result_file} is of another job ({measurement.job_hash[:16]})")
    if measurement.status == "oom":
        return Outcome(kind=Kind.OUT_OF_MEMORY, message=measurement.message, measurement=measurement)
    if measurement.status == "failed":
        tail = _tail(folder)  # usually it says the same
        message = measurement.message + (f"; log {folder.log_file}" if measurement.message in tail else tail)
        return Outcome(kind=Kind.FAILED, message=message, measurement=measurement, exit_code=measurement.exit_code)
    if measurement.step_seconds is None:
        return Outcome(kind=Kind.GARBAGE, message=f"{folder.result_file} ran and has no step time")
    return Outcome(kind=Kind.MEASURED, measurement=measurement)


def _tail(folder: JobFolder) -> str:
    """What the training core said last of its own accord (`trainer: ...`; torchrun prints a frame below it, and ends the other
    ranks, which say so too), else the last lines."""
    lines = folder.last_lines(SEARCHED_LINES)
    said = [line for line in lines if line.startswith(CORE_SAYS)]
    reasons = [line for line in said if not line.startswith(CONSEQUENCES)]
    shown = reasons[-1:] or said[-1:] or lines[-3:]
    return f"; log {folder.log_file}" + (f" ends: {' | '.join(line.strip()[:400] for line in shown)}" if shown else " is empty")
