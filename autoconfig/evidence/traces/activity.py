"""What a rank's GPU and its host did, event by event, as a profiler recorded it."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

import numpy as np

from autoconfig.evidence.kernels import LONGEST, host_call, marks
from autoconfig.specs.errors import InputError

MOST_EVENTS = 5_000_000
"""Of the GPU, and calls of the host: 40 bytes each are kept."""
MOST_NAMES = 200_000
COPY = -1
"""Name of what copies or fills memory."""
STEP = re.compile(r"^ProfilerStep#(\d{1,9})$|^(?:train[ _-]?)?(?:step|iteration|iter)[ _#:=-]{0,3}(\d{1,9})$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CollectiveKey:
    """Which collective of which group."""

    name: str
    group: str
    """Its description."""
    ranks: int | None
    members: str = ""
    """The group's ranks, as the trace lists them; "" where it does not."""


@dataclass
class Spans:
    """Stretches of time: start and duration of each."""

    start: array[float] = field(default_factory=lambda: array("d"))
    duration: array[float] = field(default_factory=lambda: array("d"))

    def add(self, start: float, duration: float) -> None:
        self.start.append(start)
        self.duration.append(duration)

    def __len__(self) -> int:
        return len(self.start)


@dataclass
class Activity:
    """All that counts of a trace, in the trace's own unit of time, `unit` seconds."""

    unit: float
    name_ids: dict[str, int] = field(default_factory=dict)
    start: array[float] = field(default_factory=lambda: array("d"))
    duration: array[float] = field(default_factory=lambda: array("d"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    """-1: none."""
    name: array[int] = field(default_factory=lambda: array("i"))
    """Index of name_ids, or COPY."""
    device: array[int] = field(default_factory=lambda: array("i"))
    call_start: array[float] = field(default_factory=lambda: array("d"))
    call_duration: array[float] = field(default_factory=lambda: array("d"))
    call_correlation: array[int] = field(default_factory=lambda: array("q"))
    """Calls of the host that make the GPU do something."""
    launched: array[float] = field(default_factory=lambda: array("d"))
    graphs: array[float] = field(default_factory=lambda: array("d"))
    """When kernels and graphs were launched."""
    synchronized: Spans = field(default_factory=Spans)
    allocated: Spans = field(default_factory=Spans)
    data: Spans = field(default_factory=Spans)
    collections: Spans = field(default_factory=Spans)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Number of a step -> its start and duration on the host."""
    keys: dict[CollectiveKey, int] = field(default_factory=dict)
    called: array[int] = field(default_factory=lambda: array("q"))
    """Events of the GPU that are collectives of a known key, `called_key` and `called_bytes` beside them."""
    called_key: array[int] = field(default_factory=lambda: array("i"))
    called_bytes: array[float] = field(default_factory=lambda: array("d"))
    not_understood: int = 0
    rank: int | None = None
    world_size: int | None = None
    devices: dict[int, str] = field(default_factory=dict)

    def on_device(self, name: str | None, start: float, duration: float, device: int, correlation: int) -> int:
        """Add a kernel, or with no name a copy or fill; its number. Raises InputError for too many."""
        number = len(self.start)
        if number >= MOST_EVENTS:
            raise InputError(f"a trace of more than {MOST_EVENTS:,} kernels: profile fewer steps")
        if name is None:
            kind = COPY
        else:
            kind = self.name_ids.get(name, -2)
            if kind == -2:
                if len(self.name_ids) >= MOST_NAMES:
                    raise InputError(f"a trace with more than {MOST_NAMES:,} names of kernels is none of a run")
                kind = self.name_ids.setdefault(name[:LONGEST], len(self.name_ids))
        self.start.append(start)
        self.duration.append(duration)
        self.device.append(device)
        self.correlation.append(correlation)
        self.name.append(kind)
        return number

    def on_host(self, name: str, start: float, duration: float, correlation: int) -> None:
        """Add a call of the driver or runtime. Raises InputError for too many."""
        kind = host_call(name)
        if kind == "":
            return
        if kind == "synchronize":
            self.synchronized.add(start, duration)
        elif kind == "allocate":
            self.allocated.add(start, duration)
        else:
            if len(self.call_start) >= MOST_EVENTS:
                raise InputError(f"a trace of more than {MOST_EVENTS:,} launches: profile fewer steps")
            if kind != "copy":
                (self.graphs if kind == "graph" else self.launched).append(start)
        if correlation >= 0:
            self.call_start.append(start)
            self.call_duration.append(duration)
            self.call_correlation.append(correlation)

    def in_range(self, name: str, start: float, duration: float) -> None:
        """Add a range that the program marked: a step, or what `marked` takes."""
        if (match := STEP.match(name)) is not None:
            number = int(match[1] or match[2])
            if number not in self.steps and len(self.steps) < MOST_NAMES:
                self.steps[number] = (start, duration)
            return
        self.marked(name, start, duration)

    def marked(self, name: str, start: float, duration: float) -> None:
        """Add a stretch of the host whose name says that it waits for data, or collects garbage."""
        kind = marks(name)
        if kind == "data":
            self.data.add(start, duration)
        elif kind == "collection":
            self.collections.add(start, duration)

    def collective(self, number: int, key: CollectiveKey, size_bytes: float) -> None:
        """Say which collective the event of this number is."""
        self.called.append(number)
        self.called_key.append(self.keys.setdefault(key, len(self.keys)))
        self.called_bytes.append(size_bytes)

    def busiest(self) -> int:
        """The device that was busy longest."""
        devices, where = np.unique(np.frombuffer(self.device, dtype=np.int32), return_inverse=True)
        busy = np.bincount(where, weights=np.frombuffer(self.duration))
        return int(devices[int(np.argmax(busy))])
