"""Measurement: what a job was seen to do. result.json of `python -m autoconfig.trainer` holds one."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from autoconfig.specs.errors import FileError, InputError, refuse
from autoconfig.specs.json_record import AboveZero, Keywords, from_json, to_json

SCHEMA_VERSION = 1
RESULT_FILE = "result.json"
STATUSES = ("ran", "oom", "failed")
CATEGORIES = ("weights", "gradients", "optimizer", "activations", "logits", "temporary")
"""What live bytes are held for."""
MOST_TIMES = 1e6
"""A time or peak so many times its prediction, or so many times less, is no measurement of what was predicted."""
MOST_BYTES = 2**63
SAME = 1e-6
"""Relative error up to which two figures of one record are the same: they went through decimal text."""


class ImplausibleError(InputError):
    """A figure that no job can have measured."""


class ExitCode(enum.IntEnum):
    """How one rank ended: the exit status of `python -m autoconfig.trainer`.

    torchrun itself exits 1 whatever its processes ended with; read `exit_code` of result.json, and the process's own line in
    the log where there is no result.
    """

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


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """One rank. Bytes and seconds."""

    rank: int
    pipeline_stage: int
    peak_allocated_bytes: int
    """Most bytes of live tensors at any moment after the model was built. CUDA: torch's allocator. CPU: live storages."""
    peak_reserved_bytes: int | None = None
    """What torch's CUDA allocator took from the device; null on a CPU."""
    state_bytes: int = 0
    """Live bytes between two steps: weights, gradient buffers, optimizer state, caches."""
    bytes_by_category: dict[str, int] = field(default_factory=dict)
    """Live bytes at the peak by `CATEGORIES`, where they are counted (CPU)."""
    phase_seconds: dict[str, float] = field(default_factory=dict)
    """Median seconds of a timed step by phase: forward, backward, gradient_reduction, optimizer, other."""
    layer_seconds: dict[str, float] = field(default_factory=dict)
    """Median seconds by kind of layer and pass (emulated ranks)."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """What the timed rounds of a generation gave: `mbs` requests at once, each of `prompt` tokens and answered with `new`.

    The figures are the fastest round's: other work on the machine only adds.
    """

    ttft_seconds: AboveZero
    """From the request to its first token, mean over the requests."""
    tpot_seconds: AboveZero
    """(first to last token) / (new - 1), mean over the requests."""
    output_tokens_per_second: AboveZero
    """Of the whole instance, prompts' time included."""
    requests: int
    """Answered in the timed rounds."""
    ttft_samples: tuple[float, ...] = ()
    """Of all timed rounds, by round (static engine: its requests are in step) or by request."""
    tpot_samples: tuple[float, ...] = ()
    answers_digest: str = ""
    """sha256 of the answers' tokens, where the engine is told the weights: the same whatever the parallelism."""

    def __post_init__(self) -> None:
        for name in ("ttft_seconds", "tpot_seconds", "output_tokens_per_second"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ImplausibleError(f"served.{name}={getattr(self, name)} must be a finite number above 0")
        for name, samples in (("ttft_seconds", self.ttft_samples), ("tpot_seconds", self.tpot_samples)):
            _check_among(f"served.{name}", getattr(self, name), samples)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One job's outcome. Raises InputError for a status or category that does not exist, ImplausibleError for a figure that is
    not finite, is negative, or contradicts its own samples."""

    job_hash: str
    """`Job.content_hash`; empty where the job could not be read."""
    plan: str
    """Short form."""
    mode: str = "run"
    status: Annotated[str, Keywords(enum=STATUSES)]
    """ran, oom (a rank met its memory limit) or failed."""
    exit_code: Annotated[int, Keywords(enum=tuple(int(code) for code in ExitCode))]
    """An ExitCode; that of every rank."""
    message: str = ""
    ranks: tuple[RankFigures, ...] = ()
    """By rank. After oom or failed: the ranks that could still tell, up to where they came."""
    step_seconds: float | None = None
    """Median of the timed steps, each step that of the slowest rank."""
    step_seconds_spread: float | None = None
    """Largest minus smallest timed step."""
    step_seconds_samples: tuple[float, ...] = ()
    warmup_seconds: tuple[float, ...] = ()
    """The steps before the timed ones."""
    losses: tuple[float | None, ...] = ()
    """Mean loss per token of every step, warm-up included; None: not finite."""
    gradient_norms: tuple[float | None, ...] = ()
    """Of the whole gradient before clipping, every step; None: not finite."""
    software: str = ""
    """Stack that ran: transformer-engine or megatron-local."""
    attention_kernel: str = ""
    device: str = ""
    """Device name: the GPU's, or the CPU's."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of python, torch, megatron-core, transformer-engine, cuda, nccl, driver: those that are there."""
    host: str = ""
    """Host name of rank 0."""
    wall_seconds: float = 0.0
    """From the start of rank 0 to this record."""
    served: Served | None = None
    """Of a generation that ran; its steps are rounds."""

    def __post_init__(self) -> None:
        unknown = {name for rank in self.ranks for name in rank.bytes_by_category} - set(CATEGORIES)
        codes = ", ".join(str(int(code)) for code in ExitCode)
        refuse(
            (self.status not in STATUSES, f"status={self.status!r} is not one of {', '.join(STATUSES)}"),
            (self.exit_code not in set(ExitCode), f"exit_code={self.exit_code} is not one of {codes}"),
            (unknown, f"bytes_by_category has {', '.join(sorted(unknown))}; known are {', '.join(CATEGORIES)}"),
        )
        for name, value in _figures(self):
            least = -math.inf if name.startswith("losses") else 0
            if not (math.isfinite(value) if isinstance(value, float) else abs(value) < MOST_BYTES) or value < least:
                raise ImplausibleError(f"{name}={str(value)[:40]} must be a finite number{'' if least else ' from 0'}")
        samples, step, spread = self.step_seconds_samples, self.step_seconds, self.step_seconds_spread
        if step is not None:
            above = min((step, *samples)) > 0
            refuse((not above, f"step_seconds={step:g} and its samples must be above 0"), error=ImplausibleError)
            _check_among("step_seconds", step, samples)
        if samples and spread is not None and abs(spread - (max(samples) - min(samples))) > SAME * max(samples):
            raise ImplausibleError(f"step_seconds_spread={spread:g} is not that of its samples, {_range(samples)}")

    @property
    def peak_allocated_bytes(self) -> int | None:
        """Of the worst rank that reported."""
        return max((rank.peak_allocated_bytes for rank in self.ranks), default=None)


def _figures(record: object, where: str = "") -> Iterator[tuple[str, float]]:
    """(name, number) of every number of a record, in those below it too."""
    if isinstance(record, int | float) and not isinstance(record, bool):
        yield where, record
    elif dataclasses.is_dataclass(record):
        for f in dataclasses.fields(record):
            yield from _figures(getattr(record, f.name), f"{where}.{f.name}".lstrip("."))
    elif isinstance(record, Mapping):
        for key, value in record.items():
            yield from _figures(value, f"{where}.{key}")
    elif isinstance(record, tuple):
        for number, value in enumerate(record):
            yield from _figures(value, f"{where}[{number}]")


def _check_among(name: str, value: float, samples: tuple[float, ...]) -> None:
    """Raises ImplausibleError where a mean or median is not between the least and the largest of its samples."""
    if samples and not min(samples) * (1 - SAME) <= value <= max(samples) * (1 + SAME):
        raise ImplausibleError(f"{name}={value:g} contradicts its own samples, {_range(samples)}")


def _range(samples: tuple[float, ...]) -> str:
    return f"{min(samples):g} to {max(samples):g}"


def is_plausible(value: float, predicted: float) -> bool:
    """Whether a time, rate or peak can be a measurement of what was predicted (above 0): finite, and at most MOST_TIMES of it,
    either way."""
    return predicted / MOST_TIMES <= value <= predicted * MOST_TIMES


def step_statistics(samples: tuple[float, ...]) -> dict[str, Any]:
    """step_seconds, step_seconds_spread and step_seconds_samples of a Measurement."""
    return {
        "step_seconds": statistics.median(samples),
        "step_seconds_spread": max(samples) - min(samples),
        "step_seconds_samples": samples,
    }


def measurement_text(measurement: Measurement) -> str:
    """result.json as text."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **to_json(measurement)}, indent=2, allow_nan=False) + "\n"


def read_measurement_text(text: str, where: str = "measurement") -> Measurement:
    """The Measurement that this JSON text holds. Raises InputError with what is wrong and where."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({str(error)[:120]}); is the file complete?") from None
    if not isinstance(body, dict) or body.pop("schema_version", None) != SCHEMA_VERSION:
        raise InputError(f"{where}: not a Measurement of schema_version {SCHEMA_VERSION}")
    return from_json(Measurement, body, where)


def read_measurement(path: Path) -> Measurement:
    """The Measurement in this file. Raises FileError when it cannot be read, else as `read_measurement_text`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise FileError(f"{str(path)[:200]!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return read_measurement_text(text, path.name)
