"""Traces of requests, as files that are published or rows of a question; of a long one the busiest part, in constant memory.

    Azure LLM inference traces   CSV  TIMESTAMP,ContextTokens,GeneratedTokens            (date and time, or seconds)
    BurstGPT                     CSV  Timestamp,...,Request tokens,Response tokens,...   (seconds)
    Mooncake                     JSON lines {"timestamp": ms, "input_length": n, "output_length": n, ...}

Sources: github.com/Azure/AzurePublicDataset, github.com/HPMLL/BurstGPT, github.com/kvcache-ai/Mooncake (FAST25-release/traces).

A trace is read once into sums over bins of time; of a part of it the requests are read again, from the chunk on in which it
begins.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from autoconfig.specs.errors import FileError, InputError, option
from autoconfig.specs.files import opened
from autoconfig.time_model.serving.workload import Trace

MAX_REQUESTS = 100_000
"""Of the part of a trace that is looked at request by request."""
LEAST_REQUESTS = 100
"""Of such a part, where the trace has them: fewer have no percentiles."""
WINDOW_S = 3600.0
"""A trace that is longer is sized by its busiest hour: as long as traffic stays at a level, in daily rhythms of services."""
BUSIER = 1.02
"""Times the tokens in or out from which on another part is looked at."""
BIN_S, MAX_BINS = 15.0, 1 << 15
"""Seconds of a bin of a trace of up to 5.7 days; of a longer one twice as many, as often as it takes."""
CHUNK_BYTES = 4 * 2**20
"""That are read at once; a line is no longer."""
MAX_TOKENS = 2_000_000
"""Of a prompt, and of an answer."""
MAX_SECONDS = 1e9
"""Of a trace; a moment from which on it is one of a clock, seconds since 1970, and not of a stopwatch."""
MAX_MOMENT_S = 1e11
"""Seconds since 1970 at most: the year 5138."""
ZONE = re.compile(r"[Zz]$|[+-]\d\d:?\d\d$")
SHOWN = 40
CSV_COLUMNS = (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("Timestamp", "Request tokens", "Response tokens"))
JSON_KEYS = ("timestamp", "input_length", "output_length")
FORMATS = (
    f"CSV with the columns {' or '.join(','.join(names) for names in CSV_COLUMNS)}, or JSON lines such as "
    '{"timestamp": 0, "input_length": 1000, "output_length": 500} (milliseconds)'
)
Vector = npt.NDArray[np.float64]


class Raw(NamedTuple):
    """A request as it stands in a source."""

    where: str
    seconds: float
    inputs: int
    outputs: int


class Chunk(NamedTuple):
    """Requests in order of arrival, and where they stand."""

    seconds: Vector
    inputs: Vector
    outputs: Vector
    offset: int
    """Bytes of the file before it."""
    line: int
    """Number of its first line."""


Reader = Callable[[int, int], Iterator[Chunk]]
"""Chunks from a byte and the number of its line on."""
SUMS = ("requests", "inputs", "outputs", "squared_inputs", "context")
"""Columns of a bin: requests, tokens in and out, squares of tokens in, and (I + O/2) O, the cache while decoding."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """What requests that arrive in a part of a trace sum up to."""

    start_s: float
    """After the first request of the trace."""
    clock: str
    """When it starts, as Window.clock."""
    seconds: float
    rate: float
    """Requests per second."""
    sums: Mapping[str, float]
    peak_rate: float
    peak: Mapping[str, float]
    """The same of its quarter with most tokens, as far as bins tell quarters apart."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """A part of a trace that it is sized by."""

    start_s: float
    end_s: float
    clock: str
    """From when to when, by the trace's own clock; hours after its first request where that has no date."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A trace that was read once: sums over bins of `width` seconds, and where its parts stand."""

    name: str
    reader: Reader
    marks: Sequence[tuple[float, int, int]]
    """Of each chunk: its first arrival, byte and line."""
    bins: Vector
    """(bin, SUMS)."""
    width: float
    first_s: float
    """Of the source's clock."""
    seconds: float
    """From the first arrival to the last."""
    longest_input: float
    longest_tokens: float
    """Tokens of the longest prompt, and of the longest request with its answer."""
    chosen: int = 0
    """Which of `windows` it is sized by."""
    kept: dict[int, Trace] = field(default_factory=dict)
    """Requests of windows that were read."""

    @classmethod
    def of(cls, trace: object, *, local_files: bool) -> Recorded:
        """The trace of a file or of rows, read once through. Raises FileError, InputError."""
        if isinstance(trace, Recorded):
            return trace
        if not isinstance(trace, str):
            return trace_of(cast("Iterable[Mapping[str, object]]", trace))
        if not local_files:
            raise InputError("trace: give the requests as a list, not the name of a file", field="trace")
        return read_trace(Path(trace))

    @property
    def requests(self) -> int:
        """Of the whole trace."""
        return int(self.bins[:, 0].sum())

    @property
    def rate(self) -> float:
        """Mean requests per second between the first and the last arrival."""
        return (self.requests - 1) / self.seconds

    def windows(self) -> list[Window]:
        """Parts of WINDOW_S that may be the busiest: with most tokens in all, most tokens in, most tokens out; shorter where
        they have more than MAX_REQUESTS, longer where fewer than LEAST_REQUESTS. One, the whole, where that is no longer or has
        no more."""
        count = len(self.bins)
        size = min(max(round(WINDOW_S / self.width), 1), count)
        inputs, outputs = self.bins[:, 1], self.bins[:, 2]
        while size > 1 and _sliding(self.bins[:, 0], size)[_busiest(inputs + outputs, size)] > MAX_REQUESTS:
            size //= 2
        while size < count and _sliding(self.bins[:, 0], size).max() < LEAST_REQUESTS:
            size = min(2 * size, count)
        starts = [_busiest(inputs + outputs, size)]
        for work in (inputs, outputs):
            start, sums = _busiest(work, size), _sliding(work, size)
            if sums[start] > BUSIER * sums[starts].max():
                starts.append(start)
        return [self._window(start * self.width, min((start + size) * self.width, self.seconds)) for start in starts]

    def _window(self, start: float, end: float) -> Window:
        begin, stop = self._moment(start), self._moment(end)
        stop = stop.removeprefix(f"{begin[:10]} ")  # the day once
        clock = f"{begin} to {stop}{'' if self.first_s >= MAX_SECONDS else ' after the first request'}"
        return Window(start_s=start, end_s=end, clock=clock)

    @property
    def window(self) -> Window | None:
        """What it is sized by; None: all of it."""
        one = self.windows()[self.chosen]
        return one if one.start_s > 0.0 or one.end_s < self.seconds else None

    @property
    def trace(self) -> Trace:
        """The requests that it is sized by, the first at 0 s, at most MAX_REQUESTS."""
        if self.chosen not in self.kept:
            self.kept[self.chosen] = self._requests(self.windows()[self.chosen])
        return self.kept[self.chosen]

    def _requests(self, window: Window) -> Trace:
        last = window.end_s >= self.seconds
        at = max(sum(first - self.first_s < window.start_s for first, _, _ in self.marks) - 1, 0)
        parts: list[Chunk] = []
        have = 0
        for chunk in self.reader(*self.marks[at][1:]):
            after = chunk.seconds - self.first_s
            inside = (after >= window.start_s) & (last | (after < window.end_s))
            if inside.any():
                parts.append(Chunk(after[inside], chunk.inputs[inside], chunk.outputs[inside], 0, 0))
                have += int(inside.sum())
            if have >= MAX_REQUESTS or (not last and after[-1] >= window.end_s):
                break
        arrival, inputs, outputs = (np.concatenate([part[i] for part in parts])[:MAX_REQUESTS] for i in range(3))
        return Trace(
            arrival_s=arrival - arrival[0],
            input_tokens=inputs,
            output_tokens=outputs,
            most_input=self.longest_input,
            most_tokens=self.longest_tokens,
        )

    def spans(self, seconds: float, most: int) -> list[Span]:
        """The whole in spans of so many seconds, or twice as many as often as it takes for at most `most` spans."""
        each = max(round(seconds / self.width), 1)
        while -(-len(self.bins) // each) > most:
            each *= 2
        return [self._span(start, each) for start in range(0, len(self.bins), each)]

    def _span(self, start: int, size: int) -> Span:
        begin, part = start * self.width, self.bins[start : start + size]
        seconds = min(size * self.width, max(self.seconds - begin, self.width))
        quarter = min(max(size // 4, 1), len(part))
        at = _busiest(part[:, 1] + part[:, 2], quarter)
        whole, peak = (dict(zip(SUMS, map(float, rows.sum(axis=0)), strict=True)) for rows in (part, part[at : at + quarter]))
        return Span(
            start_s=begin,
            clock=self._moment(begin),
            seconds=seconds,
            rate=whole["requests"] / seconds,
            sums=whole,
            peak_rate=peak["requests"] / min(quarter * self.width, seconds),
            peak=peak,
        )

    def _moment(self, after_s: float) -> str:
        """By the trace's own clock; hours after its first request where that has no date."""
        if self.first_s < MAX_SECONDS:
            return _hours_text(after_s)
        return f"{datetime.fromtimestamp(self.first_s + after_s, UTC):%Y-%m-%d %H:%M:%S}"


def _hours_text(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _sliding(values: Vector, size: int) -> Vector:
    """Sums of `size` values in a row."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(sums[size:] - sums[:-size])


def _busiest(values: Vector, size: int) -> int:
    return int(np.argmax(_sliding(values, size)))


def read_trace(path: Path) -> Recorded:
    """The trace of a file. Raises FileError where it cannot be read, InputError where it is no trace."""
    name = str(path)

    def chunks(offset: int, line: int) -> Iterator[Chunk]:
        with opened(path, f"{FORMATS} ({option('trace')})") as file:
            _, _, head = next(_texts(file.read, name, 0, 1), (0, 1, ""))
            if not head.strip():
                raise FileError(f"{name[:200]!r} is empty; give {FORMATS} ({option('trace')})")
            parse = _json_lines if head.lstrip()[:1] == "{" else _csv(head.partition("\n")[0], name)
            file.seek(offset)
            for first, number, text in _texts(file.read, name, offset, line):
                yield from parse(text, number, first, name)

    return _recorded(chunks, name)


def trace_of(rows: Iterable[Mapping[str, Any]]) -> Recorded:
    """The trace of rows with the keys of JSON lines. Raises InputError."""
    held = list(rows)

    def chunks(offset: int, line: int) -> Iterator[Chunk]:
        yield from _chunk((_entry(row, f"trace row {number}") for number, row in enumerate(held, 1)), offset, line)

    return _recorded(chunks, "trace")


def _texts(read: Callable[[int], bytes], name: str, offset: int, line: int) -> Iterator[tuple[int, int, str]]:
    """Whole lines, CHUNK_BYTES of them at once: (byte, number of the first line, text). Raises FileError."""
    rest = b""
    while True:
        data = read(CHUNK_BYTES)
        whole = rest + data
        cut = whole.rfind(b"\n") + 1 if data else len(whole)
        if not cut and len(whole) > CHUNK_BYTES:
            raise FileError(
                f"{name[:200]!r} line {line:,} has more than {CHUNK_BYTES:,} bytes; give {FORMATS} ({option('trace')})"
            )
        lines, rest = whole[:cut], whole[cut:]
        try:
            text = lines.decode("utf-8" if offset else "utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise FileError(f"{name[:200]!r} is no text file (UTF-8); give {FORMATS} ({option('trace')})")
        if text:
            yield offset, line, text
        offset, line = offset + cut, line + lines.count(b"\n")
        if not data:
            return


def _json_lines(text: str, line: int, offset: int, source: str) -> Iterator[Chunk]:
    """Requests of JSON lines: all at once where none is out of the ordinary, else one by one, to say which."""
    try:
        rows = [json.loads(one) for one in text.splitlines() if one.strip()]
        columns = [[row[key] for row in rows] for key in JSON_KEYS]
        if {*map(type, columns[0])} <= {int, float} and {*map(type, columns[1] + columns[2])} <= {int}:
            seconds = np.array(columns[0], dtype=np.float64) * 1e-3
            found = Chunk(seconds, _floats(columns[1]), _floats(columns[2]), offset, line)
            if _ordinary(found):
                yield found
                return
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError):
        pass
    yield from _chunk(_json_line_by_line(text, line, source), offset, line)


def _json_line_by_line(text: str, line: int, source: str) -> Iterator[Raw]:
    for number, one in enumerate(text.splitlines(), line):
        if not one.strip():
            continue
        where = f"{source} line {number}"
        try:
            row = json.loads(one)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not valid JSON ({str(error)[:SHOWN]}): one object a line") from error
        yield _entry(row, where)


def _entry(row: object, where: str) -> Raw:
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is no object: write " + FORMATS.split("such as ")[1])
    if missing := [key for key in JSON_KEYS if key not in row]:
        raise InputError(f"{where} lacks {', '.join(missing)}: write " + FORMATS.split("such as ")[1])
    time, *lengths = (row[key] for key in JSON_KEYS)
    if isinstance(time, bool) or not isinstance(time, int | float) or not abs(time) <= MAX_MOMENT_S * 1e3:
        raise InputError(f"{where}: timestamp {str(time)[:SHOWN]!r}: a number of milliseconds")
    counts = [_tokens(value, key, where) for key, value in zip(JSON_KEYS[1:], lengths, strict=True)]
    return Raw(where, time * 1e-3, counts[0], counts[1])


def _csv(first: str, source: str) -> Callable[[str, int, int, str], Iterator[Chunk]]:
    """What reads a CSV whose first line is `first`. Raises InputError."""
    header = [name.strip() for name in next(csv.reader([first]), [])]
    names = next((names for names in CSV_COLUMNS if set(names) <= set(header)), None)
    if names is None:
        found = ",".join(header)[: 2 * SHOWN]
        raise InputError(f"{option('trace')} {source} line 1: the columns {found!r} are of no known trace; give {FORMATS}")
    places = [header.index(name) for name in names]

    def parse(text: str, line: int, offset: int, source: str) -> Iterator[Chunk]:
        """All lines at once where none is out of the ordinary, else one by one, to say which."""
        body = text if offset else text.partition("\n")[2]
        try:
            rows = [cells for cells in csv.reader(io.StringIO(body, newline="")) if cells]
            times, *lengths = ([cells[place] for cells in rows] for place in places)
            digits = "".join([*lengths[0], *lengths[1]])
            if digits.isascii() and digits.isdigit():
                inputs, outputs = (_floats([int(one) for one in column]) for column in lengths)
                found = Chunk(_moments(times), inputs, outputs, offset, line)
                if _ordinary(found):
                    yield found
                    return
        except (csv.Error, ValueError, IndexError, OverflowError):
            pass
        rows_one_by_one = _csv_line_by_line(body, line + (not offset), source, names, places, len(header))
        yield from _chunk(rows_one_by_one, offset, line)

    return parse


def _csv_line_by_line(
    text: str, line: int, source: str, names: Sequence[str], places: Sequence[int], width: int
) -> Iterator[Raw]:
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for cells in reader:
            if not cells:
                continue
            where = f"{source} line {line + reader.line_num - 1}"
            if len(cells) <= max(places):
                raise InputError(f"{where} has {len(cells)} cells, the header {width}")
            time, *lengths = (cells[place].strip() for place in places)
            counts = [_tokens(value, name, where) for name, value in zip(names[1:], lengths, strict=True)]
            yield Raw(where, _moment(time, names[0], where), counts[0], counts[1])
    except csv.Error as error:
        raise InputError(f"{option('trace')} {source} line {line + reader.line_num - 1} is no CSV: {error}") from error


def _floats(values: Sequence[int]) -> Vector:
    return np.array(values, dtype=np.float64)


def _ordinary(found: Chunk) -> bool:
    """Whether all of it is within its bounds and in order; an empty chunk is."""
    if not len(found.seconds):
        return True
    counts = np.concatenate([found.inputs, found.outputs])
    good = bool(counts.min() >= 1 and counts.max() <= MAX_TOKENS and np.abs(found.seconds).max() <= MAX_MOMENT_S)
    return good and bool((np.diff(found.seconds) >= 0).all())


def _chunk(rows: Iterable[Raw], offset: int, line: int) -> Iterator[Chunk]:
    """Rows as one chunk. Raises InputError where one arrives before the one above it."""
    kept: list[Raw] = []
    for row in rows:
        if kept and row.seconds < kept[-1].seconds:
            raise InputError(f"{row.where} arrives before the one above it: sort the requests by their time")
        kept.append(row)
    if kept:
        _, *columns = zip(*kept, strict=True)
        seconds, inputs, outputs = (np.asarray(column, dtype=np.float64) for column in columns)
        yield Chunk(seconds, inputs, outputs, offset, line)


def _tokens(value: object, name: str, where: str) -> int:
    text = str(value)
    if not isinstance(value, bool) and text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_TOKENS:
        return int(text)
    raise InputError(f"{where}: {name} {text[:SHOWN]!r}: a whole number of tokens from 1 to {MAX_TOKENS:,}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _moments(texts: Sequence[str]) -> Vector:
    """Seconds of numbers, or of dates and times. Raises ValueError, OverflowError."""
    if not texts or _is_number(texts[0]):
        return np.array([float(text) for text in texts], dtype=np.float64)
    if len(min(texts, key=len)) >= len("2023-11-16") and not ZONE.search(texts[0]):  # NumPy knows `now` and no zones
        try:
            return np.array(texts, dtype="datetime64[ns]").astype(np.int64) / 1e9
        except ValueError:
            pass
    return np.array([_date_seconds(text) for text in texts], dtype=np.float64)


def _date_seconds(text: str) -> float:
    """Seconds since 1970 of a date and time, UTC where no zone is given. Raises ValueError, OverflowError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _moment(text: str, name: str, where: str) -> float:
    """Seconds from a number or a date and time (UTC where no zone is given)."""
    try:
        seconds = float(text) if _is_number(text) else _date_seconds(text)
    except (ValueError, OverflowError):
        seconds = math.nan
    if abs(seconds) <= MAX_MOMENT_S:
        return seconds
    raise InputError(f"{where}: {name} {text[:SHOWN]!r}: a date and time such as 2023-11-16 18:15:46.680, or seconds")


def _recorded(reader: Reader, name: str) -> Recorded:
    """The sums of a source, read once through. Raises InputError where it is no trace."""
    bins, width = np.zeros((MAX_BINS, len(SUMS))), BIN_S
    marks: list[tuple[float, int, int]] = []
    first = last = 0.0
    longest = [0.0, 0.0]
    count = 0
    for chunk in reader(0, 1):
        if not len(chunk.seconds):
            continue
        if not marks:
            first = float(chunk.seconds[0])
        elif chunk.seconds[0] < last:
            raise InputError(
                f"{name} line {chunk.line} and below: requests arrive before the one above: sort the requests by their time"
            )
        marks.append((float(chunk.seconds[0]), chunk.offset, chunk.line))
        last, after, count = float(chunk.seconds[-1]), chunk.seconds - first, count + len(chunk.seconds)
        if not last - first <= MAX_SECONDS:
            raise InputError(f"{name} holds no usable span of time: {last - first:.3g} s, more than {MAX_SECONDS:g}")
        while after[-1] >= width * MAX_BINS:
            bins[: MAX_BINS // 2] = bins.reshape(MAX_BINS // 2, 2, len(SUMS)).sum(axis=1)
            bins[MAX_BINS // 2 :] = 0.0
            width *= 2.0
        inputs, outputs = chunk.inputs, chunk.outputs
        place = np.floor(after / width).astype(np.int64)
        low = int(place[0])
        figures = (None, inputs, outputs, inputs**2, (inputs + outputs / 2.0) * outputs)
        for i, weights in enumerate(figures):
            found = np.bincount(place - low, weights)
            bins[low : low + len(found), i] += found
        longest = [max(longest[0], float(inputs.max())), max(longest[1], float((inputs + outputs).max()))]
    if count < 2 or not last - first >= 1e-6:
        what = f"{count:,} request{'s' * (count != 1)}" if count < 2 else "no usable span of time"
        raise InputError(
            f"{name} holds {what}; a trace needs at least 2 requests, the last some time after the first "
            f"(for requests that all wait, use {option('isl')} and {option('osl')})"
        )
    used = int((last - first) // width) + 1
    return Recorded(
        name=name,
        reader=reader,
        marks=marks,
        bins=bins[:used].copy(),
        width=width,
        first_s=first,
        seconds=last - first,
        longest_input=longest[0],
        longest_tokens=longest[1],
    )
