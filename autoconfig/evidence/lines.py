"""The second pass over a log: records of the lines that a format of the table reads. One reader for all formats."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from autoconfig.evidence import dump, phases, side_logs, step_tables, timers, watchers
from autoconfig.evidence.grammar import WHOLE, Format, fields_of, grammar, pairs_of, read_field
from autoconfig.evidence.grammar import number as number_of
from autoconfig.evidence.kernels import part_of
from autoconfig.evidence.records import (
    MOST_TEXT,
    ClockSample,
    EngineLine,
    Interlude,
    KernelRow,
    LinkFact,
    LogHost,
    MemoryLine,
    Origin,
    SlowestRank,
    StackSample,
    StepLine,
    TrainingSign,
    Variable,
    Warned,
)
from autoconfig.evidence.scan import Passage, Scanned, scan

FIGURE = "figure"
BAR = "progress-bar"
_STRAGGLER = {
    "Rtt": ("step_seconds", 1e-3),
    "Pwr": ("power_watts", 1.0),
    "Tmp": ("temperature_c", 1.0),
    "Utl": ("utilization", 0.01),
    "Clk": ("sm_mhz", 1.0),
    "DRtt": ("batch_seconds", 1e-3),
    "Etpt": ("tflops", 1.0),
}
_EXTREME = re.compile(r"(Mn|Mx)([A-Za-z]{3,5})(?:/Rnk)?: {1,4}(-?[\d.]{1,15})(?:ms|W|C|%|MHz|TF)?/(\d{1,7})")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_UNITS = {"%": 0.01, "ms": 1e-3}


@dataclass
class Read:
    """The records of one log, by the field of Evidence that they go to, and how its lines were read."""

    name: str
    records: dict[str, list[Any]] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    not_understood: int = 0
    left_out: int = 0
    """Of the lines that a format may read: not looked at, as later ones of the same formats are enough."""
    step: int | None = None
    """Of the last line that named one."""
    starts: list[int] = field(default_factory=list)
    """Numbers of lines that the program prints at its start."""
    vocabulary: int | None = None
    """Entries of the tokenizer, where the log says them."""
    seen: set[tuple[str, str]] = field(default_factory=set)
    """Transports and variables that are listed already: each once."""

    def add(self, kind: str, *records: Any) -> None:
        self.records.setdefault(kind, []).extend(records)

    def is_new(self, kind: str, value: str) -> bool:
        """Whether a value is seen for the first time, which is noted."""
        new = (kind, value) not in self.seen
        self.seen.add((kind, value))
        return new


@dataclass(kw_only=True)
class _Line:
    """A line, or one of several matches in it, as a format reads it."""

    row: Format
    origin: Origin
    text: str
    match: re.Match[str]
    rest: str
    """Behind the match, up to the next."""
    values: dict[str, Any] = field(default_factory=dict)
    """By field of the record; empty of records that read the rest of the line themselves."""
    others: dict[str, float] = field(default_factory=dict)
    """Other figures in their own words."""

    @property
    def rank(self) -> int | None:
        return rank_of(self.text)


def read_lines(name: str, chunks: Iterable[bytes]) -> Read:
    """The records of a log. Raises WorkError where it takes more than the budget in force."""
    scanned = scan(chunks)
    read = Read(name)
    failed = 0
    for number, formats, raw in scanned.in_order():
        line = raw.decode("utf-8", "replace")
        row = next((row for row in formats if _read_line(read, row, number, line)), None)
        if row is None:
            failed += 1
        else:
            read.formats[row.name] += 1
    _read_blocks(read, scanned)
    read.lines = scanned.candidates - failed + scanned.in_blocks
    read.not_understood = scanned.count - read.lines
    read.left_out = scanned.left_out
    _keep_one_bar(read)
    _count_starts(read, [block.number for block in scanned.blocks_of("dump")])
    for kind in ("steps", "clocks"):
        if kind in read.records:
            read.records[kind] = _joined(read.records[kind])
    return read


def _read_line(read: Read, row: Format, number: int, line: str) -> bool:
    """Whether the format reads the line; its records are added. Two ranks may have printed into one line."""
    build = _BUILD.get(row.record)
    if build is None:  # a block begins with such a line, and this one was none
        return False
    matches = list(row.pattern.finditer(line)) if row.pairs else [m for m in [row.pattern.search(line)] if m]
    ends = [*(match.start() for match in matches[1:]), len(line)][: len(matches)]
    origin, done = Origin(file=read.name, line=number, text=line.strip()[:MOST_TEXT]), False
    for match, end in zip(matches, ends, strict=True):
        part = _Line(row=row, origin=origin, text=line, match=match, rest=line[match.end() : end])
        if row.record in _BY_TEXT or (row.record == "timers" and row.pairs):
            done |= build(read, part)
            continue
        part.values, part.others, pairs = fields_of(row, match, part.rest)
        if not row.needs or pairs:
            done |= build(read, part)
    return done


def rank_of(line: str) -> int | None:
    """The rank that a launcher or logger wrote in front of a line."""
    head = line[:120]
    return next((int(match[1]) for pattern in grammar().ranks if (match := pattern.search(head))), None)


def _step(read: Read, line: _Line) -> bool:
    values = line.values
    per_second = values.pop("per_second", None)
    if per_second:
        values["seconds"] = 1.0 / per_second
    if (mean := values.pop("mean_samples_per_s", None)) is not None:
        line.others["RunningAvgSamplesPerSec"] = mean
    if not 0 < values.get("seconds", 1.0) < LONGEST_STEP_S:
        return False
    if not values.keys() & _MEASURES:
        return False
    read.step = values.get("step", read.step)
    values.setdefault("rank", line.rank)
    read.add("steps", StepLine(origin=line.origin, format=line.row.name, fields=line.others, **values))
    return True


LONGEST_STEP_S = 1e6
"""Eleven days: what is printed as longer is no time of a step."""
_MEASURES = frozenset(
    ("seconds", "elapsed", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "tflops_per_gpu", "mfu", "memory_gib", "at")
)
"""A line of a step that holds none of these measures nothing."""


def _timers(read: Read, line: _Line) -> bool:
    if line.row.pairs:
        pairs = ((key, number_of(text)) for key, text in pairs_of(line.row.pairs, line.rest))
        records = [
            timers.timer(key, value * 1e-3, value * 1e-3, line.origin, read.step, leveled=False)
            for key, value in pairs
            if value is not None
        ]
    else:
        low, high = (line.values.get(key, line.values.get("only")) for key in ("seconds_min", "seconds_max"))
        records = [] if low is None or high is None else [timers.timer(line.values["name"], low, high, line.origin, read.step)]
    read.add("timers", *records)
    return bool(records)


def _memory(read: Read, line: _Line) -> bool:
    read.add("memory", MemoryLine(origin=line.origin, **{"rank": line.rank, "step": read.step, **line.values}))
    return True


HOST_OF_LINE = re.compile(r"(?<![\w.:-])([A-Za-z][\w.-]{0,100}):\d{1,9}:\d{1,9} \[\d{1,3}\] NCCL ")
"""Of a line of NCCL's log: host:process:thread [GPU]."""


def _link(read: Read, line: _Line) -> bool:
    kind, value = line.values["kind"], line.values.get("value", "").strip(" .")
    if read.is_new(kind, value) or kind == "bandwidth":
        read.add("links", LinkFact(origin=line.origin, rank=line.rank, **(line.values | {"value": value})))
    host = HOST_OF_LINE.search(line.text)
    if host is not None and read.is_new("host", host[1]):
        read.add("hosts", LogHost(origin=line.origin, name=host[1]))
    return True


def _variable(read: Read, line: _Line) -> bool:
    name, value = line.values["name"], line.values.get("value", "").rstrip(".")
    if read.is_new(name, value):
        read.add("variables", Variable(origin=line.origin, name=name, value=value))
    return True


def _between(read: Read, line: _Line) -> bool:
    read.add("interludes", Interlude(origin=line.origin, **line.values))
    return True


def _vocabulary(read: Read, line: _Line) -> bool:
    read.vocabulary = int(line.values["value"])
    return True


def _training(read: Read, line: _Line) -> bool:
    """Note what is trained; the line itself is left to the formats behind, as it may measure something."""
    if line.values.get("share", 0.0) < MOST_ADAPTERS and read.is_new("training", line.values["kind"]):
        read.add("trainings", TrainingSign(origin=line.origin, kind=line.values["kind"]))
    return False


MOST_ADAPTERS = 50.0
"""Percent of the parameters that adapters are at most."""


def _start(read: Read, line: _Line) -> bool:
    read.starts.append(line.origin.line or 0)
    return True


def _warned(read: Read, line: _Line) -> bool:
    same = next((one for one in read.records.get("warnings", []) if one.kind == line.values["kind"]), None)
    if same is None:
        read.add("warnings", Warned(origin=line.origin, **({"count": 1} | line.values)))
        return True
    count = max(line.values.get("count", 0), (same.count or 0) + ("count" not in line.values))
    if count > (same.count or 0):
        warnings = read.records["warnings"]
        warnings[warnings.index(same)] = replace(same, count=count, origin=line.origin)
    return True


def _frame(read: Read, line: _Line) -> bool:
    read.add("stacks", StackSample(origin=line.origin, frames=(line.values["name"],), seconds=line.values["seconds"]))
    return True


def _clock(read: Read, line: _Line) -> bool:
    return _add_sample(read, side_logs.sample(line.values, line.origin))


def _add_sample(read: Read, sample: ClockSample | None) -> bool:
    if sample is not None:
        read.add("clocks", sample)
    return sample is not None


def _slowest(read: Read, line: _Line) -> bool:
    extremes: dict[str, dict[str, tuple[float, int]]] = {}
    for which, name, value, rank in _EXTREME.findall(line.rest):
        if name in _STRAGGLER:
            extremes.setdefault(name, {})[which] = (float(value) * _STRAGGLER[name][1], int(rank))
    both = [
        SlowestRank(
            origin=line.origin,
            figure=_STRAGGLER[name][0],
            least=of["Mn"][0],
            least_rank=of["Mn"][1],
            most=of["Mx"][0],
            most_rank=of["Mx"][1],
        )
        for name, of in extremes.items()
        if len(of) == 2
    ]
    power = next((one for one in both if one.figure == "power_watts" and one.most > 20_000), None)
    if power is not None:  # torch.cuda.power_draw gives milliwatts, which Megatron prints as W
        both[both.index(power)] = replace(power, least=power.least * 1e-3, most=power.most * 1e-3)
    read.add("slowest", *both)
    return bool(both)


def _phases(read: Read, line: _Line) -> bool:
    records = phases.of_line(line.rest, int(line.match["step"]), line.origin)
    read.add("phases", *records)
    line.values, line.others, _ = fields_of(line.row, line.match, line.rest)
    return _step(read, line) or bool(records)


def _engine(read: Read, line: _Line) -> bool:
    values = line.values
    values["waiting"] = values.pop("pending", values.get("waiting"))
    values["preempted"] = values.pop("swapped", values.get("preempted"))
    read.add("engines", EngineLine(origin=line.origin, **values))
    return True


def _kernel(read: Read, line: _Line) -> bool:
    values, name = line.values, line.values["name"]
    seconds, unit = values.get("seconds", values.get("old_seconds", 0.0)), values.get("unit", values.get("old_unit", "s"))
    row = KernelRow(
        origin=line.origin,
        name=name,
        seconds=seconds * _SECONDS[unit],
        share=values.get("share", values.get("old_share", 0.0)),
        calls=values["calls"],
        host_share=values.get("host_share", 0.0),
        host_total_share=values.get("host_total_share", 0.0),
        part="" if name.startswith(("aten::", "autograd::", "Optimizer.", "ProfilerStep", "nccl:")) else part_of(name),
    )
    read.add("kernels", row)
    return True


def _figure(read: Read, line: _Line) -> bool:
    """A line that is one figure, by its name or, where it has none, by its unit."""
    key, text, unit = ((line.values.get(name) or "").strip() for name in ("key", "number", "unit"))
    if key in grammar().keys["clock_columns"]:
        return _add_sample(read, side_logs.from_columns({key: text}, line.origin))
    names = [key.lower()] + ([unit.lower()] if key.lower() in _UNNAMED else [])
    how = next((grammar().figures[name] for name in names if name in grammar().figures), None)
    if how is None or text == "Active":
        return False
    kind, *entry = how
    values = _in_base_units(entry, key, text, unit)
    return values is not None and _FIGURES[kind](read, replace(line, values=values, others={}))


def _in_base_units(entry: list[Any], key: str, text: str, unit: str) -> dict[str, Any] | None:
    """Return field -> value of a figure; None where a whole number is none."""
    several = len(entry) > 1
    factor = 1.0 if several and unit == "%" else _UNITS.get(unit, 1.0)
    values = {name: value * factor for name, value in read_field(entry if several else entry[0], key, text)}
    if not unit and values.get("mfu", 0.0) > 1.5:  # in percent, whatever the line says
        values["mfu"] *= 0.01
    if any(name in WHOLE and not value.is_integer() for name, value in values.items()):
        return None
    return {name: int(value) if name in WHOLE else value for name, value in values.items()}


_FIGURES = {"clock": _clock, "memory": _memory, "step": _step}


_UNNAMED = ("", "throughput", "speed")
"""Names of figures that their unit says more of."""
_BUILD: dict[str, Callable[[Read, _Line], bool]] = {
    "step": _step,
    "timers": _timers,
    "memory": _memory,
    "link": _link,
    "variable": _variable,
    "vocabulary": _vocabulary,
    "between": _between,
    "frame": _frame,
    "warning": _warned,
    "start": _start,
    "training": _training,
    "clock": _clock,
    "slowest": _slowest,
    "phases": _phases,
    "engine": _engine,
    "kernel": _kernel,
    FIGURE: _figure,
}
_BY_TEXT = frozenset(("slowest", "phases"))
"""Records that read the rest of the line themselves; timers do where their format has pairs."""


def _read_blocks(read: Read, found: Scanned) -> None:
    """Records of the blocks; the step of a timer is that of the last line before it."""
    at = sorted((line.origin.line or 0, line.step) for line in read.records.get("steps", []) if line.step is not None)
    for block in found.blocks_of("ranks"):
        step = next((step for number, step in reversed(at) if number < block.number), None)
        read.add("timers", *timers.of_ranks(block, step, read.name))
        read.formats[block.format.name] += 1
    for ordinal, block in enumerate(found.blocks_of("phase_block"), 1):
        step_line, records = phases.of_block(block, ordinal, read.name)
        read.add("steps", step_line)
        read.add("phases", *records)
        read.formats[block.format.name] += 1
    for kind, (field_name, reader) in _TABLES.items():
        for block in found.blocks_of(kind):
            records = reader(block, read.name)
            read.add(field_name, *records)
            read.formats[block.format.name] += 1
            if not records:  # a table of something else
                found.in_blocks -= 1 + len(block.rows)
                read.formats[block.format.name] -= 1
    if plan := dump.of_blocks(found.blocks_of("dump"), read.name, read.vocabulary):
        read.add("plans", plan)
        read.formats["megatron-arguments"] += 1


def _count_starts(read: Read, dumps: list[int]) -> None:
    """Say of each line of a step how often the program had begun again before it."""
    steps: list[StepLine] = sorted(read.records.get("steps", []), key=lambda one: one.origin.line or 0)
    numbers, again = sorted([*read.starts, *dumps]), 0
    if not numbers or not steps:
        return
    counted = steps[:1]
    for before, line in pairwise(steps):
        at = bisect_right(numbers, before.origin.line or 0)
        again += at < len(numbers) and numbers[at] <= (line.origin.line or 0)
        counted.append(replace(line, start=again))
    read.records["steps"] = counted


_TABLES: dict[str, tuple[str, Callable[[Passage, str], list[Any]]]] = {
    "csv": ("clocks", side_logs.samples),
    "columns": ("clocks", side_logs.samples),
    "step_table": ("steps", step_tables.steps),
    "scores": ("slowest", watchers.scores),
    "stack": ("stacks", watchers.stack),
}
"""Record that begins a block -> (field of Evidence, reader of the block); a block without records was something else."""


def _keep_one_bar(read: Read) -> None:
    """Of progress bars only that of the training, which runs longest: evaluation and the reading of shards have bars, too."""
    steps: list[StepLine] = read.records.get("steps", [])
    bars = [line for line in steps if line.format == BAR]
    if not bars:
        return
    total = max(bars, key=lambda line: (line.elapsed or 0.0, line.steps_total or 0)).steps_total
    others = [line for line in bars if line.steps_total != total]
    read.records["steps"] = [line for line in steps if line.format != BAR or line.steps_total == total]
    read.formats[BAR] -= len(others)
    read.lines -= len(others)
    read.not_understood += len(others)


def _joined(records: list[Any]) -> list[Any]:
    """Lines of one figure each that follow each other, as one record; others as they are."""
    joined: list[Any] = []
    for record in sorted(records, key=lambda one: one.origin.line or 0):
        last = joined[-1] if joined else None
        if last is not None and _is_figure(record) and _is_figure(last) and not _values(record).keys() & _values(last).keys():
            joined[-1] = replace(last, **_values(record))
        else:
            joined.append(record)
    return joined


def _is_figure(record: Any) -> bool:
    return getattr(record, "format", FIGURE) == FIGURE and len(record.origin.text) < MOST_TEXT


def _values(record: Any) -> dict[str, Any]:
    """What a record says but for where it stands."""
    return {
        f.name: value
        for f in fields(record)
        if f.name not in ("origin", "format", "running_mean", "start", "unread", "name")
        and (value := getattr(record, f.name)) not in (None, {}, frozenset())
    }
