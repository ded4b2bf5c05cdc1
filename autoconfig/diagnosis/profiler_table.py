"""Shares of a profiler's table: what the host spends its time on, and how much of it the device is idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoconfig.evidence.kernels import host_call, marks
from autoconfig.evidence.records import Evidence, KernelRow

HOST_TOTAL, DEVICE_TOTALS = "Self CPU time total", ("Self CUDA time total", "Self XPU time total")
LEAST_BACK = 0.1
"""Share of the calls of the driver's allocator; one that asks again for what it gave back has half of them."""
_GIVES_BACK = ("free", "unmap", "release")


def totals(evidence: Evidence) -> tuple[KernelRow, KernelRow] | None:
    """The rows of the host's and the device's total; None where the table lacks one of them."""
    rows = {row.name: row for row in evidence.kernels if row.name.endswith("time total")}
    device = next((rows[name] for name in DEVICE_TOTALS if name in rows), None)
    return (rows[HOST_TOTAL], device) if HOST_TOTAL in rows and device is not None else None


def idle_share(evidence: Evidence) -> float | None:
    """Share of the host's time that the device does not work; None where the table does not say it."""
    both = totals(evidence)
    return None if both is None or not both[0].seconds else max(0.0, 1.0 - both[1].seconds / both[0].seconds)


def data_rows(evidence: Evidence) -> list[KernelRow]:
    """Rows of the data loader, the longest first."""
    return _rows(evidence, lambda row: marks(row.name) == "data", lambda row: row.host_total_share)


def allocation_rows(evidence: Evidence) -> list[KernelRow]:
    """Calls that ask the driver for memory and give it back, the longest first; empty where little is given back, as in the
    first steps of a run, which a call or two of cudaFree begin."""
    rows = _rows(evidence, lambda row: host_call(row.name) == "allocate", lambda row: row.host_share)
    back = sum(row.calls for row in rows if any(word in row.name.lower() for word in _GIVES_BACK))
    return rows if back >= LEAST_BACK * sum(row.calls for row in rows) else []


def waiting_rows(evidence: Evidence) -> list[KernelRow]:
    """Calls in which the host waits for a stream, or for a copy of memory that is not pinned; the profiler itself waits for the
    whole device."""
    waits = ("synchronize", "copy")
    return _rows(
        evidence, lambda row: host_call(row.name) in waits and "device" not in row.name.lower(), lambda row: row.host_share
    )


def launch_rows(evidence: Evidence) -> list[KernelRow]:
    """Calls that launch kernels."""
    return _rows(evidence, lambda row: host_call(row.name) in ("launch", "graph"), lambda row: row.host_share)


def _rows(evidence: Evidence, test: Callable[[KernelRow], bool], share: Callable[[KernelRow], float]) -> list[KernelRow]:
    return sorted((row for row in evidence.kernels if share(row) > 0 and test(row)), key=share, reverse=True)


def self_share(rows: Sequence[KernelRow]) -> float:
    """Of the host's time, in these calls themselves."""
    return sum(row.host_share for row in rows)
