"""torch.profiler's trace (Kineto's JSON, Chrome's trace events), as it streams by."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autoconfig.evidence.kernels import COLLECTIVES, collective_of, part_of, type_bytes
from autoconfig.evidence.traces.activity import Activity, CollectiveKey
from autoconfig.evidence.traces.json_events import TraceEvents

MICROSECOND = 1e-6
_HEAD = re.compile(
    rb'^\s*+(?:\[\s*+\{\s*+"(?:ph|name|cat|args|pid|ts)"|\{\s*+"(?:schemaVersion|traceEvents|deviceProperties|distributedInfo)"\s*+:)'
)
_NAMES = re.compile(rb'"(?:traceEvents|deviceProperties|distributedInfo|cupti_version)"\s{0,9}:')
_PHASE = re.compile(rb'"ph"\s{0,9}:')
"""What every event of a trace says of itself."""
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_ON_DEVICE = {"kernel": True, "gpu_memcpy": False, "gpu_memset": False, "memcpy": False, "memset": False}
"""Category in lower case -> whether it is a kernel; older traces write them with capitals."""
_CALLS = frozenset(("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver"))
_RANGES = frozenset(("user_annotation",))
_MARKED = frozenset(("python_function", "cpu_op", "operator"))
PARAMETERS = "record_param_comms"
"""torch's operator around a collective, which holds its arguments where the kernel does not."""


def is_trace(head: bytes) -> bool:
    """Whether a file that begins so is a trace."""
    if head.lstrip()[:1] == b"[" and _PHASE.search(head) is None:
        return False
    return _HEAD.match(head) is not None or (head.lstrip()[:1] == b"{" and _NAMES.search(head) is not None)


def read(name: str, chunks: Iterable[bytes]) -> tuple[Activity, int, list[str]]:
    """(what GPU and host did, number of events, remarks). Raises InputError where it is no trace, and WorkError."""
    activity, json = Activity(unit=MICROSECOND), TraceEvents(name, chunks)
    arguments: dict[int, Mapping[str, Any]] = {}
    later: list[tuple[int, str, int]] = []
    groups = _Groups(json.top)
    take = _taker(activity, arguments, later, groups)
    count = 0
    for event in json.events():
        count += 1
        try:
            take(event)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            activity.not_understood += 1
    for number, kernel, external in later:
        _collective(activity, number, kernel, arguments.get(external, {}), groups)
    _about(activity, json.top, name)
    remarks = ["the trace ends within: what it holds was read"] if json.truncated else []
    return activity, count, remarks


def _taker(
    found: Activity, arguments: dict[int, Mapping[str, Any]], later: list[tuple[int, str, int]], groups: _Groups
) -> Callable[[dict[str, Any]], None]:
    """What takes an event up, if it is one of those that count."""
    on_device, on_host, in_range, marked = found.on_device, found.on_host, found.in_range, found.marked
    finite = math.isfinite

    def take(event: dict[str, Any]) -> None:
        if event["ph"] != "X":
            return
        category = event.get("cat", "")
        if category in _MARKED:
            name = event["name"]
            if name == PARAMETERS and len(arguments) < 1_000_000:
                values = event["args"]
                arguments[values["External id"]] = values
            else:
                marked(name, float(event["ts"]), float(event["dur"]))
            return
        category = category.lower()
        kernel = _ON_DEVICE.get(category)
        if kernel is None and category not in _CALLS and category not in _RANGES:
            return
        name, start, duration = event["name"], float(event["ts"]), float(event["dur"])
        if not (finite(start) and finite(duration) and duration >= 0):
            raise ValueError
        if category in _RANGES:
            in_range(name, start, duration)
            return
        values = event.get("args", {})
        correlation = int(values.get("correlation", -1))
        if kernel is None:
            on_host(name, start, duration, correlation)
            return
        number = on_device(name if kernel else None, start, duration, int(values.get("device", -1)), correlation)
        if kernel and part_of(name) in COLLECTIVES:
            if "Collective name" in values:
                _collective(found, number, name, values, groups)
            else:
                later.append((number, name, values.get("External id", -1)))

    return take


class _Groups:
    """Process groups as the trace lists them beside its events; a kernel's arguments cut off long lists of ranks."""

    def __init__(self, top: Mapping[str, Any]) -> None:
        self._top = top
        self._known: dict[str, tuple[str, str]] | None = None

    def of(self, name: str) -> tuple[str, str]:
        """(description, ranks) of the group of this name; "" for what is not said."""
        if self._known is None:
            about = self._top.get("distributedInfo")
            listed = about.get("pg_config") if isinstance(about, dict) else None
            rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
            self._known = {str(row.get("pg_name")): (str(row.get("pg_desc", "")), str(row.get("ranks", ""))) for row in rows}
        return self._known.get(name, ("", ""))


def _collective(found: Activity, number: int, kernel: str, values: Mapping[str, Any], groups: _Groups) -> None:
    """Say of a kernel which collective it is, as far as its arguments and the list of groups do."""
    text = str(values.get("Collective name", ""))
    listed, all_ranks = groups.of(str(values.get("Process Group Name", "")))
    group = str(values.get("Process Group Description", "")) or listed
    ranks = values.get("Group size")
    elements = [values.get(side) for side in ("In msg nelems", "Out msg nelems")]
    largest = max((count for count in elements if isinstance(count, int)), default=0)
    members = str(values.get("Process Group Ranks", ""))
    key = CollectiveKey(
        name=collective_of(text or kernel),
        group="" if group == "undefined" else group[:80],
        ranks=ranks if isinstance(ranks, int) else None,
        members=(all_ranks if "..." in members or not members else members)[:2000],
    )
    found.collective(number, key, float(largest * type_bytes(str(values.get("dtype", "")))))


def _about(found: Activity, top: Mapping[str, Any], name: str) -> None:
    """Rank, ranks and devices."""
    about = top.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    rank, world = about.get("rank"), about.get("world_size")
    if not isinstance(rank, int):
        match = _RANK.search(name.rpartition("/")[2])
        rank = int(match[1]) if match else None
    found.rank, found.world_size = rank, world if isinstance(world, int) and world > 0 else None
    devices = top.get("deviceProperties")
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict) and isinstance(device.get("id"), int):
            found.devices[device["id"]] = str(device.get("name", ""))[:80]
