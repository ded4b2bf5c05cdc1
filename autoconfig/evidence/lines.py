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

    def origin(self, number: int, line: str) -> Origin:
        return Origin(file=self.name, line=number, text=line.strip()[:MOST_TEXT])


def read_lines(name: str, chunks: Iterable[bytes]) -> Read:
    """The records of a log. Raises WorkError where it takes more than the budget in force."""
    found = scan(chunks)
    read = Read(name)
    failed = 0
    for number, formats, raw in found.in_order():
        line = raw.decode("utf-8", "replace")
        row = next((row for row in formats if _read_line(read, row, number, line)), None)
        if row is None:
            failed += 1
        else:
            read.formats[row.name] += 1
    _read_blocks(read, found)
    read.lines = found.candidates - failed + found.in_blocks
    read.not_understood = found.count - read.lines
    read.left_out = found.left_out
    _keep_one_bar(read)
    _count_starts(read, [block.number for block in found.blocks_of("dump")])
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
    done = False
    for match, end in zip(matches, ends, strict=True):
        rest = line[match.end() : end]
        if row.record in _BY_TEXT or (row.record == "timers" and row.pairs):
            done |= bool(build(read, row, {"match": match, "rest": rest}, {}, number, line))
            continue
        found, others, known = fields_of(row, match, rest)
        if row.needs and not known:
            continue
        done |= bool(build(read, row, found, others, number, line))
    return done


def rank_of(line: str) -> int | None:
    """The rank that a launcher or logger wrote in front of a line."""
    head = line[:120]
    return next((int(match[1]) for pattern in grammar().ranks if (match := pattern.search(head))), None)


def _step(read: Read, row: Format, found: dict[str, Any], others: dict[str, float], number: int, line: str) -> bool:
    per_second = found.pop("per_second", None)
    if per_second:
        found["seconds"] = 1.0 / per_second
    if (mean := found.pop("mean_samples_per_s", None)) is not None:
        others["RunningAvgSamplesPerSec"] = mean
    if not 0 < found.get("seconds", 1.0) < LONGEST_STEP_S:
        return False
    if not found.keys() & _MEASURES:
        return False
    read.step = found.get("step", read.step)
    found.setdefault("rank", rank_of(line))
    read.add("steps", StepLine(origin=read.origin(number, line), format=row.name, fields=others, **found))
    return True


LONGEST_STEP_S = 1e6
"""Eleven days: what is printed as longer is no time of a step."""
_MEASURES = frozenset(
    ("seconds", "elapsed", "tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "tflops_per_gpu", "mfu", "memory_gib", "at")
)
"""A line of a step that holds none of these measures nothing."""


def _timers(read: Read, row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    origin = read.origin(number, line)
    if row.pairs:
        values = ((key, number_of(text)) for key, text in pairs_of(row.pairs, found["rest"]))
        records = [
            timers.timer(key, value * 1e-3, value * 1e-3, origin, read.step, leveled=False)
            for key, value in values
            if value is not None
        ]
    else:
        low, high = (found.get(key, found.get("only")) for key in ("seconds_min", "seconds_max"))
        records = [] if low is None or high is None else [timers.timer(found["name"], low, high, origin, read.step)]
    read.add("timers", *records)
    return bool(records)


def _memory(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    found.setdefault("rank", rank_of(line))
    found.setdefault("step", read.step)
    read.add("memory", MemoryLine(origin=read.origin(number, line), **found))
    return True


HOST_OF_LINE = re.compile(r"(?<![\w.:-])([A-Za-z][\w.-]{0,100}):\d{1,9}:\d{1,9} \[\d{1,3}\] NCCL ")
"""Of a line of NCCL's log: host:process:thread [GPU]."""


def _link(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    found["value"] = found.get("value", "").strip(" .")
    once = (found["kind"], found["value"])
    if found["kind"] == "bandwidth" or once not in read.seen:
        read.seen.add(once)
        read.add("links", LinkFact(origin=read.origin(number, line), rank=rank_of(line), **found))
    host = HOST_OF_LINE.search(line)
    if host is not None and (whose := ("host", host[1])) not in read.seen:
        read.seen.add(whose)
        read.add("hosts", LogHost(origin=read.origin(number, line), name=host[1]))
    return True


def _variable(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    once = (found["name"], found.setdefault("value", "").rstrip("."))
    if once not in read.seen:
        read.seen.add(once)
        read.add("variables", Variable(origin=read.origin(number, line), name=once[0], value=once[1]))
    return True


def _between(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    read.add("interludes", Interlude(origin=read.origin(number, line), **found))
    return True


def _vocabulary(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], _number: int, _line: str) -> bool:
    read.vocabulary = int(found["value"])
    return True


def _training(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    """Note what is trained; the line itself is left to the formats behind, as it may measure something."""
    once = ("training", found["kind"])
    if once not in read.seen and found.get("share", 0.0) < MOST_ADAPTERS:
        read.seen.add(once)
        read.add("trainings", TrainingSign(origin=read.origin(number, line), kind=found["kind"]))
    return False


MOST_ADAPTERS = 50.0
"""Percent of the parameters that adapters are at most."""


def _start(read: Read, _row: Format, _found: dict[str, Any], _others: dict[str, float], number: int, _line: str) -> bool:
    read.starts.append(number)
    return True


def _warned(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    same = next((one for one in read.records.get("warnings", []) if one.kind == found["kind"]), None)
    if same is None:
        read.add("warnings", Warned(origin=read.origin(number, line), **({"count": 1} | found)))
        return True
    count = max(found.get("count", 0), (same.count or 0) + ("count" not in found))
    if count > (same.count or 0):
        warnings = read.records["warnings"]
        warnings[warnings.index(same)] = replace(same, count=count, origin=read.origin(number, line))
    return True


def _frame(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    read.add("stacks", StackSample(origin=read.origin(number, line), frames=(found["name"],), seconds=found["seconds"]))
    return True


def _clock(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    sample = side_logs.sample(found, read.origin(number, line))
    if sample is not None:
        read.add("clocks", sample)
    return sample is not None


def _slowest(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    extremes: dict[str, dict[str, tuple[float, int]]] = {}
    for which, name, value, rank in _EXTREME.findall(found["rest"]):
        if name in _STRAGGLER:
            extremes.setdefault(name, {})[which] = (float(value) * _STRAGGLER[name][1], int(rank))
    origin = read.origin(number, line)
    both = [
        SlowestRank(
            origin=origin,
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


def _phases(read: Read, row: Format, found: dict[str, Any], others: dict[str, float], number: int, line: str) -> bool:
    match, rest = found["match"], found["rest"]
    origin = read.origin(number, line)
    records = phases.of_line(rest, int(match["step"]), origin)
    read.add("phases", *records)
    step, others, _ = fields_of(row, match, rest)
    return _step(read, row, step, others, number, line) or bool(records)


def _engine(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    found["waiting"] = found.pop("pending", found.get("waiting"))
    found["preempted"] = found.pop("swapped", found.get("preempted"))
    read.add("engines", EngineLine(origin=read.origin(number, line), **found))
    return True


def _kernel(read: Read, _row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    name = found["name"]
    seconds, unit = found.get("seconds", found.get("old_seconds", 0.0)), found.get("unit", found.get("old_unit", "s"))
    part = "" if name.startswith(("aten::", "autograd::", "Optimizer.", "ProfilerStep", "nccl:")) else part_of(name)
    read.add(
        "kernels",
        KernelRow(
            origin=read.origin(number, line),
            name=name,
            seconds=seconds * _SECONDS[unit],
            share=found.get("share", found.get("old_share", 0.0)),
            calls=found["calls"],
            host_share=found.get("host_share", 0.0),
            host_total_share=found.get("host_total_share", 0.0),
            part=part,
        ),
    )
    return True


def _figure(read: Read, row: Format, found: dict[str, Any], _others: dict[str, float], number: int, line: str) -> bool:
    """A line that is one figure, by its name or, where it has none, by its unit."""
    key, text, unit = ((found.get(name) or "").strip() for name in ("key", "number", "unit"))
    if key in grammar().keys["clock_columns"]:
        sample = side_logs.from_columns({key: text}, read.origin(number, line))
        if sample is not None:
            read.add("clocks", sample)
        return sample is not None
    names = [key.lower()] + ([unit.lower()] if key.lower() in _UNNAMED else [])
    how = next((grammar().figures[name] for name in names if name in grammar().figures), None)
    if how is None or text == "Active":
        return False
    kind, *entry = how
    values = _in_base_units(entry, key, text, unit)
    return values is not None and _FIGURES[kind](read, row, values, {}, number, line)


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
_BUILD: dict[str, Callable[[Read, Format, dict[str, Any], dict[str, float], int, str], bool]] = {
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
    found = steps[:1]
    for before, line in pairwise(steps):
        at = bisect_right(numbers, before.origin.line or 0)
        again += at < len(numbers) and numbers[at] <= (line.origin.line or 0)
        found.append(replace(line, start=again))
    read.records["steps"] = found


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
    found: list[Any] = []
    for record in sorted(records, key=lambda one: one.origin.line or 0):
        last = found[-1] if found else None
        if last is not None and _is_figure(record) and _is_figure(last) and not _values(record).keys() & _values(last).keys():
            found[-1] = replace(last, **_values(record))
        else:
            found.append(record)
    return found


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
