"""Samples of a GPU: tables of nvidia-smi and DCGM, lines of our own sampler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoconfig.evidence.grammar import grammar, read_field
from autoconfig.evidence.records import MOST_TEXT, ClockSample, Origin
from autoconfig.evidence.scan import Passage

_REASONS = frozenset(("power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"))
_REPORTED = {
    "SW Power Cap": "power_cap",
    "HW Slowdown": "hw_slowdown",
    "HW Thermal Slowdown": "hw_thermal",
    "HW Power Brake Slowdown": "power_brake",
    "SW Thermal Slowdown": "sw_thermal",
    "Sync Boost": "sync_boost",
}


def reasons(mask: int) -> frozenset[str]:
    """Names of the bits of NVML's clock event reasons that are set."""
    return frozenset(name for bit, name in grammar().reasons.items() if mask & bit)


def sample(found: Mapping[str, Any], origin: Origin) -> ClockSample | None:
    """The sample of a line's fields; None where they measure nothing."""
    values = dict(found)
    named = reasons(values.pop("mask", 0))
    if "reason" in values:
        named |= {_REPORTED[values.pop("reason")]}
    if not named and not values.keys() - {"gpu", "at"}:
        return None
    return ClockSample(origin=origin, reasons=named, **values)


def from_columns(cells: Mapping[str, str], origin: Origin) -> ClockSample | None:
    """The sample of a row, by the names of its columns; None where they measure nothing. `[N/A]` and `-` say nothing."""
    values: dict[str, Any] = {}
    named: set[str] = set()
    asked = False
    for name, text in cells.items():
        how = grammar().keys["clock_columns"].get(name)
        if how is None or not text.strip():
            continue
        if how == "name":
            values["name"] = text.strip()[:MOST_TEXT]
            continue
        if isinstance(how, str) and how in _REASONS:
            asked = True
            named |= {how} if text.strip().lower() == "active" else set()
            continue
        values |= {key: value for key, value in read_field(how, name, text) if key not in values}
    if "mask" in values:
        asked, bits = True, reasons(int(values.pop("mask")))
        named |= bits
    if "gpu" in values:
        values["gpu"] = int(values["gpu"])
    if not asked and not values.keys() - {"gpu", "at", "name"}:
        return None
    return ClockSample(origin=origin, reasons=frozenset(named), **values)


def samples(block: Passage, file: str) -> list[ClockSample]:
    """The samples of a table: a header with the names of columns, then a row for each GPU and moment."""
    head = block.head.decode("utf-8", "replace")
    names = _csv_names(head) if block.format.record == "csv" else head.lstrip("# \t").split()
    if not grammar().keys["clock_columns"].keys() & set(names):
        return []
    samples_of = []
    for number, raw in block.rows:
        line = raw.decode("utf-8", "replace")
        cells = _cells(line, names, csv=block.format.record == "csv")
        if cells is not None:
            one = from_columns(cells, Origin(file=file, line=number, text=line.strip()[:MOST_TEXT]))
            samples_of += [one] if one is not None else []
    return samples_of


def _csv_names(head: str) -> list[str]:
    """`clocks.current.sm [MHz]` is `clocks.current.sm`."""
    return [name.partition("[")[0].strip() for name in head.split(",")]


def _cells(line: str, names: Iterable[str], *, csv: bool) -> dict[str, str] | None:
    if csv:
        cells = [cell.strip() for cell in line.split(",")]
    else:
        if line.lstrip()[:1] == "#" or line.lstrip()[:2] == "ID":  # units
            return None
        cells = line.replace("GPU ", " ").split()
    names = list(names)
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else None
