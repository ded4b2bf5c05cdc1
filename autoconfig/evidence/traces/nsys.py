"""An export of Nsight Systems: `nsys export --type sqlite`.

Its tables and columns come and go by release and by what was traced, so each is asked for first."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autoconfig.evidence.kernels import COLLECTIVES, collective_of, part_of
from autoconfig.evidence.traces.activity import MOST_EVENTS, MOST_NAMES, Activity, CollectiveKey
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

MAGIC = b"SQLite format 3\0"
NANOSECOND = 1e-9
ROW_WORK = 2.0
KERNELS, CALLS, GRAPHS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
RANGES, STRINGS, DEVICES = "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU"
GRAPH = "a CUDA graph as one kernel"
"""Name of the kernels of a graph that was traced as one node."""
_PROCESS = "(({} >> 24) & 16777215)"
"""The process of Nsight's global identifiers of processes and threads."""
MOST_PROCESSES = 64
_VERSION = re.compile(r"_v\d{3,5}$")
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def read(path: Path) -> tuple[Activity, int, list[str]]:
    """(what GPU and host did, number of rows, remarks). Raises InputError where it is no such export, and WorkError."""
    name = str(path)[:200]
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    except (sqlite3.Error, ValueError, OSError) as error:
        raise InputError(f"{name!r} cannot be opened as a database: {error}") from error
    try:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return _read(database, name)
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"{name!r} is a database that is damaged ({error}): export it again with nsys export --type sqlite"
        ) from error
    finally:
        database.close()


def _read(database: sqlite3.Connection, name: str) -> tuple[Activity, int, list[str]]:
    tables = {str(row[0]) for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables & {KERNELS, GRAPHS}:
        raise InputError(
            f"{name!r} is a database without {KERNELS}: export a profile that traced CUDA (nsys profile --trace cuda,nvtx; "
            "nsys export --type sqlite)"
        )
    process, remarks = _process(database, tables)
    export = _Export(database, tables, process)
    export.kernels()
    for table in COPIES:
        export.on_device(table, None)
    if export.on_device(GRAPHS, GRAPH):
        remarks.append("CUDA graphs were traced as one node: --cuda-graph-trace=node shows their kernels")
    export.calls()
    export.ranges()
    for row in _rows(database, tables, DEVICES, ("id", "name")):
        export.activity.devices[int(row["id"] or 0)] = str(row["name"] or "")[:80]
    match = _RANK.search(name.rpartition("/")[2])
    export.activity.rank = int(match[1]) if match else None
    return export.activity, export.count, remarks


class _Export:
    """The tables of one process, read into what GPU and host did."""

    def __init__(self, database: sqlite3.Connection, tables: set[str], process: int | None) -> None:
        self.activity = Activity(unit=NANOSECOND)
        self.count = 0
        """Rows that were read."""
        self._words = _words(database, tables)
        self._source = (database, tables, process)

    def _rows(self, table: str, *columns: str) -> Iterator[dict[str, Any]]:
        database, tables, process = self._source
        for row in _rows(database, tables, table, ("start", "end", *columns), process):
            self.count += 1
            yield row

    def kernels(self) -> None:
        """Read kernels, and which of them are collectives."""
        for row in self._rows(KERNELS, "deviceId", "correlationId", "demangledName", "shortName"):
            kernel = self._words.get(row["demangledName"]) or self._words.get(row["shortName"]) or ""
            number = self.activity.on_device(kernel, row["start"], row["end"] - row["start"], row["deviceId"] or 0, _id(row))
            if part_of(kernel) in COLLECTIVES:
                self.activity.collective(number, CollectiveKey(name=collective_of(kernel), group="", ranks=None), 0.0)

    def on_device(self, table: str, name: str | None) -> bool:
        """Read the rows of a table as what the GPU did under one name; whether there are any."""
        before = self.count
        for row in self._rows(table, "deviceId", "correlationId"):
            self.activity.on_device(name, row["start"], row["end"] - row["start"], row["deviceId"] or 0, _id(row))
        return self.count > before

    def calls(self) -> None:
        """Read the host's calls of the runtime."""
        for row in self._rows(CALLS, "correlationId", "nameId"):
            call = _VERSION.sub("", self._words.get(row["nameId"], ""))
            self.activity.on_host(call, row["start"], row["end"] - row["start"], _id(row))

    def ranges(self) -> None:
        """Read the ranges of NVTX that have an end."""
        for row in self._rows(RANGES, "text", "textId"):
            text = row["text"] or self._words.get(row["textId"])
            if text and row["end"] is not None:
                self.activity.in_range(str(text), row["start"], row["end"] - row["start"])


def _process(database: sqlite3.Connection, tables: set[str]) -> tuple[int | None, list[str]]:
    """(the process whose kernels took longest, a remark where there are several); None: the export does not tell them apart.
    Correlations count anew in each process, and an export may hold all ranks of a node."""
    if KERNELS not in tables or "globalPid" not in _columns(database, KERNELS):
        return None, []
    busy = f'SELECT {_PROCESS.format("globalPid")}, SUM("end" - start) FROM {KERNELS} GROUP BY 1 ORDER BY 2 DESC'
    rows = database.execute(busy).fetchmany(MOST_PROCESSES)
    if not rows or not isinstance(rows[0][0], int):
        return None, []
    remark = f"{len(rows)} processes in it: the one whose GPU was busy longest is looked at; export one rank to choose"
    return rows[0][0], [remark] if len(rows) > 1 else []


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}


def _id(row: Mapping[str, Any]) -> int:
    return -1 if row["correlationId"] is None else int(row["correlationId"])


def _words(database: sqlite3.Connection, tables: set[str]) -> dict[int, str]:
    rows = _rows(database, tables, STRINGS, ("id", "value"), most=MOST_NAMES * 10)
    return {int(row["id"]): str(row["value"])[:2000] for row in rows if row["id"] is not None}


def _rows(
    database: sqlite3.Connection,
    tables: set[str],
    table: str,
    columns: tuple[str, ...],
    process: int | None = None,
    *,
    most: int = 4 * MOST_EVENTS,
) -> Iterator[dict[str, Any]]:
    """The rows of a table, of one process where it says whose they are, with None for a column that this release lacks. Raises
    InputError for a text where a time stands."""
    if table not in tables:
        return
    there = _columns(database, table)
    owner = next((column for column in ("globalPid", "globalTid") if column in there), None)
    chosen = [f"{table}.{column}" if column in there else "NULL" for column in columns]
    where = "" if process is None or owner is None else f" WHERE {_PROCESS.format(owner)} = {process}"
    order = " ORDER BY start" if "start" in there and table != RANGES else ""
    for values in database.execute(f"SELECT {', '.join(chosen)} FROM {table}{where}{order} LIMIT {most}"):
        spend(ROW_WORK)
        row = dict(zip(columns, values, strict=True))
        if "start" not in row or _has_times(row, table):
            yield row


def _has_times(row: Mapping[str, Any], table: str) -> bool:
    """Return whether a row has the times that rows of its table have. Raises InputError for a text where a time stands."""
    if not isinstance(row["start"], int) or not isinstance(row["end"], int | None):
        raise InputError(f"a row of {table} holds no times: this is no export of Nsight Systems that is known")
    return row["end"] is not None or table == RANGES
