"""Where a script says how many GPUs it starts, so that it can be asked, and written, for another number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoconfig.megatron.shell.launch import Program, commands_start
from autoconfig.megatron.shell.script import Script, read_script
from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError

MAX_PER_NODE = 16
"""GPUs of one node, of which a launcher starts the processes, at most."""
_PER_NODE = ("PER_NODE", "PERNODE", "NPROC", "LOCAL")
_NODES = ("NODE", "WORLD", "HOST")
_VALUE = r"[\"']?([1-9][0-9]{0,6})[\"']?"
_NAME = r"(?:^|(?<=[;\s]))([A-Za-z_]\w*)="
_ASSIGNED = re.compile(rf"{_NAME}{_VALUE}(?=[\s;&]|$)", re.MULTILINE)
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?[-=]([1-9][0-9]{0,6})\}")
_OPTION = re.compile(
    rf"(?<![\w-])(--nnodes|--num[-_]nodes|--nodes|--ntasks|--np|-np|-n|-N)(?:=|\s++){_VALUE}(?![\w.])", re.MULTILINE
)
_SBATCH = re.compile(r"^#SBATCH[ \t]+(--nodes|--ntasks|-N|-n)(?:=|[ \t]*)([1-9][0-9]{0,6})(?![\w:-])", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Resized:
    """A script that starts another number of GPUs than its own."""

    text: str
    script: Script
    changes: tuple[tuple[str, str, str], ...]
    """Variable or option, its value, and that of `text`."""


@dataclass(frozen=True, kw_only=True)
class _Count:
    """A number of the script that may be that of its nodes or processes."""

    name: str
    value: int
    start: int
    end: int

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Nodes first, processes of one node last."""
        name = self.name.upper()
        of_nodes = self.name.endswith("-N") or any(word in name for word in _NODES)
        return any(word in name for word in _PER_NODE), not of_nodes, self.start


def _numbers(text: str, variables: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[_Count]:
    """Variables that are assigned once, as `NAME=VALUE`, or have one default, as `${NAME:-VALUE}`; options of launchers and of
    Slurm."""
    spend(len(text) / 2)
    times = Counter(re.findall(_NAME, text, re.MULTILINE))
    for match in _ASSIGNED.finditer(text):
        if times[match[1]] == 1 and match[1] not in settings and variables.get(match[1]) == match[2]:
            yield _number(match)
    defaults = list(_DEFAULT.finditer(text))
    times = Counter(match[1] for match in defaults)
    yield from (_number(match) for match in defaults if times[match[1]] == 1 and match[1] not in settings)
    start = 0
    for line in text.splitlines(keepends=True):  # the first option of every line that is no comment
        option = None if line.lstrip().startswith("#") else _OPTION.search(text, start, start + len(line))
        start += len(line)
        if option is not None:
            yield _number(option)
    yield from _scheduled(text)


def _scheduled(text: str) -> list[_Count]:
    """Of the lines that Slurm reads."""
    return [_number(match, "#SBATCH ") for match in _SBATCH.finditer(text, 0, commands_start(text))]


def _number(match: re.Match[str], before: str = "") -> _Count:
    """Of an option or a default: its name and its value."""
    return _Count(name=before + match[1], value=int(match[2]), start=match.start(2), end=match.end(2))


def resized(text: str, script: Script, gpus: int, program: Program, settings: Mapping[str, str]) -> Resized | None:
    """The script with another number of nodes, else of processes, such that it starts `gpus`; None where it says none, or says
    it otherwise than by one number. Slurm's lines of nodes and of tasks follow."""
    had = script.num_gpus
    if had is None or had == gpus:
        return None
    slurm = _scheduled(text)
    for number in sorted(_numbers(text, script.variables, settings), key=lambda one: one.rank):
        one_node = number.rank[0]
        edits = {number.start: number} | ({} if one_node else {one.start: one for one in slurm})
        spend(len(edits) * (1 + len(text) / 1_000))
        if any(one.value * gpus % had for one in edits.values()) or (one_node and number.value * gpus > MAX_PER_NODE * had):
            continue
        changed = text
        for start in sorted(edits, reverse=True):
            changed = f"{changed[:start]}{edits[start].value * gpus // had}{changed[edits[start].end :]}"
        try:
            again = read_script(changed, program, settings)
        except InputError:
            continue
        if again.num_gpus == gpus:
            changed_numbers = [edits[start] for start in sorted(edits)]
            changes = tuple((one.name, str(one.value), str(one.value * gpus // had)) for one in changed_numbers)
            return Resized(text=changed, script=again, changes=changes)
    return None
