"""Exit codes of `python -m autoconfig.trainer`, the same numbers that a Measurement carries as `exit_code`.

torchrun itself exits 1 whatever its processes ended with; read `exit_code` of result.json, and the process's own line in the
log where there is no result.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """How one rank ended. The value is the process's exit status."""

    RAN = 0
    """All steps were run; result.json says `ran`."""
    CRASHED = 1
    """An error that nobody foresaw: the traceback is in the log; result.json says `failed`."""
    BAD_JOB = 2
    """The job cannot be read or its plan cannot run: not this world size, not this software, not these sizes."""
    OUT_OF_MEMORY = 10
    """A rank met its memory limit; result.json says `oom`, with the figures up to there."""
    PEER_LOST = 11
    """Another rank died, hung or could not be reached within the timeout; result.json says `failed`."""
    MISSING_PACKAGE = 12
    """torch, megatron-core or Transformer Engine is not installed; the message names the extra to install."""
    DISK = 13
    """result.json cannot be written (full disk, read-only folder): there is none."""
    NO_DEVICE = 14
    """The job wants CUDA and this machine has no usable GPU for the rank."""
    INTERRUPTED = 130
    """SIGINT: nothing is written."""
    TERMINATED = 143
    """SIGTERM: nothing is written."""
