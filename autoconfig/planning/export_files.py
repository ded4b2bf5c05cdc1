"""Writes an export into a folder: all files or none, never over a file that is not ours or that was edited. Files of an export
before that this one has not go away with it, so that no script of another plan stands beside it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from autoconfig.specs.errors import FileError, option
from autoconfig.specs.files import write_text
from autoconfig.specs.scenario import Scenario


def quoted(value: str) -> str:
    """A word in single quotes, safe in any shell."""
    return "'" + value.replace("'", "'\\''") + "'"


def remark(text: str) -> str:
    """Text for a comment: one line, printable, so that no name can end the comment and start a command."""
    return "".join(c if c.isprintable() else " " for c in text)[:400]


def slug(text: str) -> str:
    """A name for jobs and folders: letters, digits, dot, dash."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.")[:60] or "model"


def priced_as(scenario: Scenario) -> str:
    """What a written file's header says of its prediction beside the settings in it; `priced_in` reads it back."""
    imbalance = scenario.numerics.moe_imbalance
    return f"priced as software {scenario.software.name}" + (f", expert imbalance {imbalance:g}" if imbalance else "")


def priced_in(text: str) -> tuple[str, float | None] | None:
    """The software and the imbalance of experts (None: real routing) in the header of a file of ours; None in other files."""
    head = text[:HEADER_CHARACTERS]
    words = r"^# .+, priced as software ([\w.-]{1,80}?)(?:, expert imbalance ([0-9.e+]{1,30}?))?\.?(?:;|$)"
    found = re.search(words, head, re.MULTILINE) if MARK in head else None
    return None if found is None else (found[1], float(found[2]) if found[2] else None)


MADE_BY = "megatron-autoconfig plan"
"""Stands in every JSON file of ours."""
MARK = "# Written by megatron-autoconfig"
HEADER_CHARACTERS = 4_000
UNWRITTEN = "# NOT WRITTEN, Megatron-LM has no argument for it: "
"""Before what of a model a script leaves out, so that the job that starts has not got it."""
"""Second line of every script of ours: such a file may be written again."""


MANIFEST = ".autoconfig.sha256"
"""What an export wrote, as `sha256sum` has it: a file that is not so any more has been edited."""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _manifest(folder: Path) -> dict[str, str]:
    """File name -> its line; empty where there is none."""
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {file: line for line in lines if (file := line.partition("  ")[2])}


def _edited(path: Path) -> bool:
    """A file of ours that was changed since, or that no manifest names, so that nobody knows."""
    line = _manifest(path.parent).get(path.name)
    return line is None or line.split()[0] != _digest(path.read_bytes())


@dataclass(frozen=True)
class WrittenExport:
    """What an export did to its folder."""

    files: tuple[Path, ...]
    replaced: str
    """What was there before under these names and is another now, or is gone, in a line; empty where nothing was."""


def write_export(folder: Path, texts: Mapping[str, str], *, force: bool = False) -> WrittenExport:
    """Write the texts into `folder` (made if missing). Raises FileError before anything is written."""
    check_folder(folder, texts, force=force)
    before = _left_over(folder, texts, force=force)
    changed = [file for file, text in texts.items() if _differs(folder / file, text)]
    replaced = [f"replaced {', '.join(changed)}"] if changed else []
    replaced += [f"removed {', '.join(path.name for path in before)}"] if before else []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"export folder {str(folder)[:200]} cannot be made: {error.strerror or error}") from error
    written = []
    for file, text in texts.items():
        path = folder / file
        write_text(path, text)
        if text.startswith("#!"):
            path.chmod(path.stat().st_mode | 0o111)
        written.append(path)
    for path in before:
        path.unlink(missing_ok=True)
    lines = {file: f"{_digest(text.encode())}  {file}" for file, text in texts.items()}
    kept = {file: line for file, line in _manifest(folder).items() if (folder / file).exists()}
    write_text(folder / MANIFEST, "\n".join({**kept, **lines}.values()) + "\n")
    return WrittenExport(tuple(written), f"of what was in {folder} before: {'; '.join(replaced)}" if replaced else "")


def _differs(path: Path, text: str) -> bool:
    """A file of this name is there and holds another text."""
    try:
        return path.read_bytes() != text.encode()
    except OSError:
        return False


def _left_over(folder: Path, texts: Mapping[str, str], *, force: bool) -> list[Path]:
    """Files of the export before that this one does not write. Raises FileError where one of them was edited; with `force` it
    stays."""
    before = [folder / file for file in _manifest(folder) if file not in texts and "/" not in file]
    others = [path for path in before if path.is_file()]
    edited = [path for path in others if _edited(path)]
    if edited and not force:
        raise FileError(
            f"{edited[0]} was edited since autoconfig wrote it, and belongs to another export than this one; name another "
            f"folder, or say {option('force')} to leave it there"
        )
    return [path for path in others if path not in edited]


def check_folder(folder: Path, files: Iterable[str], *, force: bool) -> None:
    """Raises FileError where the folder cannot be used or holds a foreign file of one of these names."""
    name = str(folder)[:200]
    if "\0" in name:
        raise FileError(f"export folder {name!r} holds a NUL character; name a folder without it")
    try:
        if folder.exists() and not folder.is_dir():
            raise FileError(f"export folder {name}: there is a file of this name; name a folder")
        for file in files:
            path = folder / file
            if path.is_dir():
                raise FileError(f"{path} is a folder; name another export folder")
            if force or not path.exists():
                continue
            ours, edited = _ours(path), _edited(path)
            if edited or not ours:
                known = path.name in _manifest(folder)
                changed = "was edited since autoconfig wrote it" if known else f"may have been edited: no {MANIFEST} names it"
                how = changed if ours else "was not written by autoconfig"
                raise FileError(f"{path} {how}; name another folder, or say {option('force')} to replace it")
    except OSError as error:
        raise FileError(f"export folder {name} cannot be used: {error.strerror or error}") from error


def _ours(path: Path) -> bool:
    """A file that an export wrote before."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(4096)
    except OSError:
        return False
    if path.suffix == ".json":
        return json.dumps(MADE_BY) in head
    return any(line.startswith(MARK) for line in head.splitlines()[:12])


_ONLY = re.compile(r"@([A-Z_]+)([?!])@")


def filled_template(name: str, **values: object) -> str:
    """Return a text of data/templates with a value in the place of each @NAME@. A line that begins with @NAME?@ is left out
    where the value is empty, one with @NAME!@ where it is not; in the place of a line @NAME@ stand all lines of a list."""
    text = (resources.files("autoconfig") / "data" / "templates" / name).read_text(encoding="utf-8")
    lines: list[str] = []
    for line in text.splitlines():
        while (only := _ONLY.match(line)) and bool(values[only[1]]) == (only[2] == "?"):
            line = line[only.end() :]
        whole = values.get(line.strip("@"))
        if only is None:
            lines += whole if isinstance(whole, list) else [re.sub("@([A-Z_]+)@", lambda match: str(values[match[1]]), line)]
    return "\n".join(lines) + "\n"
