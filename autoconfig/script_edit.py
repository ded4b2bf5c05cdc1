"""`check --apply-to`: the improved script. Only the changed arguments are edited, in place; every other byte stays.

A value is replaced where its characters stand in the file: behind the argument, or in the assignment of the variable that it
comes from. What is to be written is read again first; where it does not give the wanted plan, nothing is written and the
changes are listed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from autoconfig.argument_list import Arguments, Given, split_arguments
from autoconfig.check import CheckAnswer, FlagChange, flag_changes, target_plan
from autoconfig.check_input import CheckInput, CheckRequest, read_check
from autoconfig.export.plan_json import plan_text
from autoconfig.files import write_atomically
from autoconfig.megatron_plan import CHUNKS_PER_RANK, FIRST, FOR_EMBEDDING, FOR_LOSS, LAST, LAYERS_PER_CHUNK, LAYOUT
from autoconfig.shell_values import Value, text_of
from specs.errors import FileError, InputError

SPELLINGS = {
    "--tensor-model-parallel-size": ("--model-parallel-size", "--tensor-parallel-size"),
    "--micro-batch-size": ("--batch-size",),
    "--expert-model-parallel-size": ("--moe-expert-parallel-size",),
}
"""Older names of an argument: the one that the file uses is edited."""
STAGES = (LAYERS_PER_CHUNK, CHUNKS_PER_RANK, LAYOUT, FIRST, LAST, FOR_EMBEDDING, FOR_LOSS)
RECOMPUTE = (
    "--checkpoint-activations",
    "--checkpoint-num-layers",
    "--activations-checkpoint-method",
    "--activations-checkpoint-num-layers",
    "--recompute-activations",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-modules",
)
ANCHORS = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--micro-batch-size",
    "--num-layers",
    "--hidden-size",
)
Edit = tuple[int, int, str]
"""Replace the characters from start to end."""


def apply_to(answer: CheckAnswer, request: CheckRequest, path: Path) -> None:
    """Write the improved file to `path`. Raises InputError where it cannot be edited, FileError where it cannot be written."""
    if path.is_dir() or not path.parent.is_dir():
        raise FileError(f"--apply-to {str(path)[:200]!r}: name a file in a folder that exists")
    text = improved_text(answer, request)
    mode = path.stat().st_mode & 0o777 if path.exists() else None

    def write(file: Path) -> None:
        file.write_bytes(text.encode("utf-8"))

    write_atomically(path, write)
    if mode is not None:
        path.chmod(mode)


def improved_text(answer: CheckAnswer, request: CheckRequest) -> str:
    """The file's text with the better plan in it. Raises InputError listing the changes where it cannot be edited."""
    source, plan = answer.source, target_plan(answer)
    setting = source.question.setting
    if source.kind == "plan":
        return plan_text(setting, plan, answer.better if answer.better and answer.better.plan == plan else None)
    changes = flag_changes(setting, source.plan, plan)
    text = _edited(source, changes)
    again = read_check(text, request)
    same = again.plan == plan and again.question.setting.workload == setting.workload
    if not same or again.question.setting.model != setting.model or again.question.setting.cluster != setting.cluster:
        raise _refusal(f"with the changes the file reads as {again.plan}, not as {plan}", changes)
    return text


def _refusal(reason: str, changes: Iterable[FlagChange]) -> InputError:
    lines = "; ".join(change_text(change) for change in changes)
    return InputError(f"--apply-to: the file cannot be edited: {reason}. Nothing was written; change by hand: {lines}")


def change_text(change: FlagChange) -> str:
    """`--flag old -> new`; added and removed flags say so."""
    old, new = " ".join(change.old or ()), " ".join(change.new or ())
    if change.new is None:
        return f"{change.flag}{' ' + old if old else ''} -> (remove)"
    if change.old is None:
        return f"(add) {change.flag}{' ' + new if new else ''}"
    return f"{change.flag} {old} -> {new}"


def _edited(source: CheckInput, changes: Sequence[FlagChange]) -> str:
    script = source.script
    assert script is not None
    arguments = split_arguments(script.words(), script.unread())
    editor = _Editor(script.argv, arguments, changes)
    return editor.text(source.text)


class _Editor:
    """Collects the edits of one file."""

    def __init__(self, argv: Sequence[Value], arguments: Arguments, changes: Sequence[FlagChange]) -> None:
        self.argv, self.given, self.changes = argv, arguments.given, changes
        self.edits: set[Edit] = set()
        self.added: list[str] = []

    def text(self, text: str) -> str:
        """The edited text."""
        wanted = {change.flag: change.new for change in self.changes}
        for change in self.changes:
            self._change(change)
        for family in (STAGES, RECOMPUTE):
            if any(flag in family for flag in wanted):
                for flag in family:
                    if wanted.get(flag) is None and flag in self.given:
                        self._remove(self.given[flag])
        if self.added:
            self._insert(text)
        edits = sorted(self.edits)
        for (_, end, _), (start, _, _) in itertools.pairwise(edits):
            if start < end:
                raise _refusal("two of the changed values stand in the same place", self.changes)
        for start, end, replacement in reversed(edits):
            text = text[:start] + replacement + text[end:]
        return text

    def _change(self, change: FlagChange) -> None:
        names = (change.flag, *SPELLINGS.get(change.flag, ()))
        found = next((self.given[name] for name in names if name in self.given), None)
        if change.new is None:
            if found is not None:
                self._remove(found)
        elif found is None:
            self.added.append(" ".join([change.flag, *change.new]))
        elif change.new:
            self._replace(found, " ".join(change.new))

    def _replace(self, found: Given, replacement: str) -> None:
        if not found.value_positions:
            raise _refusal(f"{found.name} has no value to replace", self.changes)
        start, end = self._span(found.value_positions[0], found.name, joined=found.value_positions[0] == found.position)
        self.edits.add((start, end, replacement))
        for position in found.value_positions[1:]:
            start, end = self._span(position, found.name)
            self.edits.add((start, end, ""))

    def _remove(self, found: Given) -> None:
        for position in {found.position, *found.value_positions}:
            start, end = self._span(position, found.name)
            self.edits.add((start, end, ""))

    def _insert(self, text: str) -> None:
        for anchor in ANCHORS:
            if anchor in self.given:
                start, end = self._span(self.given[anchor].position, anchor)
                if (start, end, "") not in self.edits and (start == 0 or text[start - 1] not in "\"'"):
                    self.edits.add((start, start, "".join(f"{words} " for words in self.added)))
                    return
        raise _refusal("there is no place to add arguments", self.changes)

    def _span(self, position: int, name: str, *, joined: bool = False) -> tuple[int, int]:
        """Where the characters of a word stand in the file; with `joined`, those behind `=`."""
        value = self.argv[position]
        origin = [place for piece in value if piece.text for place in (piece.origin or (None,))]
        if joined:
            origin = origin[text_of(value).index("=") + 1 :]
        places = [place for place in origin if place is not None]
        if not origin or len(places) != len(origin) or places != list(range(places[0], places[0] + len(places))):
            raise _refusal(f"{name} comes from something that is worked out ({text_of(value)[:40]})", self.changes)
        return places[0], places[-1] + 1
