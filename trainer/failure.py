"""What went wrong, in one word and one exit code."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
import torch.distributed as dist
from autoconfig.specs.errors import InputError
from autoconfig.specs.measurement import ExitCode

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Timed out waiting",
    "Read timeout",
    "timed out after",
    "Socket closed",
    "ncclRemoteError",
    "NCCL communicator was aborted",
    "remote process exited",
)
"""What gloo, NCCL and the store say of a peer that is gone."""


@dataclass(frozen=True)
class Failure:
    """One rank's end."""

    code: ExitCode
    message: str

    def text(self) -> str:
        """For the store."""
        return json.dumps([int(self.code), self.message])

    @classmethod
    def parse(cls, text: bytes | str) -> Failure:
        """What `text` wrote."""
        code, message = json.loads(text)
        return cls(ExitCode(code), message)


class Lost(Exception):
    """A peer does not answer."""


def classify(error: BaseException, rank: int) -> Failure:
    """The failure that this exception is."""
    text = " ".join(str(error).split())[:1000]
    if isinstance(error, InputError):
        return Failure(ExitCode.BAD_JOB, text)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in text for word in _OUT_OF_MEMORY):
        return Failure(ExitCode.OUT_OF_MEMORY, f"rank {rank}: {text or 'out of memory'}")
    if isinstance(error, Lost | dist.DistNetworkError | dist.DistStoreError) or any(word in text for word in _PEER):
        return Failure(ExitCode.PEER_LOST, f"rank {rank} lost a peer: {text}")
    if isinstance(error, OSError):
        return Failure(ExitCode.DISK, f"rank {rank}: {text}")
    return Failure(ExitCode.CRASHED, f"rank {rank}: {type(error).__name__}: {text}")
