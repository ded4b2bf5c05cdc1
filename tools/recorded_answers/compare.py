"""Compares two recordings: unified diffs, and a summary by question."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONG_LINE = 400
MOST_LINES = 200


@dataclass(frozen=True)
class Difference:
    """One recorded file that is not alike; None where a recording has no such file."""

    question: str
    file: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class Comparison:
    """Two recordings side by side."""

    same: list[str]
    only_old: list[str]
    only_new: list[str]
    differences: list[Difference]

    def different(self) -> list[str]:
        return sorted({one.question for one in self.differences})

    def alike(self) -> bool:
        return not (self.only_old or self.only_new or self.differences)


def _questions(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise ValueError(f"no recording: {folder}")
    return {path.name for path in folder.iterdir() if path.is_dir()}


def _texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_bytes().decode() for path in folder.rglob("*") if path.is_file()}


def compare(old: Path, new: Path) -> Comparison:
    """Compare two recordings file by file."""
    before, after = _questions(old), _questions(new)
    same: list[str] = []
    differences: list[Difference] = []
    for question in sorted(before & after):
        first, second = _texts(old / question), _texts(new / question)
        names = [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]
        differences += [Difference(question, name, first.get(name), second.get(name)) for name in names]
        same += [] if names else [question]
    return Comparison(same, sorted(before - after), sorted(after - before), differences)


def shown_lines(text: str) -> list[str]:
    """The lines of a text as a diff shows them: JSON laid out, long lines broken."""
    try:
        laid_out = json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
    except ValueError:
        laid_out = text
    lines = laid_out.splitlines(keepends=True)
    broken = (line if len(line) <= LONG_LINE else re.sub(r"([,>;{])(?=[^\n])", "\\1\n", line) for line in lines)
    return [piece for line in broken for piece in line.splitlines(keepends=True)]


def diff(difference: Difference) -> Iterator[str]:
    """A unified diff of one file, line by line."""
    name = f"{difference.question}/{difference.file}"
    old, new = difference.old, difference.new
    if old is None or new is None:
        only, where = (old, "old") if new is None else (new, "new")
        yield f"only in the {where} recording: {name} ({len(only or '')} characters)"
        return
    before, after = "".join(shown_lines(old)), "".join(shown_lines(new))
    if before == after:  # JSON that differs in its layout only
        before, after = old, new
    with tempfile.TemporaryDirectory() as folder:
        for side, text in (("old", before), ("new", after)):
            Path(folder, side).write_bytes(text.encode())
        labels = ("--label", f"old/{name}", "--label", f"new/{name}")
        done = subprocess.run(["diff", "-U3", *labels, "old", "new"], cwd=folder, capture_output=True, check=False)
    yield from done.stdout.decode().splitlines()


def report(comparison: Comparison) -> Iterator[str]:
    """Every difference, at most MOST_LINES of each file, and the summary."""
    for difference in comparison.differences:
        lines = list(diff(difference))
        yield from lines[:MOST_LINES]
        if len(lines) > MOST_LINES:
            yield f"... {len(lines) - MOST_LINES} more lines of this file"
    for question in comparison.different():
        files = [one.file for one in comparison.differences if one.question == question]
        yield f"different  {question}: {', '.join(files)}"
    yield from (f"only old   {question}" for question in comparison.only_old)
    yield from (f"only new   {question}" for question in comparison.only_new)
    yield f"{len(comparison.same)} alike, {len(comparison.different())} different, " + (
        f"{len(comparison.only_old)} only in the old, {len(comparison.only_new)} only in the new recording"
    )
